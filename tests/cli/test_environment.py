"""The process around the program: its environment, and limits of the system."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from src.ml import native
from tests.cli.conftest import ALPHABET, REPOSITORY, Run, environment


@pytest.mark.parametrize("value", ["0", "-3", "text", "1000000"])
def test_f5_any_omp_num_threads_is_clamped_and_the_answer_is_whole(
    run_process: Run, alphabet_model: Path, value: str
) -> None:
    done = run_process("-q", "-m", alphabet_model, "-p", "x", "--json", OMP_NUM_THREADS=value)
    assert (done.returncode, done.stderr) == (0, b"")
    assert json.loads(done.stdout)["text"] == ALPHABET


def test_f5_an_instruction_set_that_cannot_be_had_is_one_line_and_a_usage_error(
    run_process: Run, alphabet_model: Path
) -> None:
    missing = {"avx512bf16", "avx512", "avx2", "neon"} - set(native.available_isas())
    for name, arguments in (
        ("\x1b[2J", ("--info",)),
        (min(missing), ("-m", str(alphabet_model), "-p", "x", "-q")),
    ):
        done = run_process(*arguments, LLAMA_BOLTS_ISA=name)
        assert (done.returncode, done.stdout) == (2, b"")
        [line] = done.stderr.decode().splitlines()
        assert line.startswith("error: [set_isa] instruction set must be one of ")
        assert line.isprintable()


def test_f5_twin_each_instruction_set_of_this_machine_answers(
    run_process: Run, alphabet_model: Path
) -> None:
    for name in native.available_isas():
        done = run_process("-m", alphabet_model, "-p", "x", "-q", LLAMA_BOLTS_ISA=name)
        assert (done.returncode, done.stderr) == (0, b"")
        assert done.stdout.decode() == f"{ALPHABET}\n"


# The limit is set once Python and NumPy are loaded, which are not ours to make fit.
LIMITED = """
import resource, sys
from pathlib import Path
from src.cli import application, chat, loading, one_shot
from src.main import main

pages = int(Path("/proc/self/statm").read_text().split()[0])
most = pages * resource.getpagesize() + int(sys.argv[1])
resource.setrlimit(resource.RLIMIT_AS, (most, most))
sys.exit(main(sys.argv[2:]))
"""


def run_limited(more: int, *arguments: str) -> "subprocess.CompletedProcess[bytes]":
    """Runs the program in a process that may grow by so many bytes."""
    return subprocess.run(
        [sys.executable, "-c", LIMITED, str(more), *arguments],
        cwd=REPOSITORY,
        env=environment(OMP_NUM_THREADS="1"),
        stdin=subprocess.DEVNULL,
        capture_output=True,
        timeout=120,
        check=False,
    )


@pytest.mark.skipif(not Path("/proc/self/statm").exists(), reason="the system does not tell sizes")
def test_f2_below_a_limit_of_memory_the_program_answers_or_says_so_in_one_line(
    alphabet_model: Path,
) -> None:
    codes = []
    for more in (0, 1 << 20, 8 << 20, 1 << 28):
        done = run_limited(more, "-m", str(alphabet_model), "-p", "x", "-q", "-c", "128")
        lines = done.stderr.decode().splitlines()
        assert len(lines) == (done.returncode != 0), done.stderr
        assert all(line.startswith("error: ") and line.isprintable() for line in lines)
        codes.append(done.returncode)
        if done.returncode == 0:
            assert done.stdout.decode() == f"{ALPHABET}\n"
    assert set(codes) == {0, 4}
    assert codes == sorted(codes, reverse=True)  # what is enough stays enough


@pytest.mark.skipif(not Path("/proc/self/statm").exists(), reason="the system does not tell sizes")
def test_f2_a_cache_beyond_the_limit_of_memory_is_refused_with_its_bytes(
    random_model: Path,
) -> None:
    done = run_limited(24 << 20, "-m", str(random_model), "-p", "x", "-q", "-c", "100000")
    [line] = done.stderr.decode().splitlines()
    assert (done.returncode, done.stdout) == (4, b"")
    assert "bytes for the KV cache" in line
