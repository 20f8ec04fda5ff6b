"""The recommended sampling settings of a model, which replace the engine's defaults."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from ..model import Source

# Settings for models whose files have none, by a part of the model's name in lower case.
# Source: the model cards.
_BY_NAME: Mapping[str, Mapping[str, float]] = {
    "smollm2": {"temperature": 0.2, "top_p": 0.9}
}


@dataclass(frozen=True)
class SamplingDefaults:
    """Default settings of a model, for `SamplingArgs(**settings)`.

    Attributes:
        settings: Values by their names in `SamplingArgs`; empty for the engine's
            defaults.
        by: The origin of the settings, for people; empty without settings.
    """

    settings: Mapping[str, float] = field(default_factory=dict)
    by: str = ""

    def __str__(self) -> str:
        """Return the settings and their origin for people, or an empty text."""
        if not self.settings:
            return ""
        values = ", ".join(f"{name} {value:g}" for name, value in self.settings.items())
        return f"{values} (by {self.by})"


def sampling_defaults(source: Source) -> SamplingDefaults:
    """Return the default settings of a model, from its files or else by its name."""
    if source.sampling:
        return SamplingDefaults(source.sampling, source.sampling_origin)
    titles = [title.lower() for title in source.titles]
    for part, settings in _BY_NAME.items():
        if any(part in title for title in titles):
            return SamplingDefaults(settings, "its name")
    return SamplingDefaults()
