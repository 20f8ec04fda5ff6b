"""A model directory: which layout it has, and which files its weights are in.

Meta's layout is `params.json` and `consolidated.NN.pth`, Hugging Face's is `config.json` and
safetensors, in one file or in several with an index. A GGUF file is a model by itself.
"""

import os
import re
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from ..untrusted import label_of, open_regular, reason_of, some_of
from .errors import CheckpointError, mismatch
from .hugging_face_config import CONFIG_FILE
from .safetensors import read_index

if TYPE_CHECKING:
    from .gguf import GgufFile

_META_FILES = "params.json, consolidated.00.pth (or several), tokenizer.model; here or in original/"
_HUGGING_FACE_FILES = (
    "config.json, model.safetensors (or an index and its shards), tokenizer.json or tokenizer.model"
)
_SINGLE, _INDEX = "model.safetensors", "model.safetensors.index.json"
_FIRST_SHARD = "consolidated.00.pth"
_HUB_NAME = re.compile(r"[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*", re.ASCII)
_SHARD_NAME = re.compile(r"consolidated\.([0-9]{2})\.pth", re.ASCII)


@dataclass(frozen=True)
class ModelDirectory:
    """A directory that holds weights, or a GGUF file, and the layout of its files."""

    layout: Literal["Meta", "Hugging Face", "GGUF"]
    path: Path

    @cached_property
    def gguf_parts(self) -> "list[GgufFile]":
        """Return the headers of a GGUF file and of its further parts, read once."""
        from .gguf import read_gguf_parts  # of GGUF files alone

        return read_gguf_parts(self.path)

    @cached_property
    def weights(self) -> tuple[str, dict[Path, list[str] | None]]:
        """Return what to call the weights; and their files, with the tensors an index names."""
        if self.layout == "Meta":
            return label_of(self.path), dict.fromkeys(_shard_files(self.path))
        if self.layout == "GGUF":
            return label_of(self.path), dict.fromkeys(part.path for part in self.gguf_parts)
        single, index = self.path / _SINGLE, self.path / _INDEX
        if os.path.exists(single):
            return label_of(single), {single: None}
        if not os.path.exists(index):
            raise mismatch(label_of(self.path), "weights", f"{_SINGLE} or {_INDEX}", "neither")
        return label_of(index), {**read_index(index)}

    @property
    def weight_files(self) -> list[Path]:
        """Return the files of the weights; raise CheckpointError where one is missing."""
        return list(self.weights[1])


def find_model_directory(path: Path) -> ModelDirectory:
    """Return where the weights are: in the given directory or GGUF file, or in `original/`.

    Downloads from Hugging Face's hub may hold both layouts, Meta's in `original/`, or one of them
    only in part. The files at the top are preferred if they are whole: Hugging Face's, then Meta's.
    """
    if _is_gguf(path):
        return ModelDirectory("GGUF", path)
    has_weights = any(os.path.exists(path / name) for name in (_SINGLE, _INDEX))
    if os.path.exists(path / CONFIG_FILE) and has_weights:
        return ModelDirectory("Hugging Face", path)
    for directory in (path, path / "original"):
        # What else is missing shows later.
        if any(os.path.exists(directory / name) for name in ("params.json", _FIRST_SHARD)):
            return ModelDirectory("Meta", directory)
    label = label_of(path)
    if not os.path.isdir(path):
        found = "a file" if os.path.exists(path) else "nothing"
        if found == "nothing" and _HUB_NAME.fullmatch(str(path)):
            found += (
                f"; from Hugging Face's hub `hf download {path} --local-dir {path.name}` gets it"
            )
        raise mismatch(label, "path", "a model directory or a GGUF file", found)
    layouts = f"Meta's layout ({_META_FILES}), Hugging Face's ({_HUGGING_FACE_FILES})"
    raise mismatch(label, "files", f"{layouts} or the path of a GGUF file", listing_of(path))


def _is_gguf(path: Path) -> bool:
    """Tell a GGUF file by its name, or by its first bytes where it is called anything else."""
    if path.suffix.lower() == ".gguf":
        return os.path.exists(path)
    if not os.path.isfile(path):
        return False
    with open_regular(path, CheckpointError) as stream:
        return stream.read(4) == b"GGUF"


def _shard_files(directory: Path) -> list[Path]:
    matches, label = map(_SHARD_NAME.fullmatch, _names(directory)), label_of(directory)
    found = {int(match[1]): match[0] for match in matches if match}
    if not found:
        raise mismatch(label, "files", f"{_FIRST_SHARD} and params.json", listing_of(directory))
    missing = [f"{number:02d}" for number in range(max(found)) if number not in found]
    if missing:
        rule = f"{_FIRST_SHARD} to consolidated.{max(found):02d}.pth"
        raise mismatch(label, "shards", rule, f"no number {some_of(missing, str)}")
    return [directory / found[number] for number in sorted(found)]


def listing_of(directory: Path) -> str:
    """Name the first five of the files in a directory, and count them."""
    names = _names(directory)
    return some_of(names) if names else "an empty directory"


def _names(directory: Path) -> list[str]:
    try:
        return sorted(os.listdir(directory))
    except (OSError, ValueError) as error:
        rule = "a readable directory"
        raise mismatch(label_of(directory), "model directory", rule, reason_of(error)) from None
