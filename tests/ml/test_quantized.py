"""The QuantizedTensor: how it is made, what it refuses, and what refuses it."""

import functools
import inspect
import pickle
from collections import OrderedDict
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

from src import ml
from src.ml.quantized import quantize_scales
from tests.ml.op_checks import EVERY_FLOAT, check_same, rounded, sample, strided


def weight(*shape, dtype=ml.nf4, double=False):
    return ml.quantize(sample(shape).with_name("w"), dtype, double)


# ---- what it is ------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("dtype", "double", "nbytes"),
    [
        (ml.nf4, False, 3200 + 4 * 100),
        (ml.nf4, True, 3200 + 100 + 4 * 1 + 4 * 256),
        (ml.int8_block, False, 6400 + 2 * 200),
    ],
    ids=["nf4", "nf4 double", "int8_block"],
)
def test_it_has_shape_dtype_name_and_bytes(dtype, double, nbytes):
    x = weight(50, 128, dtype=dtype, double=double)
    assert (x.shape, x.ndim, x.size, len(x)) == ((50, 128), 2, 6400, 50)
    assert (x.dtype, x.name, x.nbytes) == (dtype, "w", nbytes)
    assert (x.nested is not None) == double
    assert (
        repr(x)
        == f"QuantizedTensor('w', [50, 128], {dtype}{', double' if double else ''})"
    )


def test_another_name_shares_the_memory():
    x = weight(4, 64)
    other = x.with_name("v")
    assert (x.name, other.name) == ("w", "v")
    assert other.codes is x.codes


def test_activations_are_a_property_that_views_and_copies_keep():
    x = weight(4, 64)
    other = x.with_activations("int8")
    assert (x.activations, other.activations) == ("int16", "int8")
    assert other.codes is x.codes
    for copy in (
        other.with_name("v"),
        other.rows(1, 3),
        pickle.loads(pickle.dumps(other)),
    ):
        assert copy.activations == "int8"
    assert other.with_activations("int16").activations == "int16"
    assert repr(other) == "QuantizedTensor('w', [4, 64], nf4, int8 activations)"
    text = r"\[QuantizedTensor\] activations must be one of int16, int8: 'int4'"
    for make in (
        lambda: x.with_activations("int4"),
        lambda: ml.QuantizedTensor(
            ml.nf4, (4, 64), x.codes, x.scales, activations="int4"
        ),
    ):
        with pytest.raises(ml.DTypeError, match=text):
            make()


def test_parts_are_used_where_they_lie_in_any_shape():
    codes = np.arange(64, dtype=np.uint8).reshape(64, 1)
    scales = np.ones((2, 1), np.float32)
    codes.setflags(write=False)
    parts = map(ml.Tensor.from_numpy, (codes, scales))
    x = ml.QuantizedTensor(ml.nf4, (2, 64), *parts)
    assert x.codes.data_pointer == codes.ctypes.data
    before = x.dequantize().numpy().copy()
    scales[1] = 3
    np.testing.assert_array_equal(x.dequantize().numpy(), before * np.float32([[1], [3]]))


# ---- what it refuses -------------------------------------------------------------------


def zeros(dtype, *shape):
    return ml.zeros(shape, dtype)


def test_parts_that_fit_are_taken():
    nested = ml.NestedScales(ml.zeros(1), ml.zeros(256), 0.0)
    ml.QuantizedTensor(ml.nf4, (64,), zeros("uint8", 32), zeros("float32", 1))
    ml.QuantizedTensor(ml.nf4, (64,), zeros("uint8", 32), zeros("uint8", 1), nested)
    ml.QuantizedTensor(ml.int8_block, (3, 32), zeros("int8", 96), zeros("bfloat16", 3))
    ml.QuantizedTensor(ml.int8_block, (0,), zeros("int8", 0), zeros("bfloat16", 0))


def test_parts_that_are_not_contiguous_are_refused():
    with pytest.raises(
        ml.TensorError, match=r"\] codes must be contiguous and aligned: strides"
    ):
        ml.QuantizedTensor(ml.nf4, (64,), zeros("uint8", 64)[::2], zeros("float32", 1))


# ---- quantizing ------------------------------------------------------------------------


@EVERY_FLOAT
def test_quantized_and_back_there_are_the_shape_and_the_name(dtype):
    for shape in ((), (1,), (0,), (3, 0), (7, 33), (3, 64), (2, 3, 40)):
        for block_dtype in ml.BLOCK_DTYPES:
            x = ml.quantize(sample(shape, dtype).with_name("w"), block_dtype)
            assert (x.shape, x.name, x.dtype) == (shape, "w", block_dtype)
            assert x.dequantize(dtype).name == "w"
            check_same(x.dequantize(dtype), rounded(x.dequantize().numpy(), dtype))


def test_a_view_is_quantized_as_its_elements_are():
    view = strided((5, 40), ml.bfloat16)
    whole = ml.quantize(view.copy(), ml.nf4)
    check_same(ml.quantize(view, ml.nf4).codes, whole.codes.numpy())


