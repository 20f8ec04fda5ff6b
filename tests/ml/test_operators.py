"""What a Python user expects of a tensor: operators, methods, text, copies."""

import copy
import math
import pickle

import numpy as np
import pytest

from src import ml
from tests.ml.op_checks import SHAPES, bits_of, exact, sample, strided

X = ml.tensor([[1.0, 2.0], [3.0, 4.5]])
ALL_DTYPES = pytest.mark.parametrize("dtype", ml.DTYPES, ids=str)


@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_operators_are_numpys(shape):
    x, y = sample(shape), sample(shape, seed=1)
    a, b = x.numpy(), y.numpy()
    with np.errstate(all="ignore"):
        expected = [
            a + b,
            a - b,
            a * b,
            a / b,
            2 + a,
            2 - a,
            2 * a,
            2 / a,
            a - 2,
            a / 2,
            -a,
            abs(a),
        ]
    results = [x + y, x - y, x * y, x / y, 2 + x, 2 - x, 2 * x, 2 / x, x - 2, x / 2, -x, abs(x)]
    for result, other in zip(results, expected, strict=True):
        assert isinstance(result, ml.Tensor)
        assert result.shape == shape
        assert np.array_equal(result.numpy(), other, equal_nan=True)
    assert np.allclose((x**2).numpy(), a**2)
    assert np.allclose((2**x).numpy(), 2**a)


def test_operators_take_integers_matrices_and_numpys_numbers():
    ids = ml.tensor([7, 8])
    assert (ids + 1).tolist() == [8, 9]
    assert (10 - ids).dtype is ml.int64
    assert (ids / 2).tolist() == [3.5, 4.0]
    assert (X @ X.T).tolist() == [[5, 12], [12, 29.25]]
    assert isinstance(np.float32(2) * X, ml.Tensor)
    assert isinstance(np.int64(2) + ids, ml.Tensor)
    total = X
    total += 1
    assert total.tolist() == [[2, 3], [4, 5.5]]
    assert X.tolist() == [[1, 2], [3, 4.5]]


def test_operators_leave_other_things_to_python():
    for call in (lambda: X + None, lambda: "a" - X, lambda: X @ [1], lambda: X - object()):
        with pytest.raises(TypeError, match="unsupported operand"):
            call()


def test_bools_are_added_as_in_pytorch_and_not_subtracted():
    mask, ones = ml.tensor([True, False]), ml.tensor([True, True])
    assert (mask + mask).tolist() == [True, False]
    assert (mask * ones).tolist() == [True, False]
    for call in (lambda: ones - mask, lambda: 1 - mask, lambda: mask - True, lambda: -mask):
        with pytest.raises(ml.DTypeError, match="dtype must be of kind float or int or complex: b"):
            call()


def test_methods_are_the_ops():
    x = sample((3, 1, 4))
    assert x.sum().item() == ml.sum(x).item()
    assert x.exp().tolist() == ml.exp(x).tolist()
    assert x.max(0)[1].tolist() == ml.max(x, 0)[1].tolist()
    assert x.squeeze(1).permute(1, 0).shape == (4, 3)
    assert x.softmax(dim=-1).sum(-1).shape == (3, 1)
    assert ml.Tensor.exp.__doc__ == ml.exp.__doc__
    with pytest.raises(ml.IndexOutOfRangeError, match=r"^\[sum\] dim must be in"):
        x.sum(3)


def test_a_number_of_one_element():
    assert float(ml.tensor([2.5])) == 2.5
    assert int(ml.tensor(7)) == 7
    assert bool(ml.tensor([[1]])) is True
    with pytest.raises(ml.ShapeError, match="number of elements must equal 1: 4"):
        float(X)
    with pytest.raises(ml.TensorTypeError, match="number of elements must equal 1: 4"):
        bool(X)
    with pytest.raises(ml.TensorTypeError, match="number of elements must equal 1: 0"):
        bool(ml.zeros(0))


def test_hash_is_identity():
    other = X.copy()
    assert len({X, X, other}) == 2
    assert {X: 1}[X] == 1


# ---- copies -------------------------------------------------------------------------------------


@ALL_DTYPES
@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize(
    "copied", [copy.copy, copy.deepcopy, lambda x: pickle.loads(pickle.dumps(x))]
)
def test_copies_keep_dtype_and_bits(dtype, shape, copied):
    x = sample(shape, dtype).with_name("wq")
    views = [x, ml.Tensor.from_buffer(x.numpy().tobytes(), dtype, shape, name="wq")]
    views += [strided(shape, dtype).with_name("wq")] if len(shape) > 1 else []
    for view in views:
        result = copied(view)
        assert result.dtype is dtype
        assert (result.shape, result.name) == (shape, "wq")
        assert (bits_of(result) == bits_of(view)).all()
        assert result.is_writable
        assert (
            ml.concatenate([result.reshape(-1 if x.size else 0), view.reshape(x.size)]).dtype
            is dtype
        )
        if dtype.kind != "bool":
            assert (result + view).dtype is dtype


@pytest.mark.parametrize("dtype", [*ml.DTYPES, *ml.BLOCK_DTYPES], ids=str)
def test_a_copy_of_a_dtype_is_the_dtype(dtype):
    assert copy.deepcopy(dtype) is copy.copy(dtype) is pickle.loads(pickle.dumps(dtype)) is dtype


# ---- block-quantized tensors --------------------------------------------------------------------

BLOCKS = pytest.mark.parametrize(
    ("dtype", "double"), [(ml.nf4, False), (ml.nf4, True), (ml.int8_block, False)], ids=str
)


