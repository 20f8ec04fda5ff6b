"""The tensors of one model, whatever layout its files have."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from .. import ml
from .mapped_file import MappedFile
from .shards import MergedShards

__all__ = ["Checkpoint"]


@dataclass
class Checkpoint:
    """The tensors of one model.

    Args:
        tensors: all tensors by Meta's names, checked against the sizes of the model. In Meta's
            layout harmless extra ones, such as `rope.freqs`, are among them.
        sizes: the sizes of the model by the letters of `names.py`, those among them that only the
            tensors tell.
        dtypes: the dtype of each tensor; no tensor is merged to tell it.
        files: the files that the tensors came from, in order.
        mapped_bytes: bytes of the files that are mapped; 0 after a merge, which copies.
        source_format: the layout and the number of files, in words.
        mapped: the mapped files themselves.
        names_in_files: the name of each tensor in its file, where it is another one.
        unused: names of harmless tensors that the model does not use.
        copied: names, as in the files, of tensors that lay askew and were copied.
    """

    tensors: Mapping[str, ml.Weight]
    sizes: Mapping[str, int]
    dtypes: Mapping[str, ml.DType | ml.BlockDType]
    files: list[Path]
    mapped_bytes: int
    source_format: str
    mapped: list[MappedFile] = field(repr=False)
    names_in_files: Mapping[str, str] = field(default_factory=dict)
    unused: tuple[str, ...] = ()
    copied: tuple[str, ...] = ()

    def check_unchanged(self) -> None:
        """Check that no mapped file was truncated or rewritten since it was opened.

        Raises:
            FileChangedError: one was. A file that was replaced by a new one is no fault.
        """
        for file in self.mapped:
            file.check_unchanged()

    def replace_tensors(self, tensors: Mapping[str, ml.Weight]) -> None:
        """Hold these tensors instead; files that none of them can lie in are let go.

        Args:
            tensors: what was made of the tensors, and those of them that stay.
        """
        merged = isinstance(self.tensors, MergedShards)
        self.tensors = tensors
        if merged:
            self._close_files()

    def close(self) -> None:
        """Let go of tensors and files; tensors still held elsewhere stay valid."""
        self.tensors = {}
        self._close_files()

    def _close_files(self) -> None:
        for file in self.mapped:
            file.close()
        self.mapped = []
        self.mapped_bytes = 0
