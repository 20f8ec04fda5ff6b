"""The weights of a model directory in Hugging Face's layout: safetensors, one file or several.

The weights are used where they lie in the files, under Meta's names. The rows of wq and wk keep the
order of the files; `names.py` says what that means.
"""

from __future__ import annotations

import os
from collections.abc import Collection, Iterable, Mapping
from pathlib import Path
from typing import Literal

from .. import ml
from .checkpoint import Checkpoint
from .errors import CheckpointError, FileAccessError, ShardError, mismatch, some_of
from .mapped_file import label_of
from .names import hugging_face_names, is_harmless, rows_of
from .packed_weights import Found, PackedWeight, take_packed
from .safetensors import SafetensorsFile
from .safetensors_header import TensorEntry
from .safetensors_index import read_index
from .tensor_checks import check_names, check_shapes

__all__ = ["WEIGHT_FILES", "open_hugging_face_checkpoint"]

_SCALES = (".weight_scale", ".weight_scale_inv", ".input_scale")

WEIGHT_FILES = ("model.safetensors", "model.safetensors.index.json")
"""All weights in one file, or the index of several; the first goes before the second."""


def open_hugging_face_checkpoint(
    directory: Path,
    layers: int,
    sizes: Mapping[str, int],
    *,
    biases: Collection[str] = (),
    tied: bool = False,
    quantization: Literal["nf4", "int8"] | None = None,
) -> Checkpoint:
    """Open the weights of a model directory in Hugging Face's layout.

    Args:
        directory: holds `model.safetensors` or, where that is absent, the files of
            `model.safetensors.index.json`.
        layers: L.
        sizes: all sizes by the letters of `names.py`.
        biases: the matrices that have biases, `wq` to `w3`.
        tied: whether the embeddings serve as output where `lm_head.weight` is absent.
        quantization: how the parts of quantised matrices are stored; None where all are plain.

    Returns:
        The checkpoint: all tensors of so many layers, by Meta's names, with the shapes that follow
        from the sizes. They, or the parts of quantised ones, are views of the mapped files.

    Raises:
        CheckpointError: something is missing, damaged, unsupported or contradictory; the text says
            which file, what was expected and what was found.
    """
    sources: list[SafetensorsFile] = []
    try:
        label, found = _find_tensors(Path(directory), sources)
        packed = {} if quantization is None else take_packed(found, quantization)
        _check_unscaled(label, found)
        names = dict(hugging_face_names(layers, biases))
        rows_by_name = dict(rows_of(layers, biases))
        rows = {name: rows_by_name[ours] for name, ours in names.items()}
        entries: dict[str, TensorEntry | PackedWeight] = {
            **{name: entry for name, (_, entry) in found.items()},
            **packed,
        }
        check_names(entries, label, rows, "config.json")
        if not tied and "lm_head.weight" not in entries:
            rule = "'lm_head.weight', because tie_word_embeddings is not true"
            raise ShardError(mismatch(label, "tensors", rule, "none"))
        check_shapes(entries, label, rows, dict(sizes), "config.json")
        return _assemble(sizes, names, found, packed, sources)
    except CheckpointError:
        for source in sources:
            source.file.close()
        raise


def _find_tensors(directory: Path, sources: list[SafetensorsFile]) -> tuple[str, Found]:
    """Map the files, adding each to `sources`; give what to call them, and their tensors."""
    single, index = (directory / name for name in WEIGHT_FILES)
    if os.path.exists(single):
        source = SafetensorsFile(single)
        sources.append(source)
        return source.file.label, {n: (source, entry) for n, entry in source.entries.items()}
    if not os.path.exists(index):
        rule = " or ".join(WEIGHT_FILES)
        raise FileAccessError(mismatch(label_of(directory), "weights", rule, "neither"))
    label, found = label_of(index), Found()
    listed = read_index(index)
    owners = {name: path for path, names in listed.items() for name in names}
    for path, names in listed.items():
        source = SafetensorsFile(path)
        sources.append(source)
        _check_shard(label, source, names, owners)
        found |= {name: (source, entry) for name, entry in source.entries.items()}
    return label, found


def _check_shard(
    label: str, source: SafetensorsFile, names: list[str], owners: Mapping[str, Path]
) -> None:
    """Check that a file holds what the index says, and nothing that the index does not know."""
    what = f"tensors of {source.file.path.name}"
    missing = [name for name in names if name not in source.entries]
    if missing:
        rule = f"{len(names)} as the index says"
        raise ShardError(mismatch(label, what, rule, f"without {some_of(missing)}"))
    listed = set(names)
    elsewhere = [name for name in source.entries if name in owners and name not in listed]
    if elsewhere:
        got = f"{some_of(elsewhere)} of other files too"
        raise ShardError(mismatch(label, what, "each tensor in one file", got))
    unknown = [n for n in source.entries if n not in listed and not is_harmless(n)]
    if unknown:
        got = f"also {some_of(unknown)}"
        raise ShardError(mismatch(label, what, "only those of the index", got))


def _check_unscaled(label: str, found: Found) -> None:
    """Refuse float8 weights whose values are those of the file times a scale beside them."""
    scales = [name for name in found if name.endswith(_SCALES)]
    if scales and any(entry.dtype.startswith("F8_") for _, entry in found.values()):
        got = f"scales beside them, {some_of(scales)}, which are not supported"
        raise ShardError(mismatch(label, "float8 weights", "the values themselves", got))


def _assemble(
    sizes: Mapping[str, int],
    names: Mapping[str, str],
    found: Found,
    packed: Mapping[str, PackedWeight],
    sources: list[SafetensorsFile],
) -> Checkpoint:
    """Make the tensors that the model uses; `names` has Meta's name of each."""
    used = {name: found[name] for name in names if name in found}
    tensors: dict[str, ml.Weight] = {
        names[name]: source.tensor(entry, names[name]) for name, (source, entry) in used.items()
    }
    tensors |= {names[name]: weight.make(names[name]) for name, weight in packed.items()}
    parts = [part for weight in packed.values() for part in weight.parts]
    files = "a safetensors file" if len(sources) == 1 else f"{len(sources)} safetensors files"
    return Checkpoint(
        tensors=tensors,
        sizes=sizes,
        dtypes={name: tensor.dtype for name, tensor in tensors.items()},
        files=[source.file.path for source in sources],
        mapped_bytes=sum(source.file.size for source in sources),
        source_format=f"Hugging Face, {files}",
        mapped=[source.file for source in sources],
        names_in_files={names[name]: name for name in (*found, *packed) if name in names},
        unused=tuple(name for name in found if name not in names),
        copied=tuple(_askew((*used.values(), *parts))),
    )


def _askew(used: Iterable[tuple[SafetensorsFile, TensorEntry]]) -> Iterable[str]:
    return (entry.name for source, entry in used if source.is_askew(entry))
