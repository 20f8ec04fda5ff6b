"""The Tensor: construction, views, elements."""

import gc
import mmap

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from src import ml
from tests.ml.op_checks import SHAPES, check_same, sample, strided

Tensor = ml.Tensor
EVERY_DTYPE = pytest.mark.parametrize("dtype", ml.DTYPES, ids=str)
EVERY_SHAPE = pytest.mark.parametrize("shape", SHAPES, ids=str)


def text_of(caught):
    return str(caught.value)


# ---- from_numpy and numpy -----------------------------------------------------------------------


@EVERY_DTYPE
@EVERY_SHAPE
def test_from_numpy_and_back_is_the_same_memory(dtype, shape):
    array = np.zeros(shape, dtype.numpy_dtype)
    x = Tensor.from_numpy(array, "name")
    assert (x.shape, x.dtype, x.name) == (array.shape, dtype, "name")
    assert (x.ndim, x.size, x.nbytes) == (array.ndim, array.size, array.nbytes)
    assert x.strides == x.numpy().strides == array.strides
    assert x.numpy().dtype == array.dtype
    assert x.is_contiguous
    if array.size:
        assert x.data_pointer == array.ctypes.data
        x.numpy()[...] = 1
        assert (array == 1).all()


@pytest.mark.parametrize(
    "view",
    [
        lambda a: a.T,
        lambda a: a[1:, ::2],
        lambda a: a[::-1],
        lambda a: a[:, ::-3],
        lambda a: a[2],
        lambda a: a[::-1, ::-1].T,
        lambda a: np.broadcast_to(a[0], (4, a.shape[1])),
        lambda a: a[:0, ::-1],
    ],
)
@EVERY_DTYPE
def test_from_numpy_takes_any_strides(view, dtype):
    array = np.arange(35).reshape(5, 7).astype(dtype.numpy_dtype)
    shown = view(array)
    x = Tensor.from_numpy(shown)
    assert np.array_equal(x.numpy(), shown)
    assert x.is_contiguous == (shown.flags.c_contiguous or shown.size == 0)
    if shown.size:
        assert x.strides == shown.strides
        assert x.data_pointer == shown.__array_interface__["data"][0]
        assert np.shares_memory(x.numpy(), array)
    check_same(x.contiguous(), np.ascontiguousarray(shown))


def test_a_read_only_array_stays_read_only():
    array = np.zeros((2, 3), np.float32)
    array.flags.writeable = False
    x = Tensor.from_numpy(array, "weight")
    assert not x.is_writable
    assert not x[1].numpy().flags.writeable
    with pytest.raises(ml.TensorError) as caught:
        x.set_slice(0, 1, 1.0)
    assert text_of(caught) == (
        "[set_slice] the storage must be writable: "
        "Tensor('weight', [2, 3], float32, [0, 0, 0, 0, 0, 0])"
    )
    assert not array.any()


def test_a_tensor_keeps_the_array_alive_and_an_array_keeps_the_tensor_alive():
    view = Tensor.from_numpy(np.full(100_000, 7, np.int32))[10:].numpy()
    own = ml.full((100_000,), 8, ml.int32).reshape(10, -1)[3].numpy()
    gc.collect()
    waste = [np.zeros(100_000, np.int32) for _ in range(8)]
    assert (view == 7).all()
    assert (own == 8).all()
    del waste


@pytest.mark.parametrize("value", [[1.0], 3.0, np.float32(3), memoryview(b"1234"), None])
def test_from_numpy_refuses_what_is_no_array(value):
    with pytest.raises(ml.TensorError) as caught:
        Tensor.from_numpy(value)
    assert text_of(caught) == (
        f"[from_numpy] type must equal numpy.ndarray: {type(value).__name__}"
    )


def test_from_numpy_refuses_a_dtype_without_a_row():
    with pytest.raises(ml.DTypeError, match=r"array\.dtype must be one of bfloat16, .*float64"):
        Tensor.from_numpy(np.zeros(3))


def test_numpy_functions_see_the_elements():
    x = sample((3, 4), ml.bfloat16)
    assert np.shares_memory(np.asarray(x), x.numpy())
    assert np.asarray(x, np.float32).dtype == np.float32
    assert not np.shares_memory(np.array(x), x.numpy())
    with pytest.raises(ValueError, match="needs a copy"):
        np.asarray(x, np.float32, copy=False)
    assert np.asarray(x, copy=False).dtype == ml_dtypes.bfloat16


