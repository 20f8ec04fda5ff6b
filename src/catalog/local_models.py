"""Models of other programs on this machine, which are used in place and not modified.

Source: ollama, `server/internal/manifest` and `types/model/name.go`; LM Studio, the
layout of its model directory; llama.cpp, `common/download.cpp`; huggingface_hub,
"Understand caching".
"""

import contextlib
import os
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from ..checkpoint import CheckpointError
from ..checkpoint.safetensors import read_index
from ..untrusted import followed_inside, is_integer, label_of, read_json_object, shown
from .errors import CatalogError, mismatch
from .gguf_files import choose_gguf, gguf_models
from .pip_package import PACKAGED_MODELS, cached_file
from .repositories import INDEX, RepositoryName, has_tokenizer, needed_files

OLLAMA = "ollama:"
LM_STUDIO = "lmstudio:"
LLAMA_CPP = "llama.cpp:"
_MOST_FILES = 10_000  # maximum number of files per directory
_MOST_MANIFEST_BYTES = 1 << 20
_OLLAMA_REGISTRY = "registry.ollama.ai"
_OLLAMA_OWNER = "library"
_OLLAMA_PART = re.compile(r"[\w][\w.-]*", re.ASCII)
_OLLAMA_MODEL = "application/vnd.ollama.image.model"
_DIGEST = re.compile(r"sha256:([0-9a-f]{64})", re.ASCII)


@dataclass(frozen=True)
class LocalModel:
    """A model on this machine.

    Attributes:
        name: The name that users type.
        program: The program that owns the model's directory.
        path: The path to load.
        fault: The reason why the model cannot be loaded, or None.
    """

    name: str
    program: str
    path: Path
    fault: str | None = None


def _directories(*texts: str | None) -> list[Path]:
    """Return the existing directories among the given paths, which may be None."""
    paths = dict.fromkeys(Path(text).expanduser() for text in texts if text)
    return [path for path in paths if path.is_dir()]


def _cache_home() -> str:
    return os.environ.get("XDG_CACHE_HOME") or "~/.cache"


def hub_cache() -> Path:
    """Return huggingface_hub's cache directory, which may not exist."""
    for variable in ("HF_HUB_CACHE", "HUGGINGFACE_HUB_CACHE"):
        if path := os.environ.get(variable):
            return Path(path).expanduser()
    home = os.environ.get("HF_HOME") or f"{_cache_home()}/huggingface"
    return Path(home).expanduser() / "hub"


def ollama_directories() -> list[Path]:
    """Return ollama's model directories, for the user and for the system service."""
    by_variable = os.environ.get("OLLAMA_MODELS")
    return _directories(
        by_variable, "~/.ollama/models", "/usr/share/ollama/.ollama/models"
    )


def lm_studio_directories() -> list[Path]:
    """Return LM Studio's model directories."""
    return _directories("~/.lmstudio/models", "~/.cache/lm-studio/models")


def llama_cpp_directories() -> list[Path]:
    """Return llama.cpp's cache directories."""
    by_variable = os.environ.get("LLAMA_CACHE")
    return _directories(
        by_variable, f"{_cache_home()}/llama.cpp", "~/Library/Caches/llama.cpp"
    )


def _names_in(directory: Path) -> list[str]:
    """Return the relative paths of all files below a directory, including links."""
    names: list[str] = []
    for folder, subdirectories, files in os.walk(directory):
        subdirectories.sort()
        below = os.path.relpath(folder, directory)
        prefix = "" if below == "." else f"{below}/"
        names += [
            prefix + name for name in sorted(files) if os.path.isfile(f"{folder}/{name}")
        ]
        if len(names) > _MOST_FILES:
            break
    return names


def _subdirectories(directory: Path) -> list[Path]:
    """Return the subdirectories of a directory, sorted by name."""
    with contextlib.suppress(OSError), os.scandir(directory) as entries:
        return sorted(Path(entry.path) for entry in entries if entry.is_dir())
    return []


