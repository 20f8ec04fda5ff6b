"""What shapes an answer: sampling, its length and the texts that end it; changed by `/set`."""

import argparse
import dataclasses
from collections.abc import Callable
from dataclasses import dataclass

from ..inference import SamplingArgs
from .arguments import Options
from .errors import UsageError
from .flag_parser import OTHER_NAMES
from .values import integer, number, positive_integer

_SAMPLING_NAMES = tuple(field.name for field in dataclasses.fields(SamplingArgs))
_NONE = "none"
SETTING_NAMES = (*_SAMPLING_NAMES, "max_tokens", "stop")
_WIDTH = max(map(len, SETTING_NAMES))


@dataclass(frozen=True)
class Settings:
    """The settings of one answer.

    Attributes:
        sampling: how a token is chosen.
        max_tokens: most new tokens; None until the model stops or the context is full.
        stop: texts that end the answer.
    """

    sampling: SamplingArgs
    max_tokens: int | None = None
    stop: tuple[str, ...] = ()

    @classmethod
    def from_options(cls, options: Options) -> "Settings":
        """Take the settings from the command line; what it does not say has its default.

        Raises:
            SamplingError: a sampling setting is out of its range.
        """
        given = {name: getattr(options, name) for name in _SAMPLING_NAMES}
        sampling = SamplingArgs(**{name: v for name, v in given.items() if v is not None})
        return cls(sampling, options.max_tokens, options.stop)

    def changed(self, name: str, text: str) -> "Settings":
        """Return the settings with one of them read from text.

        Args:
            name: one of `SETTING_NAMES`, with hyphens or underscores.
            text: its value; "none" for a fresh seed, no limit of tokens or no stop text.

        Raises:
            UsageError: there is no such setting, or the text is not a value of it.
            SamplingError: the value is out of its range.
        """
        name = canonical(name)
        try:
            if name == "max_tokens":
                return dataclasses.replace(self, max_tokens=_optional(text, positive_integer))
            if name == "stop":
                return dataclasses.replace(self, stop=() if text == _NONE else (text,))
            if name in _SAMPLING_NAMES:
                return dataclasses.replace(self, sampling=self._changed_sampling(name, text))
        except argparse.ArgumentTypeError as error:
            raise UsageError(f"{name}: {error}") from None
        raise _no_setting(name)

    def line(self, name: str) -> str:
        """Return one setting as a line: its name and its value.

        Args:
            name: one of `SETTING_NAMES`, with hyphens or underscores.

        Raises:
            UsageError: there is no such setting.
        """
        name = canonical(name)
        if name not in SETTING_NAMES:
            raise _no_setting(name)
        value = getattr(self.sampling if name in _SAMPLING_NAMES else self, name)
        if name == "stop":
            value = " ".join(map(repr, value)) or None
        return f"{name:<{_WIDTH}} {_NONE if value is None else value}"

    def lines(self) -> list[str]:
        """Return a line for each setting."""
        return [self.line(name) for name in SETTING_NAMES]

    def _changed_sampling(self, name: str, text: str) -> SamplingArgs:
        if name == "seed":
            return dataclasses.replace(self.sampling, seed=_optional(text, integer))
        if name == "top_k":
            return dataclasses.replace(self.sampling, top_k=integer(text))
        return dataclasses.replace(self.sampling, **{name: number(text)})  # type: ignore[arg-type]


def canonical(name: str) -> str:
    """Return our name of a setting, which may be typed as a flag of ours or of other programs."""
    flag = f"--{name.replace('_', '-')}"
    return OTHER_NAMES.get(flag, flag)[2:].replace("-", "_")


def _no_setting(name: str) -> UsageError:
    return UsageError(f"no setting {name}: expected one of {', '.join(SETTING_NAMES)}")


def _optional(text: str, parse: Callable[[str], int]) -> int | None:
    return None if text == _NONE else parse(text)