# ---- from_buffer and the constructor ------------------------------------------------------------


def test_from_buffer_reads_bytes_where_they_lie():
    data = bytearray(np.arange(10, dtype=np.uint16).tobytes())
    x = Tensor.from_buffer(data, ml.uint16, (2, 3), offset=4, name="x")
    assert x.numpy().tolist() == [[2, 3, 4], [5, 6, 7]]
    assert x.is_writable
    x.set_slice(0, 1, 9)
    assert np.frombuffer(data, np.uint16).tolist() == [0, 1, 9, 9, 9, 5, 6, 7, 8, 9]


def test_from_buffer_honours_strides_and_offset_in_bytes():
    data = np.arange(12, dtype=np.float32)
    x = Tensor.from_buffer(data, ml.float32, (3, 2), strides=(4, 12), offset=8)
    assert x.numpy().tolist() == [[2, 5], [3, 6], [4, 7]]


def test_from_buffer_of_read_only_bytes_is_read_only():
    x = Tensor.from_buffer(b"\x01\x02\x03\x04", ml.uint8, (4,))
    assert not x.is_writable
    assert x.numpy().tolist() == [1, 2, 3, 4]


def test_from_buffer_of_a_mapped_file_copies_nothing_and_keeps_it_open(tmp_path):
    path = tmp_path / "weights"
    path.write_bytes(np.arange(4096, dtype=np.float32).tobytes())
    with path.open("rb") as file:
        mapped = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
    x = Tensor.from_buffer(mapped, ml.float32, (2, 1024), offset=4096)
    assert x.data_pointer % 4096 == 0
    assert not x.is_writable
    with pytest.raises(BufferError):
        mapped.close()
    assert x[1, 5].item() == 1024 + 1024 + 5
    del x
    gc.collect()
    mapped.close()


def test_an_empty_buffer_holds_a_tensor_without_elements():
    assert Tensor.from_buffer(b"", ml.float32, (3, 0)).numpy().shape == (3, 0)


@pytest.mark.parametrize("buffer", [5, "text", None, memoryview(b"123456")[::2]])
def test_from_buffer_refuses_what_is_not_contiguous_bytes(buffer):
    with pytest.raises(ml.TensorError, match=r"^\[from_buffer\] buffer must be contiguous bytes: "):
        Tensor.from_buffer(buffer, ml.uint8, (1,))


OUTSIDE = [
    ((9,), None, 0),
    ((8,), None, 1),
    ((1,), None, 8),
    ((1,), None, -1),
    ((), None, 8),
    ((2,), (8,), 0),
    ((2,), (-1,), 0),
    ((3, 2), (4, 1), 0),
    ((2**40,), None, 0),
    ((2**31, 2**31), None, 0),
    ((2,), (2**64,), 0),
    ((2,), (-(2**64),), 2**64),
    ((1,), None, 2**64),
    ((0,), None, 9),
    ((0,), None, -1),
    ((3,), (2**63 - 1,), 0),
]


@pytest.mark.parametrize(("shape", "strides", "offset"), OUTSIDE)
def test_elements_outside_of_the_storage_are_refused(shape, strides, offset):
    with pytest.raises(
        ml.TensorError, match=r"^\[Tensor\] elements must lie in bytes \[0, 8\) of the storage: "
    ):
        Tensor.from_buffer(bytes(8), ml.uint8, shape, strides, offset)


def test_the_refusal_shows_bytes_shape_strides_offset_and_dtype():
    with pytest.raises(ml.TensorError) as caught:
        Tensor.from_buffer(bytes(8), ml.float32, (2, 2), (8, 4), 4)
    assert text_of(caught) == (
        "[Tensor] elements must lie in bytes [0, 8) of the storage: [4, 20) "
        "(shape [2, 2], strides [8, 4], offset 4, float32)"
    )


@pytest.mark.parametrize(
    ("shape", "strides", "offset"),
    [((8,), None, 0), ((0,), None, 8), ((2,), (-7,), 7), ((), None, 7), ((5, 4), (1, 1), 0)],
)
def test_elements_up_to_the_last_byte_are_taken(shape, strides, offset):
    x = Tensor.from_buffer(bytes(range(8)), ml.uint8, shape, strides, offset)
    assert x.shape == shape