@BLOCKS
@pytest.mark.parametrize("shape", [(8, 64), (3, 7), (0, 64)], ids=str)
def test_copies_of_quantized_tensors_have_their_elements(dtype, double, shape):
    q = ml.quantize(sample(shape), dtype, double).with_name("wq")
    for other in (copy.deepcopy(q), pickle.loads(pickle.dumps(q))):
        assert other.dtype is dtype
        assert (other.shape, other.name) == (shape, "wq")
        assert (bits_of(other.dequantize()) == bits_of(q.dequantize())).all()


@BLOCKS
def test_quantized_tensors_name_what_to_do(dtype, double):
    q = ml.quantize(sample((8, 64)), dtype, double)
    calls = (lambda: q == q, lambda: q != q, lambda: np.asarray(q), lambda: q[0], lambda: ml.exp(q))
    for call in calls:
        with pytest.raises(ml.DTypeError, match=r"dequantize\(\) gives a plain tensor"):
            call()
    assert not hasattr(q, "reshape")
    assert hasattr(q, "dequantize")
    assert len({q, q}) == 1
    assert repr(q) == f"QuantizedTensor([8, 64], {dtype}{', double' if double else ''})"


# What follows the tensor in a call of each op that is not in tests/ml/test_quantized.py.
UNARY = (
    "abs",
    "exp",
    "log",
    "sqrt",
    "tanh",
    "sigmoid",
    "relu",
    "gelu",
    "neg",
    "sum",
    "mean",
    "max",
)
UNARY = (*UNARY, "min", "sort", "squeeze", "flatten", "tril", "log_softmax", "tensor")
BINARY = ("sub", "equal", "not_equal", "less", "less_equal", "greater", "greater_equal", "div")
AFTER_IT = {
    **dict.fromkeys(UNARY, ()),
    **dict.fromkeys(BINARY, (X,)),
    "cumsum": (0,),
    "gather": (0, ml.zeros(1, 1, dtype="int64")),
    "topk": (1,),
    "unsqueeze": (0,),
    "permute": (1, 0),
    "split": (1,),
    "expand": (8, 64),
    "clip": (0,),
    "layer_norm": (64,),
}


@pytest.mark.parametrize("name", AFTER_IT)
def test_ops_refuse_quantized_tensors_by_name(name):
    q = ml.quantize(sample((8, 64)), ml.nf4)
    calls = [lambda: getattr(ml, name)(q, *AFTER_IT[name])]
    if name in BINARY:
        calls.append(lambda: getattr(ml, name)(X, q))
    for call in (*calls, lambda: ml.stack([q, q])):
        with pytest.raises(ml.DTypeError, match=r"dequantize\(\) gives a plain tensor"):
            call()


# ---- text ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "shape", [*SHAPES, (1000,), (1001,), (40, 50), (3, 400), (7, 7, 30)], ids=str
)
@pytest.mark.parametrize(
    "dtype", [ml.float32, ml.int64, ml.complex64, ml.bool, ml.bfloat16], ids=str
)
def test_tensors_print_as_numpys_arrays_do(shape, dtype):
    x = sample(shape, dtype)
    array = x.numpy().astype(np.float32) if dtype is ml.bfloat16 else x.numpy()
    text = np.array2string(array, prefix="Tensor(")
    assert str(x) == f"Tensor({text}, shape={list(shape)}, dtype={dtype})"


def test_text_by_example():
    assert str(X.with_name("x")) == (
        "Tensor([[1.  2. ]\n        [3.  4.5]], 'x', shape=[2, 2], dtype=float32)"
    )
    assert str(ml.tensor(2.5)) == "Tensor(2.5, shape=[], dtype=float32)"
    assert str(ml.zeros(0, 3)) == "Tensor([], shape=[0, 3], dtype=float32)"
    assert repr(ml.tensor([128000, 1])) == "Tensor([2], int64, [128000, 1])"
    assert repr(ml.tensor([True, False])) == "Tensor([2], bool, [True, False])"
    assert repr(ml.arange(9.0)) == "Tensor([9], float32, [0, 1, 2, ..., 6, 7, 8])"
    assert repr(ml.tensor(1 + 2j)) == "Tensor([], complex64, [1+2j])"
    assert repr(ml.zeros(0)) == "Tensor([0], float32, [])"


def test_a_print_of_a_large_tensor_reads_its_edges_only():
    x = ml.ones((), dtype="bfloat16").expand(2**20, 2**20)
    assert str(x).startswith("Tensor([[1. 1. 1. ... 1. 1. 1.]\n")
    assert str(x).endswith("shape=[1048576, 1048576], dtype=bfloat16)")


@ALL_DTYPES
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_tolist_gives_pythons_numbers(dtype, shape):
    x = sample(shape, dtype)
    assert x.tolist() == exact(x).tolist()
    values = np.asarray(x.tolist(), object).reshape(-1)
    kinds = {"float": float, "int": int, "complex": complex, "bool": bool}
    assert all(type(value) is kinds[dtype.kind] for value in values)
    assert ml.tensor(x.tolist(), dtype=dtype).reshape(*shape).tolist() == x.tolist()


def test_model_tokenizer_and_engine_print_in_a_line():
    from src.inference import InferenceEngine
    from src.model import load_model

    model = load_model()
    engine = InferenceEngine(model, 64)
    assert str(model) == f"Model({model.description})"
    assert str(model.transformer) == (
        "LlamaTransformer(D=192, H=6, K=2, G=3, h=32, F=544, V=4096, L=4, bfloat16)"
    )
    assert str(model.tokenizer) == "Tokenizer(4096 ids, 256 special, ByteLevelEncoder)"
    assert str(engine) == f"InferenceEngine({model}, 0 of 64 positions cached)"


def test_infinities_print():
    assert "nan" in str(ml.tensor([math.nan, math.inf]))
