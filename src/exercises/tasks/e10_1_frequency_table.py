"""Exercise 10.1: the table of rotations."""

from contextlib import AbstractContextManager
from typing import Any

import numpy as np

from ... import ml
from ...model import Model
from ...model import context as model_context
from ...model.args import ModelArgs
from ...model.rope import pair_frequencies, rotary_table
from ..chat import replaced
from ..exercise import Call, Case, Mistake, WriteIt


def _expected(frequencies: ml.Tensor, length: int) -> Any:
    angles = ml.outer(ml.arange(0, length, dtype=ml.float32), frequencies)
    return ml.polar(ml.full_like(angles, 1.0), angles).numpy()


def _cases(model: Model) -> list[Case]:
    del model
    few = pair_frequencies(8, 10000.0)
    many = pair_frequencies(128, 500000.0)
    return [
        Case("rotations", (few.numpy(), 3), _expected(few, 3), "a head of 8"),
        Case("rotations", (many.numpy(), 40), _expected(many, 40), "a head of Llama 3"),
    ]


def _in_chat(call: Call) -> AbstractContextManager[None]:
    def table_of(args: ModelArgs, length: int) -> ml.Tensor:
        frequencies = pair_frequencies(args.head_dim, args.rope_theta, args.rope_scaling)
        expected = rotary_table(args, length).numpy()
        table = call((frequencies.numpy(), length), expected)
        return ml.Tensor.from_numpy(np.asarray(table, np.complex64))

    return replaced(model_context, "rotary_table", table_of)


EXERCISE = WriteIt(
    number="10.1",
    title="Make the table of rotations",
    minutes=10,
    difficulty="easy",
    function="rotations",
    bound=1e-5,
    task="""\
Rotary embedding rotates pair `i` of a head at position `m` by the angle `m * frequency[i]`, in
radians. The engine computes the rotations of all positions once, as complex numbers:

`table[m, i] = e ** (1j * m * frequency[i])`, for `m` from 0 to `length - 1`

- `frequencies`: float32 `[h/2]`, radians per position.
- `length`: the number of positions.

Return complex64 `[length, h/2]`. Each element may differ from the engine's by 0.00001.
""",
    stub='''\
import numpy as np


def rotations(frequencies, length):
    """Return e^(i * angle) for each position and pair: complex64 [length, h/2]."""
    raise NotImplementedError
''',
    solution='''\
import numpy as np


def rotations(frequencies, length):
    """Return e^(i * angle) for each position and pair: complex64 [length, h/2]."""
    positions = np.arange(length, dtype=np.float32)
    angles = np.outer(positions, frequencies)  # [length, h/2]
    return np.exp(1j * angles).astype(np.complex64)
''',
    mistakes=(
        Mistake(
            "Off by one position: the first row belongs to position 0, and its angle is 0.",
            (("positions, frequencies", "positions + 1, frequencies"),),
        ),
        Mistake(
            "The table has the axes exchanged: rows are positions, columns are pairs.",
            (("np.outer(positions, frequencies)", "np.outer(frequencies, positions)"),),
        ),
        Mistake(
            "The rotation runs backwards: the angle in the exponent is positive.",
            (("1j * angles", "-1j * angles"),),
        ),
        Mistake(
            "The factor 1j is missing: a real exponent grows instead of rotating.",
            (("1j * angles", "angles"),),
        ),
        Mistake(
            "The factor 2 pi is too much: the frequencies are radians per position, not "
            "turns.",
            (("1j * angles", "2j * np.pi * angles"),),
        ),
    ),
    cases=_cases,
    in_chat=_in_chat,
)
