"""Reading safetensors files: rows S1 and S2 of the bad inputs,
each with its valid twin.
"""

import json
import re
import struct
import tracemalloc
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import ml_dtypes
import numpy as np
import pytest

from src import ml
from src.checkpoint import CheckpointError, FileMemoryError, read_safetensors
from src.checkpoint.safetensors import DTYPE_BITS, SafetensorsFile
from tests.checkpoint.refusals import refusal_of
from tests.support.safetensors_writer import entry, file_bytes, padded, write_safetensors

GOOD = {"a": entry("F32", [2], 0, 8), "b": entry("BF16", [3], 8, 14)}
DATA = np.array([1.5, -2.0], np.float32).tobytes() + bytes(6)


def arrays() -> dict[str, "np.ndarray[Any, Any]"]:
    generator = np.random.default_rng(1)
    return {
        "matrix": generator.standard_normal((3, 5)).astype(ml_dtypes.bfloat16),
        "half": generator.standard_normal(7).astype(np.float16),
        "float": generator.standard_normal((2, 1, 4)).astype(np.float32),
        "bytes": np.arange(9, dtype=np.uint8),
        "whole": np.arange(-3, 3, dtype=np.int32),
        "scalar": np.array(2.5, np.float32),
        "empty": np.zeros((0, 4), np.float32),
    }


def read(path: Path, content: bytes) -> dict[str, ml.Tensor]:
    path.write_bytes(content)
    return read_safetensors(path)


def refusal(tmp_path: Path, content: bytes, words: str) -> None:
    """Read a bad file; the one line that says what is wrong with it has these words."""
    path = tmp_path / "model.safetensors"
    refusal_of(read, path, content, begin=f"{path}: ", match=re.escape(words), most=500)


def written(tmp_path: Path, shift: int) -> Path:
    """Write the arrays to a file; `shift` takes them from their alignment."""
    path = tmp_path / "model.safetensors"
    write_safetensors(path, arrays(), shift=shift)
    return path


def test_a_copy_without_memory_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = written(tmp_path, 1)
    read_safetensors(path)  # the valid twin
    monkeypatch.setattr(
        "src.checkpoint.safetensors.np.frombuffer", Mock(side_effect=MemoryError)
    )
    with pytest.raises(FileMemoryError, match="the system refused the allocation"):
        read_safetensors(path)


@pytest.mark.parametrize("count", [(1 << 16) + 1, 100_000])
def test_more_tensors_than_the_limit_are_refused_unseen(
    tmp_path: Path, count: int
) -> None:
    header = {str(number): 1 for number in range(count)}
    refusal(tmp_path, file_bytes(header), f"at most 65536, got {count}")


def test_as_many_tensors_as_the_limit_are_read_and_one_more_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("src.checkpoint.safetensors._MOST_TENSORS", 3)
    header = {name: entry("U8", [0], 0, 0) for name in "abcd"}
    refusal(tmp_path, file_bytes(header), "at most 3, got 4")
    del header["d"]
    assert list(read(tmp_path / "a", file_bytes(header))) == ["a", "b", "c"]


def test_the_bits_of_each_dtype_are_those_of_its_name() -> None:
    named = {
        name: int(re.sub(r"^[A-Z]+([0-9]+).*", r"\1", name))
        for name in DTYPE_BITS
        if name[-1] != "L"
    }
    assert named | {"BOOL": 8} == DTYPE_BITS


@pytest.mark.parametrize("shift", [0, 1, 2, 3])
def test_tensors_are_views_and_only_misaligned_ones_are_copies(
    tmp_path: Path, shift: int
) -> None:
    source = SafetensorsFile(written(tmp_path, shift))
    start = np.frombuffer(source.file.buffer, np.uint8).ctypes.data
    assert source.entries.keys() == arrays().keys()
    for name, array in arrays().items():
        record = source.entries[name]
        assert record.make().name == name
        tensor = record.make("renamed")
        assert (tensor.numpy().dtype, tensor.shape) == (array.dtype, array.shape)
        copied = shift % array.itemsize != 0
        assert record.is_misaligned == tensor.is_writable == copied
        assert copied or tensor.data_pointer == start + record.start
        assert tensor.is_contiguous
        assert tensor.name == "renamed"
        assert tensor.numpy().tobytes() == array.tobytes()


@pytest.mark.parametrize(
    "dtype", ["F64", "U64", "I16", "U32", "BOOL", "F8_E4M3FNUZ", "F8_E8M0"]
)
def test_a_dtype_that_ml_lacks_is_named_when_its_tensor_is_made(
    tmp_path: Path, dtype: str
) -> None:
    width = {"F64": 8, "U64": 8, "I16": 2, "U32": 4}.get(dtype, 1)
    odd = entry(dtype, [2], 0, 2 * width)
    good = entry("F32", [], 2 * width, 2 * width + 4)
    path = tmp_path / "model.safetensors"
    path.write_bytes(file_bytes({"odd": odd, "good": good}, bytes(2 * width + 4)))
    source = SafetensorsFile(path)
    assert source.entries["good"].make().shape == ()
    with pytest.raises(
        CheckpointError, match=rf"tensor 'odd': expected a dtype .*got {dtype}$"
    ):
        source.entries["odd"].make()
    with pytest.raises(CheckpointError, match=dtype):
        read_safetensors(path)


