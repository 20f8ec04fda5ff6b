"""What the library refuses, and in which words: each call of the table raises its error."""

import re

import numpy as np  # noqa: F401 (calls of the table use it)
import pytest

from src import ml
from tests.ml.op_checks import sample


def f(*shape):
    return sample(shape)


def of(dtype, *shape):
    return sample(shape, getattr(ml, dtype))


def zeros(dtype, *shape):
    return ml.zeros(*shape, dtype=dtype)


def ids(*numbers):
    return ml.tensor(numbers, "int32")


def nf4(*shape):
    return ml.quantize(f(*shape), ml.nf4)


def nested(blocks=1, code=256, offset=0.0):
    return ml.NestedScales(ml.zeros(blocks), ml.zeros(code), offset)


def cache():
    return ml.KeyValueCache(8, 2, 4, ml.float32)


# A call, and the error behind `->` or on the lines under it; DTYPES are the names of all dtypes.
TABLE = r"""
# elementwise
ml.add(f(2, 3), of("bfloat16", 3)) ->
    DTypeError: [add] a.dtype must equal b.dtype: float32 != bfloat16 (a [2, 3], b [3])
ml.add(f(2, 3), f(4)) ->
    ShapeError: [add] sizes must be equal or 1, aligned at the right: 3 != 4 (a [2, 3], b [4])
ml.add(ml.arange(3), 0.5) -> DTypeError: [add] value must be a number of the kind of int32: float
ml.add(f(2), 1j) -> DTypeError: [add] value must be a number of the kind of float32: complex
ml.add(ml.zeros(2, dtype="uint8"), 256) ->
    TensorError: [add] value must be in [0, 255] for uint8: 256
ml.add([1], [2]) -> TensorTypeError: [add] a or b must be a Tensor: list
ml.add([1], f(2)) -> DTypeError: [add] value must be a number of the kind of float32: list
ml.div(f(2), "2") -> DTypeError: [div] value must be a number of the kind of float32: str
ml.sub(ml.tensor([True]), ml.tensor([True])) ->
    DTypeError: [sub] dtype must be of kind float or int or complex: bool (shape [1])
ml.swiglu(f(2, 3), f(3)) -> ShapeError: [swiglu] gate.shape must equal up.shape: [2, 3] != [3]
ml.swiglu(f(2), of("bfloat16", 2)) ->
    DTypeError: [swiglu] a.dtype must equal b.dtype: float32 != bfloat16 (a [2], b [2])
ml.swiglu(of("int32", 2), of("int32", 2)) ->
    DTypeError: [swiglu] dtype must be a real floating-point dtype: int32 (shape [2])
ml.silu(of("complex64", 2)) ->
    DTypeError: [silu] dtype must be a real floating-point dtype: complex64 (shape [2])
ml.pow(2.0, 3.0) -> TensorTypeError: [pow] a or b must be a Tensor: float
ml.pow(f(2), f(3)) ->
    ShapeError: [pow] sizes must be equal or 1, aligned at the right: 2 != 3 (a [2], b [3])
ml.pow(of("uint8", 2), 2) ->
    DTypeError: [pow] dtype must be a real floating-point dtype: uint8 (shape [2])
ml.outer(f(2, 1), f(3)) ->
    ShapeError: [outer] a.ndim and b.ndim must equal 1: 2, 1 (a [2, 1], b [3])
ml.outer(f(2), of("float16", 3)) ->
    DTypeError: [outer] a.dtype must equal b.dtype: float32 != float16 (a [2], b [3])
ml.polar(of("bfloat16", 2), f(2)) ->
    DTypeError: [polar] dtype must equal float32: bfloat16 (shape [2])
ml.polar(f(2), f(3)) ->
    ShapeError: [polar] sizes must be equal or 1, aligned at the right: 2 != 3 (a [2], b [3])
ml.exp(np.ones(3)) -> TensorTypeError: [exp] x must be a Tensor: ndarray
ml.exp(ml.tensor([True])) ->
    DTypeError: [exp] dtype must be a real floating-point dtype: bool (shape [1])
ml.rsqrt(of("int32", 2)) ->
    DTypeError: [rsqrt] dtype must be a real floating-point dtype: int32 (shape [2])
ml.neg(ml.tensor([True])) ->
    DTypeError: [neg] dtype must be of kind float or int or complex: bool (shape [1])
ml.clip(ml.tensor([1j]), 0) ->
    DTypeError: [clip] dtype must be of kind float or int: complex64 (shape [1])
ml.clip(ml.ones(2)) -> TensorError: [clip] min or max must be given: None, None
ml.clip(ml.tensor([1]), 0.5) ->
    DTypeError: [clip] value must be a number of the kind of int64: float
ml.gelu(ml.ones(2), "erf") -> TensorError: [gelu] approximate must be 'none' or 'tanh': 'erf'

# compare
ml.equal(ml.ones(2), ml.tensor([1, 2])) ->
    DTypeError: [equal] a.dtype must equal b.dtype: float32 != int64 (a [2], b [2])
ml.ones(2) < ml.ones(3) ->
    ShapeError: [less] sizes must be equal or 1, aligned at the right: 2 != 3 (a [2], b [3])
ml.less(ml.ones(2), "a") -> TensorTypeError: [less] b must be a Tensor: str
ml.ones(2) < 1j -> DTypeError: [less] operands must be real: complex (float32)
ml.where(ml.ones(2), 1, 2) ->
    DTypeError: [where] condition.dtype must equal bool: float32 (shape [2])
ml.where(ml.tensor([True]), ml.ones(1), ml.tensor([1])) ->
    DTypeError: [where] a.dtype must equal b.dtype: float32 != int64 (a [1], b [1])
ml.where(ml.tensor([True]), ml.ones(1), None) ->
    DTypeError: [where] value must be a number of the kind of float32: NoneType
ml.allclose(ml.ones(1), 1) -> TensorTypeError: [allclose] b must be a Tensor: int

# creation
ml.arange(0, 5, 0) ->
    TensorError: [arange] start, stop and step must be finite, and step != 0: 0, 5, 0
ml.arange(0, np.inf, 1) ->
    TensorError: [arange] start, stop and step must be finite, and step != 0: 0, inf, 1
ml.arange(0, 257, dtype="uint8") -> TensorError: [arange] value must be in [0, 255] for uint8: 256
ml.arange(2**31, 2**31 + 1) ->
    TensorError: [arange] value must be in [-2147483648, 2147483647] for int32: 2147483648
ml.arange(0, 2, 0.5, dtype="int32") ->
    DTypeError: [arange] value must be a number of the kind of int32: float
ml.arange("a") -> DTypeError: [arange] value must be a number of the kind of float32: str
ml.arange(2**63) ->
    TensorError: [arange] value must be in [-9223372036854775808, 9223372036854775807] for int64:
        9223372036854775808
ml.arange(1.5, 2**40) -> TensorMemoryError: [empty] bytes must fit into memory: 4398046511100
ml.full((-1,), 0) -> ShapeError: [full] sizes must be >= 0: [-1]
ml.full((2,), "x") -> DTypeError: [full] value must be a number of the kind of float32: str
ml.full((2,), True) -> DTypeError: [full] value must be a number of the kind of float32: bool
ml.full((2,), 300, "uint8") -> TensorError: [full] value must be in [0, 255] for uint8: 300
ml.full((1,) * 65, 0) -> ShapeError: [full] ndim must be <= 64: 65
ml.zeros(True) -> ShapeError: [zeros] sizes must be integers: (True,)
ml.zeros(2**40) -> TensorMemoryError: [empty] bytes must fit into memory: 4398046511104
ml.zeros(2, dtype=ml.nf4) -> DTypeError: [zeros] dtype must be one of DTYPES: nf4
ml.eye("a") -> ShapeError: [eye] sizes must be integers: ('a', 'a')
ml.tensor("abc") -> DTypeError: [tensor] data must be numbers: <U3 (shape [])
ml.tensor(None) -> DTypeError: [tensor] data must be numbers: object (shape [])
ml.tensor([2**63]) ->
    TensorError: [tensor] value must be <= 9223372036854775807 for int64: 9223372036854775808
ml.tensor([300], dtype="uint8") -> TensorError: [to] values must be in [0, 255] for uint8: 300.0
ml.tensor([1], dtype=int) -> DTypeError: [tensor] dtype must be one of DTYPES: type
ml.Generator("a") -> TensorError: [Generator] seed must be an integer >= 0: 'a'
ml.Generator(-1) -> TensorError: [Generator] seed must be an integer >= 0: -1
ml.rand(2, generator=3) -> TensorTypeError: [rand] generator must be a Generator: int
ml.rand(2, dtype="int32") -> DTypeError: [rand] dtype= must be a real floating-point dtype: int32
ml.randn(-1) -> ShapeError: [randn] sizes must be >= 0: [-1]
ml.rand(2**40, 2**10) -> TensorMemoryError: [rand] memory: the system refused the allocation

# reduction
ml.sum(ml.ones(2), 1) -> IndexOutOfRangeError: [sum] dim must be in [-1, 1): 1
ml.sum(ml.ones(2, 2), (0, -2)) -> ShapeError: [sum] dims must differ: [0, -2]
ml.sum(ml.ones(2), True) -> ShapeError: [sum] dim must be integers: (True,)
ml.sum([1]) -> TensorTypeError: [sum] x must be a Tensor: list
ml.mean(ml.tensor([1])) ->
    DTypeError: [mean] dtype must be a real floating-point dtype: int64 (shape [1])
ml.mean(f(3), 1) -> IndexOutOfRangeError: [mean] dim must be in [-1, 1): 1
ml.max(ml.zeros(2, 0), 1) -> ShapeError: [max] number of elements must be >= 1: 0 (shape [2, 0])
ml.min(ml.zeros(0)) -> ShapeError: [min] number of elements must be >= 1: 0 (shape [0])
ml.max(ml.tensor([1j])) ->
    DTypeError: [max] dtype must be of kind float or int or bool: complex64 (shape [1])
ml.argmax(f(3, 0), 1) -> ShapeError: [argmax] shape[1] must be >= 1: 0 (shape [3, 0])
ml.argmax(of("complex64", 3), 0) ->
    DTypeError: [argmax] dtype must be of kind float or int or bool: complex64 (shape [3])
ml.argmax(f(3), 1) -> IndexOutOfRangeError: [argmax] dim must be in [-1, 1): 1
ml.argmax(f(), -1) -> IndexOutOfRangeError: [argmax] dim must be in [0, 0): -1
ml.softmax(of("int32", 3)) ->
    DTypeError: [softmax] dtype must be a real floating-point dtype: int32 (shape [3])
ml.softmax(f(3), 1) -> IndexOutOfRangeError: [softmax] dim must be in [-1, 1): 1
ml.softmax(f(3), dtype=ml.int32) ->
    DTypeError: [softmax] dtype= must be a real floating-point dtype: int32
ml.softmax(f(3), dtype=ml.nf4) -> DTypeError: [softmax] dtype must be one of DTYPES: nf4
ml.log_softmax(ml.tensor([1, 2])) ->
    DTypeError: [log_softmax] dtype must be a real floating-point dtype: int64 (shape [2])
ml.log_softmax(ml.ones(2), dtype="int8") ->
    DTypeError: [log_softmax] dtype= must be a real floating-point dtype: int8
ml.rms_norm(f(2, 5), f(4), 1e-5) ->
    ShapeError: [rms_norm] weight.shape must equal (x.shape[-1],): [4] != [5] (x [2, 5], weight [4])
ml.rms_norm(f(), f(1), 1e-5) -> ShapeError: [rms_norm] ndim must be >= 1: 0 (shape [])
ml.rms_norm(f(5), of("int32", 5), 1e-5) ->
    DTypeError: [rms_norm] dtype must be a real floating-point dtype: int32 (shape [5])
ml.rms_norm(of("int32", 5), f(5), 1e-5) ->
    DTypeError: [rms_norm] dtype must be a real floating-point dtype: int32 (shape [5])
ml.layer_norm(ml.ones(2, 3), 2) ->
    ShapeError: [layer_norm] x.shape must end in normalized_shape: [2, 3], [2]
ml.layer_norm(ml.ones(2), ()) ->
    ShapeError: [layer_norm] x.shape must end in normalized_shape: [2], []
ml.layer_norm(ml.ones(2, 3), 3, weight=ml.ones(2)) ->
    ShapeError: [layer_norm] weight.shape must equal normalized_shape: [2] != [3]
ml.layer_norm(ml.ones(3), 3, bias=5) -> TensorTypeError: [layer_norm] bias must be a Tensor: int
ml.layer_norm(ml.ones(3), 3, eps="a") ->
    DTypeError: [layer_norm] value must be a number of the kind of float32: str

# movement
f(2, 1, 3).squeeze(3) -> IndexOutOfRangeError: [squeeze] dim must be in [-3, 3): 3
f(2, 1, 3).unsqueeze(4) -> IndexOutOfRangeError: [unsqueeze] dim must be in [-4, 4): 4
f(2, 1, 3).unsqueeze("a") -> ShapeError: [unsqueeze] dim must be integers: ('a',)
f(2, 1, 3).permute(0, 1, -2) -> ShapeError: [permute] dims must be each of [0, 3) once: [0, 1, 1]
f(2, 1, 3).flatten(2, 1) -> ShapeError: [flatten] start_dim must be <= end_dim: 2 > 1
f(2, 1, 3).expand(2, 4, 4) ->
    ShapeError: [expand] sizes must equal x.shape, aligned at the right, where it is not 1: [2, 4,
        4] (shape [2, 1, 3])
f(2, 1, 3).expand(-1, 2, 1, 3) -> ShapeError: [expand] sizes must be >= 0: [-1, 2, 1, 3]
f().expand(2**31, 2**31) ->
    ShapeError: [shape] bytes must be <= 9223372036854775807: 18446744073709551616 (shape
        [2147483648, 2147483648])
f(2, 1, 3).split(0) -> ShapeError: [split] split_size must be >= 1: 0
f(2, 1, 3).split((2, 2), 2) ->
    ShapeError: [split] sizes must add up to shape[2]: 4 != 3 (shape [2, 1, 3])
ml.stack([]) -> ShapeError: [stack] number of tensors must be >= 1: 0
ml.stack(5) -> TensorTypeError: [stack] tensors must be a sequence of Tensors: int
ml.stack([f(2, 1, 3), f(3)]) -> ShapeError: [stack] shapes must be equal: [2, 1, 3] != [3]
ml.concatenate([]) -> ShapeError: [concatenate] number of tensors must be >= 1: 0
ml.concatenate([f(2, 3), f(2, 3), f(2, 4)]) ->
    ShapeError: [concatenate] shapes must be equal outside of dim 0: [2, 3] != [2, 4] (tensors 0 and
        2)
ml.concatenate([f(2, 3), f(3)]) ->
    ShapeError: [concatenate] shapes must be equal outside of dim 0: [2, 3] != [3] (tensors 0 and 1)
ml.concatenate([f(2), of("bfloat16", 2)]) ->
    DTypeError: [concatenate] dtypes must be equal: float32 != bfloat16 (tensors 0 and 1)
ml.concatenate([f(2)], 1) -> IndexOutOfRangeError: [concatenate] dim must be in [-1, 1): 1
ml.concatenate(None) ->
    TensorTypeError: [concatenate] tensors must be a sequence of Tensors: NoneType

# lookup
ml.get_rows(f(0, 3), ids(0)) ->
    IndexOutOfRangeError: [get_rows] ids must be in [0, 0): 0 (table [0, 3], ids [1])
ml.get_rows(f(5, 3), of("uint16", 2)) ->
    DTypeError: [get_rows] ids.dtype must equal int32: uint16 (ids [2])
ml.get_rows(f(), ids(0)) -> ShapeError: [get_rows] ndim must be >= 1: 0 (shape [])
ml.get_rows(nf4(5, 64), ids(5)) ->
    IndexOutOfRangeError: [get_rows] ids must be in [0, 5): 5 (table [5, 64], ids [1])
ml.get_rows(nf4(5, 64), ids(4), ml.int32) ->
    DTypeError: [get_rows] dtype= must be a real floating-point dtype: int32
ml.get_rows(nf4(5), ids(4)) ->
    ShapeError: [get_rows] ndim of a block-quantized table must equal 2: 1 (shape [5])
ml.sort(ml.ones(())) -> IndexOutOfRangeError: [sort] dim must be in [0, 0): -1
ml.sort(5) -> TensorTypeError: [sort] x must be a Tensor: int
ml.topk(ml.ones(2, 3), 4) -> ShapeError: [topk] 0 <= k <= shape[1] must hold: 4 (shape [2, 3])
ml.topk(ml.ones(3), 1.0) -> ShapeError: [topk] k must be integers: (1.0,)
ml.gather(ml.ones(3), 0, ml.ones(2)) ->
    DTypeError: [gather] index.dtype must be int32 or int64: float32
ml.gather(ml.ones(3), 0, ml.tensor([0, 3])) ->
    IndexOutOfRangeError: [gather] index along dim 0 must be in [0, 3): 3 (x [3])
ml.gather(ml.ones(3, 1), 0, ml.tensor([[0, 0]])) ->
    ShapeError: [gather] index.shape must be <= x.shape outside of dim 0: [1, 2] > [3, 1]
ml.tril(f(2)) -> ShapeError: [tril] ndim must be >= 2: 1 (shape [2])
ml.tril(f(2, 2), 0.5) -> ShapeError: [tril] diagonal must be integers: (0.5,)

# linear
ml.linear_transformation(f(7, 64), f(60, 128)) ->
    ShapeError: [linear_transformation] x.shape[-1] must equal weight.shape[1] of a weight [out,
        in]: 64 != 128 (x [7, 64], weight [60, 128])
ml.linear_transformation(f(7, 4), f(4)) ->
    ShapeError: [linear_transformation] x.shape[-1] must equal weight.shape[1] of a weight [out,
        in]: 4 != 4 (x [7, 4], weight [4])
ml.linear_transformation(f(), f(4, 4)) ->
    ShapeError: [linear_transformation] ndim must be >= 1: 0 (shape [])
ml.linear_transformation(of("bfloat16", 7, 4), f(4, 4)) ->
    DTypeError: [linear_transformation] x.dtype must equal weight.dtype, or hold all its values:
        bfloat16 != float32 (x [7, 4], weight [4, 4])
ml.linear_transformation(of("int32", 7, 4), of("int32", 4, 4)) ->
    DTypeError: [linear_transformation] dtype must be a real floating-point dtype: int32 (shape [7,
        4])
ml.linear_transformation(f(7, 4), f(4, 4), ml.int32) ->
    DTypeError: [linear_transformation] dtype= must be a real floating-point dtype: int32
ml.linear_transformation(f(1, 2), np.ones((3, 2))) ->
    TensorTypeError: [linear_transformation] weight must be a Tensor: ndarray
ml.linear_transformation(f(2, 5), f(4, 5), bias=f(3)) ->
    ShapeError: [linear_transformation] bias.shape must equal weight.shape[:1]: [3] != [4] (weight
        [4, 5])
ml.linear_transformation(f(2, 5), f(4, 5), bias=of("int32", 4)) ->
    DTypeError: [linear_transformation] dtype must be a real floating-point dtype: int32 (shape [4])
ml.linear_transformation(f(2, 65), nf4(4, 64)) ->
    ShapeError: [linear_transformation] x.shape[-1] must equal weight.shape[1] of a weight [out,
        in]: 65 != 64 (x [2, 65], weight [4, 64])
ml.linear_transformations(f(2, 5), []) ->
    ShapeError: [linear_transformations] len(biases) must equal len(weights) >= 1: 0 != 0
ml.linear_transformations(f(2, 5), [f(4, 5)], biases=[None, None]) ->
    ShapeError: [linear_transformations] len(biases) must equal len(weights) >= 1: 2 != 1
ml.linear_transformations(f(2, 5), [f(4, 5), f(4, 6)]) ->
    ShapeError: [linear_transformations] x.shape[-1] must equal weight.shape[1] of a weight [out,
        in]: 5 != 6 (x [2, 5], weight [4, 6])
ml.linear_transformations(of("bfloat16", 2, 5), [of("bfloat16", 4, 5), f(4, 5)]) ->
    DTypeError: [linear_transformations] x.dtype must equal weight.dtype, or hold all its values:
        bfloat16 != float32 (x [2, 5], weight [4, 5])
ml.matmul(f(7, 64), f(128, 60)) ->
    ShapeError: [matmul] a.shape[-1] must equal b.shape[-2]: 64 != 128 (a [7, 64], b [128, 60])
ml.matmul(f(2, 3, 5), f(3, 5, 4)) ->
    ShapeError: [matmul] sizes must be equal or 1, aligned at the right: 2 != 3 (a [2], b [3])
ml.matmul(f(), f(2, 2)) -> ShapeError: [matmul] ndim must be >= 1: 0 (shape [])
ml.matmul(f(2, 2), of("bfloat16", 2, 2)) ->
    DTypeError: [matmul] a.dtype must equal b.dtype: float32 != bfloat16 (a [2, 2], b [2, 2])
ml.matmul(of("complex64", 2, 2), of("complex64", 2, 2)) ->
    DTypeError: [matmul] dtype must be a real floating-point dtype: complex64 (shape [2, 2])
ml.matmul(f(2, 2), f(2, 2), ml.uint8) ->
    DTypeError: [matmul] dtype= must be a real floating-point dtype: uint8

# attention
ml.repeat_heads(f(3, 4), 2) -> ShapeError: [repeat_heads] ndim must equal 3: 2 (shape [3, 4])
ml.repeat_heads(f(3, 2, 4), 0) -> ShapeError: [repeat_heads] repeats must be >= 1: 0
ml.rotary_embedding(f(3, 2, 8), of("complex64", 3, 4), pairs="neox") ->
    TensorError: [rotary_embedding] pairs must be 'interleaved' or 'halves': 'neox'
ml.rotary_embedding(f(3, 2, 8), of("complex64", 4, 4)) ->
    ShapeError: [rotary_embedding] frequencies.shape must equal (x.shape[0], x.shape[2] / 2): [4, 4]
        != [3, 4] (x [3, 2, 8])
ml.rotary_embedding(f(3, 2, 7), of("complex64", 3, 3)) ->
    ShapeError: [rotary_embedding] frequencies.shape must equal (x.shape[0], x.shape[2] / 2): [3, 3]
        != [3, 3.5] (x [3, 2, 7])
ml.rotary_embedding(f(3, 8), of("complex64", 3, 4)) ->
    ShapeError: [rotary_embedding] x.ndim must equal 3: 2 (shape [3, 8])
ml.rotary_embedding(f(3, 2, 8), f(3, 4)) ->
    DTypeError: [rotary_embedding] frequencies.dtype must equal complex64: float32
ml.rotary_embedding(of("int32", 3, 2, 8), of("complex64", 3, 4)) ->
    DTypeError: [rotary_embedding] dtype must be a real floating-point dtype: int32 (shape [3, 2,
        8])
ml.attention(f(1, 4, 6), cache(), 0) ->
    ShapeError: [attention] xq.shape must equal [T, heads, 4]: [1, 4, 6]
ml.attention(f(1, 3, 4), cache(), 0) ->
    ShapeError: [attention] xq.shape[1] must be a multiple of cache.heads: 3 and 2 (xq [1, 3, 4])
ml.attention(f(2, 4, 4), cache(), 7) ->
    ShapeError: [attention] start_pos and start_pos + T must be in [0, cache.positions]: 7 and 9, 8
        (xq [2, 4, 4])
ml.attention(f(2, 4, 4), cache(), True) ->
    ShapeError: [attention] start_pos must be integers: (True,)
ml.attention(of("bfloat16", 2, 4, 4), cache(), 0) ->
    DTypeError: [attention] xq.dtype must equal cache.dtype: bfloat16 != float32 (xq [2, 4, 4])
ml.attention(f(2, 4, 4), None, 0) ->
    TensorTypeError: [attention] cache must be a KeyValueCache: NoneType
ml.write_cache(cache(), 7, f(2, 2, 4), f(2, 2, 4)) ->
    ShapeError: [write_cache] start_pos and start_pos + T must be in [0, cache.positions]: 7 and 9,
        8 (xk [2, 2, 4])
ml.write_cache(cache(), 0, f(2, 1, 4), f(2, 1, 4)) ->
    ShapeError: [write_cache] xk.shape and xv.shape must equal [T, 2, 4]: xk [2, 1, 4], xv [2, 1, 4]
ml.write_cache(cache(), 0, f(2, 2, 4), f(1, 2, 4)) ->
    ShapeError: [write_cache] xk.shape and xv.shape must equal [T, 2, 4]: xk [2, 2, 4], xv [1, 2, 4]
ml.write_cache(cache(), 0, f(2, 2, 6), f(2, 2, 6)) ->
    ShapeError: [write_cache] xk.shape must equal [T, heads, 4]: [2, 2, 6]
ml.write_cache(cache(), 0, of("bfloat16", 2, 2, 4), f(2, 2, 4)) ->
    DTypeError: [write_cache] xk.dtype must equal cache.dtype: bfloat16 != float32 (xk [2, 2, 4])
ml.write_cache(cache(), 0, f(2, 2, 4), of("bfloat16", 2, 2, 4)) ->
    DTypeError: [write_cache] xv.dtype must equal float32: bfloat16
ml.read_cache(cache(), 3, 2) ->
    IndexOutOfRangeError: [read_cache] 0 <= start <= stop <= size must hold: start 3, stop 2, size 8
ml.read_cache(cache(), 0, 9) ->
    IndexOutOfRangeError: [read_cache] 0 <= start <= stop <= size must hold: start 0, stop 9, size 8
ml.KeyValueCache(0, 2, 4, ml.float32) ->
    ShapeError: [KeyValueCache] positions and head_dim must be >= 1 and heads >= 0: (0, 2, 4)
ml.KeyValueCache(8, 2, 5, ml.bfloat16) -> ShapeError: [KeyValueCache] head_dim must be even: 5
ml.KeyValueCache(8, 2.0, 4, ml.bfloat16) ->
    ShapeError: [KeyValueCache] sizes must be integers: (8, 2.0, 4)
ml.KeyValueCache(8, 2, 4, ml.float16) ->
    DTypeError: [KeyValueCache] dtype must be one of bfloat16, float32: float16
ml.KeyValueCache(2**52, 2, 4, ml.float32) ->
    TensorMemoryError: [empty] bytes must fit into memory: 144115188075855936
ml.KeyValueCache(2**60, 2, 4, ml.float32) ->
    ShapeError: [shape] bytes must be <= 9223372036854775807: 36893488147419103296
    (shape [36893488147419103296])

# Tensor
ml.Tensor.from_numpy([1.0]) -> TensorTypeError: [from_numpy] type must equal numpy.ndarray: list
ml.Tensor.from_numpy(np.zeros(3)) ->
    DTypeError: [from_numpy] array.dtype must be one of DTYPES: dtype('float64')
ml.Tensor.from_buffer(5, ml.uint8, (1,)) ->
    TensorError: [from_buffer] buffer must be contiguous bytes: memoryview: a bytes-like object is
        required, not 'int'
ml.Tensor.from_buffer(bytes(8), ml.float32, (2, 2), (8, 4), 4) ->
    TensorError: [Tensor] elements must lie in bytes [0, 8) of the storage: [4, 20) (shape [2, 2],
        strides [8, 4], offset 4, float32)
ml.Tensor.from_buffer(bytes(8), ml.uint8, (2,), (1, 1)) ->
    ShapeError: [Tensor] len(shape) must equal len(strides): 1 != 2
ml.Tensor.from_buffer(bytes(8), ml.uint8, (2,), (1.0,)) ->
    ShapeError: [Tensor] strides must be integers: (1.0,)
ml.Tensor.from_buffer(bytes(8), ml.uint8, (2,), (1,), 0.0) ->
    ShapeError: [Tensor] offset must be integers: (0.0,)
ml.Tensor.from_buffer(bytes(8), ml.uint8, (2.5,)) ->
    ShapeError: [from_buffer] sizes must be integers: (2.5,)
ml.Tensor(None, (1,), (1,), ml.uint8) ->
    TensorTypeError: [Tensor] storage must be flat bytes: NoneType
ml.Tensor(np.zeros((1, 1), np.uint8), (1,), (1,), ml.uint8) ->
    TensorTypeError: [Tensor] storage must be flat bytes: ndarray
ml.Tensor.empty((2**61,), ml.uint8) ->
    TensorMemoryError: [empty] bytes must fit into memory: 2305843009213693952
f(2, 3).T.reshape(4, 2) ->
    ShapeError: [reshape] number of elements must stay equal: 6 != 8 ([3, 2] to [4, 2])
f(6).reshape(4, -1) ->
    ShapeError: [reshape] number of elements must stay equal: 6 != 4 ([6] to [4, -1])
f(6).reshape(-1, -1) ->
    ShapeError: [reshape] sizes must be >= 0 with at most one -1 that follows from the others: [-1,
        -1] (from [6])
f(6).reshape(-2, -3) ->
    ShapeError: [reshape] sizes must be >= 0 with at most one -1 that follows from the others: [-2,
        -3] (from [6])
ml.zeros(0).reshape(-1, 0) ->
    ShapeError: [reshape] sizes must be >= 0 with at most one -1 that follows from the others: [-1,
        0] (from [0])
f(6).reshape(2, 3.0) -> ShapeError: [reshape] sizes must be integers: (2, 3.0)
f(6).reshape(6, *[1] * 64) -> ShapeError: [reshape] ndim must be <= 64: 65
f(2, 3).transpose(0, 2) -> IndexOutOfRangeError: [transpose] dim must be in [-2, 2): 2
f(2, 3, 4).T -> ShapeError: [T] ndim must equal 2: 3 (shape [2, 3, 4])
f(5, 3).slice(0, 6) ->
    IndexOutOfRangeError: [slice] 0 <= start <= stop <= size must hold: start 0, stop 6, size 5
f(5).slice(0, True) -> ShapeError: [slice] start and stop must be integers: (0, True)
f().slice(0, 0) -> ShapeError: [slice] ndim must be >= 1: 0 (shape [])
f().set_slice(0, 0, 1.0) -> ShapeError: [set_slice] ndim must be >= 1: 0 (shape [])
f(5, 3).set_slice(1, 3, of("bfloat16", 2, 3)) ->
    DTypeError: [set_slice] dtype must equal value.dtype: float32 != bfloat16 (slice [2, 3], value
        [2, 3])
f(5, 3).set_slice(1, 3, f(4)) ->
    ShapeError: [set_slice] sizes must be equal or 1, aligned at the right: 3 != 4 (a [2, 3], b [4])
f(5, 3).set_slice(1, 3, f(7, 2, 3)) ->
    ShapeError: [set_slice] value.shape must broadcast to the slice: [7, 2, 3] != [2, 3]
f(5, 3).set_slice(1, 3, 1j) ->
    DTypeError: [set_slice] value must be a number of the kind of float32: complex
f(5).set_slice(3, 6, 1.0) ->
    IndexOutOfRangeError: [set_slice] 0 <= start <= stop <= size must hold: start 3, stop 6, size 5
f(2, 3)[1, -4] -> IndexOutOfRangeError: [getitem] index must be in [-3, 3): -4 (dim 1, shape [2, 3])
f(2, 3)[1, 10**30] ->
    IndexOutOfRangeError: [getitem] index must be in [-3, 3): 1000000000000000000000000000000 (dim
        1, shape [2, 3])
f(2, 3)[0, 0, 0] ->
    IndexOutOfRangeError: [getitem] number of indices must be <= ndim: 3 > 2 (shape [2, 3])
f(2, 3)[..., ...] -> TensorError: [getitem] number of Ellipsis must be <= 1: 2
f(3)[0.0:2] -> TensorError: [getitem] an index must be an integer, a slice or an Ellipsis: float
f(3)[::0] -> IndexOutOfRangeError: [getitem] step must be >= 1: 0 (dim 0)
f(3)[::-1] -> IndexOutOfRangeError: [getitem] step must be >= 1: -1 (dim 0)
of("bfloat16", 3, 2).view_as_complex() ->
    DTypeError: [view_as_complex] dtype must equal float32: bfloat16
f().view_as_complex() ->
    ShapeError: [view_as_complex] the last size must equal 2 with a stride of 4 bytes: shape [],
        strides []
f(2, 4)[:, ::2].view_as_complex() ->
    ShapeError: [view_as_complex] the last size must equal 2 with a stride of 4 bytes: shape [2, 2],
        strides [16, 8]
f(2).view_as_real() -> DTypeError: [view_as_real] dtype must equal complex64: float32
f(3, 2).item() -> ShapeError: [item] number of elements must equal 1: 6 (shape [3, 2])
bool(ml.zeros(0)) -> TensorTypeError: [bool] number of elements must equal 1: 0 (shape [0])
len(f()) -> ShapeError: [len] ndim must be >= 1: 0 (shape [])
ml.full((1,), 256.0).to("uint8") -> TensorError: [to] values must be in [0, 255] for uint8: 256.0
ml.full((1,), np.nan).to("int32") ->
    TensorError: [to] values must be in [-2147483648, 2147483647] for int32: nan
ml.full((1,), 2.0**31).to("int32") ->
    TensorError: [to] values must be in [-2147483648, 2147483647] for int32: 2147483648.0
ml.full((1,), 2.0**63).to("int64") ->
    TensorError: [to] values must be in [-9223372036854775808, 9223372036854775807] for int64:
        9.223372036854776e+18
ml.ones(2).to(None) -> DTypeError: [to] dtype must be one of DTYPES: NoneType
ml.ones(2).to(ml.nf4) -> DTypeError: [to] dtype must be one of DTYPES: nf4

# quantized
ml.quantize(f(4, 64), ml.bfloat16) ->
    DTypeError: [quantize] dtype= must be one of nf4, int8_block, q4_0, q8_0: bfloat16
ml.quantize(f(4, 64), ml.int8_block, True) ->
    DTypeError: [quantize] dtype= of double quantization must equal nf4: int8_block
ml.quantize(ml.full((4, 64), np.nan), ml.nf4) ->
    TensorError: [quantize] elements must be finite: 256 of 256 are not (shape [4, 64])
ml.quantize(ml.full((4, 64), np.inf), ml.int8_block) ->
    TensorError: [quantize] elements must be finite: 256 of 256 are not (shape [4, 64])
nf4(4, 64).dequantize(ml.int32) ->
    DTypeError: [dequantize] dtype= must be a real floating-point dtype: int32
ml.exp(nf4(4, 64)) ->
    DTypeError: [exp] dtype must not be block-quantized: nf4 (shape [4, 64]); dequantize() gives a
        plain tensor
nf4(4, 64)[0] ->
    DTypeError: [getitem] dtype must not be block-quantized: nf4 (shape [4, 64]); dequantize() gives
        a plain tensor
nf4(4, 64) == nf4(4, 64) ->
    DTypeError: [equal] dtype must not be block-quantized: nf4 (shape [4, 64]); dequantize() gives a
        plain tensor
np.asarray(nf4(4, 64)) ->
    DTypeError: [asarray] dtype must not be block-quantized: nf4 (shape [4, 64]); dequantize() gives
        a plain tensor
ml.QuantizedTensor(ml.float32, (1,), zeros("uint8", 1), zeros("float32", 1)) ->
    DTypeError: [QuantizedTensor] dtype must be nf4, int8_block or a GGUF format: float32
ml.QuantizedTensor(ml.nf4, (-1,), zeros("uint8", 1), zeros("float32", 1)) ->
    ShapeError: [QuantizedTensor] sizes must be >= 0: [-1]
ml.QuantizedTensor(ml.nf4, (3, 64), zeros("uint8", 95), zeros("float32", 3)) ->
    ShapeError: [QuantizedTensor] codes.size must equal 96: 95 (nf4, shape [3, 64])
ml.QuantizedTensor(ml.int8_block, (3, 32), zeros("int8", 96), zeros("bfloat16", 4)) ->
    ShapeError: [QuantizedTensor] scales.size must equal 3: 4 (int8_block, shape [3, 32])
ml.QuantizedTensor(ml.nf4, (64,), zeros("int8", 32), zeros("float32", 1)) ->
    DTypeError: [QuantizedTensor] codes.dtype must equal uint8: int8 (nf4, shape [64])
ml.QuantizedTensor(ml.nf4, (64,), zeros("uint8", 32), zeros("uint8", 1)) ->
    DTypeError: [QuantizedTensor] scales.dtype must equal float32: uint8 (nf4, shape [64])
ml.QuantizedTensor(ml.int8_block, (32,), zeros("int8", 32), zeros("float32", 1)) ->
    DTypeError: [QuantizedTensor] scales.dtype must equal bfloat16: float32 (int8_block, shape [32])
ml.QuantizedTensor(ml.nf4, (64,), zeros("uint8", 32), zeros("float32", 1), nested()) ->
    DTypeError: [QuantizedTensor] scales.dtype must equal uint8: float32 (nf4, shape [64])
ml.QuantizedTensor(ml.int8_block, (32,), zeros("int8", 32), zeros("uint8", 1), nested()) ->
    DTypeError: [QuantizedTensor] dtype of nested scales must equal nf4: int8_block
ml.QuantizedTensor(ml.nf4, (64,), zeros("uint8", 32), zeros("uint8", 1), nested(2)) ->
    ShapeError: [QuantizedTensor] nested.absmax.size must equal 1: 2 (nf4, shape [64])
ml.QuantizedTensor(ml.nf4, (64,), zeros("uint8", 32), zeros("uint8", 1), nested(code=16)) ->
    ShapeError: [QuantizedTensor] nested.code.size must equal 256: 16 (nf4, shape [64])
ml.QuantizedTensor(ml.nf4, (64,), zeros("uint8", 32), zeros("uint8", 1), nested(offset=np.nan)) ->
    TensorError: [QuantizedTensor] nested.offset must be finite: nan (shape [64])
ml.QuantizedTensor(ml.GGML_DTYPES[8], (2, 48), zeros("uint8", 102)) ->
    ShapeError: [QuantizedTensor] shape[-1] must be a multiple of 32: [2, 48] (q8_0)
ml.QuantizedTensor(ml.GGML_DTYPES[8], (), zeros("uint8", 34)) ->
    ShapeError: [QuantizedTensor] shape[-1] must be a multiple of 32: [] (q8_0)
ml.QuantizedTensor(ml.GGML_DTYPES[8], (2, 64), zeros("uint8", 135)) ->
    ShapeError: [QuantizedTensor] codes.size must equal 136: 135 (q8_0, shape [2, 64])
ml.QuantizedTensor(ml.GGML_DTYPES[8], (2, 64), zeros("int8", 136)) ->
    DTypeError: [QuantizedTensor] codes.dtype must equal uint8: int8 (q8_0, shape [2, 64])
ml.QuantizedTensor(ml.GGML_DTYPES[8], (32,), zeros("uint8", 34), zeros("float16", 1)) ->
    DTypeError: [QuantizedTensor] q8_0 has scales in its blocks: none are given
ml.QuantizedTensor(ml.nf4, (64,), zeros("uint8", 32)) ->
    DTypeError: [QuantizedTensor] scales.dtype must equal float32: None (nf4, shape [64])
ml.QuantizedTensor(ml.GGML_DTYPES[8], (32,), zeros("uint8", 34)).scales ->
    DTypeError: [scales] dtype must have separate scales: q8_0
ml.quantize(zeros("float32", 256), ml.GGML_DTYPES[12]) ->
    DTypeError: [quantize] dtype= must be one of nf4, int8_block, q4_0, q8_0: q4_k
ml.quantize(zeros("float32", 2, 48), ml.GGML_DTYPES[8]) ->
    ShapeError: [quantize] x.shape[-1] must be a multiple of 32: [2, 48] (q8_0)
"""
LINES = [line for line in TABLE.splitlines() if line and not line.startswith("#")]
CASES = dict(
    " ".join(line.strip() for line in case.split("\n")).split(" -> ")
    for case in re.split(r"\n(?=\S)", "\n".join(LINES))
)


@pytest.mark.parametrize("call", CASES)
def test_what_does_not_fit_is_refused_in_one_line(call):
    with pytest.raises(ml.TensorError) as caught:
        eval(call)
    text = f"{type(caught.value).__name__}: {caught.value}"
    assert text == CASES[call].replace("DTYPES", ", ".join(map(str, ml.DTYPES)))


@pytest.mark.parametrize("kind", [ml.ShapeError, ml.DTypeError, ml.IndexOutOfRangeError])
def test_every_error_of_the_library_is_a_tensor_error(kind):
    assert issubclass(kind, ml.TensorError)
    assert issubclass(ml.TensorError, ml.LlamaBoltsError)
    assert not issubclass(kind, (IndexError, TypeError, ValueError))
    assert issubclass(ml.TensorMemoryError, (ml.TensorError, MemoryError))
    assert issubclass(ml.TensorMemoryError, MemoryError)
