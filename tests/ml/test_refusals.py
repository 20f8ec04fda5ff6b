"""What the library refuses, and in which words: each call of the table raises its
error.
"""

import ast
import re

import numpy as np  # noqa: F401 (calls of the table use it)
import pytest

from src import ml
from tests.ml.op_checks import sample

Q8_0 = ml.GGML_DTYPES[8]


def f(*shape):
    return sample(shape)


def of(dtype, *shape):
    return sample(shape, getattr(ml, dtype))


def u8(size):
    return ml.zeros(size, dtype="uint8")


def i8(size):
    return ml.zeros(size, dtype="int8")


def ids(*numbers):
    return ml.tensor(numbers, "int32")


def nf4(*shape):
    return ml.quantize(f(*shape), ml.nf4)


def nested(blocks=1, code=256, offset=0.0):
    return ml.NestedScales(ml.zeros(blocks), ml.zeros(code), offset)


def cache():
    return ml.KeyValueCache(8, 2, 4, ml.float32)


# A rule, and under it calls that break it with what their errors show; then calls of
# which each breaks a rule of its own. Texts begin with the name of what is called, or
# with the [name] that is given. DTYPES are the names of all dtypes.
TABLE = r"""
DTypeError: a.dtype must equal b.dtype:
  ml.add(f(2, 3), of("bfloat16", 3)) -> float32 != bfloat16 (a [2, 3], b [3])
  ml.swiglu(f(2), of("bfloat16", 2)) -> float32 != bfloat16 (a [2], b [2])
  ml.outer(f(2), of("float16", 3)) -> float32 != float16 (a [2], b [3])
  ml.equal(ml.ones(2), ml.tensor([1, 2])) -> float32 != int64 (a [2], b [2])
  ml.where(ml.tensor([True]), ml.ones(1), ml.tensor([1])) -> float32 != int64 (a [1], b [1])
  ml.matmul(of("bfloat16", 2, 2), f(2, 2)) -> bfloat16 != float32 (a [2, 2], b [2, 2])
ShapeError: sizes must be equal or 1, aligned at the right:
  ml.add(f(2, 3), f(4)) -> 3 != 4 (a [2, 3], b [4])
  ml.pow(f(2), f(3)) -> 2 != 3 (a [2], b [3])
  ml.polar(f(2), f(3)) -> 2 != 3 (a [2], b [3])
  ml.matmul(f(2, 3, 5), f(3, 5, 4)) -> 2 != 3 (a [2], b [3])
  f(5, 3).set_slice(1, 3, f(4)) -> 3 != 4 (a [2, 3], b [4])
DTypeError: value must be a number of the kind of int32:
  ml.add(ml.arange(3), 0.5) -> float
  ml.arange(0, 2, 0.5, dtype="int32") -> float
DTypeError: value must be a number of the kind of float32:
  ml.add(f(2), 1j) -> complex
  ml.add([1], f(2)) -> list
  ml.div(f(2), "2") -> str
  ml.where(ml.tensor([True]), ml.ones(1), None) -> NoneType
  ml.arange("a") -> str
  ml.full((2,), True) -> bool
  ml.layer_norm(ml.ones(3), 3, eps="a") -> str
  f(5, 3).set_slice(1, 3, 1j) -> complex
TensorError: value must be in [0, 255] for uint8:
  ml.add(ml.zeros(2, dtype="uint8"), 256) -> 256
  ml.arange(0, 257, dtype="uint8") -> 256
  ml.full((2,), 300, "uint8") -> 300
TensorTypeError: a or b must be a Tensor:
  ml.add([1], [2]) -> list
  ml.pow(2.0, 3.0) -> float
DTypeError: dtype must be of kind float or int or complex:
  ml.sub(ml.tensor([True]), ml.tensor([True])) -> bool (shape [1])
  ml.neg(ml.tensor([True])) -> bool (shape [1])
DTypeError: dtype must be a real floating-point dtype:
  ml.swiglu(of("int32", 2), of("int32", 2)) -> int32 (shape [2])
  ml.silu(of("complex64", 2)) -> complex64 (shape [2])
  ml.geglu(of("int32", 2), of("int32", 2)) -> int32 (shape [2])
  ml.clamped_swiglu(of("int32", 2), of("int32", 2)) -> int32 (shape [2])
  ml.soft_cap(of("complex64", 2), 1.0) -> complex64 (shape [2])
  ml.pow(of("uint8", 2), 2) -> uint8 (shape [2])
  ml.exp(ml.tensor([True])) -> bool (shape [1])
  ml.rsqrt(of("int32", 2)) -> int32 (shape [2])
  ml.mean(ml.tensor([1])) -> int64 (shape [1])
  ml.softmax(of("int32", 3)) -> int32 (shape [3])
  ml.log_softmax(ml.tensor([1, 2])) -> int64 (shape [2])
  ml.rms_norm(f(5), of("int32", 5), 1e-5) -> int32 (shape [5])
  ml.rms_norm(of("int32", 5), f(5), 1e-5) -> int32 (shape [5])
  ml.linear_transformation(of("int32", 7, 4), of("int32", 4, 4)) -> int32 (shape [7, 4])
  ml.linear_transformation(f(2, 5), f(4, 5), bias=of("int32", 4)) -> int32 (shape [4])
  ml.matmul(of("complex64", 2, 2), of("complex64", 2, 2)) -> complex64 (shape [2, 2])
  ml.rotary_embedding(of("int32", 3, 2, 8), of("complex64", 3, 4)) -> int32 (shape [3, 2, 8])
DTypeError: dtype must equal float32:
  ml.polar(of("bfloat16", 2), f(2)) -> bfloat16 (shape [2])
  of("bfloat16", 3, 2).view_as_complex() -> bfloat16
TensorTypeError: x must be a Tensor:
  ml.exp(np.ones(3)) -> ndarray; Tensor.from_numpy(array) creates a Tensor
  ml.sum([1]) -> list
  ml.sort(5) -> int
TensorTypeError: b must be a Tensor:
  ml.less(ml.ones(2), "a") -> str
  ml.allclose(ml.ones(1), 1) -> int
TensorError: start, stop and step must be finite, and step != 0:
  ml.arange(0, 5, 0) -> 0, 5, 0
  ml.arange(0, np.inf, 1) -> 0, inf, 1
TensorMemoryError: [empty] bytes must fit into memory:
  ml.arange(1.5, 2**40) -> 4398046511100
  ml.zeros(2**40) -> 4398046511104
  ml.KeyValueCache(2**52, 2, 4, ml.float32) -> 144115188075855936
ShapeError: sizes must be >= 0:
  ml.full((-1,), 0) -> [-1]
  ml.randn(-1) -> [-1]
  f(2, 1, 3).expand(-1, 2, 1, 3) -> [-1, 2, 1, 3]
  ml.QuantizedTensor(ml.nf4, (-1,), u8(1), ml.zeros(1)) -> [-1]
ShapeError: ndim must be <= 64:
  ml.full((1,) * 65, 0) -> 65
  f(6).reshape(6, *[1] * 64) -> 65
ShapeError: sizes must be integers:
  ml.zeros(True) -> (True,)
  ml.eye("a") -> ('a', 'a')
  ml.KeyValueCache(8, 2.0, 4, ml.bfloat16) -> (8, 2.0, 4)
  ml.Tensor.from_buffer(bytes(8), ml.uint8, (2.5,)) -> (2.5,)
  f(6).reshape(2, 3.0) -> (2, 3.0)
DTypeError: dtype must be one of DTYPES:
  ml.zeros(2, dtype=ml.nf4) -> nf4
  ml.tensor([1], dtype=int) -> type
  ml.softmax(f(3), dtype=ml.nf4) -> nf4
  ml.ones(2).to(None) -> NoneType
  ml.ones(2).to(ml.nf4) -> nf4
DTypeError: data must be numbers:
  ml.tensor("abc") -> <U3 (shape [])
  ml.tensor(None) -> object (shape [])
TensorError: seed must be an integer >= 0:
  ml.Generator("a") -> 'a'
  ml.Generator(-1) -> -1
DTypeError: dtype= must be a real floating-point dtype:
  ml.rand(2, dtype="int32") -> int32
  ml.softmax(f(3), dtype=ml.int32) -> int32
  ml.log_softmax(ml.ones(2), dtype="int8") -> int8
  ml.get_rows(nf4(5, 64), ids(4), ml.int32) -> int32
  ml.linear_transformation(f(7, 4), f(4, 4), ml.int32) -> int32
  ml.matmul(f(2, 2), f(2, 2), ml.uint8) -> uint8
  nf4(4, 64).dequantize(ml.int32) -> int32
IndexOutOfRangeError: dim must be in [-1, 1):
  ml.sum(ml.ones(2), 1) -> 1
  ml.mean(f(3), 1) -> 1
  ml.argmax(f(3), 1) -> 1
  ml.softmax(f(3), 1) -> 1
  ml.concatenate([f(2)], 1) -> 1
ShapeError: dim must be integers:
  ml.sum(ml.ones(2), True) -> (True,)
  f(2, 1, 3).unsqueeze("a") -> ('a',)
ShapeError: number of elements must be >= 1:
  ml.max(ml.zeros(2, 0), 1) -> 0 (shape [2, 0])
  ml.min(ml.zeros(0)) -> 0 (shape [0])
DTypeError: dtype must be of kind float or int or bool:
  ml.max(ml.tensor([1j])) -> complex64 (shape [1])
  ml.argmax(of("complex64", 3), 0) -> complex64 (shape [3])
IndexOutOfRangeError: dim must be in [0, 0):
  ml.argmax(f(), -1) -> -1
  ml.sort(ml.ones(())) -> -1
ShapeError: ndim must be >= 1:
  ml.rms_norm(f(), f(1), 1e-5) -> 0 (shape [])
  ml.get_rows(f(), ids(0)) -> 0 (shape [])
  ml.linear_transformation(f(), f(4, 4)) -> 0 (shape [])
  ml.matmul(f(), f(2, 2)) -> 0 (shape [])
  f().slice(0, 0) -> 0 (shape [])
  f().set_slice(0, 0, 1.0) -> 0 (shape [])
ShapeError: x.shape must end in normalized_shape:
  ml.layer_norm(ml.ones(2, 3), 2) -> [2, 3], [2]
  ml.layer_norm(ml.ones(2), ()) -> [2], []
ShapeError: [shape] bytes must be <= 9223372036854775807:
  f().expand(2**31, 2**31) -> 18446744073709551616 (shape [2147483648, 2147483648])
  ml.KeyValueCache(2**60, 2, 4, ml.float32) -> 36893488147419103296 (shape [36893488147419103296])
ShapeError: number of tensors must be >= 1:
  ml.stack([]) -> 0
  ml.concatenate([]) -> 0
TensorTypeError: tensors must be a sequence of Tensors:
  ml.stack(5) -> int
  ml.concatenate(None) -> NoneType
ShapeError: shapes must be equal outside of dim 0:
  ml.concatenate([f(2, 3), f(2, 3), f(2, 4)]) -> [2, 3] != [2, 4] (tensors 0 and 2)
  ml.concatenate([f(2, 3), f(3)]) -> [2, 3] != [3] (tensors 0 and 1)
ShapeError: x.shape[-1] must equal weight.shape[1] of a weight [out, in]:
  ml.linear_transformation(f(7, 64), f(60, 128)) -> 64 != 128 (x [7, 64], weight [60, 128])
  ml.linear_transformation(f(7, 4), f(4)) -> 4 != 4 (x [7, 4], weight [4])
  ml.linear_transformation(f(2, 65), nf4(4, 64)) -> 65 != 64 (x [2, 65], weight [4, 64])
  ml.linear_transformations(f(2, 5), [f(4, 5), f(4, 6)]) -> 5 != 6 (x [2, 5], weight [4, 6])
DTypeError: x.dtype must equal weight.dtype, or hold all its values:
  ml.linear_transformation(of("bfloat16", 7, 4), f(4, 4)) ->
      bfloat16 != float32 (x [7, 4], weight [4, 4])
  ml.linear_transformations(of("bfloat16", 2, 5), [of("bfloat16", 4, 5), f(4, 5)]) ->
      bfloat16 != float32 (x [2, 5], weight [4, 5])
ShapeError: len(biases) must equal len(weights) >= 1:
  ml.linear_transformations(f(2, 5), []) -> 0 != 0
  ml.linear_transformations(f(2, 5), [f(4, 5)], biases=[None, None]) -> 2 != 1
ShapeError: rotations.shape must equal (x.shape[0], x.shape[2] / 2):
  ml.rotary_embedding(f(3, 2, 8), of("complex64", 4, 4)) -> [4, 4] != [3, 4] (x [3, 2, 8])
  ml.rotary_embedding(f(3, 2, 7), of("complex64", 3, 3)) -> [3, 3] != [3, 3.5] (x [3, 2, 7])
ShapeError: start_pos and start_pos + T must be in [0, cache.positions]:
  ml.attention(f(2, 4, 4), cache(), 7) -> 7 and 9, 8 (xq [2, 4, 4])
  ml.write_cache(cache(), 7, f(2, 2, 4), f(2, 2, 4)) -> 7 and 9, 8 (xk [2, 2, 4])
ShapeError: xk.shape and xv.shape must equal [T, 2, 4]:
  ml.write_cache(cache(), 0, f(2, 1, 4), f(2, 1, 4)) -> xk [2, 1, 4], xv [2, 1, 4]
  ml.write_cache(cache(), 0, f(2, 2, 4), f(1, 2, 4)) -> xk [2, 2, 4], xv [1, 2, 4]
IndexOutOfRangeError: 0 <= start <= stop <= size must hold:
  ml.read_cache(cache(), 3, 2) -> start 3, stop 2, size 8
  ml.read_cache(cache(), 0, 9) -> start 0, stop 9, size 8
  f(5, 3).slice(0, 6) -> start 0, stop 6, size 5
  f(5).set_slice(3, 6, 1.0) -> start 3, stop 6, size 5
TensorTypeError: storage must be flat bytes:
  ml.Tensor(None, (1,), (1,), ml.uint8) -> NoneType
  ml.Tensor(np.zeros((1, 1), np.uint8), (1,), (1,), ml.uint8) -> ndarray
ShapeError: number of elements must stay equal:
  f(2, 3).T.reshape(4, 2) -> 6 != 8 ([3, 2] to [4, 2])
  f(6).reshape(4, -1) -> 6 != 4 ([6] to [4, -1])
ShapeError: sizes must be >= 0 with at most one -1 that follows from the others:
  f(6).reshape(-1, -1) -> [-1, -1] (from [6])
  f(6).reshape(-2, -3) -> [-2, -3] (from [6])
  ml.zeros(0).reshape(-1, 0) -> [-1, 0] (from [0])
IndexOutOfRangeError: [getitem] index must be in [-3, 3):
  f(2, 3)[1, -4] -> -4 (dim 1, shape [2, 3])
  f(2, 3)[1, 10**30] -> 1000000000000000000000000000000 (dim 1, shape [2, 3])
IndexOutOfRangeError: [getitem] step must be >= 1:
  f(3)[::0] -> 0 (dim 0)
  f(3)[::-1] -> -1 (dim 0)
ShapeError: the last size must equal 2 with a stride of 4 bytes:
  f().view_as_complex() -> shape [], strides []
  f(2, 4)[:, ::2].view_as_complex() -> shape [2, 2], strides [16, 8]
TensorError: values must be in [-2147483648, 2147483647] for int32:
  ml.full((1,), np.nan).to("int32") -> nan
  ml.full((1,), 2.0**31).to("int32") -> 2147483648.0
DTypeError: dtype must be one of nf4, int8_block, q4_0, q8_0:
  ml.quantize(f(4, 64), ml.bfloat16) -> bfloat16
  ml.quantize(ml.zeros(256), ml.GGML_DTYPES[12]) -> q4_k
  ml.quantize(f(4, 64), np.ones(3)) -> ndarray
  ml.quantize(f(4, 64), "float32") -> 'float32'
  ml.quantize(f(4, 64), "q4_k") -> 'q4_k'
TensorTypeError: double must be True or False:
  ml.quantize(f(4, 64), ml.nf4, np.ones(3)) -> ndarray
TensorError: elements must be finite:
  ml.quantize(ml.full((4, 64), np.nan), ml.nf4) -> 256 of 256 are not (shape [4, 64])
  ml.quantize(ml.full((4, 64), np.inf), ml.int8_block) -> 256 of 256 are not (shape [4, 64])
DTypeError: dtype must not be block-quantized:
  ml.exp(nf4(4, 64)) -> nf4 (shape [4, 64]); dequantize() gives a plain tensor
  np.asarray(nf4(4, 64)) -> nf4 (shape [4, 64]); dequantize() gives a plain tensor
DTypeError: codes.dtype must equal uint8:
  ml.QuantizedTensor(ml.nf4, (64,), i8(32), ml.zeros(1)) -> int8 (nf4, shape [64])
  ml.QuantizedTensor(Q8_0, (2, 64), i8(136)) -> int8 (q8_0, shape [2, 64])
DTypeError: scales.dtype must equal float32:
  ml.QuantizedTensor(ml.nf4, (64,), u8(32), u8(1)) -> uint8 (nf4, shape [64])
  ml.QuantizedTensor(ml.nf4, (64,), u8(32)) -> None (nf4, shape [64])
ShapeError: shape[-1] must be a multiple of 32:
  ml.QuantizedTensor(Q8_0, (2, 48), u8(102)) -> [2, 48] (q8_0)
  ml.QuantizedTensor(Q8_0, (), u8(34)) -> [] (q8_0)

# elementwise
ml.swiglu(f(2, 3), f(3)) -> ShapeError: gate.shape must equal up.shape: [2, 3] != [3]
ml.geglu(f(2, 3), f(3)) -> ShapeError: gate.shape must equal up.shape: [2, 3] != [3]
ml.clamped_swiglu(f(2, 3), f(3)) -> ShapeError: gate.shape must equal up.shape: [2, 3] != [3]
ml.soft_cap(f(2), 0.0) -> TensorError: cap must be a positive number: 0.0
ml.soft_cap(f(2), float("nan")) -> TensorError: cap must be a positive number: nan
ml.outer(f(2, 1), f(3)) -> ShapeError: a.ndim and b.ndim must equal 1: 2, 1 (a [2, 1], b [3])
ml.clip(ml.tensor([1j]), 0) -> DTypeError: dtype must be of kind float or int: complex64 (shape [1])
ml.clip(ml.ones(2)) -> TensorError: min or max must be given: None, None
ml.clip(ml.tensor([1]), 0.5) -> DTypeError: value must be a number of the kind of int64: float
ml.gelu(ml.ones(2), "erf") -> TensorError: approximate must be 'none' or 'tanh': 'erf'
# numpy_ops
ml.ones(2) < ml.ones(3) ->
    ShapeError: [less] sizes must be equal or 1, aligned at the right: 2 != 3 (a [2], b [3])
ml.ones(2) < 1j -> DTypeError: [less] operands must be real: complex (float32)
# creation
ml.arange(2**31, 2**31 + 1) ->
    TensorError: value must be in [-2147483648, 2147483647] for int32: 2147483648
ml.arange(2**63) ->
    TensorError: value must be in [-9223372036854775808, 9223372036854775807] for int64:
    9223372036854775808
ml.tensor([2**63]) ->
    TensorError: value must be <= 9223372036854775807 for int64: 9223372036854775808
ml.tensor([300], dtype="uint8") -> TensorError: [to] values must be in [0, 255] for uint8: 300.0
ml.rand(2, generator=3) -> TensorTypeError: generator must be a Generator: int
ml.rand(2**40, 2**10) -> TensorMemoryError: memory: the system refused the allocation
# reduction
ml.sum(ml.ones(2, 2), (0, -2)) -> ShapeError: dims must differ: [0, -2]
ml.argmax(f(3, 0), 1) -> ShapeError: shape[1] must be >= 1: 0 (shape [3, 0])
ml.rms_norm(f(2, 5), f(4), 1e-5) ->
    ShapeError: weight.shape must equal (x.shape[-1],): [4] != [5] (x [2, 5], weight [4])
ml.layer_norm(ml.ones(2, 3), 3, weight=ml.ones(2)) ->
    ShapeError: weight.shape must equal normalized_shape: [2] != [3]
ml.layer_norm(ml.ones(3), 3, bias=5) -> TensorTypeError: bias must be a Tensor: int
# movement
f(2, 1, 3).squeeze(3) -> IndexOutOfRangeError: dim must be in [-3, 3): 3
f(2, 1, 3).unsqueeze(4) -> IndexOutOfRangeError: dim must be in [-4, 4): 4
f(2, 1, 3).permute(0, 1, -2) -> ShapeError: dims must be each of [0, 3) once: [0, 1, 1]
f(2, 1, 3).flatten(2, 1) -> ShapeError: start_dim must be <= end_dim: 2 > 1
f(2, 1, 3).expand(2, 4, 4) ->
    ShapeError: sizes must equal x.shape, aligned at the right, where it is not 1: [2, 4, 4] (shape
    [2, 1, 3])
f(2, 1, 3).split(0) -> ShapeError: split_size must be >= 1: 0
f(2, 1, 3).split((2, 2), 2) -> ShapeError: sizes must add up to shape[2]: 4 != 3 (shape [2, 1, 3])
ml.stack([f(2, 1, 3), f(3)]) -> ShapeError: shapes must be equal: [2, 1, 3] != [3]
ml.concatenate([f(2), of("bfloat16", 2)]) ->
    DTypeError: dtypes must be equal: float32 != bfloat16 (tensors 0 and 1)
# lookup
ml.where(ml.ones(2), 1, 2) -> DTypeError: condition.dtype must equal bool: float32 (shape [2])
ml.get_rows(f(0, 3), ids(0)) ->
    IndexOutOfRangeError: ids must be in [0, 0): 0 (table [0, 3], ids [1])
ml.get_rows(f(5, 3), of("uint16", 2)) ->
    DTypeError: ids.dtype must be int32 or int64: uint16 (ids [2])
ml.get_rows(f(5, 3), ml.tensor([5])) ->
    IndexOutOfRangeError: ids must be in [0, 5): 5 (table [5, 3], ids [1])
ml.get_rows(nf4(5), ids(4)) ->
    ShapeError: ndim of a block-quantized table must equal 2: 1 (shape [5])
ml.topk(ml.ones(2, 3), 4) -> ShapeError: 0 <= k <= shape[1] must hold: 4 (shape [2, 3])
ml.topk(ml.ones(3), 1.0) -> ShapeError: k must be integers: (1.0,)
ml.gather(ml.ones(3), 0, ml.ones(2)) -> DTypeError: index.dtype must be int32 or int64: float32
ml.gather(ml.ones(3), 0, ml.tensor([0, 3])) ->
    IndexOutOfRangeError: index along dim 0 must be in [0, 3): 3 (x [3])
ml.gather(ml.ones(3, 1), 0, ml.tensor([[0, 0]])) ->
    ShapeError: index.shape must be <= x.shape outside of dim 0: [1, 2] > [3, 1]
ml.tril(f(2)) -> ShapeError: ndim must be >= 2: 1 (shape [2])
ml.tril(f(2, 2), 0.5) -> ShapeError: diagonal must be integers: (0.5,)
# linear
ml.linear_transformation(f(1, 2), np.ones((3, 2))) ->
    TensorTypeError: weight must be a Tensor: ndarray; Tensor.from_numpy(array) creates a Tensor
ml.linear_transformation(f(2, 5), f(4, 5), bias=f(3)) ->
    ShapeError: bias.shape must equal weight.shape[:1]: [3] != [4] (weight [4, 5])
ml.matmul(f(7, 64), f(128, 60)) ->
    ShapeError: a.shape[-1] must equal b.shape[-2]: 64 != 128 (a [7, 64], b [128, 60])
# sinks of softmax
ml.softmax(of("bfloat16", 2, 3, 5), sinks=f(2)) ->
    DTypeError: x.dtype must equal float32: bfloat16
ml.softmax(f(2, 3, 5), sinks=of("bfloat16", 2)) ->
    DTypeError: sinks.dtype must equal float32: bfloat16
ml.softmax(f(2, 3, 5), sinks=f(3)) ->
    ShapeError: sinks.shape must equal [x.shape[0]] for x [H, T, S] and dim 2: [3] (x [2, 3, 5], dim 2)
ml.softmax(f(2, 3, 5), 0, sinks=f(2)) ->
    ShapeError: sinks.shape must equal [x.shape[0]] for x [H, T, S] and dim 2: [2] (x [2, 3, 5], dim 0)
# attention
ml.repeat_heads(f(3, 4), 2) -> ShapeError: ndim must equal 3: 2 (shape [3, 4])
ml.repeat_heads(f(3, 2, 4), 0) -> ShapeError: repeats must be >= 1: 0
ml.rotary_embedding(f(3, 2, 8), of("complex64", 3, 4), pairs="neox") ->
    TensorError: pairs must be 'interleaved' or 'halves': 'neox'
ml.rotary_embedding(f(3, 8), of("complex64", 3, 4)) ->
    ShapeError: x.ndim must equal 3: 2 (shape [3, 8])
ml.rotary_embedding(f(3, 2, 8), f(3, 4)) ->
    DTypeError: rotations.dtype must equal complex64: float32
ml.attention(f(1, 4, 6), cache(), 0) -> ShapeError: xq.shape must equal [T, heads, 4]: [1, 4, 6]
ml.attention(f(1, 3, 4), cache(), 0) ->
    ShapeError: xq.shape[1] must be a multiple of cache.heads: 3 and 2 (xq [1, 3, 4])
ml.attention(f(2, 4, 4), cache(), True) -> ShapeError: start_pos must be integers: (True,)
ml.attention(of("bfloat16", 2, 4, 4), cache(), 0) ->
    DTypeError: xq.dtype must equal cache.dtype: bfloat16 != float32 (xq [2, 4, 4])
ml.attention(f(2, 4, 4), cache(), 0, 2.0, 0) ->
    TensorError: window must be a whole number >= 1: 0
ml.attention(f(2, 4, 4), cache(), 0, 2.0, 3.0) ->
    TensorError: window must be a whole number >= 1: 3.0
ml.attention(f(2, 4, 4), cache(), 0, 2.0, 3, f(2)) ->
    ShapeError: sinks.shape must equal [xq.shape[1]]: [2] != [4] (xq [2, 4, 4])
ml.attention(f(2, 4, 4), cache(), 0, 2.0, 3, of("bfloat16", 4)) ->
    DTypeError: sinks.dtype must equal float32: bfloat16
ml.attention(f(2, 4, 4), cache(), 0, 2.0, 3, None, -1.0) ->
    TensorError: soft_cap must be a positive float: -1.0
ml.attention(f(2, 4, 4), None, 0) -> TensorTypeError: cache must be a KeyValueCache: NoneType
ml.write_cache(cache(), 0, f(2, 2, 6), f(2, 2, 6)) ->
    ShapeError: xk.shape must equal [T, heads, 4]: [2, 2, 6]
ml.write_cache(cache(), 0, of("bfloat16", 2, 2, 4), f(2, 2, 4)) ->
    DTypeError: xk.dtype must equal cache.dtype: bfloat16 != float32 (xk [2, 2, 4])
ml.write_cache(cache(), 0, f(2, 2, 4), of("bfloat16", 2, 2, 4)) ->
    DTypeError: xv.dtype must equal float32: bfloat16
ml.KeyValueCache(0, 2, 4, ml.float32) ->
    ShapeError: positions and head_dim must be >= 1 and heads >= 0: (0, 2, 4)
ml.KeyValueCache(8, 2, 5, ml.bfloat16) -> ShapeError: head_dim must be even: 5
ml.KeyValueCache(8, 2, 4, ml.float16) ->
    DTypeError: dtype must be one of bfloat16, float32, q8_0: float16
ml.KeyValueCache(8, 2, 80, "q8_0") ->
    ShapeError: head_dim must be a multiple of 32 for q8_0: 80
ml.attention(of("float16", 1, 2, 32), ml.KeyValueCache(8, 2, 32, "q8_0"), 0) ->
    DTypeError: xq.dtype must be bfloat16 or float32 for a cache in q8_0: float16
# Tensor
ml.Tensor.from_numpy([1.0]) -> TensorTypeError: type must equal numpy.ndarray: list
ml.Tensor.from_numpy(np.zeros(3)) -> DTypeError: array.dtype must be one of DTYPES: dtype('float64')
ml.Tensor.from_buffer(5, ml.uint8, (1,)) ->
    TensorError: buffer must be contiguous bytes: memoryview: a bytes-like object is required, not
    'int'
ml.Tensor.from_buffer(bytes(8), ml.float32, (2, 2), (8, 4), 4) ->
    TensorError: [Tensor] elements must lie in bytes [0, 8) of the storage: [4, 20) (shape [2, 2],
    strides [8, 4], offset 4, float32)
ml.Tensor.from_buffer(bytes(8), ml.uint8, (2,), (1, 1)) ->
    ShapeError: [Tensor] len(shape) must equal len(strides): 1 != 2
ml.Tensor.from_buffer(bytes(8), ml.uint8, (2,), (1.0,)) ->
    ShapeError: [Tensor] strides must be integers: (1.0,)
ml.Tensor.from_buffer(bytes(8), ml.uint8, (2,), (1,), 0.0) ->
    ShapeError: [Tensor] offset must be integers: (0.0,)
ml.Tensor.empty((2**61,), ml.uint8) ->
    TensorMemoryError: bytes must fit into memory: 2305843009213693952
f(2, 3).transpose(0, 2) -> IndexOutOfRangeError: dim must be in [-2, 2): 2
f(2, 3, 4).T -> ShapeError: [T] ndim must equal 2: 3 (shape [2, 3, 4])
f(5).slice(0, True) -> ShapeError: start and stop must be integers: (0, True)
f(5, 3).set_slice(1, 3, of("bfloat16", 2, 3)) ->
    DTypeError: dtype must equal value.dtype: float32 != bfloat16 (slice [2, 3], value [2, 3])
f(5, 3).set_slice(1, 3, f(7, 2, 3)) ->
    ShapeError: value.shape must broadcast to the slice: [7, 2, 3] != [2, 3]
f(2, 3)[0, 0, 0] ->
    IndexOutOfRangeError: [getitem] number of indices must be <= ndim: 3 > 2 (shape [2, 3])
f(2, 3)[..., ...] -> TensorError: [getitem] number of Ellipsis must be <= 1: 2
f(3)[0.0:2] ->
    TensorError: [getitem] an index must be an integer, a slice, an Ellipsis, None, a list, or a
    tensor of integers or bools: float
f(3)[[0, 3]] -> IndexOutOfRangeError: [getitem] index must be in [-3, 3): 3 (dim 0, shape [3])
f(2, 3)[:, ml.tensor([-4, 0])] ->
    IndexOutOfRangeError: [getitem] index must be in [-3, 3): -4 (dim 1, shape [2, 3])
f(2, 3)[f(2) > 9, ml.tensor([True])] ->
    ShapeError: [getitem] mask.shape must equal the indexed sizes: [1] != [3] (dim 1, shape [2, 3])
f(3)[f(3)] ->
    DTypeError: [getitem] dtype of an index must be int32, int64 or bool: float32 (shape [3])
f(3)[[0.5]] ->
    DTypeError: [getitem] dtype of an index must be int32, int64 or bool: float32 (shape [1])
f(3)[[0], [0]] ->
    IndexOutOfRangeError: [getitem] number of indices must be <= ndim: 2 > 1 (shape [3])
f(2, 3).view(4, 2) -> ShapeError: [reshape] number of elements must stay equal: 6 != 8 ([2, 3] to [4, 2])
f(2, 3).T.view(6) ->
    ShapeError: strides must allow a view: [4, 12] (shape [3, 2]); use reshape
f(2).view("int32") -> DTypeError: dtype must stay float32: int32; use to
f(2, 3).size(2) -> IndexOutOfRangeError: dim must be in [-2, 2): 2
f(2).__format__(".3f") ->
    TensorTypeError: [format] ndim must equal 0: 1 (shape [2], format '.3f'); use x[i]
f(3, 3)[[0, 1], [0, 1, 2]] -> ShapeError: [getitem] indices must broadcast: [2], [3]
range(f()) -> TensorTypeError: [index] dtype must be an integer: float32 (shape [])
range(ids(1, 2)) -> TensorTypeError: [index] number of elements must equal 1: 2 (shape [2])
f(2) // 2 ->
    TensorTypeError: [floordiv] // is not an operator of tensors: use (a / b).to('int32') for a, b
    >= 0
# functions as in PyTorch
ml.masked_fill(f(2), f(2), 0) -> DTypeError: mask.dtype must equal bool: float32 (shape [2])
ml.masked_fill(f(2), f(2) > 0, f(2)) -> ShapeError: value.ndim must equal 0: 1
ml.repeat_interleave(f(2), -1) -> ShapeError: sizes must be >= 0: [-1]
ml.repeat_interleave(f(3), ml.tensor([1, 2])) ->
    ShapeError: len(repeats) must equal 1 or shape[0]: 2 and 3 (shape [3])
ml.linspace(0, 1, -1) -> ShapeError: sizes must be >= 0: [-1]
ml.multinomial(f(2, 3, 4), 1) -> ShapeError: ndim must equal 1 or 2: 3 (shape [2, 3, 4])
ml.multinomial(ml.ones(3), 4) ->
    ShapeError: num_samples must be >= 1 and <= the number of positive weights of each row: 4 (at
    most 3)
ml.multinomial(ml.tensor([1.0, -1.0]), 1) ->
    TensorError: weights must be finite and >= 0: they are not
ml.multinomial(ml.zeros(3), 1, True) -> TensorError: the sum of each row must be > 0: 0.0
ml.bitwise_and(f(2), f(2)) -> DTypeError: dtype must be of kind bool or int: float32 (shape [2])
ml.cross_entropy(f(2, 3), ids(1)) ->
    ShapeError: logits.shape must equal [*target.shape, C]: logits [2, 3], target [1]
ml.cross_entropy(f(2, 3), f(2)) -> DTypeError: target.dtype must be int32 or int64: float32
ml.cross_entropy(f(3), ml.tensor(3)) ->
    IndexOutOfRangeError: target must be in [0, 3): 3 (logits [3])
ml.cross_entropy(f(3), ml.tensor(1), "max") ->
    TensorError: reduction must be 'mean', 'sum' or 'none': 'max'
ml.name_sizes(T="27") -> ShapeError: sizes must be integers: ('27',)
# Tensor
f(2).view_as_real() -> DTypeError: dtype must equal complex64: float32
f(3, 2).item() -> ShapeError: number of elements must equal 1: 6 (shape [3, 2])
bool(ml.zeros(0)) -> TensorTypeError: [bool] number of elements must equal 1: 0 (shape [0])
len(f()) -> ShapeError: [len] ndim must be >= 1: 0 (shape [])
ml.full((1,), 2.0**63).to("int64") ->
    TensorError: values must be in [-9223372036854775808, 9223372036854775807] for int64:
    9.223372036854776e+18
# quantized
ml.quantize(f(4, 64), ml.int8_block, True) ->
    DTypeError: dtype= of double quantization must equal nf4: int8_block
nf4(4, 64)[0] ->
    DTypeError: [getitem] dtype must not be block-quantized: nf4 (shape [4, 64]); dequantize()
    gives a plain tensor
nf4(4, 64) == nf4(4, 64) ->
    DTypeError: [equal] dtype must not be block-quantized: nf4 (shape [4, 64]); dequantize() gives
    a plain tensor
ml.QuantizedTensor(ml.float32, (1,), u8(1), ml.zeros(1)) ->
    DTypeError: dtype must be one of nf4, int8_block, q4_0, q4_1, q5_0, q5_1, q8_0, q2_k, q3_k,
    q4_k, q5_k, q6_k, iq4_nl, iq4_xs, mxfp4: float32
ml.QuantizedTensor(ml.nf4, (3, 64), u8(95), ml.zeros(3)) ->
    ShapeError: codes.size must equal 96: 95 (nf4, shape [3, 64])
ml.QuantizedTensor(ml.int8_block, (3, 32), i8(96), of("bfloat16", 4)) ->
    ShapeError: scales.size must equal 3: 4 (int8_block, shape [3, 32])
ml.QuantizedTensor(ml.int8_block, (32,), i8(32), ml.zeros(1)) ->
    DTypeError: scales.dtype must equal bfloat16: float32 (int8_block, shape [32])
ml.QuantizedTensor(ml.nf4, (64,), u8(32), ml.zeros(1), nested()) ->
    DTypeError: scales.dtype must equal uint8: float32 (nf4, shape [64])
ml.QuantizedTensor(ml.int8_block, (32,), i8(32), u8(1), nested()) ->
    DTypeError: dtype of nested scales must equal nf4: int8_block
ml.QuantizedTensor(ml.nf4, (64,), u8(32), u8(1), nested(2)) ->
    ShapeError: nested.absmax.size must equal 1: 2 (nf4, shape [64])
ml.QuantizedTensor(ml.nf4, (64,), u8(32), u8(1), nested(code=16)) ->
    ShapeError: nested.code.size must equal 256: 16 (nf4, shape [64])
ml.QuantizedTensor(ml.nf4, (64,), u8(32), u8(1), nested(offset=np.nan)) ->
    TensorError: nested.offset must be finite: nan (shape [64])
ml.QuantizedTensor(Q8_0, (2, 64), u8(135)) ->
    ShapeError: codes.size must equal 136: 135 (q8_0, shape [2, 64])
ml.QuantizedTensor(Q8_0, (32,), u8(34), of("float16", 1)) ->
    DTypeError: q8_0 has scales in its blocks: none are given
ml.QuantizedTensor(Q8_0, (32,), u8(34)).scales ->
    DTypeError: [scales] dtype must have separate scales: q8_0
ml.quantize(ml.zeros(2, 48), Q8_0) ->
    ShapeError: x.shape[-1] must be a multiple of 32: [2, 48] (q8_0)
"""
CASES = {}
rule = ""
for line in re.sub(r"\n {4,}", " ", TABLE).splitlines():
    if line.endswith(":"):
        rule = line
    elif " -> " in line:
        call, text = line.strip().split(" -> ")
        CASES[call] = f"{rule} {text}" if line.startswith(" ") else text


@pytest.mark.parametrize("call", CASES)
def test_what_does_not_fit_is_refused_in_one_line(call):
    with pytest.raises(ml.TensorError) as caught:
        eval(call)
    kind, _, text = (
        CASES[call].replace("DTYPES", ", ".join(map(str, ml.DTYPES))).partition(": ")
    )
    if not text.startswith("["):
        text = f"[{ast.parse(call).body[0].value.func.attr}] {text}"
    assert f"{type(caught.value).__name__}: {caught.value}" == f"{kind}: {text}"


def test_every_error_of_the_library_is_a_tensor_error():
    for kind in (ml.ShapeError, ml.DTypeError, ml.IndexOutOfRangeError):
        assert issubclass(kind, ml.TensorError)
        assert not issubclass(kind, (IndexError, TypeError, ValueError))
    assert issubclass(ml.TensorError, ml.LlamaBoltsError)
    assert issubclass(ml.TensorTypeError, TypeError)
    assert issubclass(ml.TensorMemoryError, MemoryError)
