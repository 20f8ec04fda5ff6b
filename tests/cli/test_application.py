"""Exit codes, and errors as one line."""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from src import __version__, ml
from src.checkpoint import FileMemoryError
from src.cli.application import describe_error
from src.cli.console import UsageError
from src.inference import ContextFullError, NumericError, SamplingError
from src.ml import ShapeError, kernels
from src.ml.errors import KernelSettingError
from src.model import ModelConfigError, NotEnoughMemoryError
from tests.cli.conftest import (
    ALPHABET,
    FORMAT_TOKENS,
    Outcome,
    Run,
    reply,
    run_code,
    run_program,
    session_of,
)


def slow(*values: object) -> list[Any]:
    """More of the same, each of which starts a process."""
    return [pytest.param(value, marks=pytest.mark.slow) for value in values]


ANSWERED = Outcome(0, f"{ALPHABET}\n".encode(), b"")


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
def test_each_kind_of_error_has_its_exit_code(error, code):
    assert describe_error(error)[0] == code


@pytest.mark.parametrize("flag", ["--temperature=-1", "--top-p=1.5", "--temperature=nan"])
def test_a_sampling_setting_out_of_range_is_refused_before_a_model_is_looked_for(
    run, flag
):
    code, line = refusal(run, "-m", "absent", flag)
    assert code == 2
    assert flag.partition("=")[2].lstrip("-") in line


def test_a_directory_without_a_model_is_a_bad_model_with_a_traceback_if_verbose(
    run, tmp_path
):
    code, line = refusal(run, "-m", tmp_path)
    assert code == 3
    assert str(tmp_path) in line
    assert b"Traceback" in run("-m", tmp_path, "-p", "x", "-v").stderr


def test_a_missing_tokenizer_is_a_bad_model(run, reciting):
    directory = reciting(b"abc")
    (directory / "tokenizer.model").unlink()
    code, line = refusal(run, "-m", directory)
    assert code == 3
    for part in (
        "tokenizer.model (Meta's layout)",
        "tokenizer.json or",
        "Hugging Face's",
    ):
        assert part in line
    assert line.endswith("got 'consolidated.00.pth', 'params.json' (2 in all)")


def test_logits_that_are_no_numbers_are_a_numeric_error(run, reciting):
    code, line = refusal(run, "-m", reciting(b"abc", poisoned=True))
    assert code == 5
    assert "nan" in line


@pytest.fixture(autouse=True)
def threads_as_before() -> Iterator[None]:
    before = ml.get_num_threads()
    yield
    ml.set_num_threads(before)


@pytest.mark.parametrize(
    ("flags", "by"),
    [((), "special tokens"), (("--chat-format", "llama3"), "--chat-format")],
)
def test_verbose_and_show_model_tell_all_that_was_found(
    run, alphabet_model, capsys, flags, by
):
    given = ("-c", "128", "--rope-scaling-factor", "8", *flags)
    done = run("-m", alphabet_model, "-p", "x", *given, "-v")
    first, _loading, details, _statistics, last = done.stderr.decode().splitlines()
    info = ml.build_info()
    assert first.startswith(f"llama-bolts {__version__}, Python ")
    assert f"kernels for {info['isa']} by" in first
    assert f"{info['threading']}, {info['threads']} threads" in first
    assert details.startswith(f"{alphabet_model} (Meta")
    shown = reply(capsys, session_of(alphabet_model, *given), "/show model").splitlines()
    for part in (
        str(alphabet_model), "1.3 M parameters", "mapped", ("RoPE scaling factor 8 by "
                                                           "override"),
        f"chat format llama3 by {by}", "KV cache 128.0 KiB for 128 tokens", " free",
    ):  # fmt: skip
        assert part in details
        assert sum(part in line for line in shown) == 1
    assert re.fullmatch(r"\d+\.\d\d s for the whole run", last)


@pytest.mark.parametrize(
    ("flags", "around"), [((), FORMAT_TOKENS), (("--completion",), 1)]
)
def test_a_prompt_that_does_not_fit_is_said_in_words_of_flags(
    run, alphabet_model, flags, around
):
    """It was `[generate] prompt_ids must leave room for an answer in the context`."""
    assert refusal(run, "-m", alphabet_model, "-c", "48", *flags, stdin=b"x" * 60) == (
        2,
        f"error: the prompt does not fit: it takes {around + 60} tokens, and the context "
        "has 48; --context-length sets a larger context, up to the limit of the model",
    )


