"""Exercise 8.1: the order of summation of the kernels."""

from contextlib import AbstractContextManager
from typing import Any

import numpy as np

from ... import ml
from ...model import Model
from ...model.llama import LlamaTransformer
from ..chat import replaced
from ..exercise import Call, Case, Mistake, WriteIt
from ..tensors import floats, random_floats, tensor_of


def _product(x: Any, w: Any) -> np.float32:
    """Return the engine's dot product of two vectors of bfloat16 numbers."""
    row = tensor_of(x, ml.bfloat16).reshape(1, len(x))
    weight = tensor_of(w, ml.bfloat16).reshape(1, len(w))
    product = floats(ml.linear_transformation(row, weight, ml.float32))
    return np.float32(product[0, 0])


def _cases(model: Model) -> list[Case]:
    del model
    cases = []
    for size in (64, 96, 128, 192, 256, 320, 544):
        scales = 2.0 ** np.round(random_floats(size + 2, size) * 2)
        x, w = (
            floats(tensor_of(random_floats(seed, size) * scales, ml.bfloat16))
            for seed in (size, size + 1)
        )
        expected = np.array(_product(x, w))
        cases.append(Case("dot", (x, w), expected, f"{size} elements"))
    return cases


def _in_chat(call: Call) -> AbstractContextManager[None]:
    engine = LlamaTransformer.logits

    def logits(transformer: LlamaTransformer, x: ml.Tensor) -> ml.Tensor:
        """Replace the largest logit of the last row with the reader's."""
        result = engine(transformer, x)
        values = result.numpy().copy()
        best = int(values[-1].argmax())
        row = floats(x)[-1]
        weight = floats(ml.get_rows(transformer.output, ml.tensor([best], "int32")))[0]
        values[-1, best] = call((row, weight), np.array(values[-1, best]))
        return ml.Tensor.from_numpy(values)

    return replaced(LlamaTransformer, "logits", logits)


EXERCISE = WriteIt(
    number="8.1",
    title="Sum in sixteen lanes",
    minutes=30,
    difficulty="hard",
    function="dot",
    task="""\
The kernels sum a product of two bfloat16 vectors in one fixed order, on every processor. Write a
dot product with the same bits:

1. 16 lanes start at 0. The vectors are read in blocks of 32 elements.
2. In each block, lane `l` first adds `x[2l + 1] * w[2l + 1]`, then `x[2l] * w[2l]`. Each
   multiply-add rounds its result once to float32.
3. At the end, the 16 lanes are added as a tree: lane `l` plus lane `l + 8`, then the 8 results
   `l` plus `l + 4`, then `+ 2`, then `+ 1`. Each addition rounds to float32.

- `x`, `w`: float32 `[n]` whose values are bfloat16 numbers. n is a multiple of 32.

Return the float32. A product of two bfloat16 numbers is exact in float32, so
`np.float32(lane + product)` rounds once. In the chat, your function computes the largest logit
of each pass.
""",
    stub='''\
import numpy as np


def dot(x, w):
    """Return the dot product of x and w [n], summed in the order of the kernels."""
    lanes = np.zeros(16, np.float32)
    raise NotImplementedError
''',
    solution='''\
import numpy as np


def dot(x, w):
    """Return the dot product of x and w [n], summed in the order of the kernels."""
    lanes = np.zeros(16, np.float32)
    for start in range(0, len(x), 32):
        product = x[start : start + 32] * w[start : start + 32]
        lanes = lanes + product[1::2]  # the odd elements of all lanes
        lanes = lanes + product[0::2]  # the even elements
    for width in (8, 4, 2, 1):
        lanes = lanes[:width] + lanes[width:]
    return lanes[0]
''',
    mistakes=(
        Mistake(
            "The order within a pair is wrong: the odd element is added first.",
            (
                (
                    "product[1::2]  # the odd elements of all lanes",
                    "product[0::2]  # first",
                ),
                ("product[0::2]  # the even elements", "product[1::2]"),
            ),
        ),
        Mistake(
            "Each pair of products is added to one number before the lane: a lane adds them one "
            "after the other.",
            (
                (
                    "        lanes = lanes + product[1::2]  # the odd elements of all lanes\n",
                    "",
                ),
                ("product[0::2]  # the even elements", "(product[0::2] + product[1::2])"),
            ),
        ),
        Mistake(
            "Lane l reads elements l and l + 16 of a block. It reads the neighbours 2l and "
            "2l + 1.",
            (("product[1::2]", "product[16:]"), ("product[0::2]", "product[:16]")),
        ),
        Mistake(
            "The lanes are added one after the other. They are added as a tree.",
            (
                (
                    "    for width in (8, 4, 2, 1):\n"
                    "        lanes = lanes[:width] + lanes[width:]\n"
                    "    return lanes[0]",
                    "    total = np.float32(0)\n"
                    "    for lane in lanes:\n"
                    "        total = np.float32(total + lane)\n"
                    "    return total",
                ),
            ),
        ),
        Mistake(
            "The tree adds neighbours. Its first step adds lane l and lane l + 8.",
            (("lanes[:width] + lanes[width:]", "lanes[0::2] + lanes[1::2]"),),
        ),
        Mistake(
            "This is summed exactly, in float64, and rounded once: better numbers, other bits.",
            (
                (
                    "    for start",
                    "    return np.float32(x.astype(np.float64) @ w.astype(np.float64))\n"
                    "    for start",
                ),
            ),
        ),
    ),
    cases=_cases,
    in_chat=_in_chat,
)
