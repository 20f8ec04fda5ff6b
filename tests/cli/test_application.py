"""Exit codes, and errors as one line."""

import json
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from src import __version__, ml
from src.checkpoint import FileMemoryError
from src.cli.application import exit_code
from src.cli.console import UsageError
from src.inference import ContextFullError, NumericError, SamplingError
from src.ml import ShapeError, kernels
from src.ml.kernels import KernelSettingError
from src.model import ModelConfigError, NotEnoughMemoryError
from tests.cli.conftest import ALPHABET, FORMAT_TOKENS, REPOSITORY, Run, environment, run_program


def refusal(run: Run, *arguments: str | Path, stdin: bytes = b"x") -> tuple[int, str]:
    done = run(*arguments, stdin=stdin)
    assert done.stdout == b""
    lines = done.stderr.decode().splitlines()
    assert len([line for line in lines if line.startswith("error: ")]) == 1
    assert "Traceback" not in done.stderr.decode()
    return done.returncode, lines[-1]


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (UsageError("x"), 2), (SamplingError("x"), 2), (ContextFullError(9, 8), 2),
        (KernelSettingError("x"), 2), (ModelConfigError("x"), 3), (ShapeError("x"), 3),
        (NotEnoughMemoryError("x"), 4), (FileMemoryError("x"), 4), (MemoryError(), 4),
        (NumericError("x"), 5), (KeyError("x"), 1),
    ],
)  # fmt: skip
def test_each_kind_of_error_has_its_exit_code(error: Exception, code: int) -> None:
    assert exit_code(error) == code


def test_a_sampling_setting_out_of_range_is_a_usage_error(run: Run, alphabet_model: Path) -> None:
    for flags in (["--temperature", "-1"], ["--top-p", "1.5"], ["--temperature", "nan"]):
        code, line = refusal(run, "-m", alphabet_model, *flags)
        assert code == 2
        assert flags[1].lstrip("-") in line


def test_a_directory_without_a_model_is_a_bad_model(run: Run, tmp_path: Path) -> None:
    for path in (tmp_path, tmp_path / "absent"):
        code, line = refusal(run, "-m", path)
        assert code == 3
        assert str(path) in line


def test_a_missing_tokenizer_is_a_bad_model(run: Run, reciting) -> None:
    directory = reciting(b"abc")
    (directory / "tokenizer.model").unlink()
    code, line = refusal(run, "-m", directory)
    assert code == 3
    for part in ("Meta's layout (base64", "tokenizer.json or", "Hugging Face's"):
        assert part in line
    assert line.endswith("got 'consolidated.00.pth', 'params.json' (2 in all)")


def test_a_path_with_control_characters_is_shown_escaped(run: Run, tmp_path: Path) -> None:
    code, line = refusal(run, "-m", tmp_path / "a\x1b]0;b\x07\u202e")
    assert code == 3
    assert r"\x1b]0;b\x07\u202e" in line


