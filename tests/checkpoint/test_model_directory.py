"""Which layout a model directory has: found by looking at what is there."""

import json
from pathlib import Path
from typing import Any

import pytest

from src.checkpoint import CheckpointError
from src.checkpoint.model_directory import ModelDirectory, find_model_directory
from src.model.sources import find_source
from src.untrusted import some_of
from tests.checkpoint.refusals import refusal_of
from tests.model.tiny import GROUPED
from tests.support.gguf_writer import gguf_bytes
from tests.support.hugging_face_writer import CONFIG
from tests.support.open_directory import open_hugging_face

META = ("params.json", "consolidated.00.pth")
ORIGINAL = tuple(f"original/{name}" for name in META)
HUGGING_FACE = ("config.json", "model.safetensors")
PARTS = ("m-00001-of-00002.gguf", "m-00002-of-00002.gguf")
SHARDED = (
    "config.json",
    "model.safetensors.index.json",
    "model-00001-of-00002.safetensors",
)


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
        *(
            (names, "Meta", "original")
            for names in (ORIGINAL, ORIGINAL[:1], ORIGINAL[1:])
        ),
        # Whole files at the top are preferred, and Hugging Face's to Meta's.
        ((*ORIGINAL, *HUGGING_FACE, *META), "Hugging Face", ""),
        ((*ORIGINAL, "config.json", *META), "Meta", ""),
        ((*ORIGINAL, "config.json"), "Meta", "original"),
        # One GGUF file, if there is nothing else; the parts of a split one count as one.
        (("a.gguf",), "GGUF", "a.gguf"),
        (("A.GGUF", "config.json", "README.md"), "GGUF", "A.GGUF"),
        (PARTS, "GGUF", PARTS[0]),
        (("a.gguf", *HUGGING_FACE), "Hugging Face", ""),
        (("a.gguf", "b.gguf", *META), "Meta", ""),
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
    ],
)
def test_half_a_layout_is_refused_with_its_files(
    tmp_path: Path, names: tuple[str, ...]
) -> None:
    touch(tmp_path, *names)
    said = f" or the path of a GGUF file, got {some_of(sorted(names))}"
    assert refused(tmp_path, "expected").endswith(said)


@pytest.mark.parametrize(
    ("names", "listed"),
    [
        (("a.gguf", "b.gguf"), "'a.gguf', 'b.gguf' (2 in all)"),
        ((*PARTS, "x.gguf"), "'m-00001-of-00002.gguf', 'x.gguf' (2 in all)"),
        (
            ("m-00001-of-00002.gguf", "m-00001-of-00003.gguf"),
            "'m-00001-of-00002.gguf', 'm-00001-of-00003.gguf' (2 in all)",
        ),
        (("a\x1b[31m.gguf", "b.gguf"), "'a\\x1b[31m.gguf', 'b.gguf' (2 in all)"),
    ],
)
def test_several_gguf_files_are_listed(
    tmp_path: Path, names: tuple[str, ...], listed: str
) -> None:
    touch(tmp_path, *names)
    (tmp_path / "directory.gguf").mkdir()
    line = refused(
        tmp_path, "files: expected one GGUF file, or the path of one of them, got "
    )
    assert line.endswith(listed)


def test_a_directory_without_the_first_part_is_refused(tmp_path: Path) -> None:
    whole = gguf_bytes({"general.architecture": "llama", "split.count": 2, "split.no": 1})
    (tmp_path / PARTS[1]).write_bytes(whole)
    with pytest.raises(
        CheckpointError, match=r"file name: expected NAME-00001-of-00002\.gguf"
    ):
        find_source(tmp_path)


def test_what_was_found_and_what_is_needed_is_listed(tmp_path: Path) -> None:
    needed = (
        r"expected Meta's layout \(params\.json, consolidated\.00\.pth .* Hugging Face's "
        r"\(config\.json, model\.safetensors \(or .*\) or the path of a GGUF file, "
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
    for name in (
        "org/name",
        "../no-such",
        "/org/name",
        "org/na me",
        "org/name\x1b",
        "org\n/name",
    ):
        refused(Path(name), r"got nothing$")


def test_a_gguf_file_is_known_by_its_name_or_by_its_first_bytes(tmp_path: Path) -> None:
    for name, content in (
        ("model-Q4_K_M.GGUF", b""),
        ("blob", b"GGUF"),
        ("a.gguf", b"GGUF\x03"),
    ):
        path = tmp_path / name
        path.write_bytes(content)
        assert find_model_directory(path) == ModelDirectory("GGUF", path)
    refused(tmp_path / "missing.gguf", "got nothing")


def test_the_files_of_weights_are_those_of_the_layout(tmp_path: Path) -> None:
    touch(tmp_path / "m", *META, "consolidated.01.pth")
    (tmp_path / "m" / META[0]).write_text(json.dumps(GROUPED.params()))
    touch(tmp_path / "h", *HUGGING_FACE)
    touch(tmp_path / "s", *SHARDED)
    for folder in ("h", "s"):
        (tmp_path / folder / HUGGING_FACE[0]).write_text(json.dumps(CONFIG))
    (tmp_path / "s" / SHARDED[1]).write_text(
        json.dumps({"weight_map": {"a": SHARDED[2]}})
    )
    for folder, names in (
        ("m", ["consolidated.00.pth", "consolidated.01.pth"]),
        ("h", [HUGGING_FACE[1]]),
        ("s", [SHARDED[2]]),
    ):
        found = find_source(tmp_path / folder).weight_files
        assert found == [tmp_path / folder / name for name in names]


def test_hugging_faces_layout_without_weights_is_refused(tmp_path: Path) -> None:
    (tmp_path / HUGGING_FACE[0]).write_text(json.dumps(CONFIG))
    with pytest.raises(
        CheckpointError, match=r"weights: expected model.safetensors or .*neither"
    ):
        open_hugging_face(tmp_path)