def _complete_model_in(directory: Path, name: RepositoryName) -> Path | None:
    """Return the path of the named model in a directory, or None if it is incomplete."""
    names = _names_in(directory)
    needed = needed_files(name, names)
    if needed is None or not {*needed.files} <= {*names}:
        return None
    if needed.path:
        parts = [model for model in gguf_models(names) if needed.path in model.files]
        return directory / needed.path if parts and parts[0].is_whole else None
    if INDEX in needed.files:
        try:
            read_index(directory / INDEX)  # also checks that the listed files exist
        except CheckpointError:
            return None
    return directory if has_tokenizer(names) else None


def hub_snapshot(name: RepositoryName) -> Path | None:
    """Return the directory of a revision in the hub's cache, or None."""
    folder = hub_cache() / f"models--{name.repository.replace('/', '--')}"
    revision = name.revision or "main"
    with contextlib.suppress(OSError, ValueError):
        reference = followed_inside(folder / "refs" / revision, CatalogError, folder)
        revision = reference.read_text("ascii").strip()
    snapshots = _subdirectories(folder / "snapshots")
    for snapshot in snapshots:
        if snapshot.name == revision:
            return snapshot
    # A single snapshot without a reference was downloaded by its commit.
    return snapshots[0] if len(snapshots) == 1 and name.revision is None else None


def find_in_hub_cache(name: RepositoryName) -> Path | None:
    """Return the path of a complete model in the hub's cache, or None."""
    snapshot = hub_snapshot(name)
    if snapshot is None:
        return None
    with contextlib.suppress(CatalogError):  # no file has the quantization
        return _complete_model_in(snapshot, name)
    return None


def find_in_lm_studio(name: RepositoryName) -> Path | None:
    """Return the path of a model in LM Studio's directories, or None."""
    for directory in lm_studio_directories():
        if name.revision is None and (directory / name.repository).is_dir():
            with contextlib.suppress(CatalogError):
                return _complete_model_in(directory / name.repository, name)
    return None


def find_in_llama_cpp(name: RepositoryName) -> Path | None:
    """Return the path of a model in llama.cpp's cache, or None.

    The file names in the cache begin with the owner and the repository.
    """
    prefix = f"{name.repository.replace('/', '_')}_"
    for directory in llama_cpp_directories():
        names = [file for file in _names_in(directory) if file.startswith(prefix)]
        if name.file is not None:
            names = [
                file for file in names if file == prefix + name.file.replace("/", "_")
            ]
        if name.revision is None and names:
            with contextlib.suppress(CatalogError):
                model = choose_gguf(name.text, names, name.quantization)
                if model is not None and model.is_whole:
                    return directory / model.files[0]
    return None


def find_llama_cpp_file(text: str) -> Path | None:
    """Return the file in llama.cpp's cache with a name from `--list-models`, or None."""
    for directory in llama_cpp_directories():
        path = directory / f"{text}.gguf"
        if "/" not in text and path.is_file():
            return path
    return None


def find_in_ollama(text: str) -> Path | None:
    """Return the GGUF file of an ollama model such as `llama3.2:1b`, or None.

    Raises:
        CatalogError: The model's manifest is damaged, or refers to a file outside
            ollama's directory.
    """
    name, _, tag = text.partition(":")
    parts = [*name.split("/"), tag or "latest"]
    if len(parts) == 2:
        parts = [_OLLAMA_OWNER, *parts]
    if len(parts) == 3:
        parts = [_OLLAMA_REGISTRY, *parts]
    if not all(_OLLAMA_PART.fullmatch(part) for part in parts):
        return None
    for directory in ollama_directories():
        manifest = directory / "manifests" / Path(*parts)
        if manifest.is_file():
            return _ollama_blob(directory, manifest)
    return None


