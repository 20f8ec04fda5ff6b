"""What a Python user expects of a tensor: operators, methods, text, copies."""

import copy
import operator
import pickle

import numpy as np
import pytest

from src import ml
from tests.csrc.quantized_operands import FORMATS
from tests.ml.op_checks import (
    EVERY_DTYPE,
    SHAPES,
    bits_of,
    check_same,
    exact,
    sample,
    samples,
)

X = ml.tensor([[1.0, 2.0], [3.0, 4.5]])


OPERATIONS = [
    lambda x, y: x + y, lambda x, y: x - y, lambda x, y: x * y, lambda x, y: x / y,
    lambda x, y: 2 + x, lambda x, y: 2 - x, lambda x, y: 2 * x, lambda x, y: 2 / x,
    lambda x, y: x - 2, lambda x, y: x / 2, lambda x, y: -x, lambda x, y: abs(x),
]  # fmt: skip


@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_operators_are_numpys(shape):
    x = sample(shape)
    y = sample(shape, seed=1)
    for operation in OPERATIONS:
        check_same(operation(x, y), np.asarray(operation(x.numpy(), y.numpy())))
    assert np.allclose((x**2).numpy(), x.numpy() ** 2)
    assert np.allclose((2**x).numpy(), 2 ** x.numpy())


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
    assert total.tolist() == [[2, 3], [4, 5.5]] != X.tolist()


def test_operators_leave_other_things_to_python_and_add_bools_as_pytorch_does():
    for call in (
        lambda: X + None,
        lambda: "a" - X,
        lambda: X @ [1],
        lambda: X - object(),
    ):
        with pytest.raises(TypeError, match="unsupported operand"):
            call()
    mask = ml.tensor([True, False])
    ones = ml.tensor([True, True])
    assert (mask + mask).tolist() == (mask * ones).tolist() == [True, False]


# Every operator of Python, by the name of its op; `divmod` and others have none.
BINARY = {
    "add": operator.add,
    "sub": operator.sub,
    "multiply": operator.mul,
    "div": operator.truediv,
    "pow": operator.pow,
    "matmul": operator.matmul,
    "less": operator.lt,
    "less_equal": operator.le,
    "greater": operator.gt,
    "greater_equal": operator.ge,
    "equal": operator.eq,
    "not_equal": operator.ne,
    "floordiv": operator.floordiv,
    "mod": operator.mod,
    "divmod": divmod,
    "bitwise_and": operator.and_,
    "bitwise_or": operator.or_,
    "bitwise_xor": operator.xor,
    "lshift": operator.lshift,
    "rshift": operator.rshift,
}
MIRRORED = {
    "less": "greater", "less_equal": "greater_equal", "greater": "less",
    "greater_equal": "less_equal", "equal": "equal", "not_equal": "not_equal",
}  # fmt: skip
IN_PLACE = {
    "add": operator.iadd, "sub": operator.isub, "multiply": operator.imul,
    "div": operator.itruediv, "pow": operator.ipow, "matmul": operator.imatmul,
    "floordiv": operator.ifloordiv, "mod": operator.imod, "bitwise_and": operator.iand,
}  # fmt: skip
ARRAYS = [
    np.ones(2),
    np.ones(2, np.float32),
    np.ones((2, 2), np.float32),
    np.array(2.0),
    np.ones(2, int),
    np.array([True, False]),
    np.ma.masked_array([1.0, 2.0]),
    np.array(["a", "b"]),
    np.bool_(True),
]


@pytest.mark.parametrize("name", BINARY)
@pytest.mark.parametrize(
    "array", ARRAYS, ids=lambda x: f"{type(x).__name__}-{x.dtype}-{x.shape}"
)
@pytest.mark.parametrize("dtype", [ml.float32, ml.bfloat16, ml.int32], ids=str)
def test_an_array_of_numpy_is_refused_on_both_sides_of_every_operator(name, array, dtype):
    x = ml.ones(2, dtype=dtype)
    text = (
        r"must be a Tensor or a number: \w+; Tensor.from_numpy\(array\) creates a Tensor$"
    )
    with pytest.raises(ml.TensorTypeError, match=rf"^\[{name}\] b {text}"):
        BINARY[name](x, array)
    # Python swaps the sides of a comparison that an array does not know.
    other_name = MIRRORED.get(name, name)
    label = "b" if name in MIRRORED else "a"
    if isinstance(array, np.ma.MaskedArray) and name in MIRRORED:
        return  # its comparisons ask no other object
    with pytest.raises(ml.TensorTypeError, match=rf"^\[{other_name}\] {label} {text}"):
        BINARY[name](array, x)
    if name in IN_PLACE:
        with pytest.raises(ml.TensorTypeError, match=rf"^\[{name}\] b {text}"):
            IN_PLACE[name](x, array)
    assert x.tolist() == [1, 1]


