"""Models of other programs: found by their names, used in place, and never changed."""

import os
import shutil
from pathlib import Path

import pytest

from src.catalog import CatalogError, find_model
from src.catalog.local_models import LocalModel, hub_cache, local_models
from src.model import load_model
from tests.support.other_programs import (
    write_hub,
    write_llama_cpp,
    write_lm_studio,
    write_ollama,
)

SAFETENSORS = {
    "config.json": b"{}",
    "tokenizer.json": b"{}",
    "model.safetensors": b"weights",
}
GGUF = b"GGUF and what follows"


def test_a_model_of_ollama_is_loaded_in_place(home, bundled_gguf):
    blob = write_ollama(home, "llama3.2:1b", bundled_gguf.read_bytes())
    before = sorted(home.rglob("*"))
    assert find_model("ollama:llama3.2:1b") == blob
    model = load_model("ollama:llama3.2:1b")
    assert (model.source.name, model.source_directory) == ("ollama:llama3.2:1b", blob)
    assert sorted(home.rglob("*")) == before


@pytest.mark.parametrize(
    ("kept", "typed"),
    [
        ("llama3.2:latest", "llama3.2"),
        ("llama3.2:1b", "llama3.2:1b"),
        ("someone/model:latest", "someone/model"),
        ("hf.co/org/Model-GGUF:Q4_K_M", "hf.co/org/Model-GGUF:Q4_K_M"),
        ("registry.example/library/a:1", "registry.example/library/a:1"),
    ],
)
def test_names_of_ollama_have_its_defaults(home, kept, typed):
    blob = write_ollama(home, kept, GGUF)
    assert find_model(f"ollama:{typed}") == blob


def test_a_variable_names_the_directory_of_ollama(home, monkeypatch):
    blob = write_ollama(home, "a:1", GGUF)
    shutil.move(home / ".ollama" / "models", home / "elsewhere")
    with pytest.raises(CatalogError, match="expected a model of ollama on this machine"):
        find_model("ollama:a:1")
    monkeypatch.setenv("OLLAMA_MODELS", str(home / "elsewhere"))
    assert find_model("ollama:a:1") == home / "elsewhere" / "blobs" / blob.name


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        (
            {"digest": "sha256:../../../outside"},
            "digest: expected sha256 and 64 digits, got",
        ),
        ({"digest": f"sha256:{'A' * 64}"}, "digest: expected sha256 and 64 digits, got"),
        ({"digest": 7}, "digest: expected sha256 and 64 digits, got '7'"),
        (
            {"digest": f"sha256:{'0' * 64}"},
            "model: expected the file sha256-0{64}, got none",
        ),
        ({"size": 3}, "size: expected 3 bytes, got 21"),
        ({"mediaType": "other"}, "layers: expected a model in one GGUF file, got none"),
    ],
)
def test_a_manifest_that_names_another_file_is_rejected(home, changes, reason):
    write_ollama(home, "good:1", GGUF)
    write_ollama(home, "bad:1", GGUF, **changes)
    with pytest.raises(CatalogError, match=reason) as raised:
        find_model("ollama:bad:1")
    assert str(raised.value).isprintable()
    assert find_model("ollama:good:1").read_bytes() == GGUF
    rows = {model.name: model for model in local_models()}
    assert rows["ollama:good:1"].fault is None
    assert rows["ollama:bad:1"].fault == str(raised.value)


def test_a_blob_outside_of_ollamas_directory_is_rejected(home):
    outside = home / "outside.gguf"
    outside.write_bytes(GGUF)
    blob = write_ollama(home, "a:1", GGUF)
    blob.unlink()
    blob.symlink_to(outside)
    with pytest.raises(CatalogError, match="link: expected a file inside its directory"):
        find_model("ollama:a:1")


@pytest.mark.parametrize("content", [b"", b"[]", b"{}", b"{", b'{"layers": 1}', b"\xff"])
def test_a_manifest_that_is_damaged_is_one_line(home, content):
    write_ollama(home, "a:1", GGUF)
    manifest = home / ".ollama/models/manifests/registry.ollama.ai/library/a/1"
    manifest.write_bytes(content)
    with pytest.raises(CatalogError, match="expected"):
        find_model("ollama:a:1")
    assert [model.fault is None for model in local_models()] == [False]


@pytest.mark.parametrize(
    "name", ["../../x", "a/../b:1", "a:../../b", "", ":", "a:", "a/b/c/d:1"]
)
def test_a_name_of_ollama_does_not_lead_outside(home, name):
    write_ollama(home, "a:1", GGUF)
    with pytest.raises(CatalogError, match="expected a model of ollama on this machine"):
        find_model(f"ollama:{name}")


def test_a_model_of_lm_studio_is_found_with_and_without_its_program(home):
    eight = write_lm_studio(home, "org/Model-GGUF", "model-Q8_0.gguf", GGUF)
    four = write_lm_studio(home, "org/Model-GGUF", "model-Q4_K_M.gguf", GGUF)
    write_lm_studio(home, "org/Model-GGUF", "mmproj-model-f16.gguf", GGUF)
    for start in ("", "lmstudio:"):
        assert find_model(f"{start}org/Model-GGUF") == four
        assert find_model(f"{start}org/Model-GGUF:q8_0") == eight
        assert find_model(f"{start}org/Model-GGUF/model-Q8_0.gguf") == eight


