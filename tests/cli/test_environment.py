"""The process around the program: its environment, and limits of the system."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from src.ml import kernels
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
    missing = {"avx512bf16", "avx512", "avx2", "neon"} - set(kernels.available_isas())
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
    for name in kernels.available_isas():
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


def run_below(
    kilobytes: int, *arguments: str, **changes: str
) -> "subprocess.CompletedProcess[bytes]":
    """Runs the program in a process that has so many addresses from its start on."""
    command = f'ulimit -v {kilobytes}; exec {sys.executable} -m src.main "$@"'
    return subprocess.run(
        ["sh", "-c", command, "sh", *arguments],
        cwd=REPOSITORY,
        env=environment(**changes),
        stdin=subprocess.DEVNULL,
        capture_output=True,
        timeout=120,
        check=False,
    )


# NumPy's own library needs the least of these, and ends the process itself where it has less.
@pytest.mark.skipif(not Path("/proc/self/statm").exists(), reason="the system does not tell sizes")
@pytest.mark.parametrize("kilobytes", [*range(150_000, 181_000, 5000), 1_000_000])
def test_f2_below_a_limit_of_addresses_every_end_is_one_line_and_its_code(
    alphabet_model: Path, kilobytes: int
) -> None:
    """A library that cannot be loaded was an internal fault, or a traceback."""
    arguments = ("-q", "-p", "x", "-c", "128", "-m", str(alphabet_model))
    done = run_below(kilobytes, *arguments, OMP_NUM_THREADS="1")
    if b"OpenBLAS" in done.stderr:
        pytest.skip("NumPy's own library ends the process here")
    lines = done.stderr.decode().splitlines()
    assert (done.returncode, len(lines)) in ((0, 0), (4, 1)), done
    assert all(line.startswith("error: ") for line in lines)
    if kilobytes == 1_000_000:
        assert done.stdout.decode() == f"{ALPHABET}\n"


@pytest.mark.parametrize("flags", [(), ("-q",), ("-v",)])
def test_a_full_standard_error_does_not_cost_the_answer(
    alphabet_model: Path, flags: tuple[str, ...]
) -> None:
    with open("/dev/full", "wb") as full:
        done = subprocess.run(
            [sys.executable, "-m", "src.main", "-m", str(alphabet_model), "-p", "x", *flags],
            cwd=REPOSITORY,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=full,
            timeout=120,
            check=False,
        )
    assert (done.returncode, done.stdout.decode()) == (0, f"{ALPHABET}\n")


def test_twin_a_full_standard_output_is_one_line_and_a_fault(alphabet_model: Path) -> None:
    with open("/dev/full", "wb") as full:
        done = subprocess.run(
            [sys.executable, "-m", "src.main", "-m", str(alphabet_model), "-p", "x", "-q"],
            cwd=REPOSITORY,
            stdin=subprocess.DEVNULL,
            stdout=full,
            stderr=subprocess.PIPE,
            timeout=120,
            check=False,
        )
    assert done.returncode == 1
    assert done.stderr == b"error: standard output: No space left on device\n"
