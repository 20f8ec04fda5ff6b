"""Detect the layout of a model directory and find its weight files.

Meta's layout consists of `params.json` and `consolidated.NN.pth`. Hugging Face's layout
consists of `config.json` and either one safetensors file or several with an index. A GGUF
file is a complete model.
"""

import os
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from ..untrusted import label_of, open_regular, reason_of, some_of
from .errors import CheckpointError, mismatch

_META_FILES = (
    "params.json, consolidated.00.pth (or several), tokenizer.model; here or in original/"
)
_HUGGING_FACE_FILES = (
    "config.json, model.safetensors (or an index and its shards), tokenizer.json or "
    "tokenizer.model"
)
CONFIG_FILE = "config.json"
SINGLE = "model.safetensors"
INDEX = "model.safetensors.index.json"
_FIRST_SHARD = "consolidated.00.pth"
_GGUF_PART = re.compile(r"-[0-9]{5}(?=-of-[0-9]{5}\.gguf\Z)", re.ASCII | re.IGNORECASE)
_MOST_GGUF_FILES = 20  # maximum number of files listed in an error message
_SHARD_NAME = re.compile(r"consolidated\.([0-9]{2})\.pth", re.ASCII)


@dataclass(frozen=True)
class ModelDirectory:
    """The path of a directory with weights or of a GGUF file, with its layout."""

    layout: Literal["Meta", "Hugging Face", "GGUF"]
    path: Path


def find_model_directory(path: Path) -> ModelDirectory:
    """Find a model's weights in a directory, its `original/` folder, or a GGUF file.

    A download from the Hugging Face Hub may contain both layouts, with Meta's files in
    `original/`, or only some files of one layout. Complete files in the directory itself
    take precedence, and Hugging Face's layout takes precedence over Meta's. A directory
    with neither layout may contain one GGUF file, which may be split.
    """
    if _is_gguf(path):
        return ModelDirectory("GGUF", path)
    has_weights = any(os.path.exists(path / name) for name in (SINGLE, INDEX))
    if os.path.exists(path / CONFIG_FILE) and has_weights:
        return ModelDirectory("Hugging Face", path)
    for directory in (path, path / "original"):
        # Files that are still missing are reported when they are read.
        if any(
            os.path.exists(directory / name) for name in ("params.json", _FIRST_SHARD)
        ):
            return ModelDirectory("Meta", directory)
    label = label_of(path)
    gguf_files = _gguf_files(path) if os.path.isdir(path) else []
    if len(gguf_files) == 1:
        return ModelDirectory("GGUF", path / gguf_files[0])
    if gguf_files:
        rule = "one GGUF file, or the path of one of them"
        raise mismatch(label, "files", rule, some_of(gguf_files, most=_MOST_GGUF_FILES))
    if not os.path.isdir(path):
        kind = "a file" if os.path.exists(path) else "nothing"
        raise mismatch(label, "path", "a model directory or a GGUF file", kind)
    layouts = f"Meta's layout ({_META_FILES}), Hugging Face's ({_HUGGING_FACE_FILES})"
    raise mismatch(
        label, "files", f"{layouts} or the path of a GGUF file", listing_of(path)
    )


def _is_gguf(path: Path) -> bool:
    """Return whether a file is a GGUF file, based on its name or its first bytes."""
    if path.suffix.lower() == ".gguf":
        return os.path.exists(path)
    if not os.path.isfile(path):
        return False
    with open_regular(path, CheckpointError) as stream:
        return stream.read(4) == b"GGUF"


def _gguf_files(directory: Path) -> list[str]:
    """Return the names of the GGUF files in a directory.

    A split file is represented by its first part.
    """
    first_parts: dict[str, str] = {}
    for name in _names(directory):
        if name.lower().endswith(".gguf") and os.path.isfile(directory / name):
            first_parts.setdefault(_GGUF_PART.sub("", name), name)
    return list(first_parts.values())


def shard_files(directory: Path) -> list[Path]:
    """Return the paths of all shards in Meta's layout, or raise if one is missing."""
    matches = map(_SHARD_NAME.fullmatch, _names(directory))
    label = label_of(directory)
    names_by_number = {int(match[1]): match[0] for match in matches if match}
    if not names_by_number:
        raise mismatch(
            label, "files", f"{_FIRST_SHARD} and params.json", listing_of(directory)
        )
    missing = [
        f"{number:02d}"
        for number in range(max(names_by_number))
        if number not in names_by_number
    ]
    if missing:
        rule = f"{_FIRST_SHARD} to consolidated.{max(names_by_number):02d}.pth"
        raise mismatch(label, "shards", rule, f"no number {some_of(missing, str)}")
    return [directory / names_by_number[number] for number in sorted(names_by_number)]


def listing_of(directory: Path) -> str:
    """List the first few files in a directory and the number of files."""
    names = _names(directory)
    return some_of(names) if names else "an empty directory"


def _names(directory: Path) -> list[str]:
    try:
        return sorted(os.listdir(directory))
    except (OSError, ValueError) as error:
        rule = "a readable directory"
        raise mismatch(
            label_of(directory), "model directory", rule, reason_of(error)
        ) from None