def test_tensors_of_arrays_and_numpys_numbers_are_taken_and_numpys_functions_work():
    array = np.array([3.0, 4.0], np.float32)
    x = ml.tensor([1.0, 2.0])
    assert (x + ml.Tensor.from_numpy(array)).tolist() == [4, 6]
    for number in (np.float32(2), np.float64(2), np.int8(2)):
        for result in (x + number, number + x, x * number, number * x):
            assert (type(result), result.dtype) == (ml.Tensor, ml.float32)
        assert (number - x).tolist() == [1, 0]
        assert (number > x).tolist() == [True, False]
    assert np.asarray(x).tolist() == [1, 2]
    assert np.add(array, x).tolist() == [4, 6]
    assert np.exp(x).dtype == np.float32
    with pytest.raises(
        ml.TensorTypeError, match=r"^\[add\] a must be a Tensor or a number: ndarray"
    ):
        array += x
    assert array.tolist() == [3, 4]


def test_a_function_names_from_numpy_for_an_array():
    text = r"; Tensor.from_numpy\(array\) creates a Tensor$"
    array = np.ones((2, 2))
    for call in (
        lambda: ml.add(X, array),
        lambda: ml.softmax(array),
        lambda: ml.linear_transformation(X, array),
        lambda: ml.stack([X, array]),
    ):
        with pytest.raises(ml.TensorError, match=text):
            call()


def test_methods_are_the_ops():
    x = sample((3, 1, 4))
    assert x.max(0)[1].tolist() == ml.max(x, 0)[1].tolist()
    assert x.squeeze(1).permute(1, 0).softmax(dim=-1).sum(-1).shape == (4,)
    assert ml.Tensor.exp is ml.exp
    with pytest.raises(ml.IndexOutOfRangeError, match=r"^\[sum\] dim must be in"):
        x.sum(3)


def test_a_number_of_one_element_and_a_hash_by_identity():
    assert (float(ml.tensor([2.5])), int(ml.tensor(7)), bool(ml.tensor([[1]]))) == (
        2.5,
        7,
        True,
    )
    assert len({X, X, X.copy()}) == 2


# ---- copies ----------------------------------------------------------------------------


@EVERY_DTYPE
@pytest.mark.parametrize(
    "copied", [copy.copy, copy.deepcopy, lambda x: pickle.loads(pickle.dumps(x))]
)
def test_copies_keep_dtype_and_bits(dtype, copied):
    for shape in SHAPES:
        read_only = sample(shape, dtype).numpy().tobytes()
        for x in (*samples(shape, dtype), ml.Tensor.from_buffer(read_only, dtype, shape)):
            result = copied(x.with_name("wq"))
            assert result.name == "wq"
            assert result.is_writable
            check_same(result, x.numpy())
            assert (result + x).dtype is dtype


@pytest.mark.parametrize("dtype", [*ml.DTYPES, *ml.BLOCK_DTYPES], ids=str)
def test_a_copy_of_a_dtype_is_the_dtype(dtype):
    assert (
        copy.deepcopy(dtype)
        is copy.copy(dtype)
        is pickle.loads(pickle.dumps(dtype))
        is dtype
    )


# ---- block-quantized tensors -----------------------------------------------------------


@pytest.mark.parametrize(("block_dtype", "double"), FORMATS)
def test_copies_of_quantized_tensors_have_their_elements(block_dtype, double):
    for shape in ((8, 64), (3, 7), (0, 64)):
        q = ml.quantize(sample(shape), block_dtype, double).with_name("wq")
        for other in (copy.deepcopy(q), pickle.loads(pickle.dumps(q))):
            assert (other.dtype, other.shape, other.name) == (block_dtype, shape, "wq")
            assert (bits_of(other.dequantize()) == bits_of(q.dequantize())).all()