@given(
    st.lists(st.tuples(st.integers(0, 5), st.integers(-20, 20)), max_size=3),
    st.integers(-5, 45),
    st.integers(0, 40),
)
def test_a_tensor_is_made_exactly_if_every_element_lies_inside(dims, offset, nbytes):
    shape, strides = tuple(n for n, _ in dims), tuple(step for _, step in dims)
    places = [
        offset + sum(i * step for i, step in zip(index, strides, strict=True))
        for index in np.ndindex(*shape)
    ]
    inside = all(0 <= place <= nbytes - 2 for place in places)
    inside &= bool(places) or 0 <= offset <= nbytes
    data = np.arange(nbytes, dtype=np.uint8).tobytes()
    try:
        x = Tensor.from_buffer(data, ml.uint16, shape, strides, offset)
    except ml.TensorError:
        assert not inside
        return
    assert inside
    expected = [data[place] + 256 * data[place + 1] for place in places]
    assert x.numpy().ravel().tolist() == expected


@pytest.mark.parametrize(
    ("shape", "strides", "offset", "text"),
    [
        ((2,), (1, 1), 0, "[Tensor] len(shape) must equal len(strides): 1 != 2"),
        ((2,), (1.0,), 0, "[Tensor] strides must be integers: (1.0,)"),
        ((2,), (True,), 0, "[Tensor] strides must be integers: (True,)"),
        ((2,), (1,), 0.0, "[Tensor] offset must be integers: (0.0,)"),
        ((2.5,), (1,), 0, "[from_buffer] sizes must be integers: (2.5,)"),
        ((True,), (1,), 0, "[from_buffer] sizes must be integers: (True,)"),
        ((-1,), (1,), 0, "[from_buffer] sizes must be >= 0: [-1]"),
    ],
)
def test_sizes_strides_and_offsets_that_are_no_numbers_are_refused(shape, strides, offset, text):
    with pytest.raises(ml.ShapeError) as caught:
        Tensor.from_buffer(bytes(8), ml.uint8, shape, strides, offset)
    assert text_of(caught) == text


@EVERY_DTYPE
@EVERY_SHAPE
def test_empty_makes_a_contiguous_writable_tensor(dtype, shape):
    x = Tensor.empty(shape, dtype, "e")
    assert (x.shape, x.dtype, x.name) == (shape, dtype, "e")
    assert x.is_contiguous
    assert x.is_writable
    assert x.storage.nbytes == x.nbytes
    x.bits()[...] = 0
    assert not x.numpy().any()


def test_attributes_cannot_be_set():
    x = sample((2,))
    for name in ("shape", "strides", "dtype", "offset", "storage", "name", "other"):
        with pytest.raises(AttributeError):
            setattr(x, name, (10**9,))


def test_elements_at_an_odd_address_are_not_contiguous_for_c_but_readable():
    data = b"\x00" + np.arange(4, dtype=np.float32).tobytes()
    x = Tensor.from_buffer(data, ml.float32, (4,), offset=1)
    assert not x.is_contiguous
    assert x.numpy().tolist() == [0, 1, 2, 3]
    assert x.contiguous().data_pointer % 4 == 0
    assert ml.add(x, x).numpy().tolist() == [0, 2, 4, 6]
    rows = x.reshape(2, 2)
    assert ml.matmul(rows, rows.transpose(0, 1)).numpy().tolist() == [[1, 3], [3, 13]]


# ---- reshape, transpose, slice ------------------------------------------------------------------


@pytest.mark.parametrize(
    ("shape", "wanted", "expected"),
    [
        ((2, 3, 4), (6, 4), (6, 4)),
        ((2, 3, 4), (-1,), (24,)),
        ((2, 3, 4), (2, -1, 2), (2, 6, 2)),
        ((1,), (), ()),
        ((), (1, 1), (1, 1)),
        ((0, 3), (3, 0, 2), (3, 0, 2)),
        ((4, 0), (0,), (0,)),
    ],
)
@EVERY_DTYPE
def test_reshape_of_a_contiguous_tensor_is_a_view(dtype, shape, wanted, expected):
    x = sample(shape, dtype)
    for y in (x.reshape(*wanted), x.reshape(wanted), x.reshape(list(wanted))):
        assert y.shape == expected
        assert y.data_pointer == x.data_pointer
        assert y.is_contiguous
        assert np.array_equal(y.numpy(), x.numpy().reshape(wanted))


