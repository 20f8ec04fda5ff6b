"""Which layout a model directory has, found by looking at what is there."""

from __future__ import annotations

import os
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from .errors import FileAccessError, NotACheckpointError
from .hugging_face_config import CONFIG_FILE
from .hugging_face_directory import WEIGHT_FILES
from .mapped_file import label_of
from .safetensors_index import read_index

__all__ = ["ModelDirectory", "find_model_directory", "listing_of"]

_META_FILES = "params.json, consolidated.00.pth (and further shards) and tokenizer.model"
_HUGGING_FACE_FILES = (
    "config.json, model.safetensors (or model.safetensors.index.json and its shards) and "
    "tokenizer.json or tokenizer.model"
)
_MOST_NAMES_SHOWN = 10
_HUB_NAME = re.compile(r"[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*", re.ASCII)


@dataclass(frozen=True)
class ModelDirectory:
    """A directory that holds weights, and the layout of its files."""

    layout: Literal["Meta", "Hugging Face"]
    path: Path

    @property
    def weight_files(self) -> list[Path]:
        """Return the files of the weights, as many as are there; of an index, those it names."""
        if self.layout == "Meta":
            return sorted(self.path.glob("consolidated.*.pth"))
        single, index = (self.path / name for name in WEIGHT_FILES)
        return [single] if os.path.exists(single) else list(read_index(index))


def find_model_directory(path: Path) -> ModelDirectory:
    """Return where the weights are: in the given directory, or in its `original/`.

    Downloads from Hugging Face's hub may hold both layouts, Meta's in `original/`, or one of them
    only in part. The files at the top go first if they are whole: Hugging Face's, then Meta's.

    Raises:
        NotACheckpointError: there are none; the text lists what was found, and what is
            needed.
    """
    if _is_hugging_face(path):
        return ModelDirectory("Hugging Face", path)
    for directory in (path, path / "original"):
        if _is_meta(directory):
            return ModelDirectory("Meta", directory)
    if not os.path.isdir(path):
        found = "a file" if os.path.exists(path) else "nothing"
        raise NotACheckpointError(
            f"{label_of(path)}: expected a model directory, got {found}{_advice(path)}"
        )
    raise NotACheckpointError(
        f"{label_of(path)}: expected Meta's layout ({_META_FILES}; here or in original/) or "
        f"Hugging Face's ({_HUGGING_FACE_FILES}), got {_lacking(path, _names(path))}"
        f"{listing_of(path)}"
    )


def _advice(path: Path) -> str:
    """Say what to do with a GGUF file, or with what looks like a name on Hugging Face's hub."""
    if path.suffix.lower() == ".gguf":
        return (
            "; GGUF is not read: download the model's .safetensors files into a directory "
            "(--quantize nf4 makes them as small)"
        )
    if _HUB_NAME.fullmatch(str(path)) and not os.path.exists(path):
        return (
            f"; if it is a model on Hugging Face's hub, get it with "
            f"`hf download {path} --local-dir {path.name}` and give {path.name}"
        )
    return ""


def _is_hugging_face(directory: Path) -> bool:
    """Tell Hugging Face's layout by its configuration beside weights, in one file or several."""
    names = (directory / name for name in WEIGHT_FILES)
    config = directory / CONFIG_FILE
    return os.path.exists(config) and any(map(os.path.exists, names))


def _is_meta(directory: Path) -> bool:
    """Tell Meta's layout by its parameters or by a shard; what else is missing shows later."""
    if not os.path.isdir(directory):
        return False
    return os.path.exists(directory / "params.json") or any(directory.glob("consolidated.*.pth"))


def _lacking(directory: Path, names: list[str]) -> str:
    """Say which half of Hugging Face's layout is missing, if the other one is there."""
    if any(name.endswith(".safetensors") for name in names):
        whole = any(os.path.exists(directory / name) for name in WEIGHT_FILES)
        missing = CONFIG_FILE if whole else WEIGHT_FILES[1]
    elif os.path.exists(directory / CONFIG_FILE):
        missing = WEIGHT_FILES[0]
    else:
        return ""
    return f"the latter without {missing}: "


def listing_of(directory: Path) -> str:
    """Name the first of what is in a directory, and count the rest."""
    names = _names(directory)
    shown = ", ".join(ascii(name)[1:-1][:80] for name in names[:_MOST_NAMES_SHOWN])
    if len(names) > _MOST_NAMES_SHOWN:
        shown += f", ... ({len(names)} names)"
    return shown or "an empty directory"


def _names(directory: Path) -> list[str]:
    """List the names in a directory in order."""
    try:
        return sorted(entry.name for entry in directory.iterdir())
    except OSError as error:
        raise FileAccessError(
            f"{label_of(directory)}: expected a readable directory, got {error.strerror}"
        ) from None
