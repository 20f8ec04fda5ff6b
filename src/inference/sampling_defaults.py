"""Recommended sampling settings for models, which replace the engine's defaults."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from ..model import Source

# Settings for models whose files do not contain any, keyed by a part of the lower-case
# model name. Source: the model cards.
_BY_NAME: Mapping[str, Mapping[str, float]] = {
    "smollm2": {"temperature": 0.2, "top_p": 0.9}
}


@dataclass(frozen=True)
class SamplingDefaults:
    """A model's default settings, for use as `SamplingArgs(**settings)`.

    Attributes:
        settings: Values by argument name in `SamplingArgs`. An empty mapping selects the
            engine's defaults.
        by: A readable description of the settings' origin, or an empty string if there
            are no settings.
    """

    settings: Mapping[str, float] = field(default_factory=dict)
    by: str = ""

    def __str__(self) -> str:
        """Return a readable list of the settings with their origin, or ""."""
        if not self.settings:
            return ""
        values = ", ".join(f"{name} {value:g}" for name, value in self.settings.items())
        return f"{values} (by {self.by})"


def sampling_defaults(source: Source) -> SamplingDefaults:
    """Return a model's default settings, based on its files or else on its name."""
    if source.sampling:
        return SamplingDefaults(source.sampling, source.sampling_origin)
    titles = [title.lower() for title in source.titles]
    for part, settings in _BY_NAME.items():
        if any(part in title for title in titles):
            return SamplingDefaults(settings, "its name")
    return SamplingDefaults()
