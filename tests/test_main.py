"""The program as a whole, on the bundled model."""

import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from src.main import main

REPOSITORY = Path(__file__).resolve().parents[1]
BUNDLED_MODEL = REPOSITORY / "src" / "nano" / "model" / "consolidated.00.pth"
QUESTION = b"What is the capital of Massachusetts? Answer in one word.\n"

needs_bundled_model = pytest.mark.skipif(
    not BUNDLED_MODEL.exists(), reason="the bundled model is not in this checkout"
)


def run(*arguments: str, stdin: bytes = b"") -> "subprocess.CompletedProcess[bytes]":
    return subprocess.run(
        [sys.executable, "-m", "src.main", *arguments],
        input=stdin,
        capture_output=True,
        cwd=REPOSITORY,
        timeout=60,
        check=False,
    )


@needs_bundled_model
def test_the_capital_of_massachusetts_is_all_that_is_printed() -> None:
    done = run("--temperature", "0", stdin=QUESTION)
    assert (done.returncode, done.stdout) == (0, b"Boston\n")


@needs_bundled_model
@pytest.mark.parametrize("number", range(1, 7))
def test_each_example_gets_an_answer(number: int) -> None:
    done = run("--example", str(number), "--temperature", "0", "-n", "64")
    assert done.returncode == 0
    assert done.stdout.strip()


def test_help_goes_to_standard_output() -> None:
    done = run("--help")
    assert (done.returncode, done.stderr) == (0, b"")
    assert done.stdout.startswith(b"usage: llama-bolts ")


@pytest.fixture
def _sigint_as_before() -> Iterator[None]:
    before = signal.getsignal(signal.SIGINT)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.mark.usefixtures("_sigint_as_before")
def test_main_takes_arguments_and_returns_the_exit_code(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["-m", str(tmp_path), "-p", "x"]) == 3
    assert capsys.readouterr().err.startswith("error: ")


@pytest.mark.usefixtures("_sigint_as_before")
def test_an_interrupt_is_the_exit_code_130(monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(_options: object) -> int:
        raise KeyboardInterrupt

    monkeypatch.setattr("src.cli.application.run", interrupted)
    assert main(["-p", "x"]) == 130


def after_import_of_main(program: str, *arguments: str) -> "subprocess.CompletedProcess[bytes]":
    source = f"import signal, sys\nfrom src.main import main\n{program}"
    return subprocess.run(
        [sys.executable, "-c", source, *arguments],
        capture_output=True,
        cwd=REPOSITORY,
        timeout=60,
        check=False,
    )


@pytest.mark.parametrize(
    "module", ["src.cli.arguments", "src.cli.application", "numpy.random.mtrand", "src.ml._kernels"]
)
def test_an_interrupt_of_an_import_ends_the_process_at_once(module: str) -> None:
    done = after_import_of_main(
        "class Press:\n"
        "    def find_spec(self, name, *_):\n"
        "        if name == sys.argv[1]: signal.raise_signal(signal.SIGINT)\n"
        "sys.meta_path.insert(0, Press())\n"
        "main(['--info'])\n",
        module,
    )
    assert (done.returncode, done.stdout, done.stderr) == (130, b"", b"")


def test_an_interrupt_after_the_work_ends_the_process_by_the_signal_in_silence() -> None:
    done = after_import_of_main("assert main(['--info']) == 0\nsignal.raise_signal(signal.SIGINT)")
    assert (done.returncode, done.stderr) == (-signal.SIGINT, b"")


def test_the_package_runs_as_a_module() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "src", "--version"], cwd=REPOSITORY, capture_output=True, check=False
    )
    assert (done.returncode, done.stdout[:12]) == (0, b"llama-bolts ")


PLAIN = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}


def refusal_of_checkout(checkout: Path, *flags: str) -> str:
    """Returns the one line that a program prints which cannot be imported."""
    done = subprocess.run(
        [sys.executable, *flags, "-m", "src", "-p", "x"],
        cwd=checkout, stdin=subprocess.DEVNULL, capture_output=True, check=False, text=True,
        env=PLAIN,
    )  # fmt: skip
    assert (done.returncode, done.stdout) == (1, "")
    [line] = done.stderr.splitlines()
    return line


def test_a_checkout_whose_libraries_are_not_installed_says_so_in_one_line() -> None:
    """It was a traceback."""
    line = refusal_of_checkout(REPOSITORY, "-S")  # without site-packages
    assert line.startswith("error: No module named ")
    assert line.endswith(": run `pip install -e .` in the repository")


def test_a_checkout_whose_kernels_are_not_built_says_so_in_one_line(tmp_path: Path) -> None:
    """It was a traceback."""
    shutil.copytree(
        REPOSITORY / "src", tmp_path / "src", ignore=shutil.ignore_patterns("_kernels*")
    )
    line = refusal_of_checkout(tmp_path)
    assert line.startswith("error: the C kernels are not built (")
    assert line.endswith("): run `pip install -e .` in the repository")
