"""mpirun: rank 0 talks, the others follow; whatever a rank cannot do ends all of them."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pexpect
import pytest

from src.cli import mpirun_is_at_terminal
from src.model.sources import BUNDLED_MODEL
from tests.cli.conftest import (
    PROGRAM,
    REPOSITORY,
    Terminal,
    environment,
    run_code,
    run_program,
)
from tests.support.mpi import LAUNCH, mpirun, needs_mpi, processes
from tests.support.pth_writer import SMALL_PARAMS, write_random_meta_directory

pytestmark = needs_mpi
SECONDS_TO_END = 10
# At such a temperature hardly any answer ends before its 60 tokens.
ASK = (
    *(
        "-p",
        "Tell me about Norway.",
        "--temperature",
        "5",
        "--top-k",
        "0",
        "--top-p",
        "1",
    ),
    *("--seed", "3", "-n", "60", "--json"),
)


def patched(code: str, *arguments: str) -> tuple[str, ...]:
    """Gives a command that changes something of the program before it runs."""
    return (
        sys.executable,
        "-c",
        f"import sys; {code}; from src.main import main; sys.exit(main())",
        *arguments,
    )


def ids(output: str | bytes) -> list[int]:
    return json.loads(output)["token_ids"]


MORE_FLAGS = {
    "chat": (), "completion": ("--completion",), "int8": ("--quantize", "int8"),
    "draft model": ("--draft-model", str(BUNDLED_MODEL)),
}  # fmt: skip
MORE = [
    pytest.param(ranks, flags, marks=pytest.mark.slow, id=f"{ranks} {name}")
    for ranks in (1, 3, 5)
    for name, flags in MORE_FLAGS.items()
]


@pytest.mark.parametrize(("ranks", "flags"), [(2, ()), *MORE])
def test_any_number_of_ranks_gives_the_answer_of_one_process(ranks, flags):
    ended = mpirun(ranks, *PROGRAM, *ASK, *flags)
    assert ended.returncode == 0, ended.stderr
    assert ids(ended.stdout) == ids(run_program(*ASK, *flags).stdout)
    assert len(ids(ended.stdout)) > 10 or flags


def test_one_process_imports_no_mpi():
    done = run_code(
        "import sys; from src.main import main; main(['-q', '-p', 'hi', '-n', '1']); "
        "print([name for name in sys.modules if 'mpi4py' in name or "
        "name.endswith('.ranks')])"
    )
    assert done.stdout.splitlines()[-1] == b"[]"


def test_an_mpirun_that_nobody_may_look_at_is_at_no_terminal(monkeypatch):
    monkeypatch.setenv("PMI_RANK", "0")
    monkeypatch.setenv("PMI_SIZE", "2")
    monkeypatch.setattr("os.getppid", lambda: 0)  # there is no such process
    assert not any(map(mpirun_is_at_terminal, range(3)))


QUESTIONS = (
    "What is the capital of Norway?", "What is 12 + 30?", "hello", "What is RoPE?",
    "What is the capital of Peru?", "thanks", "What is a token?", "What is 7 + 8?",
    "What is attention?", "bye",
)  # fmt: skip


def answers_in_a_terminal(*launch: str) -> list[str]:
    """Chats for ten turns; returns what stands between the questions."""
    flags = ("--temperature", "0.8", "--seed", "5", "--no-stats")
    child = Terminal(*flags, prefix=launch, dimensions=(50, 200), TERM="dumb")
    found = []
    for question in (*QUESTIONS, "/exit"):
        child.expect_exact(">>> ")
        found.append(child.before)
        child.sendline(question)
    assert child.code() == 0
    return found[1:]


@pytest.mark.slow
def test_a_chat_of_ten_turns_is_that_of_one_process():
    one = answers_in_a_terminal()
    assert len(one) == len(QUESTIONS)
    assert answers_in_a_terminal(*LAUNCH, "3") == one


# Standard input, whose end mpirun does not pass on


@pytest.mark.slow
def test_ctrl_d_leaves_the_chat():
    child = Terminal("--temperature", "0", prefix=(*LAUNCH, "2"), TERM="dumb")
    for text in ("hello", "bye"):
        child.expect_exact(">>> ")
        time.sleep(3)  # the silence of a person who thinks is not the end
        child.sendline(text)
    child.expect_exact(">>> ")
    child.sendeof()
    child.expect(pexpect.EOF, timeout=SECONDS_TO_END)
    assert child.code() == 0


@pytest.mark.parametrize("kind", ["file", pytest.param("pipe", marks=pytest.mark.slow)])
def test_standard_input_is_read_to_its_end(tmp_path, kind):
    texts = [f"What is the capital of {name}?" for name in ("Norway", "Peru", "Italy")]
    file = tmp_path / "lines"
    file.write_text("\n".join(map(json.dumps, texts)))
    flags = ("--jsonl", "-", "--temperature", "0", "-q")
    one = run_program(*flags, stdin=file.read_bytes())
    source = f'"$@" < {file}' if kind == "file" else f'(sleep 1; cat {file}) | "$@"'
    done = run_program(*flags, prefix=["sh", "-c", source, "sh", *LAUNCH, "2"])
    assert done.returncode == 0, done.stderr
    found, expected = (
        [ids(line) for line in of.stdout.splitlines()] for of in (done, one)
    )
    assert found == expected
    assert len(found) == len(texts)


# The end


@pytest.fixture
def endless(endless_model: Path) -> Iterator["subprocess.Popen[str]"]:
    """Three ranks in the middle of an answer that does not end."""
    process = subprocess.Popen(
        [*LAUNCH, "3", *PROGRAM, "-m", str(endless_model), "-p", "a", "-c", "100000"],
        cwd=REPOSITORY,
        env=environment(),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert "parameters" in process.stderr.readline()  # loaded
    time.sleep(1)
    yield process
    process.kill()
    process.stderr.close()
    process.wait()


def assert_ended(ranks: dict[int, int]) -> None:
    """Waits a little until no rank runs; one that nobody asks for its exit code does not
    count.
    """
    for pid in ranks.values():
        for _ in range(10 * SECONDS_TO_END):
            state = Path(f"/proc/{pid}/stat")
            if (
                not state.exists()
                or state.read_text().rpartition(")")[2].split()[0] == "Z"
            ):
                break
            time.sleep(0.1)
        else:
            raise AssertionError(f"process {pid} still runs")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("lost", "number", "said"),
    [
        (1, signal.SIGSTOP, "error: rank 1 on "),
        (0, signal.SIGSTOP, "error: rank 0 on "),
        (2, signal.SIGKILL, "rank 2 with PID "),  # mpirun itself says it
    ],
    ids=["stopped", "rank 0 stopped", "killed"],
)
def test_a_lost_rank_ends_all(endless, lost, number, said):
    ranks = processes(endless.pid)
    assert set(ranks) == {0, 1, 2}
    began = time.monotonic()
    os.kill(ranks[lost], number)
    _, text = endless.communicate(timeout=3 * SECONDS_TO_END)
    assert time.monotonic() - began < SECONDS_TO_END
    assert endless.returncode not in (0, None)
    assert text.count(said) == 1
    assert text.count("error:") == said.count("error:")
    assert_ended(ranks)


@pytest.mark.slow
def test_ctrl_c_ends_all(endless):
    ranks = processes(endless.pid)
    endless.send_signal(signal.SIGINT)
    endless.communicate(timeout=SECONDS_TO_END)
    assert endless.returncode != 0
    assert_ended(ranks)


@pytest.mark.slow
def test_a_slow_pass_is_not_a_lost_rank():
    code = (
        "import time; from src.cli import ranks; ranks._LOST_SECONDS = 3.0; "
        "from src.model.llama import LlamaFeedForward as Part; before = Part.forward; "
        "Part.forward = lambda self, x: (time.sleep(1.0), before(self, x))[1]"
    )
    ended = mpirun(2, *patched(code, "-p", "hi", "-n", "2", "--temperature", "0"))
    assert ended.returncode == 0, ended.stderr
    assert ended.stdout


@pytest.mark.slow
def test_what_differs_on_a_rank_ends_all_with_one_line(tmp_path, random_model):
    one = str(random_model)
    other = str(tmp_path / "other")
    params = SMALL_PARAMS | {"use_scaled_rope": True}
    tokenizer = random_model / "tokenizer.model"
    write_random_meta_directory(Path(other), params, tokenizer_model=tokenizer, seed=2)
    flags = ("-p", "a", "-n", "3")
    cut = tmp_path / "cut"
    write_random_meta_directory(cut, SMALL_PARAMS, tokenizer_model=tokenizer, seed=2)
    (cut / "consolidated.00.pth").unlink()
    broken_load = patched(
        "from src.cli import ranks; "
        "ranks.own_forecast = lambda *_: {}['an error between two collective calls']",
        "-m", one, *flags,
    )  # fmt: skip
    no_threads = patched(
        "from mpi4py import MPI; MPI.Query_thread = lambda: 0", "-m", one, *flags
    )
    no_mpi = tmp_path / "no_mpi" / "mpi4py"
    no_mpi.mkdir(parents=True)
    (no_mpi / "__init__.py").write_text("raise ImportError('none of that name')\n")
    no_memory = patched(
        "from src import memory; from src.model import forecast; "
        "forecast.memory.available_memory = lambda *_: 1000",
        "-m", one, *flags,
    )  # fmt: skip
    version = patched("import src; src.__version__ = '9.9'", "-m", one, *flags)
    own = (*PROGRAM, "-m", one, *flags)
    without = ("env", f"PYTHONPATH={no_mpi.parent}", *own)
    cases = {
        "weight files: expected": (3, own, (*PROGRAM, "-m", other, *flags)),
        "version: expected 0.": (2, own, version),
        "memory: expected at most": (4, own, no_memory),
        "got nothing": (3, own, (*PROGRAM, "-m", str(tmp_path / "none"), *flags)),
        "error: rank 1: unrecognized arguments: --none": (2, own, (*own, "--none")),
        "consolidated.00.pth": (3, own, (*PROGRAM, "-m", str(cut), *flags)),
        "internal fault: KeyError('an error between": (1, own, broken_load),
        "expected MPI_THREAD_MULTIPLE (3), got 0": (2, own, no_threads),
        "sizes and settings": (3, own, (*own, "--quantize", "nf4")),
        "rank 0: mpi4py: expected": (2, without, without),
        "rank 1: mpi4py: expected": (2, own, without),
        "--verify: expected one process": (
            2,
            (*PROGRAM, "--verify"),
            (*PROGRAM, "--verify"),
        ),
        "unrecognized arguments": (2, (*PROGRAM, "--none"), (*PROGRAM, "--none")),
        "expected text, got an empty text": (
            2,
            (*PROGRAM, "-p", " "),
            (*PROGRAM, "-p", " "),
        ),
    }
    began = time.monotonic()
    assert mpirun(2, *own).returncode == 0
    seconds = time.monotonic() - began + SECONDS_TO_END
    for text, (code, first, second) in cases.items():
        began = time.monotonic()
        ended = mpirun(1, *first, ":", "-n", "1", *second)
        assert time.monotonic() - began < seconds, text
        lines = [line for line in ended.stderr.splitlines() if "error:" in line]
        assert len(lines) == 1, (text, ended.stderr)
        assert text in lines[0]
        assert ended.returncode == code, (text, ended.stderr)
        assert not ended.stdout
