"""Names of repositories on Hugging Face's hub, and the files needed from them."""

import re
from collections.abc import Collection
from dataclasses import dataclass

from .gguf_files import choose_gguf, gguf_models

_PREFIXES = ("https://huggingface.co/", "huggingface.co/", "https://hf.co/", "hf.co/")
_NAME = re.compile(
    r"(?P<repository>[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*)"
    r"(?P<file>/[\w./+-]+\.gguf)?"
    r"(?:@(?P<revision>[\w./-]+))?(?::(?P<quantization>[\w.-]+))?",
    re.ASCII,
)
_SINGLE = "model.safetensors"
INDEX = "model.safetensors.index.json"
_SHARD = re.compile(r"model-[0-9]{5}-of-[0-9]{5}\.safetensors", re.ASCII)
_CONFIG = "config.json"
_TOKENIZERS = ("tokenizer.json", "tokenizer.model")
_SMALL_FILES = (
    _CONFIG,
    "generation_config.json",
    *_TOKENIZERS,
    "tokenizer_config.json",
    "special_tokens_map.json",
    "added_tokens.json",
    "chat_template.jinja",
    "chat_template.json",
)


@dataclass(frozen=True)
class RepositoryName:
    """The parts of a repository name.

    Attributes:
        text: The name as typed.
        repository: The owner and name of the repository, as `OWNER/NAME`.
        revision: A branch, a tag or a commit, or None for the main branch.
        quantization: The quantization of a GGUF file, or None.
        file: The path of a GGUF file in the repository, or None.
        is_of_hub: Whether the name refers explicitly to the hub, which excludes files of
            other programs.
    """

    text: str
    repository: str
    revision: str | None
    quantization: str | None
    file: str | None
    is_of_hub: bool


def parse_repository(text: str) -> RepositoryName | None:
    """Parse `org/repo`, `org/repo:Q4_K_M` or `hf.co/org/repo`, optionally with a file.

    Returns None for other kinds of names and for invalid ones, such as names with `..`.
    """
    name = text
    for prefix in _PREFIXES:
        name = name.removeprefix(prefix)
    match = _NAME.fullmatch(name)
    if match is None or ".." in name or "//" in name:
        return None
    file = match["file"]
    return RepositoryName(
        text=text,
        repository=match["repository"],
        revision=match["revision"],
        quantization=match["quantization"],
        file=None if file is None else file[1:],
        is_of_hub=name != text,
    )


@dataclass(frozen=True)
class NeededFiles:
    """The files of a model in download order, with the weights last.

    Attributes:
        path: The path to load: a GGUF file, or an empty string for the directory.
        files: All files.
    """

    path: str
    files: tuple[str, ...]


def needed_files(
    name: RepositoryName, names: Collection[str], shards: Collection[str] | None = None
) -> NeededFiles | None:
    """Return the repository files that the named model needs.

    Args:
        name: The parsed name.
        names: The files in the repository.
        shards: The safetensors files listed in the index, if known.

    Returns:
        The files, or None if the repository does not contain such a model.

    Raises:
        CatalogError: The name specifies a quantization that no GGUF file has.
    """
    if name.file is not None:
        models = [model for model in gguf_models(names) if name.file in model.files]
        return NeededFiles(name.file, models[0].files) if models else None
    if name.quantization is None and _CONFIG in names and {_SINGLE, INDEX} & {*names}:
        small = tuple(file for file in _SMALL_FILES if file in names)
        if _SINGLE in names:
            return NeededFiles("", (*small, _SINGLE))
        if shards is None:
            shards = sorted(file for file in names if _SHARD.fullmatch(file))
        return NeededFiles("", (*small, INDEX, *shards))
    model = choose_gguf(name.text, names, name.quantization)
    return None if model is None else NeededFiles(model.files[0], model.files)


def has_tokenizer(names: Collection[str]) -> bool:
    """Return whether files in Hugging Face's layout include a tokenizer."""
    return any(file in names for file in _TOKENIZERS)
