"""Reading PyTorch's zip checkpoints: rows P5, T1 to T4, damage anywhere, and the valid
twins.
"""

import gzip
import io
import struct
import tarfile
import tracemalloc
from collections.abc import Sequence
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest

from src.checkpoint import read_pth
from src.checkpoint.torch_pth import map_pth
from tests.checkpoint import hostile_pickles as hostile
from tests.checkpoint.refusals import refusal_of
from tests.checkpoint.zip_parts import Part, build
from tests.support.pth_writer import (
    dict_program,
    integer,
    storage_id,
    tensor_call,
    text,
    write_archive,
    write_pth,
)

VALUES = np.arange(24, dtype=np.float32)
STORAGE = storage_id("FloatStorage", "0", 24)
DATA_PKL = Part(b"a/data.pkl", b"\x80\x02}.")
VERSION = Part(b"a/version", b"3\n")


def file_of(path: Path, program: bytes, values: "np.ndarray" = VALUES) -> Path:
    write_archive(path, program, {"0": values.tobytes()})
    return path


def one_storage(path: Path, *calls: bytes, values: "np.ndarray" = VALUES) -> Path:
    """Write a checkpoint whose tensors t0, t1, ... are all in record 0."""
    program = dict_program({f"t{number}": call for number, call in enumerate(calls)})
    return file_of(path, program, values)


def window(offset: int, shape: Sequence[int], strides: Sequence[int]) -> bytes:
    return tensor_call(STORAGE, offset, shape, strides)


def stored_as(**changes: bytes) -> bytes:
    """Form a program of one tensor of 24 elements, with parts of its persistent id
    changed.
    """
    return hostile.storage_program(**{"count": integer(24)} | changes)


def raw_tensor(offset: bytes, shape: bytes, strides: bytes) -> bytes:
    """Form a tensor from the opcodes of its offset, size and stride."""
    plain = window(0, [], [])
    arguments = integer(0) + b"(t(t"
    assert arguments in plain
    return plain.replace(arguments, offset + shape + strides)


def refused(path: Path, words: str = "") -> str:
    return refusal_of(read_pth, path, match=words)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "model.pth"


# Valid files


@pytest.mark.parametrize("dtype", [ml_dtypes.bfloat16, np.float16, np.float32])
def test_tensors_of_each_dtype_are_read_bit_for_bit(path: Path, dtype: type) -> None:
    bits = np.random.default_rng(1).bytes(35 * np.dtype(dtype).itemsize)
    array = np.frombuffer(bits, dtype).reshape(5, 7)
    write_pth(path, {"a": array, "b": array[:2, :1]})
    file, tensors = map_pth(path)
    assert list(tensors) == ["a", "b"]
    start = np.frombuffer(file.buffer, np.uint8).ctypes.data
    for tensor in tensors.values():  # views of the mapped file
        assert 0 <= tensor.data_pointer - start < file.size
        assert (tensor.data_pointer - start) % 64 == 0
        assert not tensor.numpy().flags.writeable
    assert tensors["a"].shape == (5, 7)
    assert tensors["a"].dtype.numpy_dtype == np.dtype(dtype)
    assert tensors["a"].name == "a"
    assert tensors["a"].numpy().tobytes() == bits
    assert tensors["b"].numpy().tobytes() == np.ascontiguousarray(array[:2, :1]).tobytes()


def test_reading_touches_only_the_directory_and_the_pickle(path: Path) -> None:
    write_pth(path, {"a": np.zeros(8 << 20, np.float16)})
    tracemalloc.start()
    tensors = read_pth(path)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert tensors["a"].nbytes == 16 << 20
    assert peak < 1 << 20