def test_more_threads_than_there_can_be_are_a_warning(run):
    done = run("--explain", "1", "-q", "-t", "1000")
    used = ml.get_num_threads()
    assert done.stderr.decode() == f"warning: --threads 1000: the kernels use {used}\n"


@pytest.mark.parametrize("value", ["text", "1000000", *slow("0", "-3")])
def test_any_omp_num_threads_is_clamped_and_the_answer_is_whole(alphabet_model, value):
    done = run_program("-q", "-m", alphabet_model, "-p", "x", OMP_NUM_THREADS=value)
    assert done == ANSWERED


def test_an_instruction_set_that_is_not_here_is_one_line_and_a_usage_error(
    alphabet_model,
):
    missing = min({"avx2", "neon"} - set(kernels.available_isas()))
    for name, *arguments in (
        ("\x1b[2J", "--info"),
        (missing, "-m", alphabet_model, "-p", "x", "-q"),
    ):
        done = run_program(*arguments, LLAMA_BOLTS_ISA=name)
        assert (done.returncode, done.stdout) == (2, b"")
        [line] = done.stderr.decode().splitlines()
        assert line.startswith("error: [set_isa] instruction set must be one of ")
        assert line.isprintable()


needs_statm = pytest.mark.skipif(
    not Path("/proc/self/statm").exists(), reason="the system does not tell sizes"
)
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


def run_limited(more: int, *arguments: str | Path) -> Outcome:
    """Runs the program in a process that may grow by so many bytes."""
    return run_code(LIMITED, str(more), *arguments, OMP_NUM_THREADS="1")


@needs_statm
def test_below_a_limit_of_memory_the_program_answers_or_says_so_in_one_line(
    alphabet_model,
):
    codes = []
    for more in (0, 8 << 20, 1 << 28):
        done = run_limited(more, "-m", alphabet_model, "-p", "x", "-q", "-c", "128")
        lines = done.stderr.decode().splitlines()
        assert len(lines) == (done.returncode != 0), done.stderr
        assert all(line.startswith("error: ") and line.isprintable() for line in lines)
        codes.append(done.returncode)
        assert done.returncode or done == ANSWERED
    assert set(codes) == {0, 4}
    assert codes == sorted(codes, reverse=True)  # what is enough stays enough


@needs_statm
def test_a_cache_beyond_the_limit_of_memory_is_refused_with_its_bytes(random_model):
    done = run_limited(24 << 20, "-m", random_model, "-p", "x", "-q", "-c", "100000")
    [line] = done.stderr.decode().splitlines()
    assert (done.returncode, done.stdout) == (4, b"")
    assert "bytes for the KV cache" in line


# NumPy's own library needs the least of these, and ends the process itself where it has
# less.
@needs_statm
@pytest.mark.parametrize(
    "kilobytes",
    [150_000, 165_000, 1_000_000, *slow(155_000, 160_000, 170_000, 175_000, 180_000)],
)
def test_below_a_limit_of_addresses_every_end_is_one_line_and_its_code(
    alphabet_model, kilobytes
):
    """A library that cannot be loaded was an internal fault, or a traceback."""
    limited = ["sh", "-c", f'ulimit -v {kilobytes}; exec "$@"', "sh"]
    arguments = ("-q", "-p", "x", "-c", "128", "-m", alphabet_model)
    done = run_program(*arguments, prefix=limited, OMP_NUM_THREADS="1")
    if b"OpenBLAS" in done.stderr:
        pytest.skip("NumPy's own library ends the process here")
    lines = done.stderr.decode().splitlines()
    assert (done.returncode, len(lines)) in ((0, 0), (4, 1)), done
    assert all(line.startswith("error: ") for line in lines)
    assert kilobytes < 1_000_000 or done == ANSWERED


@pytest.mark.skipif(
    not Path("/dev/full").exists(), reason="the system has no full device"
)
@pytest.mark.parametrize("flags", [("-v",), *slow((), ("-q",))])
def test_a_full_standard_error_does_not_cost_the_answer_as_standard_output_does(
    alphabet_model, flags
):
    asked = ("-m", alphabet_model, "-p", "x")
    said = b"error: standard output: No space left on "
    with open("/dev/full", "wb") as full:
        assert run_program(*asked, *flags, stderr=full) == ANSWERED
        assert run_program(*asked, "-q", stdout=full) == Outcome(
            1, b"", said + b"device\n"
        )