def with_entry(text: str) -> bytes:
    return file_bytes(padded(f'{{"a": {text}}}'.encode()), bytes(8))


def one(
    shape: str = "[2]", offsets: str = "[0,8]", dtype: str = '"F32"', more: str = ""
) -> bytes:
    """Form a file of one tensor of 8 bytes from the JSON of its parts."""
    return with_entry(
        f'{{"dtype":{dtype},"shape":{shape},"data_offsets":{offsets}{more}}}'
    )


def with_metadata(metadata: object) -> bytes:
    return file_bytes({"__metadata__": metadata} | GOOD, DATA)


def with_spans(spans: list[tuple[int, int]], size: int) -> bytes:
    header = {
        f"t{n}": entry("F32", [(e - b) // 4], b, e) for n, (b, e) in enumerate(spans)
    }
    return file_bytes(header, bytes(size))


JSON = json.dumps(GOOD)
LONG_NAME = {"\x1b]0;title\x07" + "n" * 1000: entry("F32", [3], 0, 8)}
KIND = "kind: expected a safetensors file, got "
# What is wrong with a file, the file, and words of the refusal.
BAD = {
    "empty": (b"", f"{KIND}an empty file"),
    "one byte of a length": (bytes(1), f"{KIND}bytes 00"),
    "7 bytes of a length": (bytes(7), f"{KIND}bytes 00"),
    "zip": (b"PK\x03\x04" + bytes(60), "a zip archive"),
    "page": (b"<!DOCTYPE html>" + bytes(60), "an error page"),
    "empty header": (file_bytes(b""), "'{' as first byte, got b''"),
    "one byte": (file_bytes(b"{"), "header: expected JSON"),
    "beyond the file": (
        file_bytes(GOOD, DATA, length=10_000),
        "at most 142 bytes, got 10000",
    ),
    "all ones": (
        file_bytes(GOOD, DATA, length=2**64 - 1),
        "bytes, got 18446744073709551615",
    ),
    "over the limit": (
        file_bytes(b"{}", bytes(16 << 20), length=(16 << 20) + 1),
        "at most 16777216 bytes, got",
    ),
    "one too long": (
        file_bytes(b"{}", length=3),
        "header length: expected at most 2 bytes, got 3",
    ),
    "a space first": (file_bytes(b" {}     "), "'{' as first byte, got b' '"),
    "NUL at the end": (file_bytes(b"{}\0\0"), "header: expected JSON"),
    "not UTF-8": (
        file_bytes(b'{"\xff": 1}'),
        "expected UTF-8, got an invalid byte at offset 2",
    ),
    "cut": (file_bytes(JSON.encode()[:-3], DATA), "header: expected JSON"),
    "NaN": (one("[NaN]"), "finite number, got NaN"),
    "1.0": (one("[2.0]"), "got 2.0"),
    "true": (one("[true]", dtype='"F64"'), "got true"),
    "5 000 digits": (one(f"[{'9' * 5000}]"), "32 digits"),
    "negative": (one("[-2]"), "0..281474976710656, got -2"),
    "no list": (one("2"), "a list, got 2"),
    "nine sizes": (one("[2,1,1,1,1,1,1,1,1]"), "at most 8 sizes, got 9"),
    "unknown dtype": (one(dtype='"F33"'), "a dtype of the format, got 'F33'"),
    "dtype of ESC": (one(dtype='"\\u001b[2J"'), r"'\x1b[2J'"),
    "dtype list": (one(dtype='["F32"]'), "a list"),
    "three offsets": (one(offsets="[0,4,8]"), "[begin, end]"),
    "reversed": (one(offsets="[8,0]"), "begin <= end <= 8 bytes, got [8, 0]"),
    "past the end": (one("[4]", "[0,16]"), "begin <= end <= 8 bytes, got [0, 16]"),
    "huge offset": (one(offsets=f"[0,{2**63}]"), "got 9223372036854775808"),
    "no offsets": (
        with_entry('{"dtype":"F32","shape":[2]}'),
        "data_offsets, got 'dtype'",
    ),
    "another key": (one(more=',"x":1'), "'x'"),
    "a key twice": (one(more=',"shape":[2]'), "'shape' twice"),
    "no object": (with_entry("3"), "data_offsets, got 3"),
    "deep": (with_entry("[" * 100_000), "nesting, got very many"),
    "wraps": (one(f"[{2**32},{2**32}]", "[0,0]"), "bits, got 0 bits"),
    "a million": (one("[1000000]", "[0,4]"), "32000000 bits, got 32 bits"),
    "too few": (one("[1]"), "32 bits, got 64 bits"),
    "half a byte": (one("[15]", dtype='"F4"'), "60 bits, got 64 bits"),
    "metadata list": (with_metadata([]), "a map of text to text, got a list"),
    "metadata text": (with_metadata("pt"), "a map of text to text, got 'pt'"),
    "metadata empty text": (with_metadata(""), "a map of text to text, got ''"),
    "metadata number": (with_metadata({"format": 1}), "a map of text to text, got 1"),
    "metadata nested": (with_metadata({"format": {"a": "b"}}), "an object"),
    "a name twice": (
        file_bytes(padded(f"{{{JSON[1:-1]}, {JSON[1:-1]}}}".encode()), DATA),
        "each key once, got 'a' twice",
    ),
    "a long name": (file_bytes(LONG_NAME, bytes(8)), r"\x1b]0;title\x07"),
    "overlap": (
        with_spans([(0, 8), (4, 12)], 12),
        "8, the end of the previous one, got 4 (an o",
    ),
    "gap": (
        with_spans([(0, 8), (12, 20)], 20),
        "8, the end of the previous one, got 12 (a gap)",
    ),
    "bytes after the last": (
        with_spans([(0, 8)], 12),
        "tensors up to its end, 12 bytes, got 8",
    ),
    "no tensors": (with_spans([], 4), "tensors up to its end, 4 bytes, got 0"),
}


@pytest.mark.parametrize(("content", "words"), BAD.values(), ids=BAD)
def test_a_bad_file_is_refused_with_its_reason(
    tmp_path: Path, content: bytes, words: str
) -> None:
    refusal(tmp_path, content, words)


def test_the_same_header_as_the_format_has_it_is_read(tmp_path: Path) -> None:
    tensors = read(tmp_path / "a", file_bytes(GOOD, DATA))
    assert tensors["a"].numpy().tolist() == [1.5, -2.0]
    for number, metadata in enumerate(({"format": "pt"}, {}, None)):
        assert read(tmp_path / f"m{number}", with_metadata(metadata))["a"].shape == (2,)
    assert read(tmp_path / "c", one())["a"].shape == (2,)
    assert read(tmp_path / "d", one("[2,1,1,1,1,1,1,1]"))["a"].ndim == 8
    # Padding of any length, and JSON's own white space inside.
    spaced = json.dumps(GOOD, indent=1).encode() + b" " * 1001
    assert read(tmp_path / "b", file_bytes(spaced, DATA))["a"].numpy().tolist() == [
        1.5,
        -2.0,
    ]


def test_a_header_as_long_as_the_limit_is_read_and_one_byte_more_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("src.checkpoint.safetensors._MOST_HEADER_BYTES", 200)
    header = JSON.encode().ljust(200)
    assert read(tmp_path / "a", file_bytes(header, DATA)).keys() == GOOD.keys()
    words = "header length: expected at most 200 bytes, got 201"
    refusal(tmp_path, file_bytes(header + b" ", DATA), words)


@pytest.mark.parametrize("value", [b"[]", b"{}", b'""', b"1"])
def test_many_small_values_are_refused_before_they_are_made(
    tmp_path: Path, value: bytes
) -> None:
    """Before, one of 90 MB took 2.3 GB."""
    values = (value + b",") * ((15 << 20) // (len(value) + 1))
    header = b'{"__metadata__":[' + values + b"0]}"
    path = tmp_path / "model.safetensors"
    path.write_bytes(file_bytes(header))
    tracemalloc.start()
    try:
        with pytest.raises(
            CheckpointError, match="header: expected at most 1572864 values, where"
        ):
            read_safetensors(path)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < 4 * len(header)


def test_a_file_cut_anywhere_is_refused(tmp_path: Path) -> None:
    content = file_bytes(GOOD, DATA)
    for size in range(len(content)):
        refusal(tmp_path, content[:size], "expected")
    refusal(tmp_path, content + b"\0", "expected")


def test_tensors_in_any_order_of_names_and_empty_ones_between_are_read(
    tmp_path: Path,
) -> None:
    header = {
        "z": entry("F32", [1], 0, 4), "a": entry("F32", [1], 4, 8),
        "nothing": entry("F32", [0], 4, 4), "end": entry("F32", [3, 0], 8, 8),
    }  # fmt: skip
    tensors = read(tmp_path / "a", file_bytes(header, struct.pack("<2f", 1, 2)))
    assert tensors["z"].numpy().tolist() == [1]
    assert tensors["a"].numpy().tolist() == [2]
    assert tensors["end"].shape == (3, 0)
