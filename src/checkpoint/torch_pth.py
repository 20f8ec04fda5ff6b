"""Read PyTorch zip checkpoints (`.pth`), which contain a pickle and tensor storages.

The file is mapped. Only the zip directory and the pickle are read, and each tensor is a
view of the mapping, so a 16 GB checkpoint opens in milliseconds.

Source: PyTorch 2.13, `torch/serialization.py` (`_save`, `_load`).
"""

import math
import zlib
from collections.abc import Mapping
from pathlib import Path

from .. import ml
from ..untrusted import described, shown, some_of
from .errors import CheckpointError
from .mapped_file import MappedFile
from .params import Rule, check_object, one_of
from .pickle_machine import PickleMachine, StorageReference, TensorReference
from .zip_directory import Record, read_directory

_ZIP = b"PK\x03\x04"
_MOST_PICKLE_BYTES = 16 << 20
_MOST_WORD_BYTES = 64
_VERSIONS = [str(number) for number in range(1, 11)]
_WORD_RULES: Mapping[str, Rule] = {
    "version": (f"{_VERSIONS[0]}..{_VERSIONS[-1]}", lambda value: value in _VERSIONS),
    # Files written before PyTorch 2.1 lack this record, and are always little-endian.
    "byteorder": one_of("little"),
}


def read_pth(path: Path) -> dict[str, ml.Tensor]:
    """Read a `.pth` file to which `torch.save` wrote a dict of tensors.

    Returns:
        The tensors by name, as read-only views of the mapped file with the saved shapes,
        strides and offsets. Tensors that shared a storage still share it.

    Raises:
        CheckpointError: The file is not a PyTorch zip checkpoint, is damaged, or contains
            a tensor that is not bfloat16, float16 or float32. The message names the
            location.
    """
    return map_pth(path)[1]


def map_pth(path: Path) -> tuple[MappedFile, dict[str, ml.Tensor]]:
    """Read a checkpoint as `read_pth` does, and also return the mapped file."""
    file = MappedFile(path)
    try:
        if file.buffer[: len(_ZIP)] != _ZIP:
            file.refuse("kind", "a PyTorch zip checkpoint", file.kind())
        records = _strip_prefix(file, read_directory(file))
        program = _content(file, records["data.pkl"], _MOST_PICKLE_BYTES)
        value = PickleMachine(program, f"{file.label}: data.pkl").run()
        if not isinstance(value, dict):
            file.refuse("data.pkl", "a dict of tensors by name", described(value))
        storages: dict[str, StorageReference] = {}
        for name, item in value.items():
            if not isinstance(item, TensorReference):
                file.refuse(f"data.pkl: entry {shown(name)}", "a tensor", described(item))
            storage = item.storage
            if storages.setdefault(storage.key, storage) != storage:
                file.refuse(f"record 'data/{storage.key}'", "one dtype and size", "two")
        tensors = {
            name: _tensor(file, records, name, item) for name, item in value.items()
        }
    except CheckpointError:
        file.close()
        raise
    return file, tensors


def _strip_prefix(file: MappedFile, records: dict[str, Record]) -> dict[str, Record]:
    """Remove the common folder from record names, and check version and byte order."""
    prefixes = {name.partition("/")[0] for name in records}
    if len(prefixes) != 1:
        file.refuse("folders of the records", "one", some_of(sorted(prefixes)))
    stripped = {name.partition("/")[2]: record for name, record in records.items()}
    if "data.pkl" not in stripped:
        file.refuse("record 'data.pkl'", "one", "none")
    words: dict[str, object] = {}
    for name in _WORD_RULES.keys() & stripped.keys():
        content = _content(file, stripped[name], _MOST_WORD_BYTES)
        words[name] = content.decode("ascii", "replace").strip()
    check_object(f"{file.label}: records", words, _WORD_RULES, ["version"])
    return stripped


def _content(file: MappedFile, record: Record, limit: int) -> bytes:
    """Return a copy of a small record after checking its size and its CRC-32 if set."""
    if record.size > limit:
        file.refuse(f"record {shown(record.name)}", f"at most {limit} bytes", record.size)
    content = file.bytes_at(record.start, record.start + record.size)
    crc = zlib.crc32(content)
    if record.crc not in (crc, 0):  # PyTorch can be configured to write 0 instead
        key = f"record {shown(record.name)}: CRC-32"
        got = f"{crc:08x} (damaged)"
        file.refuse(key, f"{record.crc:08x}", got)
    return content


def _tensor(
    file: MappedFile, records: dict[str, Record], name: str, reference: TensorReference
) -> ml.Tensor:
    """Return one tensor after checking that it lies within its record.

    The check uses Python integers, which cannot overflow.
    """
    storage = reference.storage
    itemsize = reference.storage.dtype.itemsize
    label = f"tensor {shown(name)}"
    record_name = f"data/{storage.key}"
    if record_name not in records:
        file.refuse(label, f"a record '{record_name}'", "none")
    record = records[record_name]
    nbytes = storage.element_count * itemsize
    # torch.save aligns each record to 64 bytes. The kernels read whole elements in place,
    # so each storage must be aligned to its item size.
    if record.size != nbytes or record.start % itemsize:
        rule = (
            f"{storage.element_count} x {itemsize} = {nbytes} bytes at a multiple of "
            f"{itemsize}"
        )
        file.refuse(label, rule, f"{record.size} bytes at byte {record.start}")
    count = math.prod(reference.shape)
    extent = 1
    strides = []
    for size, stride in zip(reference.shape, reference.strides, strict=True):
        extent += (size - 1) * stride
        strides.append(stride * itemsize if size > 1 else itemsize)
    # Reject a tensor with more elements than its storage. Its elements would overlap, as
    # in an expanded view (stride 0), so a few bytes could require any amount of work.
    needed = reference.offset + (max(extent, count) if count else 0)
    if needed > storage.element_count:
        rule = f"offset + max(extent, count) at most {storage.element_count} elements"
        file.refuse(label, rule, needed)
    return ml.Tensor.from_buffer(
        file.buffer,
        storage.dtype,
        reference.shape,
        strides=tuple(strides) if count else None,
        offset=record.start + reference.offset * itemsize,
        name=name,
    )