def _ollama_blob(directory: Path, manifest: Path) -> Path:
    """Return the model file that a manifest refers to."""
    document = read_json_object(manifest, _MOST_MANIFEST_BYTES, CatalogError)
    label = label_of(manifest)
    layers = document.get("layers")
    for layer in layers if isinstance(layers, list) else []:
        if not isinstance(layer, dict) or layer.get("mediaType") != _OLLAMA_MODEL:
            continue
        digest = _DIGEST.fullmatch(str(layer.get("digest")))
        if digest is None:
            raise mismatch(
                label, "digest", "sha256 and 64 digits", shown(str(layer.get("digest")))
            )
        path = directory / "blobs" / f"sha256-{digest[1]}"
        followed_inside(path, CatalogError, directory)
        size = layer.get("size")
        if not path.is_file():
            raise mismatch(label, "model", f"the file {path.name}", "none")
        if is_integer(size, 0, 1 << 62) and path.stat().st_size != size:
            raise mismatch(label_of(path), "size", f"{size} bytes", path.stat().st_size)
        return path
    raise mismatch(label, "layers", "a model in one GGUF file", "none")


def local_models() -> list[LocalModel]:
    """Return the models of all programs, without opening weight files."""
    models = [*_own_models(), *_hub_models(), *_ollama_models(), *_lm_studio_models()]
    return [*models, *_llama_cpp_models()]


def _own_models() -> Iterator[LocalModel]:
    for name, model in PACKAGED_MODELS.items():
        if path := cached_file(model):
            yield LocalModel(name, "llama-bolts", path)


def _hub_models() -> Iterator[LocalModel]:
    for folder in _subdirectories(hub_cache()):
        owner, dashes, repository = folder.name.removeprefix("models--").partition("--")
        if not folder.name.startswith("models--") or not dashes:
            continue
        text = f"{owner}/{repository}"
        name = RepositoryName(text, text, None, None, None, False)
        snapshot = hub_snapshot(name)
        if snapshot is not None:
            yield from _models_in(snapshot, text, "Hugging Face")


def _lm_studio_models() -> Iterator[LocalModel]:
    for directory in lm_studio_directories():
        for owner in _subdirectories(directory):
            for repository in _subdirectories(owner):
                text = f"{LM_STUDIO}{owner.name}/{repository.name}"
                yield from _models_in(repository, text, "LM Studio")


def _models_in(directory: Path, text: str, program: str) -> Iterator[LocalModel]:
    """Yield the models in a repository's directory."""
    names = _names_in(directory)
    if "config.json" in names and any(name.endswith(".safetensors") for name in names):
        yield LocalModel(text, program, directory)
    yield from _gguf_models_in(directory, names, text, program)


def _gguf_models_in(
    directory: Path, names: Sequence[str], text: str, program: str
) -> Iterator[LocalModel]:
    models = gguf_models(names)
    kinds = [model.quantization for model in models]
    for model in models:
        first = model.files[0]
        is_known = model.quantization is not None and kinds.count(model.quantization) == 1
        suffix = f":{model.quantization}" if is_known else f"/{first}"
        yield LocalModel(text + suffix, program, directory / first)


def _llama_cpp_models() -> Iterator[LocalModel]:
    for directory in llama_cpp_directories():
        for model in gguf_models(
            name for name in _names_in(directory) if "/" not in name
        ):
            first = model.files[0]
            yield LocalModel(
                LLAMA_CPP + first[: -len(".gguf")], "llama.cpp", directory / first
            )


def _ollama_models() -> Iterator[LocalModel]:
    for directory in ollama_directories():
        for path in _names_in(directory / "manifests"):
            *parts, tag = path.split("/")
            if parts[:1] == [_OLLAMA_REGISTRY]:
                parts = parts[1:]
                if parts[:1] == [_OLLAMA_OWNER]:
                    parts = parts[1:]
            name = f"{OLLAMA}{'/'.join(parts)}:{tag}"
            manifest = directory / "manifests" / path
            try:
                yield LocalModel(name, "ollama", _ollama_blob(directory, manifest))
            except CatalogError as error:
                yield LocalModel(name, "ollama", manifest, str(error))
