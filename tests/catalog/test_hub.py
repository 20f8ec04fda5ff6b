"""Downloads from a hub on this machine: whole, resumed, cut, denied, missing, slow and
hostile.
"""

import json
import os
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from src.catalog import CatalogError, Downloads, find_model
from src.catalog.downloads import LARGE_BYTES
from src.model import load_model
from src.model.saving import save_quantized
from tests.support.hub_server import COMMIT, Hub, serving

huggingface_hub = pytest.importorskip("huggingface_hub", reason="needs the hub extra")
pytest.importorskip("huggingface_hub.file_download")

SHARDS = {
    "model-00001-of-00002.safetensors": b"first" * 1000,
    "model-00002-of-00002.safetensors": b"second" * 1000,
}
INDEX = {"metadata": {}, "weight_map": dict(zip("ab", SHARDS, strict=True))}
SHARDED = {
    "config.json": b"{}",
    "tokenizer.json": b"{}",
    "model.safetensors.index.json": json.dumps(INDEX).encode(),
    **SHARDS,
    "model-00001-of-00009.safetensors": b"another set of shards",
    "pytorch_model.bin": b"a pickle",
    "README.md": b"a card",
}
GGUF_FILES = {
    "README.md": b"a card",
    "model-Q8_0.gguf": b"GGUF eight" * 1000,
    "model-Q4_K_M.gguf": b"GGUF four" * 1000,
    "mmproj-model-Q4_K_M.gguf": b"GGUF of images",
    "big/model-Q6_K-00001-of-00002.gguf": b"GGUF first",
    "big/model-Q6_K-00002-of-00002.gguf": b"GGUF second",
}
ALWAYS = Downloads(allows=lambda _name, _nbytes: True)


@pytest.fixture
def hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Hub]:
    """An empty hub, and an empty cache of its library."""
    for name in ("HF_TOKEN", "HUGGINGFACE_HUB_CACHE", "HF_HOME", "LLAMA_CACHE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "xdg"))
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path / "hub"))
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_DOWNLOAD_TIMEOUT", 1)
    # The library waits a second before it goes on.
    no_wait = SimpleNamespace(sleep=lambda _seconds: None, time=time.time)
    monkeypatch.setattr(huggingface_hub.file_download, "time", no_wait)
    with serving(Hub()) as served:
        monkeypatch.setenv("HF_ENDPOINT", served.url)
        yield served


def cached(tmp_path: Path) -> set[str]:
    """Return the files of the snapshot in the cache."""
    snapshot = tmp_path / "hub" / "models--org--model" / "snapshots" / COMMIT
    return {str(p.relative_to(snapshot)) for p in snapshot.rglob("*") if p.is_file()}


def refused(name: str, reason: str) -> str:
    with pytest.raises(CatalogError, match=reason) as raised:
        find_model(name, ALWAYS)
    line = str(raised.value)
    assert line.isprintable()
    assert line.startswith(f"{name}: ")
    return line


@pytest.fixture(scope="module")
def hugging_face_files(
    tmp_path_factory: pytest.TempPathFactory, bundled_gguf: Path
) -> dict[str, bytes]:
    """The bundled model in Hugging Face's layout."""
    directory = tmp_path_factory.mktemp("hf") / "model"
    save_quantized(bundled_gguf, directory, None, dequantize=True)
    return {path.name: path.read_bytes() for path in directory.iterdir()}


def test_a_repository_of_safetensors_is_downloaded_once_and_loads(
    hub, tmp_path, hugging_face_files
):
    hub.files = {
        **hugging_face_files,
        "pytorch_model.bin": b"a pickle",
        "README.md": b"a card",
    }
    notes: list[str] = []
    progress: list[tuple[int, int]] = []
    path = find_model(
        "org/model", Downloads(notes.append, lambda *done: progress.append(done))
    )
    assert cached(tmp_path) == {*hugging_face_files}
    assert len(notes) == 1
    assert f"of {hub.url}/org/model into {tmp_path}/hub" in notes[0]
    total = sum(map(len, hugging_face_files.values()))
    assert progress[-1] == (total, total)
    model = load_model("org/model")
    assert (model.source.name, model.source_directory) == ("org/model", path)
    asked = len(hub.requests)
    assert find_model("hf.co/org/model") == path
    assert len(hub.requests) == asked  # a model on this machine needs no network


