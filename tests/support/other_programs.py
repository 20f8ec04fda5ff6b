"""Directories of models as other programs write them: ollama, LM Studio, llama.cpp and
the hub.
"""

import hashlib
import json
from pathlib import Path
from typing import Any

import pytest

COMMIT = "0123456789abcdef0123456789abcdef01234567"
MODEL_LAYER = "application/vnd.ollama.image.model"
_VARIABLES = (
    "HF_HUB_CACHE", "HUGGINGFACE_HUB_CACHE", "HF_HOME", "XDG_CACHE_HOME", "OLLAMA_MODELS",
    "LLAMA_CACHE", "LLAMA_BOLTS_CACHE", "HF_TOKEN",
)  # fmt: skip


def set_home(home: Path, patch: pytest.MonkeyPatch) -> None:
    """Makes a directory the home, for all programs."""
    for name in _VARIABLES:
        patch.delenv(name, raising=False)
    patch.setenv("HOME", str(home))


def write_ollama(home: Path, name: str, content: bytes, **changes: Any) -> Path:
    """Writes a model of ollama, such as `llama3.2:1b`, and returns the file of its
    weights.
    """
    directory = home / ".ollama" / "models"
    digest = hashlib.sha256(content).hexdigest()
    blob = directory / "blobs" / f"sha256-{digest}"
    blob.parent.mkdir(parents=True, exist_ok=True)
    blob.write_bytes(content)
    path, _, tag = name.partition(":")
    parts = path.split("/")
    if len(parts) < 3:
        parts = ["registry.ollama.ai", *(["library"] if len(parts) == 1 else []), *parts]
    layer = {"mediaType": MODEL_LAYER, "digest": f"sha256:{digest}", "size": len(content)}
    other = {
        "mediaType": "application/vnd.ollama.image.license",
        "digest": "sha256:0",
        "size": 1,
    }
    manifest = directory / "manifests" / Path(*parts, tag)
    manifest.parent.mkdir(parents=True, exist_ok=True)
    manifest.write_text(
        json.dumps({"schemaVersion": 2, "layers": [other, layer | changes]})
    )
    return blob


def write_lm_studio(home: Path, repository: str, file: str, content: bytes) -> Path:
    """Writes a file of a model of LM Studio, and returns it."""
    path = home / ".lmstudio" / "models" / repository / file
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content)
    return path


def write_llama_cpp(home: Path, repository: str, file: str, content: bytes) -> Path:
    """Writes a file of llama.cpp's cache, and returns it."""
    path = home / ".cache" / "llama.cpp" / f"{repository}_{file}".replace("/", "_")
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content)
    return path


def write_hub(home: Path, repository: str, files: dict[str, bytes]) -> Path:
    """Writes files of a repository into the hub's cache, and returns the snapshot."""
    folder = (
        home
        / ".cache"
        / "huggingface"
        / "hub"
        / f"models--{repository.replace('/', '--')}"
    )
    snapshot = folder / "snapshots" / COMMIT
    for name, content in files.items():
        blob = folder / "blobs" / hashlib.sha256(content).hexdigest()
        blob.parent.mkdir(parents=True, exist_ok=True)
        blob.write_bytes(content)
        path = snapshot / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.symlink_to(blob)
    (folder / "refs").mkdir(exist_ok=True)
    (folder / "refs" / "main").write_text(COMMIT)
    return snapshot
