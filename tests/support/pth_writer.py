"""Write PyTorch zip checkpoints without PyTorch: for tests, and for benchmarks of any
size.

The layout is that of `torch.save` in PyTorch 2.13: stored records in the order data.pkl,
.format_version, .storage_alignment, byteorder, data/N, version; each padded to 64 bytes
by an extra field `FB`, followed by a data descriptor unless it is empty; zip64 fields
where a size or an offset needs them, and zip64 end records always.
"""

import json
import math
import os
import pickle
import shutil
import struct
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

import ml_dtypes
import numpy as np

from src.model.sources.meta import args_from_params

ALIGNMENT = 64
UINT32_MAX = 0xFFFFFFFF
_ITEMS_PER_BATCH = 1000
_ELEMENTS_PER_CHUNK = 1 << 22
_HOLE = 1 << 20

# `params.json` of a model that is written and run in no time.
SMALL_PARAMS = {
    "dim": 64,
    "n_layers": 2,
    "n_heads": 4,
    "n_kv_heads": 2,
    "vocab_size": 512,
    "multiple_of": 32,
    "norm_eps": 1e-5,
    "rope_theta": 500000.0,
}
STORAGE_NAMES = {
    np.dtype(ml_dtypes.bfloat16): "BFloat16Storage",
    np.dtype(np.float16): "HalfStorage",
    np.dtype(np.float32): "FloatStorage",
}


@dataclass(frozen=True)
class LazyArray:
    """An array that is made piece by piece while it is written.

    `chunks` yields arrays of the dtype that follow each other in row-major order.
    """

    shape: tuple[int, ...]
    dtype: "np.dtype[Any]"
    chunks: Callable[[], Iterable["np.ndarray[Any, Any]"]]


# Pickle, protocol 2


def text(value: str) -> bytes:
    # Without a protocol, a place in the memo and an end.
    return pickle.dumps(value, 2)[2:-3]


def integer(value: int) -> bytes:
    return pickle.dumps(value, 2)[2:-1]


def global_name(module: str, name: str) -> bytes:
    return f"c{module}\n{name}\n".encode()


def integers(values: Sequence[int]) -> bytes:
    return b"(" + b"".join(map(integer, values)) + b"t"


ORDERED_DICT = global_name("collections", "OrderedDict") + b")R"


def storage_id(storage: str, key: str, count: int, device: str = "cpu") -> bytes:
    parts = (
        text("storage"),
        global_name("torch", storage),
        text(key),
        text(device),
        integer(count),
    )
    return b"(" + b"".join(parts) + b"tQ"


def tensor_call(
    storage: bytes, offset: int, shape: Sequence[int], strides: Sequence[int]
) -> bytes:
    """Form the opcodes of one tensor: a call of `_rebuild_tensor_v2`."""
    arguments = storage + integer(offset) + integers(shape) + integers(strides)
    rebuild = global_name("torch._utils", "_rebuild_tensor_v2")
    return rebuild + b"(" + arguments + b"\x89" + ORDERED_DICT + b"tR"


def dict_program(items: Mapping[str, bytes]) -> bytes:
    """Form a whole pickle of a dict from the opcodes of its values."""
    program = b"\x80\x02}"
    pairs = [text(name) + value for name, value in items.items()]
    for start in range(0, len(pairs), _ITEMS_PER_BATCH):
        program += b"(" + b"".join(pairs[start : start + _ITEMS_PER_BATCH]) + b"u"
    return program + b"."


def write_or_skip(stream: BinaryIO, content: bytes) -> None:
    """Write bytes; a mebibyte and more of zeros becomes a hole: large zero tensors cost
    no disk.
    """
    if len(content) >= _HOLE and not content[0] and content.count(0) == len(content):
        stream.seek(len(content), os.SEEK_CUR)
    else:
        stream.write(content)


# Zip, stored