def test_a_file_of_llama_cpp_is_found_with_and_without_its_program(home):
    path = write_llama_cpp(home, "org/Model-GGUF", "model-Q4_K_M.gguf", GGUF)
    write_llama_cpp(home, "org/Model-GGUF", "model-Q8_0.gguf.downloadInProgress", GGUF)
    for name in (
        "org/Model-GGUF", "org/Model-GGUF:Q4_K_M", "llama.cpp:org/Model-GGUF",
        f"llama.cpp:{path.stem}", "org/Model-GGUF/model-Q4_K_M.gguf",
    ):  # fmt: skip
        assert find_model(name) == path
    for name in ("llama.cpp:../x", "llama.cpp:other", "llama.cpp:org/Model-GGUF:Q8_0"):
        with pytest.raises(CatalogError):
            find_model(name)


def test_a_repository_in_the_hubs_cache_needs_no_library(home):
    snapshot = write_hub(home, "org/model", SAFETENSORS)
    gguf = write_hub(home, "org/Model-GGUF", {"a-Q4_K_M.gguf": GGUF, "a-Q2_K.gguf": GGUF})
    assert find_model("org/model") == snapshot
    assert find_model("hf.co/org/model") == snapshot
    assert find_model("https://huggingface.co/org/model") == snapshot
    assert find_model(f"org/model@{snapshot.name}") == snapshot
    assert find_model("org/Model-GGUF") == gguf / "a-Q4_K_M.gguf"
    assert find_model("org/Model-GGUF:Q2_K") == gguf / "a-Q2_K.gguf"


@pytest.mark.parametrize(
    "missing", ["config.json", "tokenizer.json", "model.safetensors", "refs/main"]
)
def test_a_repository_that_is_not_whole_is_not_used(home, monkeypatch, missing):
    snapshot = write_hub(home, "org/model", SAFETENSORS)
    if "/" in missing:
        (snapshot.parents[1] / missing).write_text("../../../elsewhere")
        (snapshot.parent / "another").mkdir()
    else:
        (snapshot / missing).unlink()
    monkeypatch.setenv("HF_ENDPOINT", "http://127.0.0.1:9")
    with pytest.raises(
        CatalogError, match=r"download: expected files|expected a path, or the"
    ):
        find_model("org/model")


def test_a_split_file_without_a_part_is_not_used(home, monkeypatch):
    monkeypatch.setenv("HF_ENDPOINT", "http://127.0.0.1:9")
    first = write_lm_studio(home, "org/a", "m-Q8_0-00001-of-00002.gguf", GGUF)
    with pytest.raises(CatalogError):
        find_model("org/a")
    write_lm_studio(home, "org/a", "m-Q8_0-00002-of-00002.gguf", GGUF)
    assert find_model("org/a") == first


@pytest.mark.parametrize(
    ("variables", "place"),
    [
        ({}, ".cache/huggingface/hub"),
        ({"XDG_CACHE_HOME": "/x"}, "/x/huggingface/hub"),
        ({"HF_HOME": "/h"}, "/h/hub"),
        ({"HF_HUB_CACHE": "/c", "HF_HOME": "/h"}, "/c"),
    ],
)
def test_the_cache_of_the_hub_is_where_its_library_has_it(
    home, monkeypatch, variables, place
):
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    assert hub_cache() == home / place


def test_all_models_are_listed_by_names_that_lead_to_them(home):
    write_hub(home, "org/model", SAFETENSORS)
    write_hub(home, "org/Model-GGUF", {"a-Q4_K_M.gguf": GGUF, "b-Q4_K_M.gguf": GGUF})
    write_ollama(home, "llama3.2:1b", GGUF)
    write_ollama(home, "someone/a:latest", GGUF)
    write_lm_studio(home, "org/Other-GGUF", "other-Q8_0.gguf", GGUF)
    write_llama_cpp(home, "ggml-org/small", "small-f16.gguf", GGUF)
    found = local_models()
    assert {(model.program, model.name) for model in found} == {
        ("Hugging Face", "org/model"),
        ("Hugging Face", "org/Model-GGUF/a-Q4_K_M.gguf"),
        ("Hugging Face", "org/Model-GGUF/b-Q4_K_M.gguf"),
        ("ollama", "ollama:llama3.2:1b"),
        ("ollama", "ollama:someone/a:latest"),
        ("LM Studio", "lmstudio:org/Other-GGUF:Q8_0"),
        ("llama.cpp", "llama.cpp:ggml-org_small_small-f16"),
    }
    assert [find_model(model.name) for model in found] == [model.path for model in found]


def test_directories_that_are_not_there_or_cannot_be_read_have_no_models(
    home, monkeypatch
):
    assert local_models() == []
    monkeypatch.setenv("OLLAMA_MODELS", "/dev/null")
    monkeypatch.setenv("LLAMA_CACHE", "/proc/nowhere")
    assert local_models() == []


def test_a_link_in_a_circle_ends(home):
    place = home / ".lmstudio" / "models" / "org" / "a"
    place.mkdir(parents=True)
    os.symlink(place, place / "again")
    write_lm_studio(home, "org/a", "m-Q8_0.gguf", GGUF)
    assert [model.name for model in local_models()] == ["lmstudio:org/a:Q8_0"]


def test_a_local_model_is_a_value():
    assert LocalModel("a", "b", Path("c")) == LocalModel("a", "b", Path("c"))
