"""Exercise 19.1: the frequencies of Llama 3.1."""

from contextlib import AbstractContextManager
from typing import Any

import numpy as np

from ... import ml
from ...model import Model, RopeScaling, rope
from ..chat import replaced
from ..exercise import Call, Case, Mistake, WriteIt

_NUMBERS = (8.0, 1.0, 4.0, 8192)


def _expected(head_dim: int, numbers: Any) -> Any:
    factor, low, high, length = numbers
    scaling = RopeScaling(factor, low, high, int(length))
    return rope.pair_frequencies(head_dim, 500000.0, scaling).numpy()


def _cases(model: Model) -> list[Case]:
    del model
    cases = []
    for head_dim, numbers in ((128, _NUMBERS), (64, (32.0, 1.0, 4.0, 8192))):
        plain = rope.pair_frequencies(head_dim, 500000.0).numpy().astype(np.float64)
        expected = _expected(head_dim, numbers)
        cases.append(Case("scaled", (plain, *numbers), expected, f"h = {head_dim}"))
    return cases


def _in_chat(call: Call) -> AbstractContextManager[None]:
    engine = rope.pair_frequencies

    def pair_frequencies(
        head_dim: int, theta: float, scaling: Any = None, length: int = 0
    ) -> ml.Tensor:
        expected = engine(head_dim, theta, scaling, length).numpy()
        plain = engine(head_dim, theta).numpy().astype(np.float64)
        numbers = (
            scaling.factor,
            scaling.low_freq_factor,
            scaling.high_freq_factor,
            scaling.original_context_length,
        )
        result = call((plain, *numbers), expected)
        return ml.Tensor.from_numpy(np.asarray(result, np.float32))

    return replaced(rope, "pair_frequencies", pair_frequencies)


EXERCISE = WriteIt(
    number="19.1",
    title="Slow the pairs down",
    minutes=20,
    difficulty="hard",
    function="scaled",
    bound=1e-6,
    task="""\
Llama 3.1 slows down the pairs that did not finish a turn in the original context. Write its rule.
The wavelength of a pair is `2 pi / frequency`, in positions.

- A pair whose wavelength is below `length / high` keeps its frequency.
- A pair whose wavelength is above `length / low` has its frequency divided by `factor`.
- Between the two, with `s = (length / wavelength - low) / (high - low)`, the frequency is
  `s * frequency + (1 - s) * frequency / factor`.

- `frequencies`: float64 `[h/2]`.
- `factor`, `low`, `high`, `length`: for Llama 3.1, 8, 1, 4 and 8192.

Return an array `[h/2]`. Each element may differ from the engine's by 0.000001 of the largest.
""",
    stub='''\
import numpy as np


def scaled(frequencies, factor, low, high, length):
    """Return the frequencies [h/2] of Llama 3.1."""
    raise NotImplementedError
''',
    solution='''\
import numpy as np


def scaled(frequencies, factor, low, high, length):
    """Return the frequencies [h/2] of Llama 3.1."""
    wavelengths = 2 * np.pi / frequencies
    s = (length / wavelengths - low) / (high - low)
    s = np.clip(s, 0, 1)  # 1 for short wavelengths, 0 for long ones
    return s * frequencies + (1 - s) * frequencies / factor
''',
    mistakes=(
        Mistake(
            "All frequencies are divided by the factor, as in linear scaling. Fast pairs keep "
            "theirs.",
            (("np.clip(s, 0, 1)", "np.clip(s, 0, 0)"),),
        ),
        Mistake(
            "The two ends are exchanged: fast pairs were slowed down and slow ones kept.",
            (
                ("return s *", "return (1 - s) *"),
                ("(1 - s) * frequencies / factor", "s * frequencies / factor"),
            ),
        ),
        Mistake(
            "The factor 2 pi is missing in the wavelength.",
            (("2 * np.pi / frequencies", "1 / frequencies"),),
        ),
        Mistake(
            "The pairs between the two limits are not interpolated.",
            (("np.clip(s, 0, 1)", "np.where(s >= 1, 1, 0)"),),
        ),
        Mistake(
            "s is not limited to 0 and 1, so that the formula is used for all pairs.",
            (("np.clip(s, 0, 1)", "s"),),
        ),
    ),
    cases=_cases,
    in_chat=_in_chat,
)
