"""Products of matrices."""

from functools import partial
from itertools import product

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from src import ml
from src.ml import kernels
from src.ml.ops import linear
from tests.csrc.operands import run_linear
from tests.csrc.quantized_operands import FORMATS
from tests.ml.op_checks import (
    EVERY_FLOAT,
    FLOAT_DTYPES,
    check_op,
    check_same,
    sample,
    strided,
)

TARGETS = (None, *FLOAT_DTYPES)


def check_product(op, reference, a, b, dtype=None):
    terms = a.shape[-1] + 1
    result = check_op(
        lambda a, b: op(a, b, dtype), reference, a, b, terms=terms, absolute=reference
    )
    assert result.dtype is (dtype or a.dtype)


check_matmul = partial(check_product, ml.matmul, np.matmul)
check_linear = partial(
    check_product, ml.linear_transformation, lambda x, weight: x @ weight.T
)


def test_matmul_widens_either_operand_if_the_dtype_of_the_result_is_chosen():
    a = sample((3, 40), ml.bfloat16)
    b = sample((40, 5), seed=1)
    expected = ml.matmul(a.to(ml.float32), b)
    check_same(ml.matmul(a, b, ml.float32), expected.numpy())
    check_same(ml.matmul(a, b, ml.bfloat16), expected.to(ml.bfloat16).numpy())


# ---- linear_transformation -------------------------------------------------------------


@EVERY_FLOAT
def test_linear_maps_rows_of_any_length_through_a_weight(dtype):
    for shape in ((5,), (1, 5), (3, 5), (7, 5), (2, 3, 5), (2, 1, 3, 5)):
        for features in (1, 4, 9):
            check_linear(sample(shape, dtype), sample((features, 5), dtype, seed=1))
    for columns in (1, 15, 16, 17, 31, 32, 33, 64, 100, 257):
        check_linear(sample((3, columns), dtype), sample((6, columns), dtype, seed=1))
    for target in FLOAT_DTYPES:
        check_linear(sample((3, 40), dtype), sample((6, 40), dtype, seed=1), target)
        check_linear(sample((3, 40)), sample((6, 40), ml.float16, seed=1), target)


@EVERY_FLOAT
@pytest.mark.parametrize("bias_dtype", FLOAT_DTYPES, ids=str)
def test_linear_adds_a_bias_before_it_rounds(dtype, bias_dtype):
    x = sample((2, 3, 40), dtype)
    weight = sample((6, 40), dtype, seed=1)
    bias = sample((6,), bias_dtype, seed=2)
    for target in TARGETS:
        wide = (
            ml.linear_transformation(x, weight, ml.float32).numpy()
            + bias.to(ml.float32).numpy()
        )
        result = ml.linear_transformation(x, weight, target, bias=bias)
        check_same(result, ml.Tensor.from_numpy(wide).to(target or dtype).numpy())


@EVERY_FLOAT
def test_linear_of_nothing_is_empty_or_zero(dtype):
    sizes = [((0, 5), (4, 5)), ((3, 5), (0, 5)), ((3, 0), (4, 0)), ((0,), (4, 0))]
    for shape, weight in [*sizes, ((2, 0, 5), (4, 5))]:
        result = ml.linear_transformation(sample(shape, dtype), sample(weight, dtype))
        check_same(result, np.zeros((*shape[:-1], weight[0]), dtype.numpy_dtype))


@EVERY_FLOAT
def test_linear_of_views_and_of_read_only_weights(dtype):
    x = strided((3, 8), dtype)
    weight = strided((6, 8), dtype, seed=1)
    expected = ml.linear_transformation(x.contiguous(), weight.contiguous())
    check_same(ml.linear_transformation(x, weight), expected.numpy())
    read_only = ml.Tensor.from_buffer(weight.numpy().tobytes(), dtype, (6, 8))
    check_same(ml.linear_transformation(x, read_only), expected.numpy())


@EVERY_FLOAT
@pytest.mark.parametrize("columns", [33, 64])
def test_several_weights_of_any_dtypes_give_what_each_gives_alone(dtype, columns):
    other = ml.bfloat16 if dtype is ml.bfloat16 else ml.float16
    plain = ((5, dtype), (1, dtype), (9, other))
    blocks = ((2, ml.nf4), (7, ml.int8_block))
    weights = [sample((n, columns), kind, seed=n) for n, kind in plain]
    weights += [ml.quantize(sample((n, columns)), kind) for n, kind in blocks]
    biases = [None, sample((1,), dtype, seed=4), None, sample((2,), seed=5), None]
    for shape, target in product(((1,), (3,), (2, 7), (0,)), TARGETS):
        x = sample((*shape, columns), dtype)
        for added in (None, biases):
            results = ml.linear_transformations(x, weights, target, biases=added)
            assert isinstance(results, tuple)
            for result, weight, bias in zip(
                results, weights, added or (None,) * 5, strict=True
            ):
                alone = ml.linear_transformation(x, weight, target, bias=bias)
                check_same(result, alone.numpy())


def test_several_weights_of_other_activations_give_what_each_gives_alone():
    x = sample((3, 64), ml.bfloat16)
    exact = ml.quantize(sample((5, 64)), "int8_block")
    weights = [exact, exact.with_activations("int8"), exact]
    results = ml.linear_transformations(x, weights)
    for weight, result in zip(weights, results, strict=True):
        check_same(result, ml.linear_transformation(x, weight).numpy())
    assert (results[0].numpy() != results[1].numpy()).any()


