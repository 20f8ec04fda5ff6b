import contextlib
import math
import os
import re
import struct
import time
import tracemalloc
from collections.abc import Callable
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from src import ml
from src.checkpoint import CheckpointError
from src.checkpoint.gguf import DTYPES, GgufArray, read_gguf, read_gguf_parts
from tests.checkpoint.refusals import refusal_of
from tests.support import gguf_writer as g
from tests.support.bounds import check_bounds
from tests.support.gguf_writer import Typed, array, entry, gguf_bytes, header, key, text

FLOATS = np.arange(6, dtype=np.float32).reshape(2, 3)
HALVES = np.arange(3, dtype=np.float16)
BFLOATS = np.arange(8, dtype=np.float32).astype(ml_dtypes.bfloat16).reshape(4, 2)
VALUES: dict[str, Any] = {
    "u8": Typed(g.UINT8, 255), "i8": Typed(g.INT8, -128), "u16": Typed(g.UINT16, 65535),
    "i16": Typed(g.INT16, -32768), "u32": 1 << 31, "i32": Typed(g.INT32, -1), "f32": 0.5,
    "bool": True, "text": "h\u00e9llo \U0001f999", "u64": Typed(g.UINT64, (1 << 64) - 1),
    "i64": Typed(g.INT64, -(1 << 63)), "f64": Typed(g.FLOAT64, math.pi),
}  # fmt: skip


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "a.gguf"


def read(path: Path, content: bytes) -> Any:
    path.write_bytes(content)
    return read_gguf(path)


def refusal(path: Path, content: bytes, words: str = "") -> None:
    """Read a bad file; the text after its name begins with these words."""
    refusal_of(read, path, content, begin=f"{path}: {words}")


@pytest.mark.parametrize("version", [2, 3])
def test_values_of_every_type_and_plain_tensors_are_read(
    path: Path, version: int
) -> None:
    tensors: dict[str, Any] = {"f": FLOATS, "h": HALVES, "b": BFLOATS}
    file = read(path, gguf_bytes(VALUES, tensors, version=version))
    expected = {k: v.value if isinstance(v, Typed) else v for k, v in VALUES.items()}
    assert dict(file.keys) == expected
    assert [type(file.keys[name]) for name in ("u8", "f32", "bool")] == [int, float, bool]
    assert file.version == version
    assert file.size == path.stat().st_size
    mapped = file.map()
    made = {name: each.make(mapped, f"my {name}") for name, each in file.tensors.items()}
    for name, expected_array in tensors.items():
        assert made[name].name == f"my {name}"
        assert made[name].shape == expected_array.shape
        np.testing.assert_array_equal(made[name].numpy(), expected_array)
        assert not made[name].numpy().flags.writeable
    assert made["b"].dtype is ml.bfloat16


def test_arrays_stay_in_the_file_until_their_values_are_asked_for(path: Path) -> None:
    values = {
        "long texts": ["x" * 127, "", "\u65e5" * 128, "y" * 70_000],
        "NULs": ["a\0b", "\0", ""],
        "texts": ["a", "", "\u65e5"],
        "numbers": [1, -2, 3, 4],
        "floats": [0.5, -1.0],
        "truths": [True, False],
        "none": [],
        "no numbers": [],
        "hostile": ["\x1b[2J", "\u202e"],
    }
    types = {"numbers": g.INT16, "none": g.STRING, "no numbers": g.FLOAT64}
    keys = {n: Typed(types[n], v) if n in types else v for n, v in values.items()}
    file = read(path, gguf_bytes(keys))
    found = file.keys
    decoded = file.decoded("n", {"numbers": 4, "none": 0})
    assert decoded == {
        "numbers": [1, -2, 3, 4],
        "none": [],
        "no numbers": found["no numbers"],
    }
    with pytest.raises(
        CheckpointError, match=r"key 'numbers': length: expected at most 3, got 4"
    ):
        file.decoded("n", {"numbers": 3})
    assert all(isinstance(value, GgufArray) for value in found.values())
    assert {name: value.values() for name, value in found.items()} == values
    assert found["numbers"].values(2) == [1, -2]
    assert found["NULs"].values(1) == ["a\0b"]
    assert str(found["texts"]) == "3 of string: 'a', '', '\u65e5'"
    assert str(found["numbers"]) == "4 of int16: 1, -2, 3, ..."
    assert str(found["none"]) == "0 of string: "
    assert str(found["hostile"]).isprintable()


