"""A table of the sampling steps, with their names, value ranges and descriptions.

The table is used by the command-line flags and their help, the server's request fields,
the chat settings, the log, the diagrams and the explorer. This module imports nothing
from the package, so that `--help` need not load NumPy. `inference/sampling.py` implements
the steps.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Slider:
    """The range of a slider in the explorer, whose page also implements the step."""

    high: float
    step: float
    note: str = ""  # text shown after the name


@dataclass(frozen=True, kw_only=True)
class SamplingStep:
    """One sampling step.

    Attributes:
        name: The name of the setting in `SamplingArgs`. The flag has the same name with
            dashes.
        default: The default, unless a model or a user specifies another value. Its type
            is the type of the setting, so it is an int for an integer setting.
        off: The value that disables the step, with the same type as `default`.
        low, high: The bounds of the value; `high` may be infinite.
        is_low_excluded: Whether the value must be greater than `low`.
        help: The help text, without the default.
        effect: The description shown in a diagram.
        is_penalty: Whether the step changes the logits of tokens that have occurred.
            Penalties precede all other steps.
        is_new: Whether chats saved by version 0.1.0 lack the setting.
        slider: The slider in the explorer, or None if only Python implements the step.
    """

    name: str
    default: Any
    off: Any
    low: float = 0.0
    high: float = math.inf
    is_low_excluded: bool = False
    help: str
    effect: str
    is_penalty: bool = False
    is_new: bool = False
    slider: Slider | None = None

    @property
    def is_whole(self) -> bool:
        """Whether the setting is an integer."""
        return isinstance(self.default, int)

    @property
    def flag(self) -> str:
        """The command-line flag."""
        return f"--{self.label}"

    @property
    def label(self) -> str:
        """The name with dashes instead of underscores, for display."""
        return self.name.replace("_", "-")

    @property
    def help_with_default(self) -> str:
        """The help text, including the default."""
        is_off = self.default == self.off != 0
        return f"{self.help} (default: {self.default:g}{', off' if is_off else ''})"


_ROWS = (
    SamplingStep(
        name="temperature",
        default=0.6,
        off=1.0,
        help="0: always the most likely token",
        effect="divides the logits: lower is sharper",
        slider=Slider(3, 0.01),
    ),
    SamplingStep(
        name="top_k",
        default=50,
        off=0,
        low=0,
        help="sample from the N most likely; 0: all",
        effect="keeps the k largest",
        slider=Slider(200, 1, " (0: all)"),
    ),
    SamplingStep(
        name="top_p",
        default=0.9,
        off=1.0,
        high=1.0,
        help="sample from the top X of probability",
        effect="keeps the most probable up to this sum",
        slider=Slider(1, 0.01),
    ),
    SamplingStep(
        name="min_p",
        default=0.0,
        off=0.0,
        high=1.0,
        help="drop tokens below X times the likeliest",
        effect="drops tokens far less probable than the first",
        slider=Slider(1, 0.01),
    ),
    SamplingStep(
        name="repeat_penalty",
        default=1.0,
        off=1.0,
        is_low_excluded=True,
        help="penalize tokens that occurred already",
        effect="makes tokens that occurred less probable",
        is_penalty=True,
    ),
    SamplingStep(
        name="frequency_penalty",
        default=0.0,
        off=0.0,
        low=-2.0,
        high=2.0,
        help="penalize tokens by count in the answer",
        effect="lowers a token for each time it was drawn",
        is_penalty=True,
        is_new=True,
    ),
    SamplingStep(
        name="presence_penalty",
        default=0.0,
        off=0.0,
        low=-2.0,
        high=2.0,
        help="penalize tokens that are in the answer",
        effect="lowers the tokens that were drawn",
        is_penalty=True,
        is_new=True,
    ),
)

# The steps by name, in the order in which the flags are listed.
STEPS: Mapping[str, SamplingStep] = {step.name: step for step in _ROWS}
# The steps in the order in which they are applied to the logits or probabilities.
STEPS_IN_ORDER = (
    *(step for step in _ROWS if step.is_penalty),
    *(step for step in _ROWS if not step.is_penalty),
)


def is_worth_showing(name: str, value: object) -> bool:
    """Return whether a setting should appear in logs and diagrams.

    An empty bias and a penalty of 0 are omitted.
    """
    return bool(value) or (name in STEPS and not STEPS[name].is_penalty)
