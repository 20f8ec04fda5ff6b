"""The tensors of one model, whatever layout its files have: checked, and closed again.

The weights are used in place in the mapped files, under Meta's names; only shards are
merged, which copies them. The rows of wq and wk keep the order of the files; `names.py`
says what that means, and has the letters of sizes. What is missing, damaged, unsupported
or contradictory is refused with a CheckpointError that names the file, what was expected
and what was found.
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
            Meta's layout harmless extra ones, such as `rope.freqs`, are among them.
        sizes: The sizes of the model by the letters of `names.py`, those among them that
            only the tensors show.
        dtypes: The dtype of each tensor, known without merging it.
        files: The files that the tensors came from, in order.
        source_format: The layout and the number of files, in words.
        mapped: The mapped files themselves; none after a merge, which copies.
        names_in_files: The name of each tensor in its file, where it is another one.
        unused: Names of harmless tensors that the model does not use.
        copied: Names, as in the files, of misaligned tensors, which were copied.
        rope_factors: Factors of the rotary frequencies, by the names of their tensors.
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
        """Take the pages that were read out of this process; what reads them again gets
        them.
        """
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
