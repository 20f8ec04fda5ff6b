"""Products of matrices."""

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from src import ml
from src.ml import kernels
from src.ml.ops import linear
from tests.ml.op_checks import FLOAT_DTYPES, check_op, check_same, sample, strided

EVERY_FLOAT = pytest.mark.parametrize("dtype", FLOAT_DTYPES, ids=str)


def check_linear(x, weight, dtype=None):
    return check_op(
        lambda a, w: ml.linear_transformation(a, w, dtype),
        lambda a, w: a @ w.T,
        x,
        weight,
        terms=x.shape[-1] + 1,
        absolute=lambda a, w: a @ w.T,
    )


def check_matmul(a, b, dtype=None):
    return check_op(
        lambda x, y: ml.matmul(x, y, dtype),
        np.matmul,
        a,
        b,
        terms=a.shape[-1] + 1,
        absolute=np.matmul,
    )


# ---- linear_transformation ----------------------------------------------------------------------


@EVERY_FLOAT
@pytest.mark.parametrize("shape", [(5,), (1, 5), (3, 5), (7, 5), (2, 3, 5), (2, 1, 3, 5)])
@pytest.mark.parametrize("features", [1, 4, 9])
def test_linear_maps_rows_through_a_weight(dtype, shape, features):
    result = check_linear(sample(shape, dtype), sample((features, 5), dtype, seed=1))
    assert result.dtype is dtype


@EVERY_FLOAT
@pytest.mark.parametrize("bias_dtype", FLOAT_DTYPES, ids=str)
def test_linear_adds_a_bias_before_it_rounds(dtype, bias_dtype):
    x, weight = sample((2, 3, 40), dtype), sample((6, 40), dtype, seed=1)
    bias = sample((6,), bias_dtype, seed=2)
    for target in (None, *FLOAT_DTYPES):
        wide = ml.linear_transformation(x, weight, ml.float32).numpy() + bias.to(ml.float32).numpy()
        result = ml.linear_transformation(x, weight, target, bias=bias)
        assert result.dtype is (target or dtype)
        check_same(result, ml.Tensor.from_numpy(wide).to(target or dtype).numpy())


@pytest.mark.parametrize(
    ("bias", "error", "text"),
    [
        (
            sample((3,)),
            ml.ShapeError,
            "bias.shape must equal weight.shape[:1]: [3] != [4] (weight [4, 5])",
        ),
        (sample((1, 4)), ml.ShapeError, "[1, 4] != [4] (weight [4, 5])"),
        (sample((4,), ml.int32), ml.DTypeError, "dtype must be a real"),
    ],
)
def test_linear_refuses_a_bias_that_does_not_fit(bias, error, text):
    with pytest.raises(error) as caught:
        ml.linear_transformation(sample((2, 5)), sample((4, 5)), bias=bias)
    assert text in str(caught.value)


@EVERY_FLOAT
@pytest.mark.parametrize("columns", [1, 15, 16, 17, 31, 32, 33, 64, 100, 257])
def test_linear_takes_any_number_of_columns(dtype, columns):
    check_linear(sample((3, columns), dtype), sample((6, columns), dtype, seed=1))


@pytest.mark.parametrize("source", FLOAT_DTYPES, ids=str)
@pytest.mark.parametrize("target", FLOAT_DTYPES, ids=str)
def test_linear_writes_the_dtype_that_is_asked_for(source, target):
    result = check_linear(sample((3, 40), source), sample((6, 40), source, seed=1), target)
    assert result.dtype is target


@pytest.mark.parametrize("target", [None, *FLOAT_DTYPES], ids=str)
def test_linear_takes_float16_weights_next_to_float32(target):
    result = check_linear(sample((3, 40)), sample((6, 40), ml.float16, seed=1), target)
    assert result.dtype is (target or ml.float32)