class StoredZipWriter:
    """Write stored records one after another, without ever going back in the file."""

    def __init__(self, stream: BinaryIO, prefix: str) -> None:
        self._stream = stream
        self._prefix = prefix
        self._position = 0
        self._central: list[bytes] = []

    def _write(self, content: bytes) -> None:
        write_or_skip(self._stream, content)
        self._position += len(content)

    def text(self, name: str, word: str) -> None:
        self.record(name, len(word), [word.encode()])

    def record(self, name: str, size: int, chunks: Iterable[bytes]) -> None:
        """Write one record of `size` bytes, aligned to 64 bytes."""
        raw_name = f"{self._prefix}/{name}".encode()
        flags = 0x0808 if size else 0x0800
        at = self._position
        # As PyTorch writes them: the local field has 0 as stored size, the central one
        # the size.
        offset = struct.pack("<Q", at) if at >= UINT32_MAX else b""
        large = size >= UINT32_MAX
        local_zip64 = _extra((struct.pack("<2Q", size, 0) if large else b"") + offset)
        central_zip64 = _extra(
            (struct.pack("<2Q", size, size) if large else b"") + offset
        )
        data_at = at + 30 + len(raw_name) + len(local_zip64) + 4
        padding = -data_at % ALIGNMENT
        extra = local_zip64 + b"FB" + struct.pack("<H", padding) + b"Z" * padding
        lengths = len(raw_name), len(extra)
        header = struct.pack(
            "<4s5H3L2H", b"PK\x03\x04", 0, flags, 0, 0, 0, 0, 0, 0, *lengths
        )
        self._write(header + raw_name + extra)
        start = self._position
        crc = 0
        for chunk in chunks:
            crc = zlib.crc32(chunk, crc)
            self._write(chunk)
        assert self._position - start == size, (name, self._position - start, size)
        if size:
            form = "<4sL2Q" if central_zip64 else "<4s3L"
            self._write(struct.pack(form, b"PK\x07\x08", crc, size, size))
        small = min(size, UINT32_MAX)
        fields = (
            0,
            0,
            flags,
            0,
            0,
            0,
            crc,
            small,
            small,
            len(raw_name),
            len(central_zip64),
        )
        tail = (0, 0, 0, 0, min(at, UINT32_MAX))
        header = struct.pack("<4s6H3L5H2L", b"PK\x01\x02", *fields, *tail)
        self._central.append(header + raw_name + central_zip64)

    def finish(self) -> None:
        start = self._position
        count = len(self._central)
        for entry in self._central:
            self._write(entry)
        size = self._position - start
        end64_at = self._position
        end64 = (44, 0x031E, 45, 0, 0, count, count, size, start)
        self._write(struct.pack("<4sQ2H2L4Q", b"PK\x06\x06", *end64))
        self._write(struct.pack("<4sLQL", b"PK\x06\x07", 0, end64_at, 1))
        small = min(count, 0xFFFF)
        end = (0, 0, small, small, min(size, UINT32_MAX), min(start, UINT32_MAX), 0)
        self._write(struct.pack("<4s4H2LH", b"PK\x05\x06", *end))


def _extra(values: bytes) -> bytes:
    return struct.pack("<2H", 1, len(values)) + values if values else b""


# Checkpoints


def write_archive(
    path: Path,
    program: bytes,
    storages: Mapping[str, bytes] | Iterable[tuple[str, int, Iterable[bytes]]],
    *,
    prefix: str | None = None,
    byteorder: str = "little",
    version: str = "3\n",
) -> None:
    """Write a checkpoint from its pickle and its storages: a mapping, or (key, size,
    chunks).
    """
    if isinstance(storages, Mapping):
        storages = [(key, len(content), [content]) for key, content in storages.items()]
    with path.open("wb") as stream:
        archive = StoredZipWriter(stream, prefix or path.stem)
        archive.record("data.pkl", len(program), [program])
        archive.text(".format_version", "1")
        archive.text(".storage_alignment", str(ALIGNMENT))
        archive.text("byteorder", byteorder)
        for key, size, chunks in storages:
            archive.record(f"data/{key}", size, chunks)
        archive.text("version", version)
        archive.finish()


def write_pth(
    path: Path, tensors: Mapping[str, "np.ndarray[Any, Any] | LazyArray"], **options: str
) -> None:
    """Write named arrays as a checkpoint, one storage each; lazy ones are never whole in
    memory.
    """
    values = {}
    storages = []
    for key, (name, array) in enumerate(tensors.items()):
        dtype = np.dtype(array.dtype)
        count = int(np.prod(array.shape, dtype=object))
        storage = storage_id(STORAGE_NAMES[dtype], str(key), count)
        values[name] = tensor_call(storage, 0, array.shape, row_major(array.shape))
        storages.append((str(key), count * dtype.itemsize, _bytes_of(array)))
    write_archive(path, dict_program(values), storages, **options)


