"""Ops whose names are PyTorch's take its arguments, and give its shapes, dtypes and
values.
"""

import math

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
from tests.ml.op_checks import exact, sample, strided

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
    *[
        (name, arguments, "fb")  # PyTorch's result for uint8 is uint8
        for name in ("any", "all")
        for arguments in ((), (-1,), (0, True))
    ],
    *[("norm", arguments, "f") for arguments in ((), (2, -1), (1, 0), (math.inf, -1))],
    *[(name, arguments, "f") for name in ("std", "var") for arguments in ((), (-1,))],
    *[
        ("repeat_interleave", arguments, "fibc")
        for arguments in ((2,), (3, 0), (2, -1), (0, 0))
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
            except (RuntimeError, IndexError, UserWarning):
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


INDICES = {
    "rows by a tensor": lambda t: t.tensor([2, 0, 0, -1]),
    "rows by a list": lambda t: [1, -1],
    "no row": lambda t: [],
    "columns": lambda t: (slice(None), [1, 2]),
    "the last dimension": lambda t: (Ellipsis, t.tensor([[0], [1]])),
    "a new dimension": lambda t: None,
    "new dimensions": lambda t: (None, slice(0, 2), Ellipsis, None),
    "elements": lambda t: ([0, 1], [2, 3]),
    "elements that broadcast": lambda t: (t.tensor([[0], [1]]), t.tensor([2, 3])),
    "indices with a slice between them": lambda t: ([0, 1], slice(None), [2, 3]),
    "an integer and a list with a slice between them": lambda t: (0, slice(None), [2, 3]),
    "a list and an integer with a slice between them": lambda t: ([1, 2], slice(None), 3),
    "a list after a new dimension": lambda t: (None, [1, 2]),
    "a mask of rows": lambda t: t.tensor([True, False, True]),
    "a mask of columns": lambda t: (slice(None), t.tensor([True, False, True, False])),
    "a mask of two dimensions": lambda t: t.ones(3, 4, dtype=t.bool),
    "a mask and a list": lambda t: (t.tensor([True, False, True]), slice(None), [0, 1]),
    "a list of bools": lambda t: [True, False, True],
    "an integer of a tensor": lambda t: t.tensor(1),
    "an integer of a tensor in a tuple": lambda t: (slice(None), t.tensor(-1)),
}


@pytest.mark.parametrize("name", INDICES)
@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "int64", "bool", "complex64"])
def test_an_index_selects_the_elements_that_it_selects_in_pytorch(name, dtype):
    for x in (
        sample((3, 4, 5), getattr(ml, dtype)),
        strided((3, 4, 5), getattr(ml, dtype)),
    ):
        same(x[INDICES[name](ml)], theirs(x)[INDICES[name](torch)])


@pytest.mark.parametrize("name", INDICES)
def test_an_assignment_changes_the_elements_that_it_changes_in_pytorch(name):
    x = sample((3, 4, 5))
    other = theirs(x)
    key = INDICES[name](ml)
    x[key] = 7.0
    other[INDICES[name](torch)] = 7.0
    same(x, other)
    value = sample(x[key].shape[-1:], seed=1)
    x[key] = value
    other[INDICES[name](torch)] = theirs(value)
    same(x, other)


def test_a_list_of_lists_is_a_tensor_of_indices_as_pytorch_announces():
    x = sample((3, 4))
    same(x[[[0, 1], [1, 0]]], theirs(x)[torch.tensor([[0, 1], [1, 0]])])


def test_the_functions_that_a_pytorch_user_types_are_pytorchs():
    functional = torch.nn.functional
    x = sample((4, 6))
    a = theirs(x)
    same(ml.cat([x, x], dim=-1), torch.cat([a, a], dim=-1))
    same(ml.cat((x, x)), torch.cat((a, a)))
    same(ml.argsort(x, -1, True), torch.argsort(a, -1, True))
    same(x.masked_fill(x > 0, -math.inf), a.masked_fill(a > 0, -math.inf))
    same(x.masked_fill(x[0] > 0, 1), a.masked_fill(a[0] > 0, 1))
    same(
        ml.repeat_interleave(x, ml.tensor([0, 2, 1, 3]), 0),
        torch.repeat_interleave(a, torch.tensor([0, 2, 1, 3]), 0),
    )
    for steps in (0, 1, 2, 11):
        same(ml.linspace(-1, 3, steps), torch.linspace(-1, 3, steps))
    for reduction in ("mean", "sum", "none"):
        same(
            ml.cross_entropy(x, ml.tensor([0, 5, 2, 2]), reduction=reduction),
            functional.cross_entropy(a, torch.tensor([0, 5, 2, 2]), reduction=reduction),
        )
    same(
        ml.cross_entropy(x[0], ml.tensor(3)),
        functional.cross_entropy(a[0], torch.tensor(3)),
    )
    for correction in (0, 1, 2):
        same(x.std(0, correction=correction), a.std(0, correction=correction))
        same(x.var(correction=correction), a.var(correction=correction))
    same(ml.get_rows(x, ml.tensor([3, 0])), functional.embedding(torch.tensor([3, 0]), a))
    for name in ("float", "half", "bfloat16", "long", "bool"):
        same(getattr(x, name)(), getattr(a, name)())
    same((x * 9).int(), (a * 9).int())
    assert (x.dim(), x.size(), x.size(-1), x.numel()) == (2, a.size(), 6, a.numel())
    same(x.view(2, -1), a.view(2, -1))
    for one, two in ((x > 0, x > 1), (ml.tensor([6, 3]), ml.tensor([3, 5]))):
        p, q = theirs(one), theirs(two)
        for mine, other in ((one & two, p & q), (one | two, p | q), (one ^ two, p ^ q)):
            same(mine, other)
        same(~one, ~p)
    for value in (ml.tensor(0.123456), ml.tensor(7), ml.tensor(True)):
        assert f"{value:>8}" == f"{theirs(value):>8}"
    assert f"{ml.tensor(0.5):.3f}" == f"{torch.tensor(0.5):.3f}"
    assert [*range(ml.tensor([3]))] == [*range(torch.tensor([3]))]


def test_a_draw_has_the_probabilities_of_pytorchs():
    weights = ml.tensor([[1.0, 0.0, 3.0, 4.0], [5.0, 1.0, 1.0, 1.0]])
    for replacement in (True, False):
        mine = ml.multinomial(
            weights.repeat_interleave(20_000, 0), 2, replacement, ml.Generator(1)
        )
        torch.manual_seed(1)
        other = torch.multinomial(
            theirs(weights).repeat_interleave(20_000, 0), 2, replacement
        )
        assert (mine.shape, mine.dtype) == ((40_000, 2), ml.int64)
        for rows in (slice(0, 20_000), slice(20_000, 40_000)):
            for column in (0, 1):
                shares = np.bincount(mine.numpy()[rows, column], minlength=4) / 20_000
                expected = np.bincount(other.numpy()[rows, column], minlength=4) / 20_000
                assert np.abs(shares - expected).max() < 0.02
        assert replacement or (mine[:, 0] != mine[:, 1]).all()
    assert ml.multinomial(weights[0], 3).shape == (3,)
    seeds = [
        ml.multinomial(weights[0], 1, generator=ml.Generator(5)).item() for _ in "ab"
    ]
    assert seeds[0] == seeds[1]
