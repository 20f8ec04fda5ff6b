"""Exercise 6.1: round to bfloat16."""

from contextlib import AbstractContextManager
from typing import Any

import numpy as np

from ... import ml
from ...model import Model
from ..chat import replaced
from ..exercise import Call, Case, Mistake, WriteIt
from ..tensors import floats, random_floats, tensor_of


def _bits(x: Any) -> Any:
    return tensor_of(x, ml.bfloat16).bits().copy()


def _cases(model: Model) -> list[Case]:
    del model
    plain = np.array([1.0, -2.5, 3.14159265], np.float32)
    ties = np.array([1.00390625, 1.01171875, -1.00390625, 257.0, 259.0], np.float32)
    many = random_floats(9, 64)
    special = np.array([np.inf, -np.inf, 0.0, -0.0, 3.4e38], np.float32)
    nan = np.array([0x7F800001], np.uint32).view(np.float32)
    return [
        Case("to_bfloat16", (plain,), _bits(plain), "1, -2.5 and pi"),
        Case("to_bfloat16", (ties,), _bits(ties), "numbers halfway between two"),
        Case("to_bfloat16", (many,), _bits(many), "random numbers"),
        Case("to_bfloat16", (special,), _bits(special), "infinities, zeros, 3.4e38"),
        Case("to_bfloat16", (nan,), _bits(nan), "a NaN with its only bit at the end"),
    ]


def _in_chat(call: Call) -> AbstractContextManager[None]:
    engine = ml.rms_norm

    def rms_norm(x: ml.Tensor, weight: ml.Tensor, eps: float, dtype: Any) -> ml.Tensor:
        rounded = engine(x, weight, eps, dtype)
        wide = floats(engine(x, weight, eps, ml.float32))
        bits = np.ascontiguousarray(call((wide,), rounded.bits().copy()), np.uint16)
        return ml.Tensor.from_numpy(bits.view(ml.bfloat16.numpy_dtype))

    return replaced(ml, "rms_norm", rms_norm)


EXERCISE = WriteIt(
    number="6.1",
    title="Round to bfloat16",
    minutes=20,
    difficulty="hard",
    function="to_bfloat16",
    task="""\
A bfloat16 is the upper half of a float32. Round float32 numbers to the nearest bfloat16. A
number halfway between two goes to the one whose last bit is 0 (ties to even). A NaN stays a
NaN: keep its upper half and set the highest bit of the fraction, 0x0040.

- `x`: float32 `[n]`. `x.view(np.uint32)` has the same memory as whole numbers.

Return the upper halves, uint16 `[n]`. They must be equal to the engine's, bit for bit. In the
chat, your function rounds the result of each norm.
""",
    stub='''\
import numpy as np


def to_bfloat16(x):
    """Return the bits of x [n], rounded to bfloat16: uint16 [n]."""
    bits = x.view(np.uint32)
    raise NotImplementedError
''',
    solution='''\
import numpy as np


def to_bfloat16(x):
    """Return the bits of x [n], rounded to bfloat16: uint16 [n]."""
    bits = x.view(np.uint32)
    upper = bits >> 16
    half = 0x7FFF + (upper & 1)  # a tie goes up only if the last bit is 1
    rounded = (bits + half) >> 16
    quiet = upper | 0x0040
    return np.where(np.isnan(x), quiet, rounded).astype(np.uint16)
''',
    mistakes=(
        Mistake(
            "The lower half is cut off: this rounds towards zero, not to the nearest.",
            (("(bits + half) >> 16", "bits >> 16"),),
        ),
        Mistake(
            "A tie always goes up. It goes to the number whose last bit is 0: add 0x7FFF, and "
            "1 more only if the last bit of the upper half is 1.",
            (("0x7FFF + (upper & 1)", "0x8000"),),
        ),
        Mistake(
            "A tie always goes down. It goes to the number whose last bit is 0.",
            (("0x7FFF + (upper & 1)", "0x7FFF"),),
        ),
        Mistake(
            "A NaN became infinity: its only bit was in the lower half. Set 0x0040.",
            (("np.where(np.isnan(x), quiet, rounded)", "rounded"),),
        ),
        Mistake(
            "This is the lower half of each float32. The sign, the exponent and the first 7 "
            "bits of the fraction are in the upper half.",
            (("(bits + half) >> 16", "bits & 0xFFFF"),),
        ),
        Mistake(
            "This is a float16, which has 5 bits of exponent instead of 8.",
            (
                (
                    "np.where(np.isnan(x), quiet, rounded).astype(np.uint16)",
                    "x.astype(np.float16).view(np.uint16)",
                ),
            ),
        ),
    ),
    cases=_cases,
    in_chat=_in_chat,
)