UNUSUAL = {
    "transposed": (window(0, [4, 6], [1, 4]), VALUES.reshape(6, 4).T),
    "offset": (window(6, [3, 4], [4, 1]), VALUES[6:18].reshape(3, 4)),
    "three dims, permuted": (
        window(0, [4, 2, 3], [1, 12, 4]),
        VALUES.reshape(2, 3, 4).transpose(2, 0, 1),
    ),
    "column": (window(1, [6], [4]), VALUES[1::4]),
    "last element": (window(23, [1], [1]), VALUES[23:]),
    "0-rank": (window(5, [], []), VALUES[5].reshape(())),
    "empty": (window(0, [0, 3], [3, 1]), np.empty((0, 3), np.float32)),
    "empty at the end": (window(24, [0], [1]), np.empty(0, np.float32)),
    "stride of a dimension of one": (
        window(2, [1, 3], [500, 1]),
        VALUES[2:5].reshape(1, 3),
    ),
    "overlapping windows": (
        window(0, [2, 4], [2, 1]),
        VALUES[[[0, 1, 2, 3], [2, 3, 4, 5]]],
    ),
}


@pytest.mark.parametrize(("call", "expected"), UNUSUAL.values(), ids=UNUSUAL)
def test_offsets_and_strides_are_honoured(
    path: Path, call: bytes, expected: "np.ndarray"
) -> None:
    tensor = read_pth(one_storage(path, call))["t0"]
    assert tensor.shape == expected.shape
    np.testing.assert_array_equal(tensor.numpy(), expected)


def test_the_stride_of_a_single_element_means_nothing(path: Path) -> None:
    tensor = read_pth(one_storage(path, window(0, [1, 3, 1], [9, 1, 7])))["t0"]
    assert tensor.strides == (4, 4, 4)
    assert tensor.is_contiguous


def test_tensors_that_share_a_storage_share_memory(path: Path) -> None:
    tensors = read_pth(one_storage(path, window(0, [24], [1]), window(6, [6], [1])))
    assert tensors["t1"].data_pointer == tensors["t0"].data_pointer + 24


@pytest.mark.parametrize("device", ["cpu", "cuda:0", "mps"])
def test_the_device_label_does_not_matter(path: Path, device: str) -> None:
    assert read_pth(file_of(path, stored_as(device=text(device))))["a"].shape == (2, 3)


def padding(size: int) -> bytes:
    return b"FB" + struct.pack("<H", size) + b"Z" * size


def test_files_without_byteorder_and_with_other_records_are_read(path: Path) -> None:
    parts = [
        Part(b"old/data/0", VALUES.tobytes(), local_extra=padding(20)),
        Part(b"old/data.pkl", stored_as()),
        Part(b"old/version", b"3\n"),
        Part(b"old/.data/serialization_id", b"1" * 40),
    ]
    path.write_bytes(build(parts))
    assert path.read_bytes().index(VALUES.tobytes()) % 64 == 0
    assert read_pth(path)["a"].numpy().tolist() == [[0, 1, 2], [3, 4, 5]]


def test_a_crc_of_zero_means_that_it_was_not_computed(path: Path) -> None:
    for crc in (0, 1):
        said = {"crc": crc}
        path.write_bytes(build([DATA_PKL, Part(b"a/version", b"3\n", said, said)]))
        if crc:
            refused(path, "CRC-32")
        else:
            read_pth(path)


# P5: other files

TAR = io.BytesIO()
NPY = io.BytesIO()
np.save(NPY, VALUES)
with tarfile.open(fileobj=TAR, mode="w") as tar:
    tar.addfile(tarfile.TarInfo("sys_info"))
OTHER_FILES = {
    "empty": (b"", "an empty file"),
    "raw pickle": (b"\x80\x04}.", "a bare pickle"),
    "old PyTorch": (
        b"\x80\x02\x8a\nl\xfc\x9cF\xf9 j\xa8P\x19.",
        "a PyTorch file from before the zip",
    ),
    "legacy tar": (TAR.getvalue(), "a tar file"),
    "npy": (NPY.getvalue(), "a NumPy .npy file"),
    "gzip": (gzip.compress(b"x"), "a gzip file"),
    "GGUF": (b"GGUF\x03\x00\x00\x00", "a GGUF file"),
    "safetensors": (struct.pack("<Q", 2) + b'{"a":1}', "a safetensors file"),
    "empty zip": (b"PK\x05\x06" + bytes(18), "an empty zip archive"),
    "HTML": (b"<!DOCTYPE html>", "a text file that starts with '<'"),
    "noise": (b"\x1b[2Jhello", "bytes 1b 5b 32 4a 68 65 6c 6c"),
    "one byte": (b"P", "bytes 50"),
}