def test_several_weights_are_one_call_of_the_kernel(monkeypatch):
    calls = []

    class Watched:
        def __getattr__(self, name):
            calls.append(name)
            return getattr(kernels.lib, name)

    monkeypatch.setattr(linear, "lib", Watched())
    ml.linear_transformations(sample((3, 8)), [sample((4, 8)), sample((2, 8))])
    assert calls == ["product_scratch_bytes", "linear"]


# ---- block-quantized weights -----------------------------------------------------------


@pytest.mark.parametrize(("block_dtype", "double"), FORMATS)
@EVERY_FLOAT
def test_linear_with_a_quantized_weight_is_the_product_of_the_kernel(
    block_dtype, double, dtype
):
    weight = ml.quantize(sample((9, 64), seed=1), block_dtype, double)
    bias = sample((9,), seed=2)
    operand = ml.bfloat16 if dtype is ml.bfloat16 else ml.float32
    shapes = ((64,), (1, 64), (2, 3, 64), (0, 64))
    for x in (strided((5, 64), dtype), *(sample(shape, dtype) for shape in shapes)):
        rows = x.contiguous().to(operand).numpy().reshape(-1, 64)
        sums = run_linear(rows, weight).reshape(*x.shape[:-1], 9)
        for target in TARGETS:
            rounding = (target or dtype).numpy_dtype
            check_same(ml.linear_transformation(x, weight, target), sums.astype(rounding))
            result = ml.linear_transformation(x, weight, target, bias)
            check_same(result, (sums + bias.numpy()).astype(rounding))


# ---- matmul ----------------------------------------------------------------------------

SHAPES = [
    ((3, 5), (5, 4)),
    ((1, 1), (1, 1)),
    ((5,), (5,)),
    ((5,), (5, 4)),
    ((3, 5), (5,)),
    ((2, 3, 5), (2, 5, 4)),
    ((2, 3, 5), (5, 4)),
    ((3, 5), (2, 5, 4)),
    ((1, 3, 5), (2, 5, 4)),
    ((2, 1, 3, 5), (3, 5, 4)),
    ((2, 3, 3, 5), (2, 1, 5, 4)),
    ((2, 3, 5), (5,)),
    ((5,), (2, 5, 4)),
    ((2, 3, 40), (2, 40, 9)),
]
EMPTY = [
    ((0, 5), (5, 4)), ((3, 0), (0, 4)), ((3, 5), (5, 0)), ((0, 3, 5), (0, 5, 4)),
    ((0, 3, 5), (5, 4)), ((2, 0, 3, 5), (1, 5, 4)), ((0,), (0,)),
]  # fmt: skip


@EVERY_FLOAT
def test_matmul_is_numpys(dtype):
    for left, right in SHAPES:
        check_matmul(sample(left, dtype), sample(right, dtype, seed=1))
    for left, right in EMPTY:
        check_same(
            ml.matmul(sample(left, dtype), sample(right, dtype)),
            np.matmul(np.zeros(left), np.zeros(right)).astype(dtype.numpy_dtype),
        )
    for target in FLOAT_DTYPES:
        check_matmul(sample((2, 3, 40), dtype), sample((2, 40, 4), dtype, seed=1), target)


def test_matmul_widens_a_second_operand_whose_values_the_first_one_holds():
    a = sample((3, 40), ml.float32)
    for dtype in (ml.bfloat16, ml.float16):
        b = sample((40, 5), dtype, seed=1)
        check_same(ml.matmul(a, b), ml.matmul(a, b.to(ml.float32)).numpy())


@EVERY_FLOAT
def test_matmul_gives_views_the_bits_of_their_elements(dtype):
    a = sample((4, 6, 33), dtype)
    b = sample((4, 5, 33), dtype, seed=1)
    expected = ml.matmul(a, b.transpose(1, 2).contiguous()).numpy()
    check_same(ml.matmul(a, b.transpose(1, 2)), expected)
    heads = a.transpose(0, 1).contiguous().transpose(0, 1)
    check_same(ml.matmul(heads, b.transpose(1, 2)), expected)
    reversed_rows = ml.Tensor.from_numpy(a.numpy()[:, ::-1])
    check_same(ml.matmul(reversed_rows, b.transpose(1, 2)), expected[:, ::-1])
    left = strided((4, 6), dtype)
    right = strided((6, 5), dtype)
    check_same(ml.matmul(left, right), ml.matmul(left.contiguous(), right).numpy())


def test_matmul_copies_nothing_that_is_contiguous_along_k(monkeypatch):
    T = 3
    S = 7
    H = 4
    h = 32
    q = sample((T, H, h)).transpose(0, 1)
    keys = sample((S, H, h), seed=1).transpose(0, 1).transpose(1, 2)
    monkeypatch.setattr(ml.Tensor, "copy", lambda self: pytest.fail("a copy was made"))
    assert ml.matmul(q, keys).shape == (H, T, S)
    assert ml.matmul(q.reshape(2, 2, T, h), keys.reshape(2, 2, h, S)[:, :1]).shape == (
        2,
        2,
        T,
        S,
    )


@given(
    st.lists(st.integers(1, 3), max_size=3),
    st.integers(1, 4),
    st.integers(1, 40),
    st.integers(1, 4),
    st.integers(0, 7),
    st.integers(0, 7),
)
def test_matmul_broadcasts_leading_sizes(batch, m, k, n, drop_left, drop_right):
    left = tuple(1 if drop_left >> i & 1 else size for i, size in enumerate(batch))
    right = tuple(1 if drop_right >> i & 1 else size for i, size in enumerate(batch))
    check_matmul(sample((*left, m, k)), sample((*right[drop_right % 2 :], k, n), seed=1))