def test_reshape_of_a_transposed_tensor_is_a_view_where_it_can_be_and_else_a_copy():
    x = sample((2, 3, 4)).transpose(0, 1)
    split = x.reshape(3, 2, 2, 2)
    assert split.data_pointer == x.data_pointer
    assert np.array_equal(split.numpy(), x.numpy().reshape(3, 2, 2, 2))
    joined = x.reshape(6, 4)
    assert joined.data_pointer != x.data_pointer
    assert joined.is_contiguous
    assert np.array_equal(joined.numpy(), x.numpy().reshape(6, 4))


def test_reshape_refuses_another_number_of_elements():
    with pytest.raises(ml.ShapeError) as caught:
        sample((2, 3)).reshape(4, 2)
    assert text_of(caught) == (
        "[reshape] number of elements must stay equal: 6 != 8 ([2, 3] to [4, 2])"
    )


@EVERY_DTYPE
@pytest.mark.parametrize(("a", "b"), [(0, 1), (1, 2), (0, -1), (-3, 2), (1, 1)])
def test_transpose_swaps_two_dimensions_of_a_view(dtype, a, b):
    x = sample((2, 3, 4), dtype)
    y = x.transpose(a, b)
    expected = x.numpy().swapaxes(a, b)
    assert y.strides == expected.strides
    assert y.data_pointer == x.data_pointer
    check_same(y.contiguous(), np.ascontiguousarray(expected))


@pytest.mark.parametrize(("a", "b", "wrong"), [(0, 2, 2), (-3, 0, -3), (5, 9, 5)])
def test_transpose_refuses_a_dimension_that_is_not_there(a, b, wrong):
    with pytest.raises(ml.IndexOutOfRangeError) as caught:
        sample((2, 3)).transpose(a, b)
    assert text_of(caught) == f"[transpose] dim must be in [-2, 2): {wrong}"


@pytest.mark.parametrize(("start", "stop"), [(0, 0), (0, 5), (1, 4), (5, 5)])
def test_slice_takes_rows_as_a_view(start, stop):
    x = sample((5, 3))
    y = x.slice(start, stop)
    assert np.array_equal(y.numpy(), x.numpy()[start:stop])
    if start < stop:
        assert np.shares_memory(y.numpy(), x.numpy())


@pytest.mark.parametrize(("start", "stop"), [(0, 6), (-1, 3), (3, 2), (6, 6)])
def test_slice_never_clamps(start, stop):
    with pytest.raises(ml.IndexOutOfRangeError) as caught:
        sample((5, 3)).slice(start, stop)
    assert text_of(caught) == (
        f"[slice] 0 <= start <= stop <= size must hold: start {start}, stop {stop}, size 5"
    )


@pytest.mark.parametrize("bounds", [(0.0, 1), (0, True), ("0", 1)])
def test_slice_refuses_bounds_that_are_no_integers(bounds):
    with pytest.raises(ml.ShapeError, match=r"^\[slice\] start and stop must be integers: "):
        sample((5,)).slice(*bounds)


@pytest.mark.parametrize("op", ["slice", "set_slice"])
def test_a_tensor_without_dimensions_has_no_slices(op):
    with pytest.raises(ml.ShapeError) as caught:
        getattr(sample(()), op)(*(0, 0, 1.0)[: 3 if op == "set_slice" else 2])
    assert text_of(caught) == f"[{op}] ndim must be >= 1: 0 (shape [])"


# ---- set_slice ----------------------------------------------------------------------------------


@EVERY_DTYPE
def test_set_slice_writes_rows_and_leaves_the_rest(dtype):
    x, value = sample((5, 3), dtype), sample((2, 3), dtype, seed=1)
    expected = x.numpy().copy()
    expected[1:3] = value.numpy()
    x.set_slice(1, 3, value)
    check_same(x, expected)


@pytest.mark.parametrize("shape", [(3,), (1, 3), (2, 1), (1,), ()])
def test_set_slice_broadcasts_the_value(shape):
    x, value = sample((5, 3)), sample(shape, seed=1)
    expected = x.numpy().copy()
    expected[1:3] = value.numpy()
    x.set_slice(1, 3, value)
    check_same(x, expected)


@pytest.mark.parametrize(
    ("dtype", "value"),
    [(ml.bfloat16, 0.1), (ml.float32, -3), (ml.int32, 7), (ml.uint8, 255), (ml.complex64, 1 - 2j)],
)
def test_set_slice_takes_a_number(dtype, value):
    x = sample((4, 2), dtype)
    x.set_slice(0, 4, value)
    assert (x.numpy() == np.array(value).astype(dtype.numpy_dtype)).all()


