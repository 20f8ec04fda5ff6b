"""Ops on tensors of any shape, dtype and strides, held against NumPy in float64."""

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from src import ml
from tests.ml.op_checks import FLOAT_DTYPES, check_op, sample, strided

SIZES = st.integers(0, 4)
FEW = settings(max_examples=40)


@st.composite
def tensors(draw: st.DrawFn, least: int = 0, filled: bool = False) -> ml.Tensor:
    """Draw a float tensor of so many dimensions at least, as it lies or as a view with gaps."""
    sizes = st.integers(1, 40) if filled else SIZES
    shape = tuple(draw(st.lists(sizes, min_size=least, max_size=3)))
    make = draw(st.sampled_from([sample, strided])) if len(shape) > 1 else sample
    return make(shape, draw(st.sampled_from(FLOAT_DTYPES)), draw(st.integers(0, 3)))


@FEW
@given(
    tensors(), st.integers(0, 7), st.sampled_from([(ml.add, np.add), (ml.multiply, np.multiply)])
)
def test_pairs_of_elements_broadcast(x, dropped, ops):
    shape = tuple(1 if dropped >> i & 1 else size for i, size in enumerate(x.shape))
    check_op(ops[0], ops[1], x, sample(shape[dropped % 2 :], x.dtype, 9), terms=1)


@FEW
@given(tensors())
def test_silu_is_x_over_one_plus_the_exponential(x):
    check_op(ml.silu, lambda a: a / (1 + np.exp(-a)), x, terms=8)


@FEW
@given(tensors(least=1, filled=True), st.integers(-1, 0))
def test_softmax_of_a_dimension_sums_to_one(x, dim):
    def reference(a):
        e = np.exp(a - a.max(dim, keepdims=True))
        return e / e.sum(dim, keepdims=True)

    check_op(lambda t: ml.softmax(t, dim), reference, x, terms=16)


@FEW
@given(tensors(least=1, filled=True))
def test_rms_norm_divides_by_the_root_of_the_mean_square(x):
    weight = sample(x.shape[-1:], x.dtype, 5)

    def reference(a, w):
        return a / np.sqrt((a * a).mean(-1, keepdims=True) + 1e-5) * w

    ml_result = ml.rms_norm(x, weight, 1e-5)
    assert ml_result.shape == x.shape
    difference = ml_result.numpy().astype(np.float64) - reference(
        x.numpy().astype(np.float64), weight.numpy().astype(np.float64)
    )
    assert np.abs(difference).max(initial=0) <= 0.05


@FEW
@given(st.integers(0, 5), st.integers(1, 70), st.integers(1, 20), st.sampled_from(FLOAT_DTYPES))
def test_a_linear_transformation_is_the_product_with_the_transpose(rows, inner, outer, dtype):
    check_op(
        lambda x, w: ml.linear_transformation(x, w),
        lambda x, w: x @ w.T,
        sample((rows, inner), dtype),
        sample((outer, inner), dtype, 1),
        terms=inner + 2,
        absolute=lambda x, w: x @ w.T,
    )


@FEW
@given(st.data(), tensors(least=2, filled=True))
def test_rows_are_those_that_were_asked_for(data, table):
    table = table.reshape(-1, table.shape[-1]) if len(table.shape) > 2 else table
    wanted = data.draw(st.lists(st.integers(0, table.shape[0] - 1), max_size=6))
    ids = np.array(wanted, np.int32)
    rows = ml.get_rows(table, ml.Tensor.from_numpy(ids))
    np.testing.assert_array_equal(rows.numpy(), table.numpy()[ids])
