"""The validated tensors of one model, independent of the file layout.

Tensors have Meta's names. They are used in place in the mapped files, except that merging
shards copies them, and that a file may store them in an arrangement that the kernels
cannot read. The rows of wq and wk keep the order in which they are stored, which
`names.py` explains together with the size letters. If a file is missing, damaged,
unsupported or inconsistent, a CheckpointError names the file, and the expected and actual
content.
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
        tensors: All tensors by Meta's names, with shapes that match `sizes`. In Meta's
            layout, they include harmless extra tensors, such as `rope.freqs`.
        sizes: The model's sizes, keyed by the letters in `names.py`. They include sizes
            that are only known from the tensors.
        dtypes: The dtype of each tensor, which is known before shards are merged.
        files: The files that contain the tensors, in order.
        source_format: A description of the layout and the number of files.
        mapped: The mapped files. Empty if merging has copied the tensors.
        names_in_files: The name of each tensor in its file, if it differs.
        unused: The names of harmless tensors that the model does not use.
        copied: The names in the files of misaligned tensors, which are copied.
        rearranged: The names of the tensors that are copied because their files store
            them transposed, in alternation or in other blocks.
        rope_factors: The rotary frequency factors, keyed by tensor name.
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
    rearranged: tuple[str, ...] = ()
    rope_factors: Mapping[str, tuple[float, ...]] = field(default_factory=dict)

    @property
    def mapped_bytes(self) -> int:
        """The total size of the mapped files, in bytes."""
        return sum(file.size for file in self.mapped)

    def check_unchanged(self) -> None:
        """Check that no mapped file has been truncated or rewritten since it was opened.

        A file that has been replaced by a new one is accepted, because the old file stays
        mapped.

        Raises:
            CheckpointError: A file has changed.
        """
        for file in self.mapped:
            file.check_unchanged()

    def forget_pages(self) -> None:
        """Release the resident pages of mapped files; later reads load them again."""
        for file in self.mapped:
            if isinstance(file.buffer, mmap.mmap):
                file.buffer.madvise(mmap.MADV_DONTNEED)

    def replace_tensors(self, tensors: Mapping[str, ml.Weight]) -> None:
        """Replace all tensors, and close the files if no new tensor uses them.

        Args:
            tensors: The new tensors, including unchanged ones.
        """
        if isinstance(self.tensors, MergedShards):
            self.close()
        self.tensors = tensors

    def close(self) -> None:
        """Release the tensors and files. Tensors that are still referenced stay valid."""
        self.tensors = {}
        while self.mapped:
            self.mapped.pop().close()
