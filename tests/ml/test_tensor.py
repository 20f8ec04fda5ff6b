"""The Tensor: construction, views, elements, conversions."""

import gc
import mmap

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from src import ml
from tests.ml.op_checks import (
    EVERY_DTYPE,
    FLOAT_DTYPES,
    SHAPES,
    check_same,
    rounded,
    sample,
    samples,
)

Tensor = ml.Tensor
REALS = (*FLOAT_DTYPES, ml.int32, ml.uint16, ml.uint8)

# ---- from_numpy and numpy --------------------------------------------------------------


def test_a_read_only_array_stays_read_only():
    array = np.zeros((2, 3), np.float32)
    array.flags.writeable = False
    x = Tensor.from_numpy(array, "weight")
    assert not x.is_writable
    assert not x[1].numpy().flags.writeable
    with pytest.raises(ml.TensorError) as caught:
        x.set_slice(0, 1, 1.0)
    assert str(caught.value) == (
        "[set_slice] the storage must be writable: 'weight', shape [2, 3], float32"
    )
    assert not array.any()


def test_a_tensor_keeps_the_array_alive_and_an_array_keeps_the_tensor_alive():
    view = Tensor.from_numpy(np.full(100_000, 7, np.int32))[10:].numpy()
    gaps = Tensor.from_numpy(np.full(100_000, 7, np.int32)[::2])[10:].numpy()
    own = ml.full((100_000,), 7, ml.int32).reshape(10, -1)[3].numpy()
    gc.collect()
    waste = [np.zeros(100_000, np.int32) for _ in range(8)]
    assert all((array == 7).all() for array in (view, gaps, own))
    del waste


def test_numpy_functions_see_the_elements():
    x = sample((3, 4), ml.bfloat16)
    assert np.shares_memory(np.asarray(x), x.numpy())
    assert np.asarray(x, np.float32).dtype == np.float32
    assert not np.shares_memory(np.array(x), x.numpy())
    with pytest.raises(ValueError, match="needs a copy"):
        np.asarray(x, np.float32, copy=False)
    assert np.asarray(x, copy=False).dtype == ml_dtypes.bfloat16


# ---- from_buffer and empty -------------------------------------------------------------


def test_from_buffer_reads_bytes_where_they_lie():
    data = bytearray(np.arange(10, dtype=np.uint16).tobytes())
    x = Tensor.from_buffer(data, ml.uint16, (2, 3), offset=4, name="x")
    assert x.numpy().tolist() == [[2, 3, 4], [5, 6, 7]]
    x.set_slice(0, 1, 9)
    assert np.frombuffer(data, np.uint16).tolist() == [0, 1, 9, 9, 9, 5, 6, 7, 8, 9]
    numbers = np.arange(12, dtype=np.float32)
    y = Tensor.from_buffer(numbers, ml.float32, (3, 2), strides=(4, 12), offset=8)
    assert y.numpy().tolist() == [[2, 5], [3, 6], [4, 7]]
    assert Tensor.from_buffer(b"", ml.float32, (3, 0)).numpy().shape == (3, 0)
    assert not Tensor.from_buffer(b"1234", ml.uint8, (4,)).is_writable


def test_from_integers_makes_an_int32_vector_of_what_int32_holds():
    x = Tensor.from_integers([3, -(2**31), 2**31 - 1], "ids")
    assert (x.dtype, x.name, x.numpy().tolist()) == (
        ml.int32,
        "ids",
        [3, -(2**31), 2**31 - 1],
    )
    assert Tensor.from_integers(()).shape == (0,)
    assert Tensor.from_integers(b"ab").tolist() == [97, 98]
    for values in ([1.0], "12", 5, [2**31]):
        error = ml.TensorError if values == [2**31] else ml.TensorTypeError
        with pytest.raises(
            error, match=r"\[from_integers\] values must be integers of int32: "
        ):
            Tensor.from_integers(values)


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


@pytest.mark.parametrize(
    ("shape", "strides", "offset"),
    [
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
    ],
)
def test_elements_outside_of_the_storage_are_refused(shape, strides, offset):
    text = r"^\[Tensor\] elements must lie in bytes \[0, 8\) of the storage: "
    with pytest.raises(ml.TensorError, match=text):
        Tensor.from_buffer(bytes(8), ml.uint8, shape, strides, offset)


@given(
    st.lists(st.tuples(st.integers(0, 5), st.integers(-20, 20)), max_size=3),
    st.integers(-5, 45),
    st.integers(0, 40),
)
def test_a_tensor_is_made_exactly_if_every_element_lies_inside(dims, offset, nbytes):
    shape = tuple(n for n, _ in dims)
    strides = tuple(step for _, step in dims)
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


@EVERY_DTYPE
def test_empty_makes_a_contiguous_writable_tensor(dtype):
    for shape in SHAPES:
        x = Tensor.empty(shape, dtype, "e")
        assert (x.shape, x.dtype, x.name) == (shape, dtype, "e")
        assert x.is_contiguous
        assert x.is_writable
        assert len(x.storage) == x.nbytes
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


# ---- reshape, transpose, slice ---------------------------------------------------------


