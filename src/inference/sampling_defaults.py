"""The sampling settings that a model is made for, which replace the defaults of this
engine.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field

from ..model import Source

# Settings of models whose files have none, by a part of their names in lower case.
# Source: the model cards.
_BY_NAME: Mapping[str, Mapping[str, float]] = {
    "smollm2": {"temperature": 0.2, "top_p": 0.9}
}


@dataclass(frozen=True)
class SamplingDefaults:
    """Default settings of a model, which `SamplingArgs(**settings)` takes.

    Attributes:
        settings: Values by their names in `SamplingArgs`; empty for those of the engine.
        by: The origin of the settings, for people; empty without settings.
    """

    settings: Mapping[str, float] = field(default_factory=dict)
    by: str = ""

    def __str__(self) -> str:
        """Return the settings and their origin for people; nothing without settings."""
        if not self.settings:
            return ""
        values = ", ".join(f"{name} {value:g}" for name, value in self.settings.items())
        return f"{values} (by {self.by})"


def sampling_defaults(source: Source) -> SamplingDefaults:
    """Return the default settings of a model: those of its files, or else those of its
    name.
    """
    if source.sampling:
        return SamplingDefaults(source.sampling, source.sampling_origin)
    titles = [title.lower() for title in source.titles]
    for part, settings in _BY_NAME.items():
        if any(part in title for title in titles):
            return SamplingDefaults(settings, "its name")
    return SamplingDefaults()