def test_a_string_of_an_array_that_is_not_utf8_is_refused_when_it_is_asked_for(
    path: Path,
) -> None:
    content = keyed(struct.pack("<I", g.ARRAY) + array(g.STRING, ["a", b"b\xff"]))
    array_of_texts = read(path, content).keys["k"]
    assert array_of_texts.values(1) == ["a"]
    with pytest.raises(
        CheckpointError, match=r"key 'k'\[1\]: text: expected UTF-8, got an invalid by"
    ):
        array_of_texts.values()


def keyed(value: Any) -> bytes:
    """Form a file of one key."""
    return header(0, 1) + key("k", value)


ONE = entry("t", [8], g.F32, 0)


def with_tensor(
    *entries: bytes, data: int = 64, keys: bytes = b"", key_count: int = 0
) -> bytes:
    head = header(len(entries), key_count) + keys + b"".join(entries)
    return head + bytes(-len(head) % 32 + data)


def tensor(sizes: list[int], kind: int = g.F32, offset: int = 0, data: int = 64) -> bytes:
    """Form a file of one tensor."""
    return with_tensor(entry("t", sizes, kind, offset), data=data)


def aligned(value: bytes) -> bytes:
    return with_tensor(ONE, keys=key("general.alignment", value), key_count=1)


def with_alignment(number: int) -> bytes:
    head = header(1, 1) + key("general.alignment", number) + ONE
    return head + bytes(-len(head) % number + 64)


def uint32(value: int) -> bytes:
    return struct.pack("<II", g.UINT32, value)


def array_head(kind: int, count: int) -> bytes:
    return struct.pack("<IIQ", g.ARRAY, kind, count)


