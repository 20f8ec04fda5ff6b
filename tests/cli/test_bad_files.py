"""A bad model file of each kind ends the program with one line, exit code 3 and nothing
more.
"""

import gzip
import io
import json
import os
import shutil
import time
import zipfile
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.checkpoint import hostile_pickles as hostile
from tests.cli.conftest import Run, run_program
from tests.support.hugging_face_writer import (
    CONFIG,
    random_arrays,
    write_hugging_face_directory,
)
from tests.support.pth_writer import write_archive
from tests.support.safetensors_writer import file_bytes

WEIGHTS = "consolidated.00.pth"
SAFETENSORS = "model.safetensors"
LONGEST_LINE = 1200

Make = Callable[[Path], None]


def content(data: bytes) -> Make:
    def make(path: Path) -> None:
        path.write_bytes(data)

    return make


def archive(program: bytes) -> Make:
    return lambda path: write_archive(path, program, {"0": bytes(96)})


def deflated() -> bytes:
    stream = io.BytesIO()
    with zipfile.ZipFile(stream, "w", zipfile.ZIP_DEFLATED) as file:
        file.writestr("a/data.pkl", bytes(1 << 24))
    return stream.getvalue()


def params(**changes: object) -> Make:
    def change(path: Path) -> None:
        path.write_text(json.dumps(json.loads(path.read_bytes()) | changes))

    return change


def in_the_place_of(make: Callable[[Path], object]) -> Make:
    def replace(path: Path) -> None:
        path.unlink()
        make(path)

    return replace


# name -> (the file that is damaged, how, a word of the line)
META: dict[str, tuple[str, Make, str]] = {
    "P1 code": (WEIGHTS, archive(hostile.CODE["GLOBAL os.system"][0]), "'os.system'"),
    "P2 container": (WEIGHTS, archive(hostile.CONTAINERS["APPEND on a dict"]), "list"),
    "P3 damage": (WEIGHTS, archive(hostile.DAMAGED["no STOP"]), "STOP"),
    "P4 text of 4 GiB": (
        WEIGHTS,
        archive(hostile.GREEDY["text of 4 GiB"]),
        "end of the data",
    ),
    "P4 deep": (WEIGHTS, archive(hostile.GREEDY["10^5 nested tuples"]), "error: "),
    "P5 empty": (WEIGHTS, content(b""), "an empty file"),
    "P5 gzip": (WEIGHTS, content(gzip.compress(b"x")), "a gzip file"),
    "P5 noise": (
        WEIGHTS,
        content(b"\x1b[2J\x07\n"),
        "kind: expected a PyTorch zip checkpoint",
    ),
    "P5 directory": (WEIGHTS, in_the_place_of(Path.mkdir), "a directory"),
    "P5 FIFO": (WEIGHTS, in_the_place_of(os.mkfifo), "a FIFO"),
    "Z1 bomb": (WEIGHTS, content(deflated()), "must be stored uncompressed"),
    "C1 no heads": ("params.json", params(n_heads=0), "n_heads"),
    "C1 many layers": ("params.json", params(n_layers=10**9), "n_layers"),
    "C1 theta": ("params.json", params(rope_theta="\x1b[2J"), "rope_theta"),
    "C1 another model": (
        "params.json",
        params(model_type="\x1b]0;x\x07"),
        r"\x1b]0;x\x07",
    ),
    "C1 other sizes": ("params.json", params(n_layers=7), "tensors"),
    "C1 no JSON": ("params.json", content(b"[" * 10**5), "error: "),
    "K1 base64": ("tokenizer.model", content(b"!!! 0\n"), "line 1"),
    "K1 short": ("tokenizer.model", content(b"QQ== 0\n"), "single byte"),
    "K1 pieces": (
        "tokenizer.model",
        content(b"\x0a\xff\xff\xff\xff\x0f"),
        "tokenizer.model",
    ),
}
HUGGING_FACE: dict[str, tuple[str, Make, str]] = {
    "S1 length": (SAFETENSORS, content(b"\xff" * 8), "header"),
    "S1 deep": (SAFETENSORS, content(file_bytes(b'{"a":' + b"[" * 10**5)), "error: "),
    "S2 hole": (SAFETENSORS, content(file_bytes({}, b"\0" * 8)), "error: "),
    "C1 other model": ("config.json", params(model_type="gpt2"), "model_type"),
    "K2 no tokenizer": ("tokenizer.json", content(b'{"version": "1.0"}'), "model"),
}


def refusal(run: Run, path: Path) -> str:
    done = run("-m", path, "--metadata")
    [line] = done.stderr.decode().splitlines()
    assert (done.returncode, done.stdout) == (3, b"")
    assert line.startswith("error: ")
    assert line.isprintable()
    return line


@pytest.fixture(scope="module")
def hugging_face_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model in Hugging Face's layout without a tokenizer."""
    directory = tmp_path_factory.mktemp("hugging_face")
    return write_hugging_face_directory(directory, CONFIG, random_arrays(CONFIG))


CASES = {
    name: (layout, *case)
    for layout, cases in (("alphabet_model", META), ("hugging_face_model", HUGGING_FACE))
    for name, case in cases.items()
}


@pytest.mark.parametrize(("layout", "name", "make", "word"), CASES.values(), ids=CASES)
def test_a_bad_file_is_one_line(request, run, tmp_path, layout, name, make, word):
    directory = tmp_path / "model"
    shutil.copytree(request.getfixturevalue(layout), directory)
    assert run("-m", directory, "--metadata").returncode == 0  # the valid twin
    make(directory / name)
    before = time.process_time()
    line = refusal(run, directory)
    # 1 s for a file of 1 MiB, and what is around it.
    assert time.process_time() - before < 2
    assert word in line
    assert len(line) < LONGEST_LINE + 2 * len(str(directory))


@pytest.mark.parametrize("path", ["x" * 300, "/".join(["y" * 200] * 30), "\x1b[2J\u202e"])
def test_a_path_that_names_nothing_is_one_line(run, tmp_path, path):
    line = refusal(run, tmp_path / path)
    assert line.endswith("expected a model directory or a GGUF file, got nothing")


def test_few_descriptors_are_enough_or_one_line(alphabet_model):
    codes = set()
    for most in (5, 7, 64):
        limited = ["sh", "-c", f'ulimit -n {most}; exec "$@"', "sh"]
        done = run_program("-m", alphabet_model, "-p", "x", "--quiet", prefix=limited)
        assert b"Traceback" not in done.stderr
        assert done.returncode in (0, 3)
        codes.add(done.returncode)
    assert 0 in codes
