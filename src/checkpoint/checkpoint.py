"""The tensors of one model, whatever layout its files have: opened, checked, and closed again.

The weights are used in place in the mapped files, under Meta's names; only shards are merged, which
copies them. The rows of wq and wk keep the order of the files; `names.py` says what that means, and
has the letters of sizes. What is missing, damaged, unsupported or contradictory is refused with a
CheckpointError that names the file, what was expected and what was found.
"""

import contextlib
import mmap
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import numpy as np

from .. import ml
from ..untrusted import some_of
from .errors import mismatch
from .mapped_file import MappedFile
from .model_directory import ModelDirectory
from .names import LLAMA_PARTS, LayerParts, check_tensors, is_harmless, rows_of
from .packed_weights import PackedWeight, take_packed
from .safetensors import SafetensorsFile, TensorEntry
from .shards import MergedShards, check_shards, merge_shards
from .torch_pth import map_pth

if TYPE_CHECKING:
    from .gguf import GgufTensor

_ROPE_FACTORS = "rope_freqs.weight"


@dataclass
class Checkpoint:
    """The tensors of one model.

    Args:
        tensors: All tensors by Meta's names, checked against the sizes of the model. In Meta's
            layout harmless extra ones, such as `rope.freqs`, are among them.
        sizes: The sizes of the model by the letters of `names.py`, those among them that only the
            tensors show.
        dtypes: The dtype of each tensor, known without merging it.
        files: The files that the tensors came from, in order.
        source_format: The layout and the number of files, in words.
        mapped: The mapped files themselves; none after a merge, which copies.
        names_in_files: The name of each tensor in its file, where it is another one.
        unused: Names of harmless tensors that the model does not use.
        copied: Names, as in the files, of misaligned tensors, which were copied.
        rope_factors: What divides each rotary frequency, [h/2]; empty where no tensor says it.
    """

    tensors: Mapping[str, ml.Weight]
    sizes: Mapping[str, int]
    dtypes: Mapping[str, ml.DType | ml.BlockDType]
    files: list[Path]
    source_format: str
    mapped: list[MappedFile] = field(repr=False)
    names_in_files: Mapping[str, str] = field(default_factory=dict)
    unused: tuple[str, ...] = ()
    copied: tuple[str, ...] = ()
    rope_factors: tuple[float, ...] = ()

    @property
    def mapped_bytes(self) -> int:
        """Return the bytes of the files that are mapped."""
        return sum(file.size for file in self.mapped)

    def check_unchanged(self) -> None:
        """Check that no mapped file was truncated or rewritten since it was opened.

        Raises:
            CheckpointError: One was. A file that was replaced by a new one is accepted.
        """
        for file in self.mapped:
            file.check_unchanged()

    def forget_pages(self) -> None:
        """Take the pages that were read out of this process; what reads them again gets them."""
        for file in self.mapped:
            if isinstance(file.buffer, mmap.mmap):
                file.buffer.madvise(mmap.MADV_DONTNEED)

    def replace_tensors(self, tensors: Mapping[str, ml.Weight]) -> None:
        """Hold these tensors instead; files that cannot hold any of them are closed.

        Args:
            tensors: What was made of the tensors, and those of them that stay.
        """
        if isinstance(self.tensors, MergedShards):
            self.close()
        self.tensors = tensors

    def close(self) -> None:
        """Let go of tensors and files; tensors still held elsewhere stay valid."""
        self.tensors = {}
        while self.mapped:
            self.mapped.pop().close()


def open_meta_checkpoint(
    directory: ModelDirectory, layers: int, sizes: Mapping[str, int], one_by_one: bool = False
) -> Checkpoint:
    """Open the weights of a directory in Meta's layout; `params.json` determines the sizes.

    Several files are merged, which copies them; with `one_by_one` each tensor anew whenever it is
    looked up, while the files stay mapped.
    """
    paths, mapped, shards = directory.weight_files, list[MappedFile](), []
    with contextlib.ExitStack() as unless_kept:
        for path in paths:
            file, tensors = map_pth(path)
            mapped.append(unless_kept.enter_context(contextlib.closing(file)))
            shards.append(tensors)
        found = check_shards(shards, [file.label for file in mapped], layers, sizes)
        whole: Mapping[str, ml.Weight]
        if len(paths) > 1 and not one_by_one:
            whole, mapped = merge_shards(shards, layers, found), []
        else:
            whole = MergedShards(shards, layers, found) if len(paths) > 1 else shards[0]
            unless_kept.pop_all()
    files = "a PyTorch file" if len(paths) == 1 else f"{len(paths)} PyTorch files merged"
    return Checkpoint(
        tensors=whole,
        sizes=found,
        dtypes={name: tensor.dtype for name, tensor in shards[0].items()},
        files=paths,
        source_format=f"Meta, {files}",
        mapped=mapped,
        unused=tuple(name for name in whole if is_harmless(name)),
    )