def test_shards_are_those_that_the_index_names(hub, tmp_path):
    hub.files = SHARDED
    find_model("org/model")
    small = {"config.json", "tokenizer.json", "model.safetensors.index.json"}
    assert cached(tmp_path) == small | {*SHARDS}


@pytest.mark.parametrize(
    ("name", "files"),
    [
        ("org/model", {"model-Q4_K_M.gguf"}),
        ("org/model:q8_0", {"model-Q8_0.gguf"}),
        ("hf.co/org/model:Q4_K_M", {"model-Q4_K_M.gguf"}),
        ("org/model:Q6_K", {name for name in GGUF_FILES if "Q6_K" in name}),
        ("org/model/model-Q8_0.gguf", {"model-Q8_0.gguf"}),
        (
            "org/model/big/model-Q6_K-00001-of-00002.gguf",
            {n for n in GGUF_FILES if "Q6_K" in n},
        ),
        ("org/model@main:Q8_0", {"model-Q8_0.gguf"}),
    ],
)
def test_a_gguf_file_is_that_of_its_quantization_with_all_parts(
    hub, tmp_path, name, files
):
    hub.files = GGUF_FILES
    path = find_model(name)
    assert cached(tmp_path) == files
    assert path.name == min(Path(file).name for file in files)
    assert find_model(name) == path


def test_safetensors_come_before_gguf_files_unless_a_quantization_is_named(hub, tmp_path):
    hub.files = {**SHARDED, **GGUF_FILES}
    find_model("org/model")
    assert {*SHARDS} <= cached(tmp_path)
    assert find_model("org/model:Q8_0").name == "model-Q8_0.gguf"
    assert {*GGUF_FILES} & cached(tmp_path) == {"model-Q8_0.gguf"}


def test_a_quantization_or_a_file_that_is_not_there_is_one_line(hub):
    hub.files = GGUF_FILES
    line = refused("org/model:Q2_K", "expected GGUF files of Q2_K, got ")
    assert "Q4_K_M, Q8_0" in line
    refused("org/model/other.gguf", r"files: expected a GGUF file other\.gguf, got none")
    hub.files = {"a-IQ2_M.gguf": b"a", "b-IQ3_M.gguf": b"b"}
    refused(
        "org/model", r"expected a quantization after the name and `:`, got IQ2_M, IQ3_M"
    )
    hub.files = {"README.md": b"a card"}
    refused("org/model", "expected safetensors or GGUF files, got none in the repository")


def test_a_connection_that_is_cut_is_resumed(hub, monkeypatch):
    hub.files = {"model-Q8_0.gguf": bytes(range(256)) * 1000}
    hub.cut_at = [1000, 100_000]
    monkeypatch.setattr(huggingface_hub.constants, "DOWNLOAD_CHUNK_SIZE", 100)
    path = find_model("org/model")
    assert path.read_bytes() == hub.files["model-Q8_0.gguf"]
    ranges = [headers.get("range") for headers in hub.asked_for("GET", ".gguf")]
    assert ranges == [None, "bytes=1000-", "bytes=101000-"]


def test_a_connection_that_is_cut_for_good_leaves_nothing_that_loads(hub, tmp_path):
    hub.files = SHARDED
    hub.cut_at = [0] * 1000
    refused(
        "org/model",
        "download: expected files of .*, got .*by hand: `hf download org/model`",
    )
    assert not cached(tmp_path) & {*SHARDS}
    hub.cut_at = []
    hub.requests.clear()
    find_model("org/model")
    assert {*SHARDS} <= cached(tmp_path)
    assert hub.asked_for("GET", "config.json") == []  # what was there before is kept