BIG = 1 << 63
TYPES = f"one of {', '.join(each.name for each in DTYPES.values())}"
# What is wrong with a file, the file, and the same one put right.
BAD: list[tuple[str, bytes, bytes]] = [
    (
        "number of tensors: expected at most 65536, got 65537",
        header(65537, 0) + bytes(3 << 20),
        header(0, 0),
    ),
    (
        "number of tensors: expected at most 0, which the file has room for, got 3",
        header(3, 0),
        header(0, 0),
    ),
    (
        (
            "number of tensors: expected at most 0, which the file has room for, got "
            "9223372036854775808"
        ),
        header(BIG, 0),
        header(0, 0),
    ),
    (
        "number of keys: expected at most 16384, got 16385",
        header(0, 16385) + bytes(1 << 20),
        header(0, 0),
    ),
    (
        (
            "number of keys: expected at most 0, which the file has room for, got "
            "9223372036854775808"
        ),
        header(0, BIG),
        header(0, 0),
    ),
    ("version: expected 2 or 3, got 1", header(0, 0, 1), header(0, 0, 2)),
    (
        "version: expected 2 or 3, got a big-endian file",
        header(0, 0, 1 << 24),
        header(0, 0),
    ),
    ("version: expected 4 bytes at byte 4, got 3 to", header(0, 0)[:7], header(0, 0)),
    (
        "number of keys: expected 8 bytes at byte 16, got 4",
        header(0, 0)[:20],
        header(0, 0),
    ),
    ("kind: expected a GGUF file, got an empty file", b"", header(0, 0)),
    (
        "kind: expected a GGUF file, got bytes 47 47 4d 4c",
        b"GGML" + bytes(30),
        header(0, 0),
    ),
    (
        "key 0: name: bytes: expected at most 65535, got 922",
        header(0, 1) + struct.pack("<Q", BIG) + bytes(30),
        keyed(0),
    ),
    (
        "key 0: name: expected 200 bytes at byte 32, got 30",
        header(0, 1) + struct.pack("<Q", 200) + bytes(30),
        header(0, 1) + key("k" * 200, 0),
    ),
    (
        "key 0: name: expected UTF-8, got an invalid byte at offset 1",
        header(0, 1) + key(b"k\xff", 0),
        header(0, 1) + key("k\u00ff", 0),
    ),
    ("key '': expected a new name, got none", header(0, 1) + key("", 0) + b"0", keyed(0)),
    (
        r"key '\x1b[2J': expected a new name, got it again",
        header(0, 2) + 2 * key("\x1b[2J", 0),
        header(0, 2) + key("\x1b[2J", 0) + key("l", 0),
    ),
    (
        "key 'k': type: expected 0 to 12, got 13",
        keyed(struct.pack("<IQ", 13, 0)),
        keyed(struct.pack("<IQ", 12, 0)),
    ),
    (
        "key 'k': expected 4 bytes",
        keyed(struct.pack("<IH", 4, 0)),
        keyed(struct.pack("<IH", 2, 0)),
    ),
    (
        "key 'k': expected 0 or 1 for a bool, got 2",
        keyed(struct.pack("<IB", g.BOOL, 2)),
        keyed(struct.pack("<IB", g.BOOL, 1)),
    ),
    (
        "key 'k': expected 0 or 1 for a bool, got 255",
        keyed(array_head(g.BOOL, 2) + b"\x01\xff"),
        keyed(array_head(g.BOOL, 2) + b"\x01\x00"),
    ),
    (
        "key 'k': bytes: expected at most 16777216, got 922",
        keyed(struct.pack("<IQ", g.STRING, BIG)),
        keyed(""),
    ),
    (
        ("key 'k': type of values: expected numbers, bools or strings, got an array"),
        keyed(array_head(g.ARRAY, 1) + bytes(20)),
        keyed(array_head(g.UINT8, 20) + bytes(20)),
    ),
    (
        "key 'k': type of values: expected numbers, bools or strings, got 13",
        keyed(array_head(13, 1) + bytes(20)),
        keyed(array_head(12, 2) + bytes(16)),
    ),
    (
        "key 'k': length: expected at most 5, which the file has room for, got 922",
        keyed(array_head(g.UINT32, BIG) + bytes(20)),
        keyed(array_head(g.UINT32, 5) + bytes(20)),
    ),
    (
        "key 'k': length: expected at most 5, which the file has room for, got 6",
        keyed(array_head(g.UINT32, 6) + bytes(20)),
        keyed(array_head(g.UINT32, 5) + bytes(20)),
    ),
    (
        "key 'k': length: expected at most 2, which the file has room for, got 3",
        keyed(array_head(g.STRING, 3) + bytes(20)),
        keyed(array_head(g.STRING, 2) + bytes(16)),
    ),
    (
        "key 'k': strings: expected 2 before byte 65, got longer ones",
        keyed(array_head(g.STRING, 2) + text("abcd") + bytes(4)),
        keyed(array_head(g.STRING, 2) + text("abcd") + bytes(8)),
    ),
    (
        "key 'k': strings: expected 2 before byte 66, got longer ones",
        keyed(array_head(g.STRING, 2) + text("a") + struct.pack("<Q", BIG)),
        keyed(array_head(g.STRING, 2) + text("a") + struct.pack("<Q", 0)),
    ),
    (
        "key 'general.alignment': expected a power of two in 8..65536, got 0",
        aligned(uint32(0)),
        with_alignment(32),
    ),
    (
        "key 'general.alignment': expected a power of two in 8..65536, got 3",
        aligned(uint32(3)),
        with_alignment(8),
    ),
    (
        "key 'general.alignment': expected a power of two in 8..65536, got 2147483648",
        aligned(uint32(1 << 31)),
        with_alignment(1 << 16),
    ),
    (
        "key 'general.alignment': type: expected 4, uint32, got 10",
        aligned(struct.pack("<IQ", g.UINT64, 32)),
        aligned(uint32(32)),
    ),
    (
        "tensor 0: name: bytes: expected at most 64, got 65",
        with_tensor(entry("n" * 65, [8], g.F32, 0)),
        with_tensor(entry("n" * 64, [8], g.F32, 0)),
    ),
    (
        "tensor 't': number of dimensions: expected 1 to 4, got 5",
        tensor([1, 1, 1, 1, 8]),
        tensor([1, 1, 1, 8]),
    ),
    ("tensor 't': number of dimensions: expected 1 to 4, got 0", tensor([]), tensor([1])),
    (
        "tensor 't': shape: expected no size of 0, got [2, 0]",
        tensor([0, 2]),
        tensor([1, 2]),
    ),
    (
        (
            "tensor 't': bytes: expected inside the 64 bytes of the data, got "
            "73786976294838206464 at 0"
        ),
        tensor([1 << 32, 1 << 32]),
        tensor([4, 4]),
    ),
    (
        "tensor 't': bytes: expected inside the 64 bytes of the data, got 68 at 0",
        tensor([17]),
        tensor([16]),
    ),
    (
        (
            "tensor 't': bytes: expected inside the 64 bytes of the data, got 4 at "
            "18446744073709551584"
        ),
        tensor([1], offset=(1 << 64) - 32),
        tensor([1], offset=32),
    ),
    (
        "tensor 't': bytes: expected inside the 0 bytes of the data, got 32 at 0",
        header(1, 0) + ONE,
        with_tensor(ONE),
    ),
    (
        "tensor 't': offset: expected a multiple of 32, got 8",
        tensor([1], offset=8),
        tensor([1], offset=32),
    ),
    (
        f"tensor 't': type: expected {TYPES}, got 16 (IQ2_XXS)",
        tensor([256], 16, data=999),
        tensor([8], g.F16),
    ),
    (f"tensor 't': type: expected {TYPES}, got 4", tensor([8], 4), tensor([8], g.BF16)),
    (
        "tensor 't': row length: expected a multiple of 32, a block of q8_0, got 16",
        tensor([16, 32], g.Q8_0, data=544),
        tensor([32, 16], g.Q8_0, data=544),
    ),
    (
        r"tensor '\x07': expected a new name, got it again",
        with_tensor(entry("\x07", [8], g.F32, 0), entry("\x07", [8], g.F32, 32)),
        with_tensor(entry("\x07", [8], g.F32, 0), entry("b", [8], g.F32, 32)),
    ),
    (
        "tensor 'b': offset: expected 36 or more, the end of 'a', got 32",
        with_tensor(entry("b", [8], g.F32, 32), entry("a", [9], g.F32, 0)),
        with_tensor(entry("b", [8], g.F32, 32), entry("a", [8], g.F32, 0)),
    ),
    (
        "tensor 'b': offset: expected 32 or more, the end of 'a', got 0",
        with_tensor(entry("a", [8], g.F32, 0), entry("b", [8], g.F32, 0)),
        with_tensor(entry("a", [8], g.F32, 0), entry("b", [8], g.F32, 32)),
    ),
]