@EVERY_DTYPE
def test_reshape_of_a_contiguous_tensor_is_a_view(dtype):
    for shape, wanted in (
        ((2, 3, 4), (6, 4)),
        ((2, 3, 4), (-1,)),
        ((2, 3, 4), (2, -1, 2)),
        ((1,), ()),
        ((), (1, 1)),
        ((), (-1,)),
        ((0, 3), (3, 0, 2)),
        ((0, 3), (-1, 3)),
        ((0, 3), (2, -1)),
    ):
        x = sample(shape, dtype)
        for y in (x.reshape(*wanted), x.reshape(wanted), x.reshape(list(wanted))):
            assert y.data_pointer == x.data_pointer
            assert y.is_contiguous
            check_same(y, x.numpy().reshape(wanted))


# ---- set_slice -------------------------------------------------------------------------


@EVERY_DTYPE
def test_set_slice_writes_rows_broadcast_and_leaves_the_rest(dtype):
    for shape in ((2, 3), (3,), (1, 3), (2, 1), (1,), ()):
        x = sample((5, 3), dtype)
        value = sample(shape, dtype, seed=1)
        expected = x.numpy().copy()
        expected[1:3] = value.numpy()
        x.set_slice(1, 3, value)
        x.set_slice(3, 3, 1)
        x.set_slice(1, 1, ml.zeros((0, 3), dtype))
        check_same(x, expected)


def test_set_slice_takes_a_number():
    given = {
        "bfloat16": 0.1,
        "float32": -3,
        "int32": 7,
        "uint8": 255,
        "complex64": 1 - 2j,
    }
    for dtype, value in given.items():
        x = ml.zeros(4, 2, dtype=dtype)
        x.set_slice(0, 4, value)
        assert (x.numpy() == np.array(value).astype(x.dtype.numpy_dtype)).all()


def test_set_slice_through_a_view_reaches_the_tensor_and_may_overlap_its_value():
    x = ml.zeros((3, 4, 2))
    x.transpose(0, 1).set_slice(1, 3, 5.0)
    assert (x.numpy() == np.array([0, 5, 5, 0])[:, None]).all()
    x = ml.arange(6)
    x.set_slice(1, 6, x.slice(0, 5))
    assert x.tolist() == [0, 0, 1, 2, 3, 4]


def test_a_value_that_set_slice_refuses_changes_nothing():
    x = ml.zeros((5, 3))
    for value in (ml.zeros(3, dtype="bfloat16"), ml.zeros(4), 1j):
        with pytest.raises(ml.TensorError, match=r"^\[set_slice\] "):
            x.set_slice(1, 3, value)
    assert not x.numpy().any()


# ---- complex views, elements, copies ---------------------------------------------------


@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_complex_and_real_views_share_memory_and_keep_the_strides(shape):
    for x in (sample((*shape, 2)), sample((8, 3, 2))[::2].transpose(0, 1)):
        z = x.view_as_complex()
        assert (z.shape, z.dtype) == (x.shape[:-1], ml.complex64)
        check_same(z.contiguous(), x.numpy()[..., 0] + 1j * x.numpy()[..., 1])
        back = z.view_as_real()
        assert back.data_pointer == z.data_pointer == x.data_pointer
        check_same(back, x.numpy())
        assert x.size == 0 or back.strides == x.strides == (*z.strides, 4)


def test_copy_keeps_the_payload_of_a_nan():
    bits = np.array([0x7FA1, 0xFF81, 0x0001], np.uint16)
    x = Tensor.from_numpy(np.repeat(bits, 2).view(ml_dtypes.bfloat16))[::2]
    assert x.contiguous().bits().tolist() == bits.tolist()


def test_iteration_gives_rows_and_with_name_a_view_under_another_name():
    x = sample((3, 2))
    assert len(x) == 3
    assert [row.tolist() for row in x] == x.tolist()
    assert list(sample((0, 2))) == []
    y = x.with_name("y")
    assert (x.name, y.name) == ("", "y")
    assert y.data_pointer == x.data_pointer
    assert y[0].name == y.reshape(2, 3).name == "y"


# ---- to --------------------------------------------------------------------------------


@pytest.mark.parametrize("source", REALS, ids=str)
def test_real_numbers_become_floats_by_one_rounding_complex_numbers_and_bools(source):
    for x in (x for shape in SHAPES for x in samples(shape, source)):
        assert x.to(source) is x
        for target in (*FLOAT_DTYPES, ml.complex64):
            result = x.with_name("w").to(target)
            assert result.name == "w"
            check_same(result, rounded(x.numpy(), target))
        check_same(x.to(ml.bool), np.asarray(x.numpy() != 0))


@pytest.mark.parametrize("source", REALS, ids=str)
def test_numbers_become_integers_by_dropping_the_fraction(source):
    # 255.75 would round to 256 in bfloat16, which uint8 does not hold.
    values = np.array([0, 1, 2, 100, 254]) + (0.75 if source.is_float else 0)
    x = ml.Tensor.from_numpy(values.astype(source.numpy_dtype))
    for target in (ml.int32, ml.uint16, ml.uint8):
        check_same(
            x.to(target),
            np.trunc(x.numpy().astype(np.float64)).astype(target.numpy_dtype),
        )
        check_same(ml.full((2,), -0.9).to(target), np.zeros(2, target.numpy_dtype))
    assert ml.full((1,), -(2.0**63)).to("int64").item() == -(2**63)


def test_a_complex_tensor_never_loses_its_imaginary_part_in_silence():
    for target in set(ml.DTYPES) - {ml.complex64}:
        text = rf"^\[to\] a complex dtype must stay complex: complex64 to {target}$"
        with pytest.raises(ml.DTypeError, match=text):
            sample((2,), ml.complex64).to(target)
