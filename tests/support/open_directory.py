"""Open the weights of a model directory with the sizes that its configuration says."""

from pathlib import Path

from src.checkpoint import Checkpoint
from src.model.sources.hugging_face import HuggingFaceSource
from src.model.sources.meta import MetaSource


def open_hugging_face(directory: Path) -> Checkpoint:
    """Open a directory in Hugging Face's layout, whether or not its weights are there."""
    return HuggingFaceSource.read(directory, directory).open_checkpoint()


def open_meta(directory: Path, one_by_one: bool = False) -> Checkpoint:
    """Open a directory in Meta's layout, whether or not its weights are there."""
    return MetaSource.read(directory, directory).open_checkpoint(one_by_one)