@pytest.mark.parametrize(("reason", "bad", "good"), BAD, ids=[row[0][:60] for row in BAD])
def test_a_wrong_file_is_refused_with_its_reason_and_the_same_put_right_is_read(
    path: Path, reason: str, bad: bytes, good: bytes
) -> None:
    before = set(os.listdir("/dev/fd"))
    refusal(path, bad, reason)
    assert set(os.listdir("/dev/fd")) == before
    read(path, good)


def test_an_array_of_too_many_bytes_is_refused(path: Path) -> None:
    for length in ((32 << 20) + 1, 100):
        content = header(0, 1) + key(
            "k", array_head(g.STRING, 2) + 2 * text(bytes(length))
        )
        if length > 100:
            refusal(path, content, "key 'k': bytes: expected at most 67108864, got")
        else:
            assert read(path, content).keys["k"].count == 2
    numbers = keyed(array_head(g.UINT8, (64 << 20) + 1) + bytes((64 << 20) + 1))
    refusal(path, numbers, "key 'k': length: expected at most 67108864, got 67108865")


def test_a_file_cut_off_at_any_byte_is_refused(path: Path) -> None:
    keys = VALUES | {"general.alignment": 32, "texts": ["a", "b"], "numbers": [1, 2]}
    whole = gguf_bytes(keys, {"f": FLOATS, "h": HALVES})
    assert set(read(path, whole).tensors) == {"f", "h"}
    for length in range(len(whole)):
        refusal(path, whole[:length])


