"""Which layout a model directory has: found by looking at what is there."""

import json
from pathlib import Path
from typing import Any

import pytest

from src.checkpoint import CheckpointError
from src.checkpoint.model_directory import ModelDirectory, find_model_directory
from src.untrusted import some_of
from tests.checkpoint.refusals import refusal_of
from tests.support.gguf_writer import gguf_bytes

META = ("params.json", "consolidated.00.pth")
ORIGINAL = tuple(f"original/{name}" for name in META)
HUGGING_FACE = ("config.json", "model.safetensors")
SHARDED = ("config.json", "model.safetensors.index.json", "model-00001-of-00002.safetensors")


def touch(directory: Path, *names: str) -> Path:
    for name in names:
        path = directory / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(b"")
    return directory


def refused(directory: Path, words: str) -> str:
    return refusal_of(find_model_directory, directory, match=words)


@pytest.mark.parametrize(
    ("names", "layout", "place"),
    [
        (HUGGING_FACE, "Hugging Face", ""),
        (SHARDED, "Hugging Face", ""),
        *((names, "Meta", "") for names in (META, META[:1], META[1:])),
        *((names, "Meta", "original") for names in (ORIGINAL, ORIGINAL[:1], ORIGINAL[1:])),
        # Whole files at the top are preferred, and Hugging Face's to Meta's.
        ((*ORIGINAL, *HUGGING_FACE, *META), "Hugging Face", ""),
        ((*ORIGINAL, "config.json", *META), "Meta", ""),
        ((*ORIGINAL, "config.json"), "Meta", "original"),
    ],
)
def test_a_layout_is_found_here_or_in_original(
    tmp_path: Path, names: tuple[str, ...], layout: Any, place: str
) -> None:
    touch(tmp_path, *names)
    assert find_model_directory(tmp_path) == ModelDirectory(layout, tmp_path / place)


@pytest.mark.parametrize(
    "names",
    [
        ("config.json",),
        ("config.json", "pytorch_model.bin"),
        ("model.safetensors",),
        ("model.safetensors.index.json", "model-00001-of-00002.safetensors"),
        ("config.json", "model-00001-of-00002.safetensors"),
        ("a.gguf",),
    ],
)
def test_half_a_layout_is_refused_with_its_files(tmp_path: Path, names: tuple[str, ...]) -> None:
    touch(tmp_path, *names)
    said = f" or the path of a GGUF file, got {some_of(sorted(names))}"
    assert refused(tmp_path, "expected").endswith(said)


def test_what_was_found_and_what_is_needed_is_listed(tmp_path: Path) -> None:
    needed = (
        r"expected Meta's layout \(params\.json, consolidated\.00\.pth .* "
        r"Hugging Face's \(config\.json, model\.safetensors \(or .*\) or the path of a GGUF file, "
    )
    refused(tmp_path, f"{needed}.*got an empty directory")
    touch(tmp_path, *(f"file{number:02d}\x1b[31m" for number in range(12)))
    names = r"got 'file00\\x1b\[31m', .*\.\.\. \(12 in all\)"
    assert refused(tmp_path, names).isprintable()


def test_nothing_and_a_file_are_no_model_directory(tmp_path: Path) -> None:
    rule = "path: expected a model directory or a GGUF file"
    refused(tmp_path / "nowhere", f"{rule}, got nothing")
    touch(tmp_path, "model.safetensors")
    refused(tmp_path / "model.safetensors", f"{rule}.*, got a file")
    hub = "org/Some-Model_1.5"
    advice = f"hf download {hub} --local-dir Some-Model_1.5` gets it$"
    refused(Path(hub), f"{hub}: path: expected .*, got nothing; .*{advice}")
    for name in ("a/b/c", "../no-such", "/org/name", "org/na me", "org/name\x1b", "org\n/name"):
        refused(Path(name), r"got nothing$")


def test_a_gguf_file_is_known_by_its_name_or_by_its_first_bytes(tmp_path: Path) -> None:
    for name, content in (("model-Q4_K_M.GGUF", b""), ("blob", b"GGUF"), ("a.gguf", b"GGUF\x03")):
        path = tmp_path / name
        path.write_bytes(content)
        assert find_model_directory(path) == ModelDirectory("GGUF", path)
    path.write_bytes(gguf_bytes({}))
    assert find_model_directory(path).weights == (str(path), {path: None})
    refused(tmp_path / "missing.gguf", "got nothing")


def test_the_files_of_weights_are_those_of_the_layout(tmp_path: Path) -> None:
    touch(tmp_path / "m", *META, "consolidated.01.pth")
    touch(tmp_path / "h", *HUGGING_FACE)
    touch(tmp_path / "s", *SHARDED)
    (tmp_path / "s" / SHARDED[1]).write_text(json.dumps({"weight_map": {"a": SHARDED[2]}}))
    for folder, names in (
        ("m", ["consolidated.00.pth", "consolidated.01.pth"]),
        ("h", [HUGGING_FACE[1]]),
        ("s", [SHARDED[2]]),
    ):
        found = find_model_directory(tmp_path / folder).weight_files
        assert found == [tmp_path / folder / name for name in names]


def test_hugging_faces_layout_without_weights_is_refused(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match=r"weights: expected model.safetensors or .*neither"):
        assert ModelDirectory("Hugging Face", tmp_path).weights
