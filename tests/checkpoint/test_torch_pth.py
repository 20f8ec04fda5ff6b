"""Reading PyTorch's zip checkpoints: rows P5, T1 to T4, damage anywhere, and the valid twins."""

import gzip
import io
import math
import os
import random
import struct
import tarfile
import time
import tracemalloc
import zlib
from collections.abc import Sequence
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest

from src.checkpoint import CheckpointError, read_pth
from src.checkpoint.torch_pth import check_crcs, map_pth
from tests.checkpoint import hostile_pickles as hostile
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
TWO_BY_THREE = tensor_call(storage_id("FloatStorage", "0", 6), 0, [2, 3], [3, 1])


def one_storage(path: Path, *calls: bytes, values: "np.ndarray" = VALUES) -> Path:
    """Write a checkpoint whose tensors t0, t1, ... are all in record 0."""
    program = dict_program({f"t{number}": call for number, call in enumerate(calls)})
    write_archive(path, program, {"0": values.tobytes()})
    return path


def window(offset: int, shape: Sequence[int], strides: Sequence[int], count: int = 24) -> bytes:
    return tensor_call(storage_id("FloatStorage", "0", count), offset, shape, strides)


def raw_tensor(offset: bytes, shape: bytes, strides: bytes) -> bytes:
    """Form a tensor from the opcodes of its offset, size and stride."""
    plain = tensor_call(storage_id("FloatStorage", "0", 24), 0, [], [])
    arguments = integer(0) + b"(t(t"
    assert arguments in plain
    return plain.replace(arguments, offset + shape + strides)


def file_of(path: Path, program: bytes) -> Path:
    write_archive(path, program, {"0": VALUES.tobytes()})
    return path


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "model.pth"


# Valid files


@pytest.mark.parametrize("dtype", [ml_dtypes.bfloat16, np.float16, np.float32])
def test_tensors_of_each_dtype_are_read_bit_for_bit(path: Path, dtype: type) -> None:
    bits = np.random.default_rng(1).bytes(35 * np.dtype(dtype).itemsize)
    array = np.frombuffer(bits, dtype).reshape(5, 7)
    write_pth(path, {"a": array, "b": array[:2, :1]})
    tensors = read_pth(path)
    assert list(tensors) == ["a", "b"]
    assert tensors["a"].shape == (5, 7)
    assert tensors["a"].dtype.numpy_dtype == np.dtype(dtype)
    assert tensors["a"].name == "a"
    assert tensors["a"].numpy().tobytes() == bits
    assert tensors["b"].numpy().tobytes() == np.ascontiguousarray(array[:2, :1]).tobytes()


def test_tensors_are_read_only_views_of_the_mapped_file(path: Path) -> None:
    write_pth(path, {"a": VALUES, "b": VALUES + 1})
    file, tensors = map_pth(path)
    start = np.frombuffer(file.buffer, np.uint8).ctypes.data
    for tensor in tensors.values():
        assert 0 <= tensor.data_pointer - start < file.size
        assert (tensor.data_pointer - start) % 64 == 0
        assert not tensor.numpy().flags.writeable


