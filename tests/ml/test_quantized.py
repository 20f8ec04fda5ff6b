"""The QuantizedTensor: what it is made of, what it refuses, and what refuses it."""

import functools
import inspect
from collections import OrderedDict
from collections.abc import Callable, Iterator
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from src import ml
from tests.ml.op_checks import sample


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
REFUSALS: list[tuple[tuple[Any, ...], type[ml.TensorError], str]] = [
    ((ml.float32, (1,), array(u8, 1), array(f32, 1)), ml.DTypeError, "dtype must be nf4 or"),
    ((ml.nf4, (-1,), array(u8, 1), array(f32, 1)), ml.ShapeError, "sizes must be >= 0"),
    (
        (ml.nf4, (3, 64), array(u8, 95), array(f32, 3)),
        ml.ShapeError,
        r"codes.size must equal 96: 95 \(nf4, shape \[3, 64\]\)",
    ),
    (
        (ml.int8_block, (3, 32), array(i8, 96), array(bf16, 4)),
        ml.ShapeError,
        r"scales.size must equal 3: 4 \(int8_block, shape \[3, 32\]\)",
    ),
    ((ml.nf4, (64,), array(i8, 32), array(f32, 1)), ml.DTypeError, "codes.dtype must equal uint8"),
    ((ml.nf4, (64,), array(u8, 32), array(u8, 1)), ml.DTypeError, "scales.dtype must equal flo"),
    ((ml.int8_block, (32,), array(i8, 32), array(f32, 1)), ml.DTypeError, "must equal bfloat16"),
    (
        (ml.nf4, (64,), array(u8, 32), array(f32, 1), nested()),
        ml.DTypeError,
        "scales.dtype must equal uint8: float32",
    ),
    (
        (ml.int8_block, (32,), array(i8, 32), array(u8, 1), nested()),
        ml.DTypeError,
        "dtype of nested scales must equal nf4: int8_block",
    ),
    (
        (ml.nf4, (64,), array(u8, 32), array(u8, 1), nested(2)),
        ml.ShapeError,
        "nested.absmax.size must equal 1: 2",
    ),
    (
        (ml.nf4, (64,), array(u8, 32), array(u8, 1), nested(code=16)),
        ml.ShapeError,
        "nested.code.size must equal 256: 16",
    ),
    (
        (ml.nf4, (64,), array(u8, 32), array(u8, 1), nested(offset=float("nan"))),
        ml.TensorError,
        "nested.offset must be finite: nan",
    ),
    (
        (ml.nf4, (64,), array(u8, 64)[::2], array(f32, 1)),
        ml.TensorError,
        "codes must be contiguous and aligned",
    ),
]


@pytest.mark.parametrize(("parts", "error", "text"), REFUSALS)
def test_parts_that_do_not_fit_are_refused(parts, error, text):
    with pytest.raises(error, match=text) as caught:
        ml.QuantizedTensor(*parts)
    assert str(caught.value).startswith("[QuantizedTensor] ")
    assert "\n" not in str(caught.value)


def test_parts_that_fit_are_taken():
    ml.QuantizedTensor(ml.nf4, (64,), array(u8, 32), array(f32, 1))
    ml.QuantizedTensor(ml.nf4, (64,), array(u8, 32), array(u8, 1), nested())
    ml.QuantizedTensor(ml.int8_block, (3, 32), array(i8, 96), array(bf16, 3))
    ml.QuantizedTensor(ml.int8_block, (0,), array(i8, 0), array(bf16, 0))


@pytest.mark.parametrize("dtype", [ml.int32, ml.nf4, ml.complex64], ids=str)
def test_dequantize_refuses_what_is_not_floating_point(dtype):
    with pytest.raises(ml.DTypeError, match=r"\[dequantize\] dtype=? must be"):
        weight(4, 64).dequantize(dtype)


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
    "linear_transformations": lambda: ml.linear_transformations(x, (w, sample((4, 64)))),
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
