"""Names of models: which texts are names, and where each one leads."""

import os
import shutil
from dataclasses import replace
from pathlib import Path

import pytest

from src.catalog import CatalogError, find_model, is_name
from src.catalog.pip_package import PACKAGED_MODELS, SMOLLM2
from src.model import find_source, load_model


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty directory to be in."""
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.parametrize(
    "text", ["smollm2", "org/repo", "org/repo:Q4_K_M", "ollama:a:b", "a/b/c"]
)
def test_a_text_that_leads_nowhere_is_a_name(place, text):
    assert is_name(text)


@pytest.mark.parametrize(
    "text",
    ["./smollm2", "../a/b", "/a/b", "~/a", ".", "a.gguf", "A.GGUF", "a\0b", "a/b.gguf"],
)
def test_a_text_that_looks_like_a_path_is_not_a_name(place, text):
    assert not is_name(text)


def test_a_path_that_is_there_comes_before_a_name(place):
    (place / "smollm2").mkdir()
    (place / "models").mkdir()
    os.symlink("nowhere", "broken")
    assert not is_name("smollm2")
    assert not is_name("models/misspelled")
    assert not is_name("broken")


@pytest.mark.parametrize("name", ["nowhere", "", "a/b/c/d", "x\x1b[2J", "smollm2 "])
def test_a_name_without_a_model_is_one_line(place, name):
    with pytest.raises(
        CatalogError, match=r"expected a model directory, a GGUF file or a name"
    ):
        find_model(name)
    with pytest.raises(CatalogError) as raised:
        load_model(name)
    assert str(raised.value).isprintable()


def test_a_model_in_the_cache_is_loaded_by_its_name(
    place, cache, bundled_gguf, monkeypatch
):
    cache.mkdir(parents=True)
    path = cache / SMOLLM2.file_name
    shutil.copy(bundled_gguf, path)
    here = replace(SMOLLM2, nbytes=path.stat().st_size)
    monkeypatch.setitem(PACKAGED_MODELS, "smollm2", here)
    assert find_model("smollm2") == path
    model = load_model("smollm2")
    assert (model.source.name, model.source_directory) == ("smollm2", path)
    assert find_source(path).name == SMOLLM2.file_name