def test_shards_that_are_there_are_not_downloaded_again(hub, tmp_path):
    hub.files = SHARDED
    path = find_model("org/model")
    (path / "model-00002-of-00002.safetensors").unlink()
    hub.requests.clear()
    assert find_model("org/model") == path
    asked = [
        path for method, path, _ in hub.requests if method == "GET" and "resolve" in path
    ]
    assert [path.rpartition("/")[2] for path in asked] in (
        [],
        ["model-00002-of-00002.safetensors"],
    )
    assert {*SHARDS} <= cached(tmp_path)


@pytest.mark.parametrize(("status", "code"), [(401, "GatedRepo"), (403, "GatedRepo")])
def test_a_gated_repository_names_the_page_where_its_terms_are(hub, status, code):
    hub.files = SHARDED
    hub.denied = (status, code)
    page = f"{hub.url}/org/model"
    refused(
        "org/model", f"access: expected a token .* accepted the terms at {page}, got none"
    )


@pytest.mark.parametrize("status", [401, 404])
def test_a_repository_that_is_not_there_is_one_line(hub, status):
    hub.missing = status
    rule = f"model: expected a path, or a repository at {hub.url}"
    refused(
        "org/other", rf"^org/other: {rule} \(a private one needs HF_TOKEN\), got nothing$"
    )


def test_a_refusal_without_a_reason_is_one_line(hub):
    hub.files = SHARDED
    hub.denied = (403, "")
    refused("org/model", "access: expected access at .*, got HTTP status 403")
    hub.denied = (500, "")
    refused("org/model", "download: expected files of .*, got HTTP status 500; by hand")


def test_a_hub_that_does_not_answer_in_time_is_one_line(hub, monkeypatch):
    hub.files = SHARDED
    hub.seconds = 1.5
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_DOWNLOAD_TIMEOUT", 0.2)
    refused("org/model", "download: expected files of .*, got ReadTimeout: ")


def test_no_network_is_one_line(hub, monkeypatch):
    monkeypatch.setenv("HF_ENDPOINT", "http://127.0.0.1:9")
    refused(
        "org/model",
        r"expected files of http://127\.0\.0\.1:9, got ConnectError: .*by hand: ",
    )


def test_offline_mode_asks_nobody(hub, monkeypatch):
    hub.files = GGUF_FILES
    path = find_model("org/model")
    hub.requests.clear()
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", True)
    huggingface_hub.close_session()
    try:
        assert find_model("org/model") == path
        refused(
            "org/model:Q8_0", "download: expected files of .*, got OfflineModeIsEnabled"
        )
    finally:
        monkeypatch.undo()
        huggingface_hub.close_session()
    assert hub.requests == []


def test_another_file_of_the_same_size_is_rejected_and_removed(hub, tmp_path):
    hub.files = {"model-Q8_0.gguf": b"GGUF what is described"}
    hub.sent = {"model-Q8_0.gguf": b"GGUF that is hostile !"}
    refused(
        "org/model",
        r"sha256 of model-Q8_0\.gguf: expected [0-9a-f]{64}, got [0-9a-f]{64}$",
    )
    assert cached(tmp_path) == set()
    assert [path for path in (tmp_path / "hub").rglob("blobs/*") if path.is_file()] == []
    hub.sent = {}
    assert find_model("org/model").read_bytes() == hub.files["model-Q8_0.gguf"]


@pytest.mark.parametrize("sent", [b"short", b"much longer than it should be"])
def test_a_file_of_another_size_is_rejected(hub, tmp_path, sent):
    hub.files = {"model-Q8_0.gguf": b"GGUF what is there"}
    hub.sent = {"model-Q8_0.gguf": sent}
    refused(
        "org/model",
        r"size of model-Q8_0\.gguf: expected 18, got|Consistency check failed",
    )
    assert cached(tmp_path) == set()


def test_a_header_that_lies_about_the_size_is_rejected(hub, tmp_path, monkeypatch):
    hub.files = {"model-Q8_0.gguf": b"GGUF what is there"}
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_DOWNLOAD_TIMEOUT", 0.2)
    hub.sizes = {"model-Q8_0.gguf": 30}
    refused("org/model", "download: expected files of")
    assert cached(tmp_path) == set()