def mebibyte(part: Callable[[int], bytes], head: Callable[[int], bytes]) -> bytes:
    parts = [part(number) for number in range(100)]
    count = (1 << 20) // (len(b"".join(parts)) // 100)
    return head(count) + b"".join(map(part, range(count)))


HOSTILE = {
    "keys": mebibyte(lambda n: key(str(n), uint32(0)), lambda n: header(0, n)),
    "arrays": mebibyte(lambda n: key(str(n), ["", ""]), lambda n: header(0, 16384)),
    "tensors": mebibyte(
        lambda n: entry(str(n), [1], g.F32, 4 * n), lambda n: header(n, 0)
    ),
    "overlaps": mebibyte(
        lambda n: entry(str(n), [1] * 4, g.F32, 0), lambda n: header(n, 0)
    ),
    "strings": header(0, 1)
    + key("k", array_head(g.STRING, 1 << 17) + bytes(1 << 20))
    + b"x",
    "numbers": header(0, 1)
    + key("k", array_head(g.UINT8, 1 << 20) + bytes(1 << 20))[:-1],
    "text": header(0, 2) + key("k", "x" * (1 << 20)) + text("l"),
}


@pytest.mark.parametrize("content", HOSTILE.values(), ids=HOSTILE)
def test_a_hostile_mebibyte_is_met_within_a_second_and_64_mib(
    path: Path, content: bytes
) -> None:
    path.write_bytes(content)

    def refuse() -> None:
        with contextlib.suppress(CheckpointError):
            read_gguf(path)

    check_bounds(refuse)


def test_arrays_that_nobody_asks_for_take_no_memory(path: Path) -> None:
    unused = {f"tokenizer.unused.{n}": ["x" * 4000] * 4000 for n in range(4)}
    used = [f"token{n}" for n in range(1000)]
    path.write_bytes(gguf_bytes({**unused, "tokenizer.ggml.tokens": used}))
    assert path.stat().st_size > 60_000_000
    tracemalloc.start()
    try:
        keys = read_gguf(path).decoded("tokenizer.", {"tokenizer.ggml.tokens": 1000})
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert keys["tokenizer.ggml.tokens"] == used
    assert peak < 1_000_000


@pytest.mark.parametrize("kept_bytes", [100, 250])
def test_an_array_of_a_file_that_was_cut_since_is_refused(
    path: Path, kept_bytes: int
) -> None:
    path.write_bytes(gguf_bytes({"t": ["x" * 300, "y"]}))
    array = read_gguf(path).keys["t"]
    assert isinstance(array, GgufArray)
    assert array.values() == ["x" * 300, "y"]
    os.truncate(path, kept_bytes)
    with pytest.raises(
        CheckpointError, match=r"size in bytes: expected at least \d+ as when it"
    ):
        array.values()


def test_an_array_of_a_file_that_was_rewritten_since_is_refused(path: Path) -> None:
    content = gguf_bytes({"t": ["x" * 300, "y"]})
    path.write_bytes(content)
    array = read_gguf(path).keys["t"]
    assert isinstance(array, GgufArray)
    path.write_bytes(
        content.replace((300).to_bytes(8, "little"), (1 << 62).to_bytes(8, "little"))
    )
    with pytest.raises(
        CheckpointError, match=r"key 't'\[0\]: text: expected inside byte \d+ as"
    ):
        array.values()


def test_the_header_of_a_large_vocabulary_is_walked_without_decoding_it(
    path: Path,
) -> None:
    path.write_bytes(gguf_bytes({"t": [f"token{n}" for n in range(200_000)]}))
    started = time.process_time()
    array = read_gguf(path).keys["t"]
    assert time.process_time() - started < 1.0  # 0.05 s measured
    assert isinstance(array, GgufArray)
    assert array.count == 200_000


def test_a_file_that_has_another_size_now_is_not_mapped(path: Path) -> None:
    content = gguf_bytes({}, {"f": FLOATS})
    file = read(path, content)
    file.map().close()
    path.write_bytes(content + b"0")
    with pytest.raises(
        CheckpointError, match=r"size in bytes: expected 120 as when it was read"
    ):
        file.map()


# Parts