@EVERY_FLOAT
@pytest.mark.parametrize(
    ("shape", "weight"),
    [((0, 5), (4, 5)), ((3, 5), (0, 5)), ((3, 0), (4, 0)), ((0,), (4, 0)), ((2, 0, 5), (4, 5))],
)
def test_linear_of_nothing_is_empty_or_zero(dtype, shape, weight):
    result = ml.linear_transformation(sample(shape, dtype), sample(weight, dtype))
    assert result.shape == (*shape[:-1], weight[0])
    assert not result.numpy().any()


@EVERY_FLOAT
def test_linear_of_views(dtype):
    x, weight = strided((3, 8), dtype), strided((6, 8), dtype, seed=1)
    expected = ml.linear_transformation(x.contiguous(), weight.contiguous())
    check_same(ml.linear_transformation(x, weight), expected.numpy())


@EVERY_FLOAT
def test_linear_gives_one_row_the_same_bits_alone_and_among_others(dtype):
    x, weight = sample((23, 130), dtype), sample((19, 130), dtype, seed=1)
    together = ml.linear_transformation(x, weight)
    for t in range(23):
        alone = ml.linear_transformation(x[t : t + 1], weight)
        check_same(alone, together[t : t + 1].numpy())


def test_linear_reads_read_only_weights_where_they_lie():
    data = sample((6, 8)).numpy().tobytes()
    weight = ml.Tensor.from_buffer(data, ml.float32, (6, 8))
    check_linear(sample((2, 8)), weight)


@pytest.mark.parametrize(
    ("x", "weight", "dtype", "error", "text"),
    [
        (
            sample((7, 64)),
            sample((60, 128)),
            None,
            ml.ShapeError,
            "[linear_transformation] x.shape[-1] must equal weight.shape[1] of a weight "
            "[out, in]: 64 != 128 (x [7, 64], weight [60, 128])",
        ),
        (
            sample((7, 4)),
            sample((4,)),
            None,
            ml.ShapeError,
            "[linear_transformation] x.shape[-1] must equal weight.shape[1] of a weight "
            "[out, in]: 4 != 4 (x [7, 4], weight [4])",
        ),
        (
            sample(()),
            sample((4, 4)),
            None,
            ml.ShapeError,
            "[linear_transformation] ndim must be >= 1: 0 (shape [])",
        ),
        (
            sample((7, 4), ml.bfloat16),
            sample((4, 4)),
            None,
            ml.DTypeError,
            "[linear_transformation] x.dtype must equal weight.dtype, or hold all its values: "
            "bfloat16 != float32 (x [7, 4], weight [4, 4])",
        ),
        (
            sample((7, 4), ml.int32),
            sample((4, 4), ml.int32),
            None,
            ml.DTypeError,
            "[linear_transformation] dtype must be a real floating-point dtype: int32 "
            "(shape [7, 4])",
        ),
        (
            sample((7, 4)),
            sample((4, 4)),
            ml.int32,
            ml.DTypeError,
            "[linear_transformation] dtype= must be a real floating-point dtype: int32",
        ),
    ],
)
def test_linear_refuses_what_does_not_fit(x, weight, dtype, error, text):
    with pytest.raises(error) as caught:
        ml.linear_transformation(x, weight, dtype)
    assert str(caught.value) == text


# ---- linear_transformations ---------------------------------------------------------------------


@EVERY_FLOAT
@pytest.mark.parametrize("shape", [(1, 33), (3, 33), (2, 7, 33), (0, 33)])
@pytest.mark.parametrize("target", [None, *FLOAT_DTYPES], ids=str)
def test_several_weights_give_what_each_gives_alone(dtype, shape, target):
    x = sample(shape, dtype)
    weights = [sample((n, 33), dtype, seed=n) for n in (5, 1, 9)]
    biases = [None, sample((1,), dtype, seed=4), None]
    for added in (None, biases):
        results = ml.linear_transformations(x, weights, target, biases=added)
        assert isinstance(results, tuple)
        for result, weight, bias in zip(results, weights, added or (None,) * 3, strict=True):
            alone = ml.linear_transformation(x, weight, target, bias=bias)
            assert result.dtype is alone.dtype
            check_same(result, alone.numpy())


