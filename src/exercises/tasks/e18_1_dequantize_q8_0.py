"""Exercise 18.1: dequantize q8_0."""

from contextlib import AbstractContextManager
from typing import Any

from ... import ml
from ...model import Model
from ..chat import replaced
from ..exercise import Call, Case, Mistake, WriteIt
from ..tensors import floats, random_floats, tensor_of

_BLOCK_BYTES = 34


def _blocks(x: Any) -> tuple[Any, Any]:
    """Return the blocks of the engine's quantized row, and its dequantized elements."""
    weight = ml.quantize(ml.tensor(x, "float32"), "q8_0")
    return weight.codes.numpy().reshape(-1, _BLOCK_BYTES), floats(weight.dequantize())


def _cases(model: Model) -> list[Case]:
    del model
    cases = []
    for count, size in ((1, 1.0), (3, 0.02)):
        blocks, expected = _blocks(random_floats(50 + count, 32 * count) * size)
        cases.append(Case("dequantize", (blocks,), expected, f"{count} blocks"))
    return cases


def _in_chat(call: Call) -> AbstractContextManager[None]:
    engine = ml.rms_norm

    def rms_norm(x: ml.Tensor, weight: ml.Tensor, eps: float, dtype: Any) -> ml.Tensor:
        """Quantize the weight of the norm, and use what the reader's function reads."""
        blocks, expected = _blocks(floats(weight))
        read = call((blocks,), expected)
        return engine(x, tensor_of(read, weight.dtype), eps, dtype)

    return replaced(ml, "rms_norm", rms_norm)


EXERCISE = WriteIt(
    number="18.1",
    title="Read a block of q8_0",
    minutes=15,
    difficulty="medium",
    function="dequantize",
    changes_model=True,
    task="""\
A block of q8_0 has 34 bytes: a float16 scale, and then 32 signed bytes, the codes. An element is
its code times the scale, computed in float32.

- `blocks`: uint8 `[n, 34]`.

Return float32 `[32 n]`, equal to the engine's bit for bit. In the chat, the weights of each norm
are quantized to q8_0, and the norm computes with the elements that your function returns.
""",
    stub='''\
import numpy as np


def dequantize(blocks):
    """Return the elements of blocks [n, 34]: float32 [32 n]."""
    raise NotImplementedError
''',
    solution='''\
import numpy as np


def dequantize(blocks):
    """Return the elements of blocks [n, 34]: float32 [32 n]."""
    scales = blocks[:, :2].copy().view(np.float16).astype(np.float32)  # [n, 1]
    codes = blocks[:, 2:].copy().view(np.int8).astype(np.float32)  # [n, 32]
    return (codes * scales).reshape(-1)
''',
    mistakes=(
        Mistake(
            "The codes are signed bytes: view them as int8.",
            (("view(np.int8)", "view(np.uint8)"),),
        ),
        Mistake(
            "The scale is missing.",
            (("codes * scales", "codes"),),
        ),
        Mistake(
            "The scale is at the beginning of a block, not at its end.",
            (("blocks[:, :2]", "blocks[:, 32:]"), ("blocks[:, 2:]", "blocks[:, :32]")),
        ),
        Mistake(
            "The two bytes of the scale are exchanged: the first one is the lower half.",
            (("np.float16", "'>f2'"),),
        ),
        Mistake(
            "The codes are divided by the scale. Multiply them.",
            (("codes * scales", "codes / scales"),),
        ),
        Mistake(
            "The product is computed in float16, which rounds it.",
            (
                ("view(np.float16).astype(np.float32)", "view(np.float16)"),
                ("astype(np.float32)  # [n, 32]", "astype(np.float16)"),
                ("(codes * scales)", "(codes * scales).astype(np.float32)"),
            ),
        ),
    ),
    cases=_cases,
    in_chat=_in_chat,
)