def test_a_cache_beyond_the_memory_is_refused_with_the_arithmetic(
    run: Run, alphabet_model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("src.memory.available_memory", lambda: 1 << 20)
    code, line = refusal(run, "-m", alphabet_model, "-c", "2000")
    assert code == 4
    assert "1.0 MiB" in line
    assert "2 * 1 layers * 2000 positions * 2 heads * 128 * 2 bytes" in line
    monkeypatch.undo()
    assert run("-m", alphabet_model, "-c", "2000", stdin=b"x").returncode == 0


def test_logits_that_are_no_numbers_are_a_numeric_error(run: Run, reciting) -> None:
    code, line = refusal(run, "-m", reciting(b"abc", poisoned=True))
    assert code == 5
    assert "nan" in line


def test_a_traceback_is_shown_only_when_verbose(run: Run, tmp_path: Path) -> None:
    assert b"Traceback" not in run("-m", tmp_path, "-p", "x").stderr
    assert b"Traceback" in run("-m", tmp_path, "-p", "x", "-v").stderr


@pytest.fixture
def threads() -> Iterator[None]:
    before = ml.get_num_threads()
    yield
    ml.set_num_threads(before)


def test_the_number_of_threads_is_set(run: Run, alphabet_model: Path, threads: None) -> None:
    assert run("-m", alphabet_model, "-p", "x", "-q", "-t", "1").stderr == b""
    assert ml.get_num_threads() == 1


def test_threads_that_a_serial_build_lacks_are_a_warning(
    run: Run, alphabet_model: Path, threads: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(kernels, "_most_threads", 1)
    serial = ml.build_info() | {"threading": "serial"}
    monkeypatch.setattr(ml, "build_info", lambda: serial | {"threads": ml.get_num_threads()})
    done = run("-m", alphabet_model, "-p", "x", "-q", "-t", "2")
    assert done.returncode == 0
    assert done.stderr == b"warning: --threads 2: the kernels use 1: built without threads\n"
    assert run("-m", alphabet_model, "-p", "x", "-q", "-t", "1").stderr == b""


def test_verbose_tells_more_of_a_good_run(run: Run, alphabet_model: Path) -> None:
    plain = run("-m", alphabet_model, "-p", "x").stderr.decode().splitlines()
    verbose = run("-m", alphabet_model, "-p", "x", "-v").stderr.decode().splitlines()
    first, *_, last = verbose
    info = ml.build_info()
    assert first.startswith(f"llama-bolts {__version__}, Python ")
    for part in (
        f"kernels for {info['isa']} by",
        f"{info['threading']}, {info['threads']} threads",
    ):
        assert part in first
    assert re.fullmatch(r"\d+\.\d\d s for the whole run", last)
    assert not {first, last} & set(plain)
    assert len(verbose) >= len(plain) + 2


@pytest.mark.parametrize("flags", [("-p", "x" * 60), ("-f",), ("-",), (), ("--completion",)])
def test_a_prompt_that_does_not_fit_is_said_in_the_words_of_the_command_line(
    run: Run, alphabet_model: Path, tmp_path: Path, flags: tuple[str, ...]
) -> None:
    """It was `[generate] prompt_ids must leave room for an answer in the context`."""
    prompt = tmp_path / "prompt"
    prompt.write_text("x" * 60)
    given = ("-f", prompt) if flags == ("-f",) else flags
    stdin = b"" if flags[:1] in (("-p",), ("-f",)) else b"x" * 60
    tokens = 61 if flags == ("--completion",) else FORMAT_TOKENS + 60
    code, line = refusal(run, "-m", alphabet_model, "-c", "48", *given, stdin=stdin)
    assert code == 2
    assert line == (
        f"error: the prompt does not fit: it takes {tokens} tokens, and the context has 48; "
        "a larger --context-length makes room, as far as the model goes"
    )


@pytest.mark.parametrize("value", ["0", "-3", "text", "1000000"])
def test_any_omp_num_threads_is_clamped_and_the_answer_is_whole(
    run_process: Run, alphabet_model: Path, value: str
) -> None:
    done = run_process("-q", "-m", alphabet_model, "-p", "x", "--json", OMP_NUM_THREADS=value)
    assert (done.returncode, done.stderr) == (0, b"")
    assert json.loads(done.stdout)["text"] == ALPHABET


def test_an_instruction_set_that_is_not_here_is_one_line_and_a_usage_error(
    run_process: Run, alphabet_model: Path
) -> None:
    missing = {"avx2", "neon"} - set(kernels.available_isas())
    for name, arguments in (
        ("\x1b[2J", ("--info",)),
        (min(missing), ("-m", str(alphabet_model), "-p", "x", "-q")),
    ):
        done = run_process(*arguments, LLAMA_BOLTS_ISA=name)
        assert (done.returncode, done.stdout) == (2, b"")
        [line] = done.stderr.decode().splitlines()
        assert line.startswith("error: [set_isa] instruction set must be one of ")
        assert line.isprintable()


def test_each_instruction_set_of_this_machine_answers(
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
from src.cli import application, chat, loading
from src.main import main

pages = int(Path("/proc/self/statm").read_text().split()[0])
most = pages * resource.getpagesize() + int(sys.argv[1])
resource.setrlimit(resource.RLIMIT_AS, (most, most))
sys.exit(main(sys.argv[2:]))
"""


def run_limited(more: int, *arguments: str) -> "subprocess.CompletedProcess[bytes]":
    """Runs the program in a process that may grow by so many bytes."""
    command = [sys.executable, "-c", LIMITED, str(more), *arguments]
    return subprocess.run(
        command, cwd=REPOSITORY, env=environment(OMP_NUM_THREADS="1"), input=b"",
        capture_output=True, timeout=120, check=False,
    )  # fmt: skip


@pytest.mark.skipif(not Path("/proc/self/statm").exists(), reason="the system does not tell sizes")
def test_below_a_limit_of_memory_the_program_answers_or_says_so_in_one_line(
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
def test_a_cache_beyond_the_limit_of_memory_is_refused_with_its_bytes(
    random_model: Path,
) -> None:
    done = run_limited(24 << 20, "-m", str(random_model), "-p", "x", "-q", "-c", "100000")
    [line] = done.stderr.decode().splitlines()
    assert (done.returncode, done.stdout) == (4, b"")
    assert "bytes for the KV cache" in line


# NumPy's own library needs the least of these, and ends the process itself where it has less.
@pytest.mark.skipif(not Path("/proc/self/statm").exists(), reason="the system does not tell sizes")
@pytest.mark.parametrize("kilobytes", [*range(150_000, 181_000, 5000), 1_000_000])
def test_below_a_limit_of_addresses_every_end_is_one_line_and_its_code(
    alphabet_model: Path, kilobytes: int
) -> None:
    """A library that cannot be loaded was an internal fault, or a traceback."""
    arguments = ("-q", "-p", "x", "-c", "128", "-m", str(alphabet_model))
    limited = ["sh", "-c", f'ulimit -v {kilobytes}; exec "$@"', "sh"]
    done = run_program(*arguments, prefix=limited, OMP_NUM_THREADS="1")
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
        done = run_program("-m", alphabet_model, "-p", "x", *flags, stderr=full)
    assert (done.returncode, done.stdout.decode()) == (0, f"{ALPHABET}\n")


def test_a_full_standard_output_is_one_line_and_a_fault(alphabet_model: Path) -> None:
    with open("/dev/full", "wb") as full:
        done = run_program("-m", alphabet_model, "-p", "x", "-q", stdout=full)
    assert done.returncode == 1
    assert done.stderr == b"error: standard output: No space left on device\n"
