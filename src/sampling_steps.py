"""The steps of the sampling: one table of their names, values and texts.

The flags and their help, the fields of the server, the settings of a chat, the log, the
diagrams and the explorer use it. It imports no other module, because `--help` does not
load NumPy. `inference/sampling.py` computes each step.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Slider:
    """The range of a step's slider in the explorer, which also computes the step."""

    high: float
    step: float
    note: str = ""  # text after the name


@dataclass(frozen=True, kw_only=True)
class SamplingStep:
    """One step of the sampling.

    Attributes:
        name: The setting in `SamplingArgs`; with dashes, the flag.
        default: The value that the engine uses unless a model or a user chooses another
            one. It has the type of the setting: an int for an integer setting.
        off: The value, of the same type, with which the step changes nothing.
        low, high: The ends of the range; `high` may be infinite.
        is_low_excluded: Whether the value must be above `low`.
        help: The text of `--help`, without the default.
        effect: The text of a diagram.
        is_penalty: Whether the step changes logits of tokens that occurred, and so
            precedes the other steps.
        is_new: Whether the chats that version 0.1.0 saved lack the setting.
        slider: The slider in the explorer; None for a step that only Python computes.
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
        """The flag of the command line."""
        return f"--{self.label}"

    @property
    def label(self) -> str:
        """The name for people."""
        return self.name.replace("_", "-")

    @property
    def help_with_default(self) -> str:
        """The text of `--help`."""
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

# The steps by name, in the order of the flags.
STEPS: Mapping[str, SamplingStep] = {step.name: step for step in _ROWS}
# The steps in the order in which they change the logits or the probabilities of a token.
STEPS_IN_ORDER = (
    *(step for step in _ROWS if step.is_penalty),
    *(step for step in _ROWS if not step.is_penalty),
)


def is_worth_showing(name: str, value: object) -> bool:
    """Return whether a log or a diagram shows a setting.

    It does not show an empty bias or a penalty of 0.
    """
    return bool(value) or (name in STEPS and not STEPS[name].is_penalty)