def write_parts(
    folder: Path, changes: dict[int, dict[str, Any]] | None = None
) -> list[Path]:
    """Write a model in three parts; `changes` replaces keys of a part by its number from
    0.
    """
    paths = [folder / f"m-{number:05d}-of-00003.gguf" for number in (1, 2, 3)]
    for number, path in enumerate(paths):
        keys: dict[str, Any] = {"k": number} if number == 0 else {}
        keys |= {"split.no": Typed(g.UINT16, number), "split.count": Typed(g.UINT16, 3)}
        keys |= {"split.tensors.count": Typed(g.INT32, 3)} | (changes or {}).get(
            number, {}
        )
        name = str(keys.pop("name", f"t{number}"))
        path.write_bytes(gguf_bytes(keys, {name: FLOATS + number}))
    return paths


def test_parts_are_read_in_their_order_whatever_is_before_their_numbers(
    tmp_path: Path,
) -> None:
    paths = [p.rename(tmp_path / f"a\n-00001{p.name[1:]}") for p in write_parts(tmp_path)]
    parts = read_gguf_parts(paths[0])
    assert [part.path for part in parts] == paths
    assert [list(part.tensors) for part in parts] == [["t0"], ["t1"], ["t2"]]


@pytest.mark.parametrize("count", [None, 0, 1])
def test_a_file_of_one_part_is_a_whole_file_of_any_name(
    path: Path, count: int | None
) -> None:
    keys = {} if count is None else {"split.count": Typed(g.UINT16, count)}
    path.write_bytes(gguf_bytes(keys, {"f": FLOATS}))
    assert len(read_gguf_parts(path)) == 1


def parts_refused(path: Path, reason: str) -> None:
    refusal_of(read_gguf_parts, path, match=re.escape(reason))


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({0: {"split.count": 4}}, "file name: expected NAME-00001-of-00004.gguf"),
        (
            {0: {"split.count": "3"}},
            "split.count: expected an integer in 0..99999, got '3'",
        ),
        (
            {0: {"split.count": 100_000}},
            "split.count: expected an integer in 0..99999, got 100000",
        ),
        (
            {0: {"split.count": True}},
            "split.count: expected an integer in 0..99999, got true",
        ),
        ({1: {"split.no": 2}, 2: {"split.no": 1}}, "split.no: expected 1, got 2"),
        ({2: {"split.no": 1}}, "split.no: expected 2, got 1"),
        ({2: {"split.count": 2}}, "split.count: expected 3, got 2"),
        (
            {1: {"name": "t0"}},
            "tensors: expected each in one part, got 't0'",
        ),
        ({0: {"split.tensors.count": 4}}, "tensors of all parts: expected 4, got 3"),
    ],
)
def test_parts_that_do_not_belong_together_are_refused(
    tmp_path: Path, changes: dict[int, dict[str, Any]], reason: str
) -> None:
    parts_refused(write_parts(tmp_path, changes)[0], reason)


def test_a_part_that_is_later_missing_or_renamed_is_refused_by_its_name(
    tmp_path: Path,
) -> None:
    first, second, third = write_parts(tmp_path)
    parts_refused(second, "file name: expected NAME-00001-of-00003.gguf")
    third.unlink()
    parts_refused(first, "without 'm-00003-of-00003.gguf' (1 in all)")
    second.unlink()
    parts_refused(
        first, "without 'm-00002-of-00003.gguf', 'm-00003-of-00003.gguf' (2 in all)"
    )
    for name in ("model.gguf", "m-00001-of-00003.GGUF", "m-0000\u0661-of-00003.gguf"):
        first = first.rename(tmp_path / name)
        parts_refused(first, "file name: expected NAME-00001-of-00003.gguf")


def test_a_part_that_links_out_of_the_directory_is_refused(tmp_path: Path) -> None:
    inside = tmp_path / "inside"
    inside.mkdir()
    paths = write_parts(inside)
    outside = paths[1].rename(tmp_path / "elsewhere.gguf")
    paths[1].symlink_to(outside)
    parts_refused(paths[0], "link: expected a file inside its directory")
    paths[1].unlink()
    outside.rename(inside / "beside.gguf")
    paths[1].symlink_to("beside.gguf")
    assert len(read_gguf_parts(paths[0])) == 3