def test_several_weights_are_one_call_of_the_kernel(monkeypatch):
    calls = []

    class Watched:
        def __getattr__(self, name):
            calls.append(name)
            return getattr(kernels.lib, name)

    monkeypatch.setattr(linear, "lib", Watched())
    ml.linear_transformations(sample((3, 8)), [sample((4, 8)), sample((2, 8))])
    assert calls == ["product_scratch_bytes", "linear"]


@pytest.mark.parametrize(
    ("weights", "biases", "error", "text"),
    [
        ([], None, ml.ShapeError, "len(biases) must equal len(weights) >= 1: 0 != 0"),
        (
            [sample((4, 5))],
            [None, None],
            ml.ShapeError,
            "len(biases) must equal len(weights) >= 1: 2 != 1",
        ),
        (
            [sample((4, 5)), sample((4, 6))],
            None,
            ml.ShapeError,
            "x.shape[-1] must equal weight.shape[1] of a weight [out, in]: 5 != 6 "
            "(x [2, 5], weight [4, 6])",
        ),
        (
            [sample((4, 5)), sample((4, 5), ml.float16)],
            None,
            ml.DTypeError,
            "weights must have one dtype: float32 != float16 (x [2, 5], weight [4, 5])",
        ),
        (
            [sample((4, 5))],
            [sample((3,))],
            ml.ShapeError,
            "bias.shape must equal weight.shape[:1]: [3] != [4] (weight [4, 5])",
        ),
    ],
)
def test_several_weights_that_do_not_fit_are_refused(weights, biases, error, text):
    with pytest.raises(error) as caught:
        ml.linear_transformations(sample((2, 5)), weights, biases=biases)
    assert str(caught.value) == f"[linear_transformations] {text}"


# ---- matmul -------------------------------------------------------------------------------------

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


@EVERY_FLOAT
@pytest.mark.parametrize(("left", "right"), SHAPES)
def test_matmul_is_numpys(dtype, left, right):
    result = check_matmul(sample(left, dtype), sample(right, dtype, seed=1))
    assert result.dtype is dtype


@pytest.mark.parametrize("source", FLOAT_DTYPES, ids=str)
@pytest.mark.parametrize("target", FLOAT_DTYPES, ids=str)
def test_matmul_writes_the_dtype_that_is_asked_for(source, target):
    a, b = sample((2, 3, 40), source), sample((2, 40, 4), source, seed=1)
    assert check_matmul(a, b, target).dtype is target


@EVERY_FLOAT
@pytest.mark.parametrize(
    ("left", "right", "shape"),
    [
        ((0, 5), (5, 4), (0, 4)),
        ((3, 0), (0, 4), (3, 4)),
        ((3, 5), (5, 0), (3, 0)),
        ((0, 3, 5), (0, 5, 4), (0, 3, 4)),
        ((0, 3, 5), (5, 4), (0, 3, 4)),
        ((2, 0, 3, 5), (1, 5, 4), (2, 0, 3, 4)),
        ((0,), (0,), ()),
    ],
)
def test_matmul_of_nothing_is_empty_or_zero(dtype, left, right, shape):
    result = ml.matmul(sample(left, dtype), sample(right, dtype))
    assert result.shape == shape
    assert not result.numpy().any()


