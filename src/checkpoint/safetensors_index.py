"""The index of a model in several safetensors files, which names the file of each tensor.

What an index names is opened only if it lies in the model's directory: a plain file name, and no
symbolic link that leads elsewhere. One place elsewhere is part of the directory: in the cache of
Hugging Face's hub a directory `snapshots/<revision>` holds links into `blobs` beside `snapshots`.

Source: transformers 5.23, `modeling_utils.py` (`save_pretrained`); huggingface_hub,
`file_download.py` (the cache).
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

from ..outside import UnfitFileError, followed_inside, parse_strict_json
from .errors import FileAccessError, SafetensorsError, mismatch, shown, some_of
from .mapped_file import label_of, read_small_file

__all__ = ["read_index"]

_MOST_BYTES = 16 << 20
_MOST_FILES = 1000
_KEYS = {"metadata", "weight_map"}


def read_index(path: Path) -> dict[Path, list[str]]:
    """Read `model.safetensors.index.json`.

    Returns:
        The names of the tensors that each file must hold, files in the order of their names; all
        of them lie in the directory and are regular files.

    Raises:
        CheckpointError: unreadable, not strict JSON, no map of names to files, a file that is
            missing or lies elsewhere.
    """
    label = label_of(path)
    try:
        value = parse_strict_json(read_small_file(path, _MOST_BYTES))
    except ValueError as error:
        raise SafetensorsError(f"{label}: content: {error}") from None
    if not isinstance(value, dict) or not value.keys() <= _KEYS:
        got = some_of(list(value)) if isinstance(value, dict) else f"type {type(value).__name__}"
        raise SafetensorsError(mismatch(label, "content", "metadata and weight_map", got))
    weight_map = value.get("weight_map")
    if not isinstance(weight_map, dict) or not weight_map:
        rule = "a map of tensor names to file names"
        raise SafetensorsError(mismatch(label, "weight_map", rule, type(weight_map).__name__))
    files = _names_by_file(label, weight_map)
    missing = [name for name in files if not os.path.exists(path.parent / name)]
    if missing:
        rule = f"{len(files)} files beside it"
        raise SafetensorsError(mismatch(label, "files", rule, f"without {some_of(missing)}"))
    return {_inside(label, path.parent / name): files[name] for name in sorted(files)}


def _names_by_file(label: str, weight_map: Mapping[str, object]) -> dict[str, list[str]]:
    files: dict[str, list[str]] = {}
    for tensor, name in weight_map.items():
        what = f"file of tensor {shown(tensor)}"
        if not isinstance(name, str):
            raise SafetensorsError(mismatch(label, what, "a file name", type(name).__name__))
        if not _is_plain(name):
            rule = "a plain name that ends in .safetensors"
            raise SafetensorsError(mismatch(label, what, rule, shown(name)))
        files.setdefault(name, []).append(tensor)
    if len(files) > _MOST_FILES:
        raise SafetensorsError(mismatch(label, "files", f"at most {_MOST_FILES}", len(files)))
    return files


def _is_plain(name: str) -> bool:
    """Tell a name that stays in its directory on every system: no separator, drive or NUL."""
    return name.endswith(".safetensors") and name.isprintable() and not set(name) & set("/\\:")


def _inside(label: str, path: Path) -> Path:
    """Give a file's path after all links, which is what is opened, if it lies in the directory."""
    try:
        return followed_inside(path, path.parent)
    except UnfitFileError as error:
        raise FileAccessError(f"{label}: file {shown(path.name)}: {error}") from None
