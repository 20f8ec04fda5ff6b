"""The program as a whole, on the bundled model."""

import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).resolve().parents[1]
QUESTION = b"What is the capital of Massachusetts? Answer in one word.\n"


def run(*command: str, stdin: bytes = b"") -> "subprocess.CompletedProcess[bytes]":
    """Runs Python with these arguments."""
    command = (sys.executable, *command)
    return subprocess.run(
        command, input=stdin, capture_output=True, cwd=REPOSITORY, timeout=60, check=False
    )


def test_the_capital_of_massachusetts_is_all_that_is_printed():
    done = run("-m", "src.main", "--temperature", "0", stdin=QUESTION)
    assert (done.returncode, done.stdout) == (0, b"Boston\n")


def test_help_goes_to_standard_output_and_the_package_runs_as_a_module():
    done = run("-m", "src", "--help")
    assert (done.returncode, done.stderr) == (0, b"")
    assert done.stdout.startswith(b"usage: llama-bolts ")


PRESSES_CTRL_C = """
import signal, sys
from src.main import main
class Press:
    def find_spec(self, name, *_):
        if name == sys.argv[1]: signal.raise_signal(signal.SIGINT)
sys.meta_path.insert(0, Press())
assert main(["--info"]) == 0
signal.raise_signal(signal.SIGINT)
"""


@pytest.mark.parametrize(
    "module",
    [
        "src.cli.arguments",
        "src.cli.application",
        "numpy.random.mtrand",
        "src.ml._kernels",
    ],
)
def test_an_interrupt_of_an_import_ends_the_process_at_once(module):
    done = run("-c", PRESSES_CTRL_C, module)
    assert (done.returncode, done.stdout, done.stderr) == (130, b"", b"")


def test_an_interrupt_after_the_work_ends_the_process_by_the_signal_in_silence():
    done = run("-c", PRESSES_CTRL_C, "none")
    assert (done.returncode, done.stderr) == (-signal.SIGINT, b"")


PLAIN = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}


@pytest.mark.parametrize(
    ("flag", "said", "package", "advice"),
    [
        # without site-packages
        ("-S", "error: No module named ", "src", "`pip install -e .` in the repository"),
        ("-S", "error: No module named ", "llama_bolts", "`pip install llama-bolts`"),
        ("-B", "error: the C kernels are not built (", "src",
         "`pip install -e .` in the repository"),
        ("-B", "error: the C kernels are not built (", "llama_bolts",
         "`pip install --force-reinstall llama-bolts`"),
    ],
)  # fmt: skip
def test_what_is_not_installed_or_built_is_one_line(
    tmp_path, flag, said, package, advice
):
    without_kernels = shutil.ignore_patterns("_kernels*")
    shutil.copytree(REPOSITORY / "src", tmp_path / package, ignore=without_kernels)
    command = [sys.executable, flag, "-m", package, "-p", "x"]
    done = subprocess.run(
        command, cwd=tmp_path, input=b"", capture_output=True, env=PLAIN
    )
    assert (done.returncode, done.stdout) == (1, b"")
    [line] = done.stderr.decode().splitlines()
    assert line.startswith(said)
    assert line.endswith(f": run {advice}")
