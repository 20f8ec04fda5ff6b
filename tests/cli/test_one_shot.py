"""One prompt, and with `--jsonl` one per line: what is read, answered, refused and interrupted."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from src.cli.application import MOST_PROMPT_BYTES, find_prompt
from src.cli.arguments import parse_arguments
from src.cli.console import Console, UsageError
from tests.cli.conftest import (
    ALPHABET,
    FORMAT_TOKENS,
    PROGRAM,
    REPOSITORY,
    SECONDS,
    Run,
    environment,
    press_ctrl_c_at,
    run_program,
)
from tests.cli.test_answer import KEYS

ANSWER = f"{ALPHABET}\n".encode()


@pytest.mark.parametrize("flags", [["-p", "Hello"], ["-f", "FILE"], ["-"]])
def test_each_way_to_give_a_prompt_gives_the_same_answer(
    run: Run, alphabet_model: Path, tmp_path: Path, flags: list[str]
) -> None:
    prompt = tmp_path / "prompt.txt"
    prompt.write_text("Hello\n")
    flags = [str(prompt) if flag == "FILE" else flag for flag in flags]
    done = run("-m", alphabet_model, *flags, stdin=b"Hello" if flags == ["-"] else b"")
    assert (done.returncode, done.stdout) == (0, ANSWER)
    prompt_tokens = FORMAT_TOKENS + len("Hello")
    assert f"{prompt_tokens} prompt".encode() in done.stderr


def test_notes_go_to_standard_error_a_line_each(run: Run, alphabet_model: Path) -> None:
    loading, statistics = run("-m", alphabet_model, "-p", "x", "--seed", "5").stderr.splitlines()
    for part in (alphabet_model.name, "parameters", "bfloat16", "MiB", "context 4096 tokens"):
        assert part in loading.decode()
    for part in ("prompt", "27 new", "51/4096", " eot,", "seed 5"):
        assert part in statistics.decode()


def test_quiet_leaves_the_answer_alone(run: Run, alphabet_model: Path) -> None:
    done = run("-m", alphabet_model, "-p", "x", "-q")
    assert (done.stdout, done.stderr) == (ANSWER, b"")


def test_statistics_can_be_left_out(run: Run, alphabet_model: Path) -> None:
    assert run("-m", alphabet_model, "-p", "x", "--no-stats").stderr.count(b"\n") == 1


def test_nothing_is_coloured_without_a_terminal(
    run: Run, alphabet_model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FORCE_COLOR", "1")
    done = run("-m", alphabet_model, "-p", "x")
    assert b"\x1b" not in done.stdout + done.stderr


@pytest.mark.parametrize(
    ("flags", "answer", "notes"),
    [
        (["-n", "3"], b"abc\n", b"max tokens"),
        (["--stop", "no", "--stop", "def"], b"abc\n", b"stop string"),
        (["-c", "40"], b"abcdefghijklmnop\n", b"40/40, context full"),
    ],
)
def test_an_answer_stops_at_a_limit_and_says_which(
    run: Run, endless_model: Path, flags: list[str], answer: bytes, notes: bytes
) -> None:
    done = run("-m", endless_model, "-p", "x", *flags)
    assert done.stdout == answer
    assert notes in done.stderr


def test_a_completion_continues_the_raw_text(run: Run, alphabet_model: Path) -> None:
    done = run("-m", alphabet_model, "--completion", stdin=b"some w\n")
    assert done.stdout == b"xyz\n"
    assert b"7 prompt" in done.stderr


def test_a_system_prompt_comes_before_the_message(run: Run, alphabet_model: Path) -> None:
    without = run("-m", alphabet_model, "-p", "x").stderr
    system = run("-m", alphabet_model, "-p", "x", "-s", "short").stderr
    assert b"24 prompt" in without
    assert b"40 prompt" in system


def test_an_example_runs_by_its_number(run: Run, alphabet_model: Path) -> None:
    done = run("-m", alphabet_model, "--example", "1")
    assert done.stdout == b"tuvwxyz\n"  # the prompt ends with an "s"


def test_an_answer_keeps_its_control_characters_in_a_pipe(run: Run, reciting) -> None:
    assert run("-m", reciting(b"\x1b[31m"), "-p", "x").stdout == b"\x1b[31m\n"


def test_a_character_of_several_tokens_comes_whole(run: Run, reciting) -> None:
    assert run("-m", reciting("🙂é".encode()), "-p", "x").stdout == "🙂é\n".encode()


def test_bytes_that_are_no_utf8_are_read_as_replacement_characters(
    run: Run, alphabet_model: Path
) -> None:
    broken = run("-m", alphabet_model, stdin=b"a\xffb\xc3")
    whole = run("-m", alphabet_model, stdin="a\ufffdb\ufffd".encode())
    assert broken.stdout == whole.stdout == ANSWER
    assert broken.stderr.split(b"prompt")[0][-3:] == whole.stderr.split(b"prompt")[0][-3:]


def test_bytes_that_are_no_utf8_are_counted_on_standard_input_and_refused_in_a_file(
    run: Run, alphabet_model: Path, tmp_path: Path
) -> None:
    warning = run("-m", alphabet_model, stdin=b"a\xffb\xc3 \xef\xbf\xbd").stderr.splitlines()[0]
    assert warning == (b"warning: standard input: expected UTF-8, got 2 parts that are not: U+FFFD")
    assert b"warning" not in run("-m", alphabet_model, stdin="\ufffd é".encode()).stderr
    path = tmp_path / "prompt"
    path.write_bytes(b"\x7fELF\xff\x00")
    done = run("-m", alphabet_model, "-f", path)
    assert (done.returncode, done.stdout) == (2, b"")
    assert done.stderr.endswith(b": prompt: expected UTF-8, got other bytes at byte 4\n")


def test_a_prompt_far_too_long_is_refused_before_it_is_read(
    run: Run, alphabet_model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("src.cli.application.MOST_PROMPT_BYTES", 1024)
    path = tmp_path / "prompt"
    for length, code in ((1024, 0), (1025, 2), (100_000, 2)):
        path.write_bytes(b"x" * length)
        for done in (
            run("-m", alphabet_model, "-f", path),
            run("-m", alphabet_model, stdin=b"x" * length),
        ):
            assert done.returncode == code
            assert (b": prompt: expected at most 1.0 KiB, got more\n" in done.stderr) == bool(code)
    assert run("-m", alphabet_model, "-f", "/dev/zero").returncode == 2


def test_the_mark_of_a_byte_order_is_no_part_of_a_prompt(tmp_path: Path) -> None:
    path = tmp_path / "prompt"
    path.write_bytes("\ufeffé\n".encode())
    assert find_prompt(parse_arguments(["-f", str(path)]), Console()) == "é"


def test_a_nul_byte_is_text(run: Run, alphabet_model: Path) -> None:
    assert run("-m", alphabet_model, stdin=b"a\0b").stdout == ANSWER


@pytest.mark.parametrize("stdin", [b"", b"\n", b" \t\r\n"])
def test_without_a_prompt_it_says_so_and_ends(run: Run, alphabet_model: Path, stdin: bytes) -> None:
    done = run("-m", alphabet_model, stdin=stdin)
    assert (done.returncode, done.stdout) == (2, b"")
    assert done.stderr == b"error: standard input: prompt: expected text, got none\n"


def test_a_closed_standard_input_is_an_empty_one(alphabet_model: Path) -> None:
    done = run_program("-m", alphabet_model, prefix=["sh", "-c", '"$@" <&-', "sh"])
    assert (done.returncode, done.stderr.count(b"\n")) == (2, 1)


def test_a_closed_standard_output_ends_quietly(alphabet_model: Path) -> None:
    closed = ["sh", "-c", '"$@" >&-', "sh"]
    done = run_program("-m", alphabet_model, "-p", "x", "-q", prefix=closed)
    assert (done.returncode, done.stderr) == (0, b"")


def test_a_reader_that_stops_ends_the_answer_quietly(endless_model: Path) -> None:
    pipeline = ["bash", "-c", '"$@" | head -c 5; exit ${PIPESTATUS[0]}', "bash"]
    done = run_program("-m", endless_model, "-p", "x", "-q", prefix=pipeline)
    assert (done.returncode, done.stdout, done.stderr) == (0, b"abcde", b"")


def test_the_answer_streams_through_a_pipe(endless_model: Path) -> None:
    process = subprocess.Popen(
        [*PROGRAM, "-m", str(endless_model), "-p", "x", "-q", "-c", "100000"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        cwd=REPOSITORY,
        env=environment(),
    )
    with process:
        assert process.stdout is not None
        assert os.read(process.stdout.fileno(), 100)[:1] == b"a"
        assert process.poll() is None
        process.kill()


def test_ctrl_c_ends_with_130_and_no_traceback(endless_model: Path) -> None:
    process = subprocess.Popen(
        [*PROGRAM, "-m", str(endless_model), "-p", "x", "-c", "100000"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        cwd=REPOSITORY,
        env=environment(),
    )
    assert process.stdout is not None
    process.stdout.read(1)
    process.send_signal(signal.SIGINT)
    process.send_signal(signal.SIGINT)
    rest, notes = process.communicate(timeout=SECONDS)
    assert process.returncode == 130
    assert rest.endswith(b"\n")
    assert b"interrupted" in notes
    assert b"Traceback" not in notes


@pytest.mark.parametrize("seconds", [0.001, 0.05, 0.1, 0.2, 0.4, 0.8])
def test_ctrl_c_at_any_moment_ends_with_130(endless_model: Path, seconds: float) -> None:
    # The timer starts when the program does: before that a signal is the interpreter's business.
    program = (
        "import signal, sys\n"
        "from src.main import main\n"
        "signal.signal(signal.SIGALRM, lambda *_: signal.raise_signal(signal.SIGINT))\n"
        "signal.setitimer(signal.ITIMER_REAL, float(sys.argv[1]))\n"
        "sys.exit(main(sys.argv[2:]))\n"
    )
    done = subprocess.run(
        [
            *(sys.executable, "-c", program, str(seconds)),
            *("-m", str(endless_model), "-p", "x", "-c", "100000"),
        ],
        capture_output=True,
        cwd=REPOSITORY,
        env=environment(),
        timeout=SECONDS,
        check=False,
    )
    assert done.returncode == 130
    assert b"Traceback" not in done.stderr


def test_a_prompt_file_that_cannot_be_read_is_refused(tmp_path: Path) -> None:
    for path, reason in ((tmp_path, "Is a directory"), (tmp_path / "no", "No such file")):
        with pytest.raises(UsageError, match=reason):
            find_prompt(parse_arguments(["-f", str(path)]), Console())


def test_a_prompt_file_may_be_a_pipe(run: Run, alphabet_model: Path, tmp_path: Path) -> None:
    fifo = tmp_path / "fifo"
    os.mkfifo(fifo)
    with subprocess.Popen(["sh", "-c", f"printf hello > {fifo}"]):
        assert run("-m", alphabet_model, "-f", fifo).stdout == ANSWER


def test_only_the_last_newline_of_a_file_is_left_out(tmp_path: Path) -> None:
    path = tmp_path / "prompt"
    for content, prompt in ((b"a\n", "a"), (b"a\r\n", "a"), (b" a\n\n", " a\n"), (b"a", "a")):
        path.write_bytes(content)
        assert find_prompt(parse_arguments(["-f", str(path)]), Console()) == prompt


@pytest.mark.parametrize("flags", [("-p", "x"), ("-f", "FILE"), ("--example", "2")])
def test_text_on_standard_input_beside_a_prompt_is_refused(
    run_process: Run, alphabet_model: Path, tmp_path: Path, flags: tuple[str, str]
) -> None:
    """It was left unread, and the answer knew nothing of it."""
    file = tmp_path / "prompt"
    file.write_text("x")
    given = [str(file) if flag == "FILE" else flag for flag in flags]
    # Bash writes the text before the program starts, which waits for none.
    letter = ["bash", "-c", '"$@" <<< "a long letter"', "bash"]
    done = run_process("-m", alphabet_model, "-q", *given, prefix=letter)
    where = str(file) if flags[0] == "-f" else "--prompt"
    assert (done.returncode, done.stdout) == (2, b"")
    assert done.stderr.decode() == (
        f"error: standard input: expected nothing beside {where}, got text; "
        "< /dev/null leaves it out\n"
    )
    assert run_process("-m", alphabet_model, "-q", *given).returncode == 0


def test_a_file_on_standard_input_beside_a_prompt_is_refused_and_a_silent_pipe_is_not_waited_for(
    alphabet_model: Path, tmp_path: Path
) -> None:
    file = tmp_path / "letter"
    file.write_text("a long letter")
    reading, writing = os.pipe()
    with open(file, "rb") as letter, open("/dev/null", "rb") as nothing:
        for stream, code in ((letter, 2), (nothing, 0), (reading, 0)):
            command = [*PROGRAM, "-m", str(alphabet_model), "-q", "-p", "x"]
            done = subprocess.run(
                command, stdin=stream, capture_output=True, cwd=REPOSITORY, timeout=60, check=False
            )
            assert done.returncode == code
    os.close(reading)
    os.close(writing)


HELLO = b'{"prompt": "Hello"}\n'


def records(output: bytes) -> list[dict[str, Any]]:
    assert output.isascii()
    return [json.loads(line) for line in output.splitlines()]


def asked(run: Run, model: Path, lines: bytes, *flags: str) -> Any:
    return run("-m", model, "--jsonl", "-", "-c", "200", *flags, stdin=lines)


def test_each_line_is_answered_by_itself_with_the_record_of_json(
    run: Run, alphabet_model: Path, tmp_path: Path
) -> None:
    file = tmp_path / "prompts.jsonl"
    messages = [
        {"role": "user", "content": "Hello"},
        {"role": "assistant", "content": "ab"},
        {"role": "user", "content": "more"},
    ]
    lines = [HELLO.decode(), "\n", '"text"\n', json.dumps({"messages": messages})]
    file.write_text("".join(lines))
    done = run("-m", alphabet_model, "--jsonl", file, "-q", "--seed", "5")
    assert (done.returncode, done.stderr) == (0, b"")
    found = records(done.stdout)
    assert [record["line"] for record in found] == [1, 3, 4]
    for record in found:
        assert record.keys() == KEYS | {"line"}
        assert (record["text"], record["stop_reason"], record["seed"]) == (ALPHABET, "eot", 5)
    # Each conversation is its own: nothing of the lines before is in it.
    turn = FORMAT_TOKENS + len("Helloab") + 1
    expected = [FORMAT_TOKENS + 5, FORMAT_TOKENS + 4, turn + FORMAT_TOKENS - 1 + len("more")]
    assert [record["prompt_tokens"] for record in found] == expected


@pytest.mark.parametrize(
    ("line", "error"),
    [
        (b"Hello", "expected JSON"),
        (b'{"prompt": "a", "prompt": "b"}', "expected each key once"),
        (b'{"prompt": "x"', "expected JSON"),
        (b'"\xff"', "expected UTF-8"),
        (b"[" * 100000, "expected a few levels of nesting"),
        (b"[]", 'a text, or an object with "prompt" or "messages" alone, got a'),
        (b"7", "got 7"),
        (b"null", "alone, got "),
        (b"{}", "alone, got a"),
        (b'{"text": "x"}', "alone, got a"),
        (b'{"prompt": "x", "messages": []}', "alone, got a"),
        (b'{"prompt": 7}', "prompt: expected a text, got 7"),
        (b'{"prompt": " "}', "prompt: expected a text, got ' '"),
        (b'{"messages": "x"}', "must be a list of Message, or dicts such as"),
        (b'{"messages": []}', "at least one message"),
        (b'{"messages": [{"role": "user"}]}', "messages[0] must have the keys role and content"),
        (b'{"messages": [{"role": "boss", "content": "x"}]}', "role must be one of"),
        (b'"' + b"x" * 300 + b'"', "323 tokens >= 200 positions"),
        (b'"' + b"x" * MOST_PROMPT_BYTES + b'"', "expected at most 4.0 MiB, got more"),
    ],
    ids=lambda value: repr(value[:40]),
)
def test_a_bad_line_is_one_error_and_the_others_are_answered(
    run: Run, alphabet_model: Path, line: bytes, error: str
) -> None:
    done = asked(run, alphabet_model, HELLO + line + b"\n" + HELLO, "-q")
    assert done.returncode == 2
    assert [record["line"] for record in records(done.stdout)] == [1, 3]
    first, last = done.stderr.decode().splitlines()
    assert first.startswith("error: standard input: line 2: ")
    assert error in first
    assert last.endswith("expected an answer to each line, got 1 of 3 without one")


def test_the_system_prompt_goes_before_lines_that_have_none(run: Run, alphabet_model: Path) -> None:
    own = {"role": "system", "content": "four"}
    lines = [
        {"prompt": "x"},
        {"messages": [{"role": "user", "content": "x"}]},
        {"messages": [own, {"role": "user", "content": "x"}]},
    ]
    text = "\n".join(map(json.dumps, lines)).encode()
    counts = [r["prompt_tokens"] for r in records(asked(run, alphabet_model, text).stdout)]
    with_system = records(asked(run, alphabet_model, text, "-s", "four").stdout)
    assert counts[0] == counts[1] == FORMAT_TOKENS + 1
    assert [r["prompt_tokens"] for r in with_system] == [counts[2]] * 3
    assert counts[2] > counts[0]


def test_texts_are_continued_with_completion(run: Run, alphabet_model: Path) -> None:
    done = asked(run, alphabet_model, b'"see x"\n{"messages": []}\n', "--completion")
    assert records(done.stdout)[0]["text"] == "yz"
    assert b"line 2: expected a prompt, since texts are continued, got messages" in done.stderr


@pytest.mark.parametrize(
    ("name", "reason"),
    [("absent", "got No such file"), (".", "got Is a directory"), ("empty", "got no lines")],
)
def test_a_file_without_lines_is_refused_before_a_model_is_loaded(
    run: Run, tmp_path: Path, name: str, reason: str
) -> None:
    (tmp_path / "empty").write_text("\n\n")
    done = run("-m", tmp_path / "no-model", "--jsonl", tmp_path / name)
    assert done.returncode == 2
    assert done.stderr.count(b"\n") == 1
    assert reason.encode() in done.stderr


def test_records_come_as_soon_as_their_line(alphabet_model: Path) -> None:
    command = [*PROGRAM, "-m", str(alphabet_model), "--jsonl", "-", "-q"]
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, cwd=REPOSITORY, env=environment()
    ) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        for number in (1, 2):
            process.stdin.write(HELLO)
            process.stdin.flush()
            assert json.loads(process.stdout.readline())["line"] == number
        process.stdin.close()
        assert process.wait() == 0


def test_ctrl_c_leaves_the_record_of_the_answer_it_stopped(
    run: Run, endless_model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from src.inference import Sampler

    press_ctrl_c_at(monkeypatch, Sampler, "sample", 4, after=False)
    done = asked(run, endless_model, HELLO * 3)
    assert done.returncode == 130
    (record,) = records(done.stdout)
    assert (record["text"], record["stop_reason"]) == ("abcd", "interrupted")