def test_double_quantization_keeps_codes_and_moves_scales_a_little():
    x = sample((512, 128))
    single = ml.quantize(x, ml.nf4)
    double = ml.quantize(x, ml.nf4, double=True)
    check_same(double.codes, single.codes.numpy())
    assert double.nested.offset == np.float32(
        single.scales.numpy().mean(dtype=np.float64)
    )
    spread = np.abs(single.scales.numpy() - double.nested.offset).max()
    ones = ml.full((x.size // 2,), 0xFF, "uint8")  # codes of 1: the scales themselves
    scales = ml.QuantizedTensor(ml.nf4, x.shape, ones, double.scales, double.nested)
    error = np.abs(
        scales.dequantize().numpy().reshape(-1, 64)[:, 0] - single.scales.numpy()
    )
    assert error.max() <= spread * 0.0080


def test_scales_that_are_all_equal_come_back_exactly():
    absmax = np.full(300, 0.75, np.float32)
    codes, nested = quantize_scales(absmax, np.float32(0.75))
    assert not codes.numpy().any()
    assert not nested.absmax.numpy().any()
    assert ml.quantize(ml.zeros((0,)), ml.nf4, double=True).scales.size == 0


def test_the_dynamic_map_rises_from_below_to_one_and_has_a_zero():
    values = ml.dynamic_map().numpy()
    assert (np.diff(values) > 0).all()
    assert (values.size, values[-1], 0 in values) == (256, 1, True)
    assert values[0] == np.float32(-0.99296875)


# ---- what refuses it -------------------------------------------------------------------

x = sample((4, 64))
w = weight(64, 64)
cache = ml.KeyValueCache(4, 1, 64, ml.float32)
# What the ops take beside tensors, by the names of their parameters.
OTHERS: dict[str, Any] = {
    "cache": cache,
    "condition": x > 0,
    "dim": 0,
    "dims": (0, 1),
    "eps": 1e-5,
    "k": 1,
    "normalized_shape": 64,
    "repeats": 2,
    "sizes": (64, 64),
    "split_size": 1,
    "start_pos": 0,
    "value": 1.0,
    "index": ml.zeros((4, 64), dtype="int32"),
    "weights": (sample((64, 64)),),
    "key": [0],
    "logits": x,
    "mask": x > 0,
    "num_samples": 1,
    "probabilities": x,
    "target": ml.zeros(4, dtype="int64"),
    "xk": sample((1, 1, 64)),
    "xv": sample((1, 1, 64)),
}


def calls_with_it() -> Iterator[tuple[str, Callable[[], object]]]:
    """Yield a call for each parameter of an op that is a plain tensor, with `w` in its
    place.
    """
    for op in (getattr(ml, name) for name in ml.ops.__all__ if name != "Generator"):
        signature = inspect.signature(op)
        kinds = {name: str(one.annotation) for name, one in signature.parameters.items()}
        plain = [
            n for n, kind in kinds.items() if "Tensor" in kind and "Quantized" not in kind
        ]
        needed = [
            n for n, one in signature.parameters.items() if one.default is one.empty
        ]
        for chosen in plain:
            given = {n: OTHERS.get(n, x) for n in needed}
            given[chosen] = [w, w] if "Sequence" in kinds[chosen] else w
            bound = inspect.BoundArguments(signature, OrderedDict(given))
            yield (
                f"{op.__name__}({chosen})",
                functools.partial(op, *bound.args, **bound.kwargs),
            )


OPS: dict[str, Callable[[], object]] = {
    **dict(calls_with_it()),
    "linear_transformation of it": lambda: ml.linear_transformation(w, w),
    "tensor": lambda: ml.tensor(w),
    "set_slice": lambda: sample((64, 64)).set_slice(0, 64, w),
    "quantize": lambda: ml.quantize(w, ml.nf4),
    "iterate": lambda: list(w),
}


@pytest.mark.parametrize("name", OPS)
def test_everything_but_products_and_rows_refuses_it_in_one_line(name):
    with pytest.raises(ml.TensorError) as caught:
        OPS[name]()
    assert str(caught.value).startswith("[")
    assert "\n" not in str(caught.value)


def test_every_op_that_takes_a_tensor_is_among_those():
    tensors = {call.split("(")[0] for call in OPS if "(" in call}
    creates = {
        "arange",
        "eye",
        "full",
        "linspace",
        "ones",
        "rand",
        "randn",
        "read_cache",
        "tensor",
        "zeros",
    }
    assert ml.cat is ml.concatenate
    assert set(ml.ops.__all__) - tensors == creates | {"Generator", "cat"}


def test_it_has_no_methods_that_need_plain_elements_and_no_other_attributes():
    for name in ("reshape", "slice", "to", "numpy", "item"):
        assert hasattr(x, name)
        assert not hasattr(w, name)
    with pytest.raises(AttributeError, match="has no attribute 'colour'"):
        _ = w.colour
    assert not hasattr(w, "_storage")
    assert len({w, w}) == 1