@pytest.mark.parametrize(("content", "found"), OTHER_FILES.values(), ids=OTHER_FILES)
def test_another_file_is_refused_by_its_kind(
    path: Path, content: bytes, found: str
) -> None:
    path.write_bytes(content)
    assert f"kind: expected a PyTorch zip checkpoint, got {found}" in refused(path)


MISSING = {
    "no data.pkl": [VERSION],
    "no version": [DATA_PKL],
    "version 99": [DATA_PKL, Part(b"a/version", b"99\n")],
    "long version": [DATA_PKL, Part(b"a/version", b"3" * 500)],
    "two folders": [DATA_PKL, Part(b"b/version", b"3\n")],
    "two data.pkl in two folders": [
        DATA_PKL,
        Part(b"b/data.pkl", b"\x80\x02}."),
        VERSION,
    ],
    "nothing": [],
}


@pytest.mark.parametrize("parts", MISSING.values(), ids=MISSING)
def test_an_archive_without_its_parts_is_refused(path: Path, parts: list[Part]) -> None:
    path.write_bytes(build(parts))
    refused(path)


@pytest.mark.parametrize("version", ["1", "3\n", "10\n"])
def test_versions_1_to_10_are_read_and_no_others(path: Path, version: str) -> None:
    write_pth(path, {"a": VALUES}, version=version)
    assert read_pth(path)["a"].shape == (24,)
    for wrong in ("0\n", "11\n", "-1", f"0{version}", f"{version}.0", "three", ""):
        write_pth(path, {"a": VALUES}, version=wrong)
        refused(path, r"records: version: expected 1\.\.10, got '")


@pytest.mark.parametrize("order", ["big", "middle", ""])
def test_another_byte_order_is_refused(path: Path, order: str) -> None:
    write_pth(path, {"a": VALUES}, byteorder=order)
    refused(path, "byteorder")


# T1, T2, T4: tensors that do not fit their records


def test_elements_times_itemsize_must_equal_the_record(path: Path) -> None:
    for count in (23, 25, 12, 48, 0, 1 << 40, (1 << 62) + 24, (1 << 63) - 1):
        refused(file_of(path, stored_as(count=integer(count))))
    assert read_pth(file_of(path, stored_as()))


OUTSIDE = {
    "one element too many": window(0, [25], [1]),
    "offset past the end": window(25, [1], [1]),
    "offset of an empty tensor past the end": window(25, [0], [1]),
    "offset of a 0-rank": window(24, [], []),
    "product that wraps to 0": window(0, [1 << 32, 1 << 32], [1, 1]),
    "product that wraps to 4": window(0, [1 << 31, 1 << 31, 4], [1, 1, 1]),
    "huge stride": window(0, [2], [1 << 47]),
    "stride that wraps": window(0, [2, 1], [(1 << 62), 1]),
    "expanded": window(0, [1000, 1000], [0, 0]),
    "size beyond 2^48": window(0, [1 << 62], [1]),
    "offset beyond 2^48": window((1 << 63) - 1, [1], [1]),
    "negative size": window(0, [-1], [1]),
    "negative stride": window(5, [3], [-1]),
    "negative offset": window(-1, [1], [1]),
    "more sizes than strides": window(0, [2, 2], [1]),
    "more strides than sizes": window(0, [2], [1, 1]),
    "nine dimensions": window(0, [1] * 9, [1] * 9),
    "bool size": raw_tensor(integer(0), b"\x88\x85", b"K\x01\x85"),
    "bool offset": raw_tensor(b"\x88", b"K\x01\x85", b"K\x01\x85"),
    "float size": raw_tensor(
        integer(0), b"G" + struct.pack(">d", 1.0) + b"\x85", b"K\x01\x85"
    ),
    "None as stride": raw_tensor(integer(0), b"K\x01\x85", b"N"),
    "list as size": raw_tensor(integer(0), b"](K\x01e", b"K\x01\x85"),
    "nested size": raw_tensor(integer(0), b"K\x01\x85\x85", b"K\x01\x85"),
}