def test_reading_touches_only_the_directory_and_the_pickle(path: Path) -> None:
    with path.open("wb") as stream:
        stream.truncate(0)
    size = 64 << 20
    zeros = (bytes(1 << 20) for _ in range(size >> 20))
    program = dict_program(
        {"a": tensor_call(storage_id("HalfStorage", "0", size // 2), 0, [size // 2], [1])}
    )
    write_archive(path, program, [("0", size, zeros)])
    tracemalloc.start()
    tensors = read_pth(path)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert tensors["a"].nbytes == size
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
    "stride of a dimension of one": (window(2, [1, 3], [500, 1]), VALUES[2:5].reshape(1, 3)),
    "overlapping windows": (
        window(0, [3, 4], [2, 1]),
        np.lib.stride_tricks.sliding_window_view(VALUES[:8], 4)[::2],
    ),
}


@pytest.mark.parametrize(("call", "expected"), UNUSUAL.values(), ids=UNUSUAL)
def test_offsets_and_strides_are_honoured(path: Path, call: bytes, expected: "np.ndarray") -> None:
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
    program = hostile.storage_program(device=text(device), count=integer(24))
    assert read_pth(file_of(path, program))["a"].shape == (2, 3)


def test_files_without_byteorder_and_with_other_records_are_read(path: Path) -> None:
    program = hostile.storage_program(count=integer(24))
    padding = b"FB\x02\x00ZZ"
    start = 30 + len("old/data/0") + len(padding)
    parts = [
        Part(
            b"old/data/0", VALUES.tobytes(), local_extra=b"FB" + struct.pack("<H", 20) + b"Z" * 20
        ),
        Part(b"old/data.pkl", program),
        Part(b"old/version", b"3\n"),
        Part(b"old/.data/serialization_id", b"1" * 40),
    ]
    assert (start - len(padding) + 24) % 64 == 0
    path.write_bytes(build(parts))
    assert read_pth(path)["a"].numpy().tolist() == [[0, 1, 2], [3, 4, 5]]


def test_a_crc_of_zero_means_that_it_was_not_computed(path: Path) -> None:
    path.write_bytes(archive(version_crc=0))
    read_pth(path)
    path.write_bytes(archive(version_crc=1))
    with pytest.raises(CheckpointError, match="CRC-32"):
        read_pth(path)


def archive(version_crc: int) -> bytes:
    crc = {"crc": version_crc}
    return build(
        [Part(b"a/data.pkl", b"\x80\x02}."), Part(b"a/version", b"3\n", local=crc, central=crc)]
    )


def test_all_bytes_are_compared_with_their_crc(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("src.checkpoint.torch_pth._READ_BYTES", 40)
    write_pth(path, {"a": VALUES})
    seen: list[tuple[int, int]] = []
    assert check_crcs(map_pth(path)[0], lambda done, size: seen.append((done, size))) == 0
    size = path.stat().st_size
    assert seen == sorted(seen)
    assert len(seen) > 3
    assert seen[-1] == (size, size)
    content = bytearray(path.read_bytes())
    content[content.index(VALUES.tobytes()) + 95] ^= 1
    path.write_bytes(content)
    file, _ = map_pth(path)  # nothing reads the values
    with pytest.raises(CheckpointError, match=r"data/0': CRC-32: expected .* \(damaged\)$"):
        check_crcs(file)


def test_the_bytes_of_records_without_a_crc_are_counted(path: Path) -> None:
    path.write_bytes(archive(version_crc=0))
    assert check_crcs(map_pth(path)[0]) == len(b"3\n")


# P5: other files


def legacy_tar() -> bytes:
    stream = io.BytesIO()
    with tarfile.open(fileobj=stream, mode="w") as tar:
        for name in ("sys_info", "pickle", "storages", "tensors"):
            tar.addfile(tarfile.TarInfo(name), io.BytesIO())
    return stream.getvalue()


def saved_npy() -> bytes:
    stream = io.BytesIO()
    np.save(stream, VALUES)
    return stream.getvalue()


OTHER_FILES = {
    "empty": (b"", "an empty file"),
    "raw pickle": (b"\x80\x04}.", "a bare pickle"),
    "old PyTorch": (
        b"\x80\x02\x8a\nl\xfc\x9cF\xf9 j\xa8P\x19.\x80\x02M\xe9\x03.",
        "a PyTorch file from before the zip format",
    ),
    "legacy tar": (legacy_tar(), "a tar file"),
    "npy": (saved_npy(), "a NumPy .npy file"),
    "gzip": (gzip.compress(b"x"), "a gzip file"),
    "GGUF": (b"GGUF\x03\x00\x00\x00", "a GGUF file"),
    "safetensors": (struct.pack("<Q", 2) + b'{"a":1}', "a safetensors file"),
    "empty zip": (b"PK\x05\x06" + bytes(18), "an empty zip archive"),
    "LFS pointer": (b"version https://git-lfs.github.com/spec/v1\n", "a Git LFS pointer"),
    "HTML": (b"<!DOCTYPE html>", "a text file that starts with '<'"),
    "noise": (b"\x1b[2Jhello", "bytes 1b 5b 32 4a 68 65 6c 6c"),
    "one byte": (b"P", "bytes 50"),
    "pickle of a protocol to come": (b"\x80\x06.", "bytes 80 06 2e"),
}


@pytest.mark.parametrize(("content", "found"), OTHER_FILES.values(), ids=OTHER_FILES)
def test_another_kind_of_file_is_refused_by_its_kind(
    path: Path, content: bytes, found: str
) -> None:
    path.write_bytes(content)
    with pytest.raises(CheckpointError, match="kind: expected a PyTorch zip checkpoint") as caught:
        read_pth(path)
    assert f"kind: expected a PyTorch zip checkpoint, got {found}" in str(caught.value)


MISSING = {
    "no data.pkl": [Part(b"a/version", b"3\n")],
    "no version": [Part(b"a/data.pkl", b"\x80\x02}.")],
    "version 99": [Part(b"a/data.pkl", b"\x80\x02}."), Part(b"a/version", b"99\n")],
    "long version": [Part(b"a/data.pkl", b"\x80\x02}."), Part(b"a/version", b"3" * 500)],
    "two folders": [Part(b"a/data.pkl", b"\x80\x02}."), Part(b"b/version", b"3\n")],
    "two data.pkl in two folders": [
        Part(b"a/data.pkl", b"\x80\x02}."),
        Part(b"b/data.pkl", b"\x80\x02}."),
        Part(b"a/version", b"3\n"),
    ],
    "nothing": [],
}


@pytest.mark.parametrize("parts", MISSING.values(), ids=MISSING)
def test_an_archive_without_its_parts_is_refused(path: Path, parts: list[Part]) -> None:
    path.write_bytes(build(parts))
    with pytest.raises(CheckpointError):
        read_pth(path)


@pytest.mark.parametrize("version", ["1", "3\n", "10\n"])
def test_versions_1_to_10_are_read(path: Path, version: str) -> None:
    write_pth(path, {"a": VALUES}, version=version)
    assert read_pth(path)["a"].shape == (24,)


@pytest.mark.parametrize("version", ["0\n", "11\n", "-1", "03", "3.0", "three", ""])
def test_another_version_is_refused_with_those_that_are_read(path: Path, version: str) -> None:
    write_pth(path, {"a": VALUES}, version=version)
    words = rf"record 'version': expected 1\.\.10, got '{version.strip()}'$"
    with pytest.raises(CheckpointError, match=words):
        read_pth(path)


@pytest.mark.parametrize("order", ["big", "middle", ""])
def test_another_byte_order_is_refused(path: Path, order: str) -> None:
    write_pth(path, {"a": VALUES}, byteorder=order)
    with pytest.raises(CheckpointError, match="byteorder"):
        read_pth(path)


# T1, T2, T4: tensors that do not fit their records


def test_elements_times_itemsize_must_equal_the_record(path: Path) -> None:
    for count in (23, 25, 12, 48, 0, 1 << 40, (1 << 62) + 24, (1 << 63) - 1):
        program = hostile.storage_program(count=integer(count))
        with pytest.raises(CheckpointError):
            read_pth(file_of(path, program))
    assert read_pth(file_of(path, hostile.storage_program(count=integer(24))))


OUTSIDE = {
    "one element too many": window(0, [25], [1]),
    "offset past the end": window(25, [1], [1]),
    "offset of an empty tensor past the end": window(25, [0], [1]),
    "offset and extent": window(1, [24], [1]),
    "offset of a 0-rank": window(24, [], []),
    "rows past the end": window(0, [5, 6], [6, 1]),
    "stride too large": window(0, [2, 2], [23, 1]),
    "huge size": window(0, [1 << 47], [1]),
    "product that wraps to 0": window(0, [1 << 32, 1 << 32], [1, 1]),
    "product that wraps to 4": window(0, [1 << 31, 1 << 31, 4], [1, 1, 1]),
    "huge stride": window(0, [2], [1 << 47]),
    "stride that wraps": window(0, [2, 1], [(1 << 62), 1]),
    "huge offset": window(1 << 47, [1], [1]),
    "expanded": window(0, [1000, 1000], [0, 0]),
    "expanded a little": window(0, [25], [0]),
    "size beyond 2^48": window(0, [1 << 62], [1]),
    "offset beyond 2^48": window((1 << 63) - 1, [1], [1]),
    "negative size": window(0, [-1], [1]),
    "negative stride": window(5, [3], [-1]),
    "negative offset": window(-1, [1], [1]),
    "two negative sizes": window(0, [-2, -2], [1, 1]),
    "more sizes than strides": window(0, [2, 2], [1]),
    "more strides than sizes": window(0, [2], [1, 1]),
    "nine dimensions": window(0, [1] * 9, [1] * 9),
    "bool size": raw_tensor(integer(0), b"\x88\x85", b"K\x01\x85"),
    "bool offset": raw_tensor(b"\x88", b"K\x01\x85", b"K\x01\x85"),
    "float size": raw_tensor(integer(0), b"G" + struct.pack(">d", 1.0) + b"\x85", b"K\x01\x85"),
    "text size": raw_tensor(integer(0), text("1") + b"\x85", b"K\x01\x85"),
    "None as stride": raw_tensor(integer(0), b"K\x01\x85", b"N"),
    "list as size": raw_tensor(integer(0), b"](K\x01e", b"K\x01\x85"),
    "nested size": raw_tensor(integer(0), b"K\x01\x85\x85", b"K\x01\x85"),
}


@pytest.mark.parametrize("call", OUTSIDE.values(), ids=OUTSIDE)
def test_a_window_outside_its_storage_is_refused(path: Path, call: bytes) -> None:
    one_storage(path, window(0, [24], [1]), call)
    with pytest.raises(CheckpointError):
        read_pth(path)
    assert len(read_pth(one_storage(path, window(0, [24], [1])))) == 1


STORAGES = {
    "other tag": hostile.storage_program(tag=text("module"), count=integer(24)),
    "unknown dtype": hostile.storage_program(storage=b"ctorch\nDoubleStorage\n"),
    "int dtype": hostile.storage_program(storage=b"ctorch\nLongStorage\n"),
    "text as class": hostile.storage_program(storage=text("FloatStorage")),
    "function as class": hostile.storage_program(storage=b"ccollections\nOrderedDict\n"),
    "missing record": hostile.storage_program(key=text("1"), count=integer(24)),
    "path as key": hostile.storage_program(key=text("../0"), count=integer(24)),
    "other digits as key": hostile.storage_program(key=text("٠"), count=integer(24)),
    "number as key": hostile.storage_program(key=integer(0), count=integer(24)),
    "long key": hostile.storage_program(key=text("0" * 10), count=integer(24)),
    "empty key": hostile.storage_program(key=text(""), count=integer(24)),
    "number as device": hostile.storage_program(device=integer(0), count=integer(24)),
    "negative count": hostile.storage_program(count=integer(-24)),
    "bool count": hostile.storage_program(count=b"\x88"),
    "no tuple": b"\x80\x02NQ.",
    "four parts": hostile.storage_program(count=b""),
    "six parts": hostile.storage_program(count=integer(24) + b"N"),
}


@pytest.mark.parametrize("program", STORAGES.values(), ids=STORAGES)
def test_a_storage_of_another_form_is_refused(path: Path, program: bytes) -> None:
    with pytest.raises(CheckpointError):
        read_pth(file_of(path, program))


def test_one_record_cannot_have_two_dtypes(path: Path) -> None:
    half = tensor_call(storage_id("HalfStorage", "0", 24), 0, [24], [1])
    brain = tensor_call(storage_id("BFloat16Storage", "0", 24), 0, [24], [1])
    values = VALUES.astype(np.float16)
    assert len(read_pth(one_storage(path, half, half, values=values))) == 2
    with pytest.raises(CheckpointError, match="one dtype and size"):
        read_pth(one_storage(path, half, brain, values=values))


def test_a_record_that_is_not_aligned_is_refused(path: Path) -> None:
    program = hostile.storage_program(count=integer(24))
    parts = [
        Part(b"a/data.pkl", program),
        Part(b"a/version", b"3\n"),
        Part(b"a/data/0", VALUES.tobytes()),
    ]
    for shift in range(4):
        parts[2].local_extra = b"FB" + struct.pack("<H", shift) + b"Z" * shift
        content = build(parts)
        path.write_bytes(content)
        if content.index(VALUES.tobytes()) % 4 == 0:
            assert read_pth(path)["a"].shape == (2, 3)
        else:
            with pytest.raises(CheckpointError, match="multiple of 4"):
                read_pth(path)


CONTENTS = {
    "a list": b"\x80\x02].",
    "a tensor": b"\x80\x02" + TWO_BY_THREE + b".",
    "a number": b"\x80\x02K\x01.",
    "a global": b"\x80\x02" + hostile.FLOAT + b".",
    "a number inside": b"\x80\x02}" + text("epoch") + b"K\x01s.",
    "a dict inside": b"\x80\x02}" + text("model") + b"}s.",
    "a storage inside": b"\x80\x02}" + text("a") + storage_id("FloatStorage", "0", 24) + b"s.",
}


@pytest.mark.parametrize("program", CONTENTS.values(), ids=CONTENTS)
def test_content_other_than_a_dict_of_tensors_is_refused(path: Path, program: bytes) -> None:
    with pytest.raises(CheckpointError, match="expected a"):
        read_pth(file_of(path, program))


def test_a_pickle_may_have_16_mib_and_no_more(path: Path) -> None:
    for more in (0, 1):
        start, end = b"\x80\x02}X", b"K\x01s."
        length = (16 << 20) + more - len(start) - 4 - len(end)
        file_of(path, start + struct.pack("<I", length) + b"x" * length + end)
        words = "at most 16777216 bytes, got 16777217" if more else "expected a tensor"
        with pytest.raises(CheckpointError, match=words):
            read_pth(path)


# Hostile files as a whole


HOSTILE = (
    {f"code: {name}": program for name, (program, _) in hostile.CODE.items()}
    | {f"container: {name}": program for name, program in hostile.CONTAINERS.items()}
    | {f"damaged: {name}": program for name, program in hostile.DAMAGED.items()}
    | {f"greedy: {name}": program for name, program in hostile.GREEDY.items()}
)


@pytest.mark.parametrize("program", HOSTILE.values(), ids=HOSTILE)
def test_a_hostile_file_is_refused_within_a_second_of_processor_time(
    path: Path, program: bytes
) -> None:
    file_of(path, program)
    start = time.process_time()
    with pytest.raises(CheckpointError) as caught:
        read_pth(path)
    assert time.process_time() - start < 1
    assert str(caught.value).startswith(f"{path}: ")
    assert len(str(caught.value)) < 500 + len(str(path))
    assert str(caught.value).isprintable()


def small_file(path: Path) -> bytes:
    calls = {"a": window(0, [4, 6], [1, 4]), "b": window(7, [2], [3])}
    write_archive(path, dict_program(calls), {"0": VALUES.tobytes()}, prefix="m")
    return path.read_bytes()


def test_a_file_cut_at_any_byte_is_refused(path: Path) -> None:
    content = small_file(path)
    for length in range(len(content)):
        path.write_bytes(content[:length])
        with pytest.raises(CheckpointError):
            read_pth(path)
    path.write_bytes(content)
    assert len(read_pth(path)) == 2


def fixed_crc(content: bytes, program: bytes, start: int) -> bytes:
    """Put a program of the same length in, with the CRC 0, which means "not computed"."""
    crc = struct.pack("<L", zlib.crc32(content[start : start + len(program)]))
    changed = content[:start] + program + content[start + len(program) :]
    assert changed.count(crc) == 2
    return changed.replace(crc, bytes(4))


def read_or_refuse(path: Path, content: bytes) -> bool:
    """Read damaged content: a refusal, or tensors inside the file; nothing else."""
    path.write_bytes(content)
    try:
        file, tensors = map_pth(path)
    except CheckpointError:
        return False
    start = np.frombuffer(file.buffer, np.uint8).ctypes.data if file.size else 0
    for tensor in tensors.values():
        extent = sum((n - 1) * s for n, s in zip(tensor.shape, tensor.strides, strict=True))
        inside = 0 <= tensor.data_pointer - start <= file.size - extent - tensor.dtype.itemsize
        assert inside or not math.prod(tensor.shape)
        tensor.numpy().sum()
    return True


@pytest.mark.filterwarnings("ignore:.*encountered in.*:RuntimeWarning")
def test_flipped_bits_of_the_pickle_are_refused_or_harmless(path: Path) -> None:
    content = small_file(path)
    program = dict_program({"a": window(0, [4, 6], [1, 4]), "b": window(7, [2], [3])})
    start = content.index(program)
    chance = random.Random(5)
    positions = chance.sample(range(len(program) * 8), 300)
    read = 0
    for position in positions:
        flipped = bytearray(program)
        flipped[position // 8] ^= 1 << position % 8
        path.write_bytes(content[:start] + bytes(flipped) + content[start + len(program) :])
        with pytest.raises(CheckpointError, match="CRC-32"):
            read_pth(path)
        read += read_or_refuse(path, fixed_crc(content, bytes(flipped), start))
    # Some flips only rename a tensor or move its window: those must still be read.
    assert 0 < read < len(positions)


@pytest.mark.filterwarnings("ignore:.*encountered in.*:RuntimeWarning")
def test_flipped_bits_anywhere_else_are_refused_or_harmless(path: Path) -> None:
    content = small_file(path)
    for position in random.Random(6).sample(range(len(content) * 8), 700):
        flipped = bytearray(content)
        flipped[position // 8] ^= 1 << position % 8
        read_or_refuse(path, bytes(flipped))


def test_a_refused_file_leaves_no_descriptor_open(path: Path) -> None:
    write_pth(path, {"a": VALUES})
    good = path.read_bytes()
    before = set(os.listdir("/proc/self/fd"))
    for program in (hostile.CODE["GLOBAL os.system"][0], hostile.GREEDY["a dict in itself"]):
        with pytest.raises(CheckpointError):
            read_pth(file_of(path, program))
    path.write_bytes(good)
    tensors = read_pth(path)
    assert tensors["a"].numpy().tolist() == VALUES.tolist()
    del tensors
    assert set(os.listdir("/proc/self/fd")) == before


def test_names_from_the_file_are_escaped_and_cut(path: Path) -> None:
    name = "\x1b]0;title\x07\u202e" + "x" * 500
    with pytest.raises(CheckpointError) as caught:
        read_pth(file_of(path, dict_program({name: window(25, [1], [1])})))
    assert str(caught.value).isprintable()
    assert "'\\x1b]0;title\\x07\\u202e" in str(caught.value)
    assert len(str(caught.value)) < 250 + len(str(path))
