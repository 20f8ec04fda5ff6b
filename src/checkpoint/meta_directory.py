"""A model directory in Meta's layout: `params.json` and `consolidated.NN.pth`."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from .. import ml
from .errors import CheckpointError, FileAccessError, ShardError, mismatch
from .mapped_file import MappedFile, label_of
from .params import read_params
from .shards import check_shards, merge_shards
from .torch_pth import map_pth

__all__ = ["Checkpoint", "open_meta_checkpoint"]

_SHARD_NAME = re.compile(r"consolidated\.([0-9]{2})\.pth", re.ASCII)


@dataclass
class Checkpoint:
    """The tensors and parameters of one model.

    Args:
        tensors: all tensors by Meta's names, checked against `params`; harmless extra ones, such as
            `rope.freqs`, are among them.
        params: `params.json` as it is in the file, its keys and values checked.
        files: the files that the tensors came from, in order.
        mapped_bytes: bytes of the files that are mapped; 0 after a merge, which copies.
    """

    tensors: Mapping[str, ml.Tensor]
    params: dict[str, object]
    files: list[Path]
    mapped_bytes: int
    _mapped: list[MappedFile] = field(repr=False)

    def check_unchanged(self) -> None:
        """Check that no mapped file was truncated or rewritten since it was opened.

        Raises:
            FileChangedError: one was. A file that was replaced by a new one is no fault.
        """
        for file in self._mapped:
            file.check_unchanged()

    def close(self) -> None:
        """Let go of tensors and files; tensors still held elsewhere stay valid."""
        self.tensors = {}
        for file in self._mapped:
            file.close()
        self._mapped = []
        self.mapped_bytes = 0


def open_meta_checkpoint(directory: Path) -> Checkpoint:
    """Open a model directory in Meta's layout.

    A single file is mapped and its tensors are views of it. Several are merged, which copies them.

    Args:
        directory: holds `params.json` and `consolidated.00.pth` and on, numbered without a gap.

    Returns:
        The checkpoint: all tensors that the parameters ask for, with the shapes they ask for.

    Raises:
        CheckpointError: something is missing, damaged, unsupported or contradictory; the text says
            which file, what was expected and what was found.
    """
    directory = Path(directory)
    paths = _shard_paths(directory)
    params = read_params(directory / "params.json")
    mapped: list[MappedFile] = []
    try:
        shards = []
        for path in paths:
            file, tensors = map_pth(path)
            mapped.append(file)
            shards.append(tensors)
        check_shards(shards, [file.label for file in mapped], params)
        whole = merge_shards(shards)
    except CheckpointError:
        _close_all(mapped)
        raise
    if len(shards) > 1:
        _close_all(mapped)
        mapped = []
    return Checkpoint(whole, params, paths, sum(file.size for file in mapped), mapped)


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
