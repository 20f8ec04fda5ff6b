"""Ops whose names are PyTorch's take its arguments, and give its shapes, dtypes and
values.
"""

import numpy as np
import pytest

from src import ml
from src.ml.ops.numpy_ops import (
    ROWS,
    compared,
    floats_in_float64,
    in_float64,
    in_own_dtype,
)
from tests.ml.op_checks import exact, sample

torch = pytest.importorskip("torch", reason="needs the oracle extra")
pytestmark = pytest.mark.oracle

DTYPES = (
    "float32",
    "bfloat16",
    "float16",
    "int64",
    "int32",
    "uint8",
    "bool",
    "complex64",
)
SHAPES = [(), (5,), (3, 4), (2, 1, 3), (0, 3), (3, 0)]


def theirs(x):
    """Make PyTorch's tensor of the same bits."""
    bits = torch.from_numpy(np.array(x.bits()).reshape(-1).view(np.uint8))
    return bits.view(getattr(torch, x.dtype.name)).reshape(x.shape)


def same(mine, other):
    """Whether a result has PyTorch's shape, dtype and, up to a rounding, values."""
    if isinstance(mine, tuple):
        assert len(mine) == len(other)
        for one, two in zip(mine, other, strict=True):
            same(one, two)
        return
    assert str(other.dtype) == f"torch.{mine.dtype}"
    assert tuple(other.shape) == mine.shape
    values = torch.tensor(mine.tolist(), dtype=other.dtype).reshape(other.shape)
    tolerance = {"bfloat16": 2.0**-7, "float16": 2.0**-10, "float32": 1e-6}
    rtol = tolerance.get(mine.dtype.name, 1e-6 if mine.dtype.kind == "complex" else 0)
    assert torch.allclose(values, other, rtol=rtol, atol=rtol / 4, equal_nan=True)


# The kinds of dtype that a rule accepts.
KINDS = {
    in_float64: "fi",
    floats_in_float64: "f",
    in_own_dtype: "fic",
    compared: "fibc",
}
# A name in `ml` and in `torch`, what follows the tensor, and the kinds of dtype that both
# take.
CALLS = [
    *[
        (row.name, (1,) if row.rule is compared else (), KINDS[row.rule])
        for row in ROWS.values()
    ],
    ("relu", (), "fi"),
    ("clip", (0, 2), "fi"),
    *[("sum", arguments, "fibc") for arguments in ((), (-1,), ((0, 1), True), (0, True))],
    *[("mean", arguments, "f") for arguments in ((), (-1,), ((0, 1), True))],
    *[("cumsum", (dim,), "fibc") for dim in (0, -1)],
    *[
        (name, arguments, "fib")
        for name in ("max", "min")
        for arguments in ((), (-1,), (0, True))
    ],
    *[("sort", arguments, "fib") for arguments in ((), (0,), (-1, True))],
    *[("topk", arguments, "fi") for arguments in ((1,), (2, 0), (1, -1, False))],
    *[("squeeze", arguments, "fibc") for arguments in ((), (1,), ((0, 1),))],
    *[("unsqueeze", (dim,), "fibc") for dim in (0, -1, 1)],
    *[("flatten", arguments, "fibc") for arguments in ((), (1,), (0, 1))],
    *[("permute", (dims,), "fibc") for dims in ((1, 0), (2, 0, -2), (0,))],
    *[("split", arguments, "fibc") for arguments in ((2,), (1, -1), ([1, 2], 0))],
    *[
        (name, arguments, "fibc")
        for name in ("tril", "triu")
        for arguments in ((), (1,), (-1,))
    ],
    ("log_softmax", (-1,), "f"),
    ("softmax", (0,), "f"),
]
# `torch.equal` returns whether all elements are equal.
TORCH_NAMES = {"equal": "eq"}

ORDERS = ("sort", "topk", "max", "min")
TAKE_NUMBERS = (
    "unsqueeze",
    "clip",
    *(row.name for row in ROWS.values() if row.rule is compared),
)


@pytest.mark.parametrize(("name", "arguments", "kinds"), CALLS)
def test_ops_are_pytorchs(name, arguments, kinds):
    compared = 0
    for dtype in DTYPES:
        row = getattr(ml, dtype)
        for shape in SHAPES if row.kind[0] in kinds else ():
            # PyTorch takes a number for a tensor of one dimension where a dimension is
            # named.
            if shape == () and name not in TAKE_NUMBERS and (arguments or name == "sort"):
                continue
            x = sample(shape, row)
            try:
                other = getattr(torch, TORCH_NAMES.get(name, name))(theirs(x), *arguments)
            except (RuntimeError, IndexError):
                continue  # PyTorch refuses the shape, or has not implemented the dtype
            mine = getattr(ml, name)(x, *arguments)
            if name in ORDERS and isinstance(mine, tuple) and row is not ml.float32:
                # Of equal elements PyTorch may choose any.
                assert str(other[1].dtype) == f"torch.{mine[1].dtype}"
                mine = mine[0]
                other = other[0]
            same(mine, other)
            compared += 1
    assert compared


def test_other_ops_are_pytorchs():
    x = sample((3, 4))
    weight = sample((4,), seed=1)
    bias = sample((4,), seed=2)
    a = theirs(x)
    w = theirs(weight)
    b = theirs(bias)
    functional = torch.nn.functional
    same(
        ml.layer_norm(x, (4,), weight, bias, 1e-3),
        functional.layer_norm(a, (4,), w, b, 1e-3),
    )
    for approximate in ("none", "tanh"):
        same(
            ml.gelu(x, approximate=approximate),
            functional.gelu(a, approximate=approximate),
        )
    index = ml.tensor([[0, 3], [1, 1]])
    same(ml.gather(x, 1, index), torch.gather(a, 1, theirs(index)))
    same(ml.where(x > 0, x, 0), torch.where(a > 0, a, 0))
    same(ml.where(x > 0, 1.0, 0), torch.where(a > 0, 1.0, 0))
    same(ml.stack([x, x], -1), torch.stack([a, a], -1))
    same(ml.expand(weight, 2, -1), a.new_tensor(weight.tolist()).expand(2, -1))
    same(ml.eye(3, 4), torch.eye(3, 4))
    for data in ([1, 2], [1, 2.5], [True], [1j], [[1], [2]], 3, []):
        same(ml.tensor(data), torch.tensor(data))
    for close in (1e-9, 1e-5, 1e-3):
        other = x + close
        assert ml.allclose(x, other) == torch.allclose(a, theirs(other))


def test_bfloat16_is_as_close_to_the_truth_as_in_pytorch():
    x = sample((9, 512), ml.bfloat16)
    weight = sample((64, 512), ml.bfloat16, seed=1)
    wide = exact(x)
    functional = torch.nn.functional
    powers = np.exp(wide - wide.max(-1, keepdims=True))
    root = np.sqrt((wide * wide).mean(-1, keepdims=True) + 1e-5)
    for mine, other, truth in (
        (
            ml.linear_transformation(x, weight),
            functional.linear(theirs(x), theirs(weight)),
            wide @ exact(weight).T,
        ),
        (
            ml.softmax(x),
            torch.softmax(theirs(x), -1),
            powers / powers.sum(-1, keepdims=True),
        ),
        (
            ml.rms_norm(x, ml.ones((512,), ml.bfloat16), 1e-5),
            functional.rms_norm(theirs(x), (512,), eps=1e-5),
            wide / root,
        ),
    ):
        errors = [
            np.sqrt(((y - truth) ** 2).mean())
            for y in (exact(mine), other.double().numpy())
        ]
        assert errors[0] <= errors[1] * 1.01