def open_hugging_face_checkpoint(
    directory: ModelDirectory,
    layers: int,
    sizes: Mapping[str, int],
    *,
    parts: LayerParts = LLAMA_PARTS,
    tied: bool = False,
    quantization: Literal["nf4", "int8"] | None = None,
) -> Checkpoint:
    """Open the weights of a directory in Hugging Face's layout.

    If they are `tied`, the embeddings serve as output where `lm_head.weight` is absent;
    `quantization` says how the parts of quantized matrices are stored.
    """
    label, files = directory.weights
    found, mapped = dict[str, TensorEntry](), list[MappedFile]()
    with contextlib.ExitStack() as unless_kept:
        for path, expected in files.items():
            source = SafetensorsFile(path)
            mapped.append(unless_kept.enter_context(contextlib.closing(source.file)))
            if expected is not None:
                _check_shard(label, source, expected)
            found |= source.entries
        plain = dict(found)
        packed = {} if quantization is None else take_packed(plain, quantization)
        entries: dict[str, TensorEntry | PackedWeight] = {**plain, **packed}
        rows = {row.hugging_face: row for row in rows_of(layers, parts)}
        check_tensors(entries, label, rows, dict(sizes), "config.json")
        if not tied and "lm_head.weight" not in entries:
            rule = "'lm_head.weight', because tie_word_embeddings is not true"
            raise mismatch(label, "tensors", rule, "none")
        used = {row.name: name for name, row in rows.items() if name in entries}
        tensors = {ours: entries[name].make(ours) for ours, name in used.items()}
        unless_kept.pop_all()
    unused = tuple(name for name in plain if name not in rows)
    count = "a safetensors file" if len(files) == 1 else f"{len(files)} safetensors files"
    return Checkpoint(
        tensors=tensors,
        sizes=sizes,
        dtypes={name: tensor.dtype for name, tensor in tensors.items()},
        files=list(files),
        source_format=f"Hugging Face, {count}",
        mapped=mapped,
        names_in_files=used,
        unused=unused,
        copied=tuple(n for n, entry in found.items() if entry.is_misaligned and n not in unused),
    )


def open_gguf_checkpoint(
    directory: ModelDirectory,
    layers: int,
    sizes: Mapping[str, int],
    *,
    head_dim: int,
    parts: LayerParts = LLAMA_PARTS,
) -> Checkpoint:
    """Open the weights of a GGUF file, or of all parts of one."""
    files, mapped, places = directory.gguf_parts, list[MappedFile](), dict[str, MappedFile]()
    entries = {name: entry for file in files for name, entry in file.tensors.items()}
    factors = entries.pop(_ROPE_FACTORS, None)
    rows = {row.gguf: row for row in rows_of(layers, parts)}
    check_tensors(entries, files[0].label, rows, dict(sizes), "its keys")
    used = {row.name: name for name, row in rows.items() if name in entries}
    with contextlib.ExitStack() as unless_kept:
        for file in files:
            mapped.append(unless_kept.enter_context(contextlib.closing(file.map())))
            places |= dict.fromkeys(file.tensors, mapped[-1])
        rope_factors = _rope_factors(places[_ROPE_FACTORS], factors, head_dim) if factors else ()
        unless_kept.pop_all()
    tensors = {ours: entries[name].make(places[name], ours) for ours, name in used.items()}
    count = "a file" if len(files) == 1 else f"{len(files)} files"
    return Checkpoint(
        tensors=tensors,
        sizes=sizes,
        dtypes={name: tensor.dtype for name, tensor in tensors.items()},
        files=[file.path for file in files],
        source_format=f"GGUF version {files[0].version}, {count}",
        mapped=mapped,
        names_in_files=used,
        rope_factors=rope_factors,
    )


def _rope_factors(file: MappedFile, entry: "GgufTensor", head_dim: int) -> tuple[float, ...]:
    """Read what divides the rotary frequencies."""
    what, count = f"tensor '{_ROPE_FACTORS}'", head_dim // 2
    if entry.dtype is not ml.float32 or entry.shape != (count,):
        file.refuse(what, f"float32 [{count}]", f"{entry.dtype} {list(entry.shape)}")
    factors = np.frombuffer(file.buffer, np.float32, count, entry.start).tolist()
    for factor in factors:
        if not 1e-6 <= factor <= 1e6:
            file.refuse(what, "factors in 1e-06..1e+06", factor)
    return tuple(factors)


def _check_shard(label: str, source: SafetensorsFile, names: Collection[str]) -> None:
    """Check that a file holds what the index says of it, and nothing else but harmless tensors."""
    entries, what = source.entries, f"tensors of {source.file.path.name}"
    if missing := [name for name in names if name not in entries]:
        rule = f"{len(names)} as the index says"
        raise mismatch(label, what, rule, f"without {some_of(missing)}")
    if extra := sorted(name for name in entries.keys() - names if not is_harmless(name)):
        raise mismatch(label, what, "only those of the index", f"also {some_of(extra)}")
