"""The QuantizedTensor: how it is made, what it refuses, and what refuses it."""

import functools
import inspect
from collections import OrderedDict
from collections.abc import Callable, Iterator
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from src import ml
from src.ml.quantized import quantize_scales
from tests.ml.op_checks import EVERY_FLOAT, check_same, sample, strided


def array(dtype, *shape):
    return ml.Tensor.from_numpy(np.zeros(shape, dtype))


def nested(blocks=1, code=256, offset=0.0, dtype=np.float32):
    return ml.NestedScales(array(dtype, blocks), array(np.float32, code), offset)


def weight(*shape, dtype=ml.nf4, double=False):
    return ml.quantize(sample(shape).with_name("w"), dtype, double)


# ---- what it is ---------------------------------------------------------------------------------


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
    assert repr(x) == f"QuantizedTensor('w', [50, 128], {dtype}{', double' if double else ''})"


def test_another_name_shares_the_memory():
    x = weight(4, 64)
    other = x.with_name("v")
    assert (x.name, other.name) == ("w", "v")
    assert other.codes is x.codes
    assert other.dequantize().name == "v"


def test_parts_are_used_where_they_lie_in_any_shape():
    codes = np.arange(64, dtype=np.uint8).reshape(64, 1)
    codes.setflags(write=False)
    scales = np.ones((2, 1), np.float32)
    x = ml.QuantizedTensor(
        ml.nf4, (2, 64), ml.Tensor.from_numpy(codes), ml.Tensor.from_numpy(scales)
    )
    assert x.codes.data_pointer == codes.ctypes.data
    before = x.dequantize().numpy().copy()
    scales[1] = 3
    np.testing.assert_array_equal(x.dequantize().numpy()[0], before[0])
    np.testing.assert_array_equal(x.dequantize().numpy()[1], 3 * before[1])


@pytest.mark.parametrize("dtype", [ml.float32, ml.bfloat16, ml.float16], ids=str)
@pytest.mark.parametrize("shape", [(), (1,), (0,), (3, 0), (2, 3, 40), (7, 33)], ids=str)
def test_dequantize_gives_a_plain_tensor_of_the_shape(dtype, shape):
    x = ml.quantize(sample(shape), ml.nf4)
    plain = x.dequantize(dtype)
    assert (plain.shape, plain.dtype) == (shape, dtype)
    np.testing.assert_array_equal(plain.numpy(), x.dequantize().numpy().astype(dtype.numpy_dtype))


def test_the_codes_of_nf4_lie_two_to_a_byte_the_first_in_the_upper_half():
    x = ml.QuantizedTensor(
        ml.nf4,
        (3,),
        ml.Tensor.from_numpy(np.array([0x0F, 0x7A], np.uint8)),
        ml.Tensor.from_numpy(np.array([2], np.float32)),
    )
    np.testing.assert_array_equal(x.dequantize().numpy(), np.float32([-2, 2, 0]))
    np.testing.assert_array_equal(ml.nf4_code().numpy()[[0, 7, 15]], np.float32([-1, 0, 1]))


def test_nested_scales_are_code_times_absmax_plus_offset():
    code = np.zeros(256, np.float32)
    code[3] = 0.5
    given = ml.NestedScales(
        ml.Tensor.from_numpy(np.array([4, 8], np.float32)), ml.Tensor.from_numpy(code), 1.0
    )
    blocks = np.full(257, 3, np.uint8)
    blocks[1] = 0
    x = ml.QuantizedTensor(
        ml.nf4,
        (257, 64),
        ml.Tensor.from_numpy(np.full(257 * 32, 0xFF, np.uint8)),
        ml.Tensor.from_numpy(blocks),
        given,
    )
    np.testing.assert_array_equal(
        x.dequantize().numpy()[[0, 1, 2, 255, 256], 0], np.float32([3, 1, 3, 3, 5])
    )


# ---- what it refuses ----------------------------------------------------------------------------

u8, i8, f32, bf16 = np.uint8, np.int8, np.float32, ml_dtypes.bfloat16


def test_parts_that_fit_are_taken():
    ml.QuantizedTensor(ml.nf4, (64,), array(u8, 32), array(f32, 1))
    ml.QuantizedTensor(ml.nf4, (64,), array(u8, 32), array(u8, 1), nested())
    ml.QuantizedTensor(ml.int8_block, (3, 32), array(i8, 96), array(bf16, 3))
    ml.QuantizedTensor(ml.int8_block, (0,), array(i8, 0), array(bf16, 0))


def test_parts_that_are_not_contiguous_are_refused():
    with pytest.raises(ml.TensorError, match=r"\] codes must be contiguous and aligned: strides"):
        ml.QuantizedTensor(ml.nf4, (64,), array(u8, 64)[::2], array(f32, 1))


# ---- quantizing ---------------------------------------------------------------------------------


@EVERY_FLOAT
@pytest.mark.parametrize("shape", [(), (7,), (0,), (3, 64), (2, 3, 40)], ids=str)
def test_the_result_has_the_shape_and_the_name(dtype, shape):
    for block_dtype in ml.BLOCK_DTYPES:
        x = ml.quantize(sample(shape, dtype).with_name("w"), block_dtype)
        assert (x.shape, x.name, x.dtype) == (shape, "w", block_dtype)


def test_a_view_is_quantized_as_its_elements_are():
    view = strided((5, 40), ml.bfloat16)
    whole = ml.quantize(view.copy(), ml.nf4)
    check_same(ml.quantize(view, ml.nf4).codes, whole.codes.numpy())