def row_major(shape: Sequence[int]) -> list[int]:
    """Give the strides, in elements, of a contiguous array."""
    return [
        math.prod(max(size, 1) for size in shape[axis + 1 :])
        for axis in range(len(shape))
    ]


def _bytes_of(array: "np.ndarray[Any, Any] | LazyArray") -> Iterator[bytes]:
    chunks = array.chunks() if isinstance(array, LazyArray) else [array]
    for chunk in chunks:
        assert chunk.dtype == array.dtype
        yield np.ascontiguousarray(chunk).tobytes()


# Random models


def random_tensor(
    name: str, shape: tuple[int, ...], dtype: "np.dtype[Any]", seed: int
) -> LazyArray:
    """Describe a random tensor, the same for the same name and seed, made in chunks.

    Matrices have a standard deviation of 1/sqrt(columns), norms lie around 1.
    """

    def chunks() -> Iterator["np.ndarray[Any, Any]"]:
        generator = np.random.default_rng([seed, zlib.crc32(name.encode())])
        left = int(np.prod(shape))
        while left:
            count = min(left, _ELEMENTS_PER_CHUNK)
            normal = generator.standard_normal(count, dtype=np.float32)
            values = 1 + normal / 8 if len(shape) == 1 else normal * shape[-1] ** -0.5
            yield values.astype(dtype)
            left -= count

    return LazyArray(shape, np.dtype(dtype), chunks)


def whole(array: LazyArray) -> "np.ndarray[Any, Any]":
    """Make a lazy array."""
    return np.concatenate(list(array.chunks())).reshape(array.shape)


def write_random_meta_directory(
    directory: Path,
    params: Mapping[str, Any],
    *,
    shards: int = 1,
    dtype: Any = ml_dtypes.bfloat16,
    seed: int = 0,
    tied: bool = False,
    embeddings_split: int = 0,
    tokenizer_model: Path | None = None,
) -> dict[str, LazyArray]:
    """Write a model directory in Meta's layout with random weights; return these, lazily.

    One file is streamed; several are made in memory and split, the embeddings along
    dimension 0 as Llama 3 or 1 as Llama 2. A tied model has no `output.weight`. Matrices
    come first.
    """
    directory.mkdir(parents=True, exist_ok=True)
    (directory / "params.json").write_text(json.dumps(dict(params)))
    if tokenizer_model is not None:
        shutil.copyfile(tokenizer_model, directory / "tokenizer.model")
    shapes = args_from_params(params).tensor_shapes
    tensors = {
        name: random_tensor(name, shape, np.dtype(dtype), seed)
        for name, shape in sorted(shapes.items(), key=lambda item: len(item[1]) == 1)
        if not (tied and name == "output.weight")
    }
    if shards == 1:
        write_pth(directory / "consolidated.00.pth", tensors)
        return tensors
    parts: list[dict[str, Any]] = [{} for _ in range(shards)]
    for name, tensor in tensors.items():
        pieces = split_tensor(
            name, whole(tensor), shards, embeddings_split, params["n_kv_heads"]
        )
        for number, piece in enumerate(pieces):
            parts[number][name] = piece
    for number, part in enumerate(parts):
        write_pth(directory / f"consolidated.{number:02d}.pth", part)
    return tensors


def split_tensor(
    name: str,
    array: "np.ndarray[Any, Any]",
    shards: int,
    embeddings_split: int,
    heads: int = 0,
) -> list["np.ndarray[Any, Any]"]:
    """Split one tensor of Meta's names over the shards of a model.

    Where there is a multiple of `heads` key/value heads, several shards hold each, as in
    Meta's 16 files of the 405B.
    """
    if array.ndim == 1:
        return [array] * shards
    if name == "tok_embeddings.weight":
        return np.split(array, shards, axis=embeddings_split)
    if name.endswith((".wk.weight", ".wv.weight")) and heads and shards % heads == 0:
        return [head for head in np.split(array, heads) for _ in range(shards // heads)]
    by_columns = name.endswith(("attention.wo.weight", "feed_forward.w2.weight"))
    return np.split(array, shards, axis=1 if by_columns else 0)
