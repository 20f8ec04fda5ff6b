"""The checked tensors of one model, in any layout of its files.

The weights are used in place in the mapped files, under Meta's names; only merging shards
copies them. The rows of wq and wk keep the order of the files, which `names.py` explains
together with the letters of sizes. A missing, damaged, unsupported or contradictory file
raises a CheckpointError with the file, the expected and the actual content.
"""

import mmap
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from .. import ml
from .mapped_file import MappedFile
from .shards import MergedShards


@dataclass
class Checkpoint:
    """The tensors of one model.

    Args:
        tensors: All tensors by Meta's names, checked against the sizes of the model. In
            Meta's layout they include harmless extra tensors, such as `rope.freqs`.
        sizes: The sizes of the model by the letters of `names.py`, including sizes that
            only the tensors show.
        dtypes: The dtype of each tensor, known without merging it.
        files: The files of the tensors, in order.
        source_format: The layout and the number of files, in words.
        mapped: The mapped files; empty after a merge, which copies.
        names_in_files: The name of each tensor in its file, if it differs.
        unused: Names of harmless tensors that the model does not use.
        copied: Names, as in the files, of misaligned tensors, which are copies.
        rope_factors: Factors of the rotary frequencies by the names of their tensors.
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
    rope_factors: Mapping[str, tuple[float, ...]] = field(default_factory=dict)

    @property
    def mapped_bytes(self) -> int:
        """The bytes of the mapped files."""
        return sum(file.size for file in self.mapped)

    def check_unchanged(self) -> None:
        """Check that no mapped file was truncated or rewritten since it was opened.

        Raises:
            CheckpointError: A file has changed. A file that was replaced by a new one is
                accepted.
        """
        for file in self.mapped:
            file.check_unchanged()

    def forget_pages(self) -> None:
        """Drop resident pages; later reads fault them in again."""
        for file in self.mapped:
            if isinstance(file.buffer, mmap.mmap):
                file.buffer.madvise(mmap.MADV_DONTNEED)

    def replace_tensors(self, tensors: Mapping[str, ml.Weight]) -> None:
        """Replace the tensors; close the files if none of them is in the files.

        Args:
            tensors: The new tensors, including unchanged ones.
        """
        if isinstance(self.tensors, MergedShards):
            self.close()
        self.tensors = tensors

    def close(self) -> None:
        """Release tensors and files; tensors that are used elsewhere stay valid."""
        self.tensors = {}
        while self.mapped:
            self.mapped.pop().close()
