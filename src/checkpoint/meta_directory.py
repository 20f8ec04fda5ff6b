"""The weights of a model directory in Meta's layout: `consolidated.NN.pth`."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from pathlib import Path

from .. import ml
from .checkpoint import Checkpoint
from .errors import CheckpointError, FileAccessError, ShardError, mismatch
from .mapped_file import MappedFile, label_of
from .names import is_harmless
from .shards import MergedShards, check_shards, merge_shards
from .torch_pth import map_pth

__all__ = ["open_meta_checkpoint"]

_SHARD_NAME = re.compile(r"consolidated\.([0-9]{2})\.pth", re.ASCII)


def open_meta_checkpoint(
    directory: Path, layers: int, sizes: Mapping[str, int], one_by_one: bool = False
) -> Checkpoint:
    """Open the weights of a model directory in Meta's layout.

    A single file is mapped and its tensors are views of it. Several are merged, which copies them.

    Args:
        directory: holds `consolidated.00.pth` and on, numbered without a gap.
        layers: L.
        sizes: those that `params.json` determines, by the letters of `names.py`.
        one_by_one: merge a tensor of several files when it is looked up, every time, and keep
            none; the files stay mapped.

    Returns:
        The checkpoint: all tensors of so many layers, with the shapes that follow from the sizes.

    Raises:
        CheckpointError: something is missing, damaged, unsupported or contradictory; the text says
            which file, what was expected and what was found.
    """
    directory = Path(directory)
    paths = _shard_paths(directory)
    mapped: list[MappedFile] = []
    try:
        shards = []
        for path in paths:
            file, tensors = map_pth(path)
            mapped.append(file)
            shards.append(tensors)
        found = check_shards(shards, [file.label for file in mapped], layers, sizes)
        whole: Mapping[str, ml.Tensor]
        is_lazy = one_by_one and len(shards) > 1
        whole = MergedShards(shards) if is_lazy else merge_shards(shards)
    except CheckpointError:
        _close_all(mapped)
        raise
    if len(shards) > 1 and not is_lazy:
        _close_all(mapped)
        mapped = []
    files = "a PyTorch file" if len(paths) == 1 else f"{len(paths)} PyTorch files merged"
    return Checkpoint(
        tensors=whole,
        sizes=found,
        dtypes={name: tensor.dtype for name, tensor in shards[0].items()},
        files=paths,
        mapped_bytes=sum(file.size for file in mapped),
        source_format=f"Meta, {files}",
        mapped=mapped,
        unused=tuple(name for name in whole if is_harmless(name)),
    )


def _close_all(files: list[MappedFile]) -> None:
    for file in files:
        file.close()


def _shard_paths(directory: Path) -> list[Path]:
    """List the shards of a directory in order; a missing number is an error."""
    label = label_of(directory)
    try:
        names = sorted(os.listdir(directory))
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or "not a usable path"
        raise FileAccessError(mismatch(label, "model directory", "a directory", reason)) from None
    found = {int(match[1]): name for name in names if (match := _SHARD_NAME.fullmatch(name))}
    if not found:
        rule = "consolidated.00.pth and params.json"
        raise ShardError(mismatch(label, "files", rule, f"{len(names)} other files"))
    missing = [f"{number:02d}" for number in range(max(found)) if number not in found]
    if missing:
        rule = f"consolidated.00.pth to consolidated.{max(found):02d}.pth"
        got = f"no number {', '.join(missing[:8])}{', ...' if len(missing) > 8 else ''}"
        raise ShardError(mismatch(label, "shards", rule, got))
    return [directory / found[number] for number in sorted(found)]