def test_nf4_is_off_by_half_the_widest_gap_at_most():
    x = sample((100, 128))
    blocks = np.abs(x.numpy()).reshape(-1, 64).max(axis=1)
    error = np.abs(ml.quantize(x, ml.nf4).dequantize().numpy() - x.numpy()).reshape(-1, 64)
    assert (error.max(axis=1) <= 0.1520 * blocks).all()  # (1 - 0.6962) / 2


def test_int8_is_off_by_seven_thousandths_of_normal_weights_at_most():
    x = sample((512, 512))
    error = ml.quantize(x, ml.int8_block).dequantize().numpy() - x.numpy()
    assert np.sqrt((error**2).mean()) <= 0.007


def test_double_quantization_keeps_codes_and_moves_scales_a_little():
    x = sample((512, 128))
    single, double = ml.quantize(x, ml.nf4), ml.quantize(x, ml.nf4, double=True)
    check_same(double.codes, single.codes.numpy())
    assert double.nested is not None
    spread = np.abs(single.scales.numpy() - double.nested.offset).max()
    scales = ml.QuantizedTensor(  # codes of 1: the scales themselves
        ml.nf4,
        x.shape,
        ml.Tensor.from_numpy(np.full(x.size // 2, 0xFF, np.uint8)),
        double.scales,
        double.nested,
    ).dequantize()
    error = np.abs(scales.numpy().reshape(-1, 64)[:, 0] - single.scales.numpy())
    assert error.max() <= spread * 0.0080
    assert double.nbytes == x.size // 2 + 1024 + 4 * 1024 // 256 + 4 * 256


def test_the_offset_is_the_mean_rounded_once():
    x = sample((640, 64))
    single, double = ml.quantize(x, ml.nf4), ml.quantize(x, ml.nf4, double=True)
    assert double.nested is not None
    assert double.nested.offset == np.float32(single.scales.numpy().mean(dtype=np.float64))


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


@pytest.mark.parametrize("dtype", ml.BLOCK_DTYPES, ids=str)
def test_elements_that_are_not_finite_are_refused(dtype):
    x = sample((4, 64), ml.bfloat16)
    ml.quantize(x, dtype)
    x.set_slice(1, 2, float("nan"))
    with pytest.raises(ml.TensorError) as caught:
        ml.quantize(x, dtype)
    assert str(caught.value) == (
        "[quantize] elements must be finite: 64 of 256 are not (shape [4, 64])"
    )


# ---- what refuses it ----------------------------------------------------------------------------

x, w = sample((4, 64)), weight(64, 64)
cache = ml.KeyValueCache(4, 1, 64, ml.float32)
# What the ops take beside tensors, by the names of their parameters.
OTHERS: dict[str, Any] = {
    "cache": cache, "condition": x > 0, "dim": 0, "dims": (0, 1), "eps": 1e-5, "k": 1,
    "normalized_shape": 64, "repeats": 2, "sizes": (64, 64), "split_size": 1, "start_pos": 0,
    "value": 1.0,
    "index": ml.zeros((4, 64), dtype="int32"), "weights": (sample((64, 64)),),
    "xk": sample((1, 1, 64)), "xv": sample((1, 1, 64)),
}  # fmt: skip


def calls_with_it() -> Iterator[tuple[str, Callable[[], object]]]:
    """Yield a call for each parameter of an op that is a plain tensor, with `w` in its place."""
    for op in (getattr(ml, name) for name in ml.ops.__all__ if name != "Generator"):
        signature = inspect.signature(op)
        kinds = {name: str(one.annotation) for name, one in signature.parameters.items()}
        plain = [n for n, kind in kinds.items() if "Tensor" in kind and "Quantized" not in kind]
        needed = [n for n, one in signature.parameters.items() if one.default is one.empty]
        for chosen in plain:
            given = {n: OTHERS.get(n, x) for n in needed}
            given[chosen] = [w, w] if "Sequence" in kinds[chosen] else w
            bound = inspect.BoundArguments(signature, OrderedDict(given))
            yield f"{op.__name__}({chosen})", functools.partial(op, *bound.args, **bound.kwargs)


OPS: dict[str, Callable[[], object]] = {
    **dict(calls_with_it()),
    "linear_transformation of it": lambda: ml.linear_transformation(w, w),
    "tensor": lambda: ml.tensor(w),
    "set_slice": lambda: sample((64, 64)).set_slice(0, 64, w),
    "quantize": lambda: ml.quantize(w, ml.nf4),
    "to nf4": lambda: x.to(ml.nf4),
    "zeros of nf4": lambda: ml.zeros((2,), ml.nf4),
    "asarray": lambda: np.asarray(w),
    "equal": lambda: w == w,
    "index": lambda: w[0],
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
    creates = {"arange", "eye", "full", "ones", "rand", "randn", "read_cache", "tensor", "zeros"}
    assert set(ml.ops.__all__) - tensors == creates | {"Generator"}


@pytest.mark.parametrize("name", ["reshape", "slice", "to", "numpy", "item"])
def test_it_has_no_methods_that_need_plain_elements(name):
    assert hasattr(x, name)
    assert not hasattr(w, name)


def test_it_has_no_attribute_that_a_tensor_does_not_have():
    with pytest.raises(AttributeError, match="has no attribute 'colour'"):
        _ = w.colour
    assert not hasattr(w, "_storage")