@pytest.mark.parametrize(
    "file",
    [
        "../../outside.gguf",
        "/outside.gguf",
        "a/../../../outside.gguf",
        "..\\outside.gguf",
    ],
)
def test_a_name_that_leads_outside_is_not_downloaded(hub, tmp_path, file):
    hub.files = {file: b"GGUF"}
    refused("org/model", "expected safetensors or GGUF files, got none in the repository")
    assert [*tmp_path.rglob("outside*")] == []


def test_an_index_that_names_files_outside_is_rejected(hub, tmp_path):
    index = {"metadata": {}, "weight_map": {"a": "../../outside.safetensors"}}
    hub.files = {
        "config.json": b"{}",
        "tokenizer.json": b"{}",
        "model.safetensors.index.json": json.dumps(index).encode(),
        "../../outside.safetensors": b"outside",
    }
    refused("org/model", "download: expected all files of the model, got a part of them")
    assert [*tmp_path.rglob("outside*")] == []


def test_an_etag_that_leads_outside_is_rejected(hub, tmp_path):
    hub.files = {"model-Q8_0.gguf": b"GGUF"}
    hub.etags = {"model-Q8_0.gguf": "../../../outside"}
    refused(
        "org/model", r"ETag of model-Q8_0\.gguf: expected letters and digits, got \.\./"
    )
    assert [*tmp_path.rglob("outside*")] == []


@pytest.mark.parametrize(
    "described",
    [
        [], {}, {"id": 1}, {"id": "org/model", "sha": "../.."}, "text",
        {"id": "org/model", "sha": COMMIT, "siblings": [{"rfilename": 3, "size": "x"}]},
        {"id": "org/model", "sha": COMMIT, "siblings": 7},
    ],
)  # fmt: skip
def test_an_answer_of_another_form_is_one_line(hub, described: Any):
    hub.described = described
    refused("org/model", "expected")


def test_a_token_goes_to_the_hub_and_not_to_another_host(hub, tmp_path, monkeypatch):
    """The other host is another port here, and another name of this machine."""
    hub.files = GGUF_FILES
    monkeypatch.setenv("HF_TOKEN", "hf_secret")
    with serving(Hub(files=GGUF_FILES)) as cdn:
        hub.cdn = cdn.url.replace("127.0.0.1", "localhost")
        find_model("org/model")
        assert cdn.asked_for("GET", "Q4_K_M.gguf")
        assert all("hf_secret" not in str(headers) for _, _, headers in cdn.requests)
    assert {headers.get("authorization") for headers in hub.asked_for("HEAD")} == {
        "Bearer hf_secret"
    }
    assert cached(tmp_path) == {"model-Q4_K_M.gguf"}


def test_a_large_download_needs_consent_before_anything_is_fetched(hub, tmp_path):
    hub.files = GGUF_FILES
    rows = [{"rfilename": "a-Q8_0.gguf", "size": LARGE_BYTES + 1}]
    hub.described = {"id": "org/model", "sha": COMMIT, "siblings": rows}
    with pytest.raises(CatalogError, match=r"expected consent to 1\.0 GiB \(--yes"):
        find_model("org/model")
    with pytest.raises(CatalogError, match=r"expected consent to 1\.0 GiB"):
        load_model("org/model")
    assert hub.asked_for("GET", ".gguf") == []
    assert cached(tmp_path) == set()


def test_a_disk_without_room_is_noticed_before(hub, tmp_path):
    rows = [{"rfilename": "a-Q8_0.gguf", "size": 1 << 60}]
    hub.described = {"id": "org/model", "sha": COMMIT, "siblings": rows}
    refused("org/model", r"disk space: expected .* free in .*hub, got")


def test_a_cache_that_cannot_be_written_is_one_line(hub, monkeypatch):
    hub.files = GGUF_FILES
    monkeypatch.setenv("HF_HUB_CACHE", "/proc/nowhere")
    refused("org/model", "disk space: expected .* got 0 B$")


def test_without_the_library_the_extra_is_named(hub, monkeypatch):
    monkeypatch.setitem(sys.modules, "huggingface_hub", None)
    line = refused(
        "org/model", "neither; run `pip install -e '.\\[hub\\]'` in the repository$"
    )
    assert os.linesep not in line
