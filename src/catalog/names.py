"""Names of models: which texts are names, and the path of each name."""

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

_LONGEST = 200  # characters of a name in an error
_MOST_SUGGESTIONS = 3
_SIMILARITY = 0.7  # the similarity from which a name is suggested
_FORMS = f"{', '.join(PACKAGED_MODELS)}, ORG/REPO or {OLLAMA}NAME"


def is_name(text: str) -> bool:
    """Return whether a text is the name of a model rather than a path.

    An existing file or directory takes precedence over a name. So does a text that looks
    like a path: it begins with `.`, `/` or `~`, ends in `.gguf` without a repository, or
    its directory exists.
    """
    if text.startswith((".", "/", "~")) or "\0" in text:
        return False
    if text.lower().endswith(".gguf") and text.count("/") < 2:
        return False
    directory = os.path.dirname(text)
    return not os.path.lexists(text) and not (directory and os.path.isdir(directory))


def find_model(name: str, downloads: Downloads | None = None) -> Path:
    """Return the path of the model with a name; download it if it is missing.

    Args:
        name: `smollm2`; `org/repo`, `org/repo:Q4_K_M` or `hf.co/org/repo` of Hugging
            Face's hub; `ollama:NAME`, `lmstudio:ORG/REPO` or `llama.cpp:NAME` of another
            program.
        downloads: The callbacks of a download. Without them a large download is an error.

    Raises:
        CatalogError: No model has this name, or it cannot be downloaded.
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
    """Return a model of another program, given its prefix, or None."""
    if prefix == OLLAMA:
        return find_in_ollama(text)
    if prefix == LLAMA_CPP and (path := find_llama_cpp_file(text)):
        return path
    repository = parse_repository(text)
    if repository is None:
        return None
    return (find_in_lm_studio if prefix == LM_STUDIO else find_in_llama_cpp)(repository)


def _find_repository(name: RepositoryName) -> Path | None:
    """Return a model of a repository on this machine, or None."""
    path = find_in_hub_cache(name)
    if path is None and not name.is_of_hub:
        path = find_in_lm_studio(name) or find_in_llama_cpp(name)
    return path


def _unknown(name: str, rule: str) -> CatalogError:
    """Return the error of a name without a model, with similar names."""
    names = {model.name for model in local_models()} | {*PACKAGED_MODELS}
    # `llama3.2` suggests `ollama:llama3.2:1b`.
    similar = [each for each in sorted(names) if name and name in each]
    similar = similar or difflib.get_close_matches(name, names, cutoff=_SIMILARITY)
    got = "nothing"
    if similar:
        got += f"; did you mean {' or '.join(similar[:_MOST_SUGGESTIONS])}?"
    else:
        got += "; --list-models lists the models on this machine"
    return mismatch(escape_line(name, _LONGEST) or "''", "model", rule, escape_line(got))