def test_set_slice_through_a_view_reaches_the_tensor():
    x = ml.zeros((3, 4, 2))
    x.transpose(0, 1).set_slice(1, 3, 5.0)
    assert (x.numpy()[:, 1:3] == 5).all()
    assert x.numpy().sum() == 3 * 2 * 2 * 5


def test_set_slice_reads_an_overlapping_value_before_it_writes():
    x = Tensor.from_numpy(np.arange(6, dtype=np.float32))
    x.set_slice(1, 6, x.slice(0, 5))
    assert x.numpy().tolist() == [0, 0, 1, 2, 3, 4]


def test_set_slice_of_no_rows_writes_nothing():
    x = sample((3, 2))
    before = x.numpy().copy()
    x.set_slice(3, 3, 9.0)
    x.set_slice(1, 1, ml.zeros((0, 2)))
    check_same(x, before)


@pytest.mark.parametrize(
    ("value", "error", "text"),
    [
        (
            ml.zeros((2, 3), ml.bfloat16),
            ml.DTypeError,
            "[set_slice] dtype must equal value.dtype: float32 != bfloat16 "
            "(slice [2, 3], value [2, 3])",
        ),
        (
            ml.zeros((4,)),
            ml.ShapeError,
            "[set_slice] sizes must be equal or 1, aligned at the right: 3 != 4 (a [2, 3], b [4])",
        ),
        (
            ml.zeros((7, 2, 3)),
            ml.ShapeError,
            "[set_slice] value.shape must broadcast to the slice: [7, 2, 3] != [2, 3]",
        ),
        (
            1j,
            ml.DTypeError,
            "[set_slice] value must be a number of the kind of float32: complex",
        ),
    ],
)
def test_set_slice_refuses_a_value_that_does_not_fit(value, error, text):
    x = ml.zeros((5, 3))
    with pytest.raises(error) as caught:
        x.set_slice(1, 3, value)
    assert text_of(caught) == text
    assert not x.numpy().any()


def test_set_slice_never_clamps():
    x = ml.zeros((5,))
    with pytest.raises(ml.IndexOutOfRangeError) as caught:
        x.set_slice(3, 6, 1.0)
    assert text_of(caught) == (
        "[set_slice] 0 <= start <= stop <= size must hold: start 3, stop 6, size 5"
    )
    assert not x.numpy().any()


# ---- complex views ------------------------------------------------------------------------------


@EVERY_SHAPE
def test_complex_and_real_views_share_memory(shape):
    x = sample((*shape, 2))
    z = x.view_as_complex()
    assert (z.shape, z.dtype) == (shape, ml.complex64)
    check_same(z.contiguous(), x.numpy()[..., 0] + 1j * x.numpy()[..., 1])
    back = z.view_as_real()
    assert (back.shape, back.dtype) == (x.shape, ml.float32)
    assert back.data_pointer == z.data_pointer == x.data_pointer
    assert x.size == 0 or back.strides == x.strides


def test_complex_views_of_strided_tensors_keep_the_strides():
    x = sample((4, 3, 2))[::2].transpose(0, 1)
    z = x.view_as_complex()
    assert z.strides == x.strides[:-1]
    assert np.array_equal(z.numpy(), x.numpy()[..., 0] + 1j * x.numpy()[..., 1])
    assert np.array_equal(z.view_as_real().numpy(), x.numpy())


def test_view_as_complex_refuses_what_is_not_float32():
    with pytest.raises(ml.DTypeError) as caught:
        sample((3, 2), ml.bfloat16).view_as_complex()
    assert text_of(caught) == "[view_as_complex] dtype must equal float32: bfloat16"


@pytest.mark.parametrize(
    "x", [sample(()), sample((2, 3)), sample((2, 4))[:, ::2], sample((2, 2)).transpose(0, 1)]
)
def test_view_as_complex_refuses_what_is_not_in_pairs(x):
    with pytest.raises(ml.ShapeError) as caught:
        x.view_as_complex()
    assert text_of(caught) == (
        "[view_as_complex] the last size must equal 2 with a stride of 4 bytes: "
        f"shape {list(x.shape)}, strides {list(x.strides)}"
    )