@pytest.mark.parametrize("call", OUTSIDE.values(), ids=OUTSIDE)
def test_a_window_outside_its_storage_is_refused(path: Path, call: bytes) -> None:
    refused(one_storage(path, window(0, [24], [1]), call))
    assert len(read_pth(one_storage(path, window(0, [24], [1])))) == 1


FORMS = {
    "other tag": stored_as(tag=text("module")),
    "unknown dtype": stored_as(storage=b"ctorch\nDoubleStorage\n"),
    "int dtype": stored_as(storage=b"ctorch\nLongStorage\n"),
    "function as class": stored_as(storage=hostile.DICT_CLASS),
    "missing record": stored_as(key=text("1")),
    "path as key": stored_as(key=text("../0")),
    "other digits as key": stored_as(key=text("٠")),
    "number as key": stored_as(key=integer(0)),
    "number as device": stored_as(device=integer(0)),
    "negative count": stored_as(count=integer(-24)),
    "bool count": stored_as(count=b"\x88"),
    "no tuple": b"\x80\x02NQ.",
    "six parts": stored_as(count=integer(24) + b"N"),
    "a list": b"\x80\x02].",
    "a tensor": b"\x80\x02" + window(0, [2, 3], [3, 1]) + b".",
    "a number": b"\x80\x02K\x01.",
    "a number inside": b"\x80\x02}" + text("epoch") + b"K\x01s.",
    "a dict inside": b"\x80\x02}" + text("model") + b"}s.",
    "a storage inside": b"\x80\x02}" + text("a") + STORAGE + b"s.",
}


@pytest.mark.parametrize("program", FORMS.values(), ids=FORMS)
def test_a_storage_or_content_of_another_form_is_refused(
    path: Path, program: bytes
) -> None:
    refused(file_of(path, program), "expected ")


def test_one_record_cannot_have_two_dtypes(path: Path) -> None:
    half = tensor_call(storage_id("HalfStorage", "0", 24), 0, [24], [1])
    brain = tensor_call(storage_id("BFloat16Storage", "0", 24), 0, [24], [1])
    values = VALUES.astype(np.float16)
    assert len(read_pth(one_storage(path, half, half, values=values))) == 2
    refused(one_storage(path, half, brain, values=values), "one dtype and size")


def test_a_record_that_is_not_aligned_is_refused(path: Path) -> None:
    for shift in range(4):
        record = Part(b"a/data/0", VALUES.tobytes(), local_extra=padding(shift))
        content = build([Part(b"a/data.pkl", stored_as()), VERSION, record])
        path.write_bytes(content)
        if content.index(VALUES.tobytes()) % 4 == 0:
            assert read_pth(path)["a"].shape == (2, 3)
        else:
            refused(path, "multiple of 4")


def test_a_pickle_may_have_16_mib_and_no_more(path: Path) -> None:
    for more in (0, 1):
        start = b"\x80\x02}X"
        end = b"K\x01s."
        length = (16 << 20) + more - len(start) - 4 - len(end)
        file_of(path, start + struct.pack("<I", length) + b"x" * length + end)
        refused(
            path, "at most 16777216 bytes, got 16777217" if more else "expected a tensor"
        )


SMALL = dict_program({"a": window(0, [4, 6], [1, 4]), "b": window(7, [2], [3])})


def test_a_file_cut_at_any_byte_is_refused(path: Path) -> None:
    content = file_of(path, SMALL).read_bytes()
    for length in range(len(content)):
        path.write_bytes(content[:length])
        refused(path)
    path.write_bytes(content)
    assert len(read_pth(path)) == 2