@EVERY_FLOAT
def test_matmul_gives_views_the_bits_of_their_elements(dtype):
    a, b = sample((4, 6, 33), dtype), sample((4, 5, 33), dtype, seed=1)
    expected = ml.matmul(a, b.transpose(1, 2).contiguous()).numpy()
    check_same(ml.matmul(a, b.transpose(1, 2)), expected)
    heads = a.transpose(0, 1).contiguous().transpose(0, 1)
    check_same(ml.matmul(heads, b.transpose(1, 2)), expected)
    reversed_rows = ml.Tensor.from_numpy(a.numpy()[:, ::-1])
    check_same(ml.matmul(reversed_rows, b.transpose(1, 2)), expected[:, ::-1])
    check_same(
        ml.matmul(strided((4, 6), dtype), strided((6, 5), dtype)),
        ml.matmul(strided((4, 6), dtype).contiguous(), strided((6, 5), dtype)).numpy(),
    )


def test_matmul_copies_nothing_that_is_contiguous_along_k(monkeypatch):
    T, S, H, h = 3, 7, 4, 32
    q = sample((T, H, h)).transpose(0, 1)
    keys = sample((S, H, h), seed=1).transpose(0, 1).transpose(1, 2)
    monkeypatch.setattr(ml.Tensor, "copy", lambda self: pytest.fail("a copy was made"))
    assert ml.matmul(q, keys).shape == (H, T, S)
    assert ml.matmul(q.reshape(2, 2, T, h), keys.reshape(2, 2, h, S)[:, :1]).shape == (2, 2, T, S)


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


@pytest.mark.parametrize(
    ("a", "b", "dtype", "error", "text"),
    [
        (
            sample((7, 64)),
            sample((128, 60)),
            None,
            ml.ShapeError,
            "[matmul] a.shape[-1] must equal b.shape[-2]: 64 != 128 (a [7, 64], b [128, 60])",
        ),
        (
            sample((4,)),
            sample((5,)),
            None,
            ml.ShapeError,
            "[matmul] a.shape[-1] must equal b.shape[-2]: 4 != 5 (a [4], b [5])",
        ),
        (
            sample((2, 3, 5)),
            sample((3, 5, 4)),
            None,
            ml.ShapeError,
            "[matmul] sizes must be equal or 1, aligned at the right: 2 != 3 (a [2], b [3])",
        ),
        (
            sample(()),
            sample((2, 2)),
            None,
            ml.ShapeError,
            "[matmul] ndim must be >= 1: 0 (shape [])",
        ),
        (
            sample((2, 2)),
            sample((2, 2), ml.bfloat16),
            None,
            ml.DTypeError,
            "[matmul] a.dtype must equal b.dtype: float32 != bfloat16 (a [2, 2], b [2, 2])",
        ),
        (
            sample((2, 2), ml.complex64),
            sample((2, 2), ml.complex64),
            None,
            ml.DTypeError,
            "[matmul] dtype must be a real floating-point dtype: complex64 (shape [2, 2])",
        ),
        (
            sample((2, 2)),
            sample((2, 2)),
            ml.uint8,
            ml.DTypeError,
            "[matmul] dtype= must be a real floating-point dtype: uint8",
        ),
    ],
)
def test_matmul_refuses_what_does_not_fit(a, b, dtype, error, text):
    with pytest.raises(error) as caught:
        ml.matmul(a, b, dtype)
    assert str(caught.value) == text


@pytest.mark.oracle
def test_linear_in_bfloat16_is_as_close_to_the_truth_as_pytorchs():
    torch = pytest.importorskip("torch", reason="needs the oracle extra")
    x, weight = sample((9, 512), ml.bfloat16), sample((64, 512), ml.bfloat16, seed=1)

    def theirs(t):
        return torch.from_numpy(t.bits().view(np.int16).copy()).view(torch.bfloat16)

    product = torch.nn.functional.linear(theirs(x), theirs(weight))
    other = product.view(torch.int16).numpy().view(ml_dtypes.bfloat16).astype(np.float64)
    truth = x.numpy().astype(np.float64) @ weight.numpy().astype(np.float64).T
    mine = ml.linear_transformation(x, weight).numpy().astype(np.float64)
    assert np.sqrt(((mine - truth) ** 2).mean()) <= np.sqrt(((other - truth) ** 2).mean()) * 1.01