def test_view_as_real_refuses_what_is_not_complex():
    with pytest.raises(ml.DTypeError) as caught:
        sample((2,)).view_as_real()
    assert text_of(caught) == "[view_as_real] dtype must equal complex64: float32"


# ---- elements and text --------------------------------------------------------------------------


@EVERY_DTYPE
def test_item_is_a_python_number(dtype):
    x = sample((1, 1), dtype)
    expected = {"float": float, "int": int, "complex": complex, "bool": bool}[dtype.kind]
    assert type(x.item()) is expected
    assert x.item() == x.numpy()[0, 0]


@pytest.mark.parametrize("shape", [(0,), (2,), (3, 2)])
def test_item_refuses_anything_but_one_element(shape):
    with pytest.raises(ml.ShapeError) as caught:
        sample(shape).item()
    assert text_of(caught) == (
        f"[item] number of elements must equal 1: {np.prod(shape)} (shape {list(shape)})"
    )


def test_contiguous_returns_the_tensor_itself_or_a_packed_copy():
    x = sample((3, 4), ml.bfloat16).with_name("x")
    assert x.contiguous() is x
    y = x.transpose(0, 1).contiguous()
    assert y.is_contiguous
    assert (y.name, y.shape) == ("x", (4, 3))
    check_same(y, np.ascontiguousarray(x.numpy().T))


@EVERY_DTYPE
def test_copy_keeps_every_bit_and_shares_nothing(dtype):
    x = strided((3, 4), dtype)
    y = x.copy()
    check_same(y, np.ascontiguousarray(x.numpy()))
    y.set_slice(0, 3, 1)
    assert not np.shares_memory(x.numpy(), y.numpy())


def test_copy_keeps_the_payload_of_a_nan():
    bits = np.array([0x7FA1, 0xFF81, 0x0001], np.uint16)
    x = Tensor.from_numpy(np.repeat(bits, 2).view(ml_dtypes.bfloat16))[::2]
    assert x.contiguous().bits().tolist() == bits.tolist()


def test_len_is_the_first_size_and_iteration_gives_the_rows():
    x = sample((3, 2))
    assert len(x) == 3
    assert [row.numpy().tolist() for row in x] == x.numpy().tolist()
    assert list(sample((0, 2))) == []


def test_a_tensor_without_dimensions_has_no_length():
    with pytest.raises(ml.ShapeError) as caught:
        len(sample(()))
    assert text_of(caught) == "[len] ndim must be >= 1: 0 (shape [])"


def test_with_name_is_a_view_under_another_name():
    x = sample((2,))
    y = x.with_name("y")
    assert (x.name, y.name) == ("", "y")
    assert y.data_pointer == x.data_pointer
    assert y[0].name == y.reshape(2, 1).name == "y"


@pytest.mark.parametrize(
    ("x", "text"),
    [
        (ml.arange(6), "Tensor([6], int32, [0, 1, 2, 3, 4, 5])"),
        (ml.arange(7), "Tensor([7], int32, [0, 1, 2, ..., 4, 5, 6])"),
        (ml.full((1000, 1000), 0.1, ml.bfloat16).with_name("wq"),
         "Tensor('wq', [1000, 1000], bfloat16, [0.10010, 0.10010, 0.10010, ..., 0.10010, "
         "0.10010, 0.10010])".replace("0.10010", "0.1001")),
        (ml.zeros((0, 3)), "Tensor([0, 3], float32, [])"),
        (ml.full((), float("nan"), ml.float16), "Tensor([], float16, [nan])"),
        (ml.full((1,), 1 + 2j, ml.complex64), "Tensor([1], complex64, [1+2j])"),
    ],
)  # fmt: skip
def test_repr_is_one_short_line(x, text):
    assert repr(x) == text


def test_repr_escapes_and_cuts_a_name_from_a_file():
    text = repr(ml.zeros((1,)).with_name("\x1b]0;evil\x07\u202e\n" + "x" * 5000))
    assert text.isascii()
    assert text.isprintable()
    assert text.startswith("Tensor('\\x1b]0;evil\\x07\\u202e\\nxxx")
    assert len(text) < 130


# ---- to -----------------------------------------------------------------------------------------


@EVERY_DTYPE
@EVERY_SHAPE
def test_to_the_same_dtype_is_the_tensor_itself(dtype, shape):
    x = sample(shape, dtype)
    assert x.to(dtype) is x