# ---- text ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "shape", [*SHAPES, (1000,), (1001,), (40, 50), (3, 400), (7, 7, 30)], ids=str
)
@EVERY_DTYPE
def test_tensors_print_as_numpys_arrays_do(shape, dtype):
    x = sample(shape, dtype)
    array = x.numpy().astype(np.float32) if dtype.is_float else x.numpy()
    text = np.array2string(array, separator=", ", prefix="Tensor(")
    for name, shown in (("", ""), ("x", "'x', ")):
        expected = f"Tensor({text}, {shown}shape={list(shape)}, dtype={dtype})"
        assert str(x.with_name(name)) == repr(x.with_name(name)) == expected


def test_a_print_of_a_large_tensor_reads_its_edges_only():
    x = ml.ones((), dtype="bfloat16").expand(2**20, 2**20)
    assert str(x).startswith("Tensor([[1., 1., 1., ..., 1., 1., 1.],\n")
    assert str(x).endswith("shape=[1048576, 1048576], dtype=bfloat16)")


@EVERY_DTYPE
def test_tolist_and_item_give_pythons_numbers(dtype):
    kind = {"float": float, "int": int, "complex": complex, "bool": bool}[dtype.kind]
    for shape in SHAPES:
        x = sample(shape, dtype)
        assert x.tolist() == exact(x).tolist()
        assert all(
            type(value) is kind for value in np.asarray(x.tolist(), object).reshape(-1)
        )
        assert ml.tensor(x.tolist(), dtype=dtype).reshape(*shape).tolist() == x.tolist()
    x = sample((1, 1), dtype)
    assert type(x.item()) is kind
    assert x.item() == x.numpy()[0, 0]


def test_model_tokenizer_and_engine_print_in_a_line():
    from src.inference import InferenceEngine
    from src.model import load_model

    model = load_model()
    engine = InferenceEngine(model, 64)
    assert repr(model) == f"Model({model.description})"
    assert str(model.tokenizer) == "Tokenizer(4096 ids, 256 special, ByteLevelEncoder)"
    assert str(engine) == f"InferenceEngine({model!r}, 0 of 64 positions cached)"


EYE = """\
Tensor([[1., 0., 0.],
        [0., 1., 0.],
        [0., 0., 1.]], shape=[3, 3], dtype=float32)"""
LARGE = """\
Tensor([[[   0,    1,    2, ...,   97,   98,   99],
         [ 100,  101,  102, ...,  197,  198,  199]],

        [[ 200,  201,  202, ...,  297,  298,  299],
         [ 300,  301,  302, ...,  397,  398,  399]],

        [[ 400,  401,  402, ...,  497,  498,  499],
         [ 500,  501,  502, ...,  597,  598,  599]],

        ...,

        [[1400, 1401, 1402, ..., 1497, 1498, 1499],
         [1500, 1501, 1502, ..., 1597, 1598, 1599]],

        [[1600, 1601, 1602, ..., 1697, 1698, 1699],
         [1700, 1701, 1702, ..., 1797, 1798, 1799]],

        [[1800, 1801, 1802, ..., 1897, 1898, 1899],
         [1900, 1901, 1902, ..., 1997, 1998, 1999]]], shape=[10, 2, 100], dtype=int32)"""


@pytest.mark.parametrize(
    ("x", "text"),
    [
        (ml.eye(3), EYE),
        (ml.arange(2000).reshape(10, 2, 100), LARGE),
        (ml.arange(7), "Tensor([0, 1, 2, 3, 4, 5, 6], shape=[7], dtype=int32)"),
        (
            ml.full((1, 2), 0.1, ml.bfloat16).with_name("wq"),
            "Tensor([[0.10009766, 0.10009766]], 'wq', shape=[1, 2], dtype=bfloat16)",
        ),
        (ml.zeros((0, 3)), "Tensor([], shape=[0, 3], dtype=float32)"),
        (ml.full((), float("nan"), ml.float16), "Tensor(nan, shape=[], dtype=float16)"),
        (ml.tensor(1 + 2j), "Tensor(1.+2.j, shape=[], dtype=complex64)"),
        (ml.tensor([True, False]), "Tensor([ True, False], shape=[2], dtype=bool)"),
    ],
)
def test_repr_shows_nested_rows_with_shape_and_dtype(x, text):
    assert repr(x) == str(x) == text


def test_repr_escapes_and_cuts_a_name_from_a_file():
    text = repr(ml.zeros((1,)).with_name("\x1b]0;evil\x07\u202e\n" + "x" * 5000))
    assert text.isascii()
    assert text.isprintable()
    assert text.startswith("Tensor([0.], '\\x1b]0;evil\\x07\\u202e\\nxxx")
    assert len(text) < 140
