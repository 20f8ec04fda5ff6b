"""Model names: recognize them, and find the path of a named model."""

import difflib
import os
from pathlib import Path

from ..untrusted import escape_line
from .downloads import Downloads
from .errors import CatalogError, mismatch
from .local_models import (
    LLAMA_CPP,
    LM_STUDIO,
    OLLAMA,
    find_in_hub_cache,
    find_in_llama_cpp,
    find_in_lm_studio,
    find_in_ollama,
    find_llama_cpp_file,
    local_models,
)
from .pip_package import PACKAGED_MODELS, packaged_file
from .repositories import RepositoryName, parse_repository

_LONGEST = 200  # maximum length of a name in an error, in characters
_MOST_SUGGESTIONS = 3
_SIMILARITY = 0.7  # minimum similarity of a suggested name
_FORMS = f"{', '.join(PACKAGED_MODELS)}, ORG/REPO or {OLLAMA}NAME"


def is_name(text: str) -> bool:
    """Return whether a string is a model name rather than a path.

    Existing files and directories take precedence over names. A string is also treated as
    a path if it begins with `.`, `/` or `~`, if it ends in `.gguf` without a repository,
    or if its directory exists.
    """
    if text.startswith((".", "/", "~")) or "\0" in text:
        return False
    if text.lower().endswith(".gguf") and text.count("/") < 2:
        return False
    directory = os.path.dirname(text)
    return not os.path.lexists(text) and not (directory and os.path.isdir(directory))


def find_model(name: str, downloads: Downloads | None = None) -> Path:
    """Return the path of the named model; download it if it is missing.

    Args:
        name: `smollm2`; `org/repo`, `org/repo:Q4_K_M` or `hf.co/org/repo` for a model on
            Hugging Face's hub; or `ollama:NAME`, `lmstudio:ORG/REPO` or `llama.cpp:NAME`
            for a model of another program.
        downloads: The callbacks of a download. Without them, a large download raises an
            error.

    Raises:
        CatalogError: No model has this name, or the model cannot be downloaded.
    """
    downloads = downloads or Downloads()
    if name in PACKAGED_MODELS:
        return packaged_file(PACKAGED_MODELS[name], downloads)
    for prefix in (OLLAMA, LM_STUDIO, LLAMA_CPP):
        if name.startswith(prefix):
            path = _find_elsewhere(prefix, name.removeprefix(prefix))
            if path is None:
                raise _unknown(name, f"a model of {prefix[:-1]} on this machine")
            return path
    repository = parse_repository(name)
    if repository is None:
        raise _unknown(name, f"a model directory, a GGUF file or a name ({_FORMS})")
    path = _find_repository(repository)
    if path is not None:
        return path
    from .hub import download_repository  # only needed for downloads

    return download_repository(repository, downloads)


def _find_elsewhere(prefix: str, text: str) -> Path | None:
    """Return the path of another program's model, given the name's prefix, or None."""
    if prefix == OLLAMA:
        return find_in_ollama(text)
    if prefix == LLAMA_CPP and (path := find_llama_cpp_file(text)):
        return path
    repository = parse_repository(text)
    if repository is None:
        return None
    return (find_in_lm_studio if prefix == LM_STUDIO else find_in_llama_cpp)(repository)


def _find_repository(name: RepositoryName) -> Path | None:
    """Return the path of a repository's model on this machine, or None."""
    path = find_in_hub_cache(name)
    if path is None and not name.is_of_hub:
        path = find_in_lm_studio(name) or find_in_llama_cpp(name)
    return path


def _unknown(name: str, rule: str) -> CatalogError:
    """Return the error for an unknown name, with similar names as suggestions."""
    names = {model.name for model in local_models()} | {*PACKAGED_MODELS}
    # For example, `llama3.2` suggests `ollama:llama3.2:1b`.
    similar = [each for each in sorted(names) if name and name in each]
    similar = similar or difflib.get_close_matches(name, names, cutoff=_SIMILARITY)
    got = "nothing"
    if similar:
        got += f"; did you mean {' or '.join(similar[:_MOST_SUGGESTIONS])}?"
    else:
        got += "; --list-models lists the models on this machine"
    return mismatch(escape_line(name, _LONGEST) or "''", "model", rule, escape_line(got))
