"""`--quantize` and `--save-quantized` on the command line."""

import signal
import subprocess
import sys
from pathlib import Path

import pytest

from src.cli.arguments import QUANTIZATION_NAMES, parse_arguments
from src.model import QUANTIZATIONS, load_model
from tests.cli.conftest import REPOSITORY, SECONDS, Run


def test_the_names_of_the_flag_are_those_of_the_model() -> None:
    assert tuple(QUANTIZATIONS) == QUANTIZATION_NAMES


def test_a_quantized_model_answers_and_the_loading_line_says_so(run: Run) -> None:
    question = "What is the capital of France?"
    done = run("--quantize", "nf4", "-p", question, "--temperature", "0")
    assert done.returncode == 0
    assert b"Paris" in done.stdout
    assert b"3.2 M parameters, nf4, " in done.stderr
    more = run("--quantize", "nf4", "-p", question, "-n", "1", "-v")
    assert b"quantized matrices: 29 nf4" in more.stderr


def test_a_model_is_saved_and_shown(run: Run, tmp_path: Path) -> None:
    done = run("--quantize", "int8", "--save-quantized", tmp_path / "new")
    assert (done.returncode, done.stdout) == (0, b"")
    assert b"new: 4.0 MiB of weights written, int8" in done.stderr
    report = run("-m", tmp_path / "new", "--metadata").stdout
    assert b"int8_block" in report
    assert b"bytes of quantized matrices" in report
    again = run("--quantize", "int8", "--save-quantized", tmp_path / "new")
    assert again.returncode == 2
    assert again.stderr.count(b"\n") == 1
    assert load_model(tmp_path / "new").args.dim == load_model().args.dim


# Writes one weight after the other until it is ended.
SLOW = """
import sys, time
from src.checkpoint.safetensors_writer import SafetensorsWriter
from src.main import main

def write(self, name, content):
    print("writing", flush=True)
    time.sleep(60)

SafetensorsWriter.write = write
sys.exit(main(sys.argv[1:]))
"""


def test_sigterm_leaves_nothing_of_a_directory_that_was_not_finished(tmp_path: Path) -> None:
    process = subprocess.Popen(
        [sys.executable, "-c", SLOW, "--quantize", "nf4", "--save-quantized", tmp_path / "new"],
        cwd=REPOSITORY,
        stdout=subprocess.PIPE,
    )
    with process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"writing\n"
        [unfinished] = tmp_path.iterdir()
        assert unfinished.name.startswith(".new.unfinished-")
        process.terminate()
        assert process.wait(SECONDS) == 128 + signal.SIGTERM
    assert list(tmp_path.iterdir()) == []


def test_info_names_the_formats(run: Run) -> None:
    assert b"nf4 (4.5 bits), int8 (8.5 bits)" in run("--info").stdout


@pytest.mark.parametrize(
    "flags", [["--save-quantized", "x"], ["--quantize", "int4"],
              ["--quantize", "nf4", "--save-quantized", ""],
              ["--quantize", "nf4", "--save-quantized", "x", "-p", "y"]],
)  # fmt: skip
def test_what_cannot_be_meant_is_a_usage_error(flags: list[str]) -> None:
    with pytest.raises(SystemExit) as end:
        parse_arguments(flags)
    assert end.value.code == 2
