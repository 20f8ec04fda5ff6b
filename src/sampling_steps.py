"""The steps of the sampling: one table of their names, values and texts.

The flags and their help, the fields of the server, the settings of a chat, the log, the
diagrams and the explorer read it. It imports no other module, because `--help` does not
load NumPy. The computation of each step is in `inference/sampling.py`.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Slider:
    """The range of a step's slider in the explorer, which has a twin of the step in
    JavaScript.
    """

    high: float
    step: float
    note: str = ""  # behind the name


@dataclass(frozen=True, kw_only=True)
class SamplingStep:
    """One step of the sampling.

    Attributes:
        name: The setting in `SamplingArgs`; with dashes, the flag.
        default: The value that the engine uses unless a model or a person chooses another
            one. Of the type of the setting: an integer for a whole number.
        off: The value, of the same type, with which the step changes nothing.
        low, high: The ends of the range; `high` may be infinite.
        is_low_excluded: Whether the value must be above `low`.
        help: What `--help` says, without the default.
        effect: What a diagram says.
        is_penalty: Whether the step changes logits of tokens that occurred, and so comes
            before the steps that do not.
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
        """Whether the setting is a whole number."""
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
        help="leave out below X times the likeliest",
        effect="drops what is far less probable than the first",
        slider=Slider(1, 0.01),
    ),
    SamplingStep(
        name="repeat_penalty",
        default=1.0,
        off=1.0,
        is_low_excluded=True,
        help="make what occurred less likely",
        effect="makes tokens that occurred less probable",
        is_penalty=True,
    ),
    SamplingStep(
        name="frequency_penalty",
        default=0.0,
        off=0.0,
        low=-2.0,
        high=2.0,
        help="less likely each time it was drawn",
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
        help="less likely once it was drawn",
        effect="lowers the tokens that were drawn",
        is_penalty=True,
        is_new=True,
    ),
)

# By name, in the order of the flags.
STEPS: Mapping[str, SamplingStep] = {step.name: step for step in _ROWS}
# In the order in which they change the logits or the probabilities of a token.
STEPS_IN_ORDER = (
    *(step for step in _ROWS if step.is_penalty),
    *(step for step in _ROWS if not step.is_penalty),
)


def is_worth_showing(name: str, value: object) -> bool:
    """Return whether a log or a diagram shows a setting: not an empty bias or a penalty
    of 0.
    """
    return bool(value) or (name in STEPS and not STEPS[name].is_penalty)
