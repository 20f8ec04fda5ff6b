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
from src.cli.console import UsageError
from src.inference import Sampler
from tests.cli.conftest import (
    ALPHABET,
    FORMAT_TOKENS,
    SECONDS,
    Outcome,
    Run,
    press_ctrl_c_at,
    run_program,
    start_program,
)
from tests.cli.test_answer import KEYS

ANSWER = f"{ALPHABET}\n".encode()


@pytest.mark.parametrize(
    ("flags", "stdin", "answer", "note"),
    [
        (["-p", "Hello"], b"", ANSWER, f"{FORMAT_TOKENS + 5} prompt"),
        (["-f", "FILE"], b"", ANSWER, f"{FORMAT_TOKENS + 5} prompt"),
        (["-"], b"Hello", ANSWER, f"{FORMAT_TOKENS + 5} prompt"),
        (["-"], b"a\0b", ANSWER, f"{FORMAT_TOKENS + 3} prompt"),
        (["-p", "Hello", "-s", "short"], b"", ANSWER, f"{FORMAT_TOKENS + 5 + 16} prompt"),
        (["--completion"], b"some w\n", b"xyz\n", "7 prompt"),
        (["--example", "1"], b"", b"tuvwxyz\n", "18 prompt"),  # which ends with an "s"
        (["-p", "x", "-n", "3"], b"", b"abc\n", "max tokens"),
        (["-p", "x", "--stop", "no", "--stop", "def"], b"", b"abc\n", "stop string"),
        (["-p", "x", "-c", "40"], b"", b"abcdefghijklmnop\n", "40/40, context full"),
    ],
)
def test_a_prompt_given_in_any_way_is_answered_up_to_its_end_or_a_limit(
    run, alphabet_model, tmp_path, flags, stdin, answer, note
):
    prompt = tmp_path / "prompt.txt"
    prompt.write_text("Hello\n")
    given = [str(prompt) if flag == "FILE" else flag for flag in flags]
    done = run("-m", alphabet_model, *given, stdin=stdin)
    assert (done.returncode, done.stdout) == (0, answer)
    assert note in done.stderr.decode()


@pytest.mark.parametrize("number", range(1, 7))
def test_each_example_gets_an_answer_of_the_bundled_model(run, number):
    done = run("--example", number, "--temperature", "0", "-n", "64")
    assert (done.returncode, bool(done.stdout.strip())) == (0, True)


def test_notes_are_lines_of_standard_error_unless_left_out(run, alphabet_model, monkeypatch):
    monkeypatch.setenv("FORCE_COLOR", "1")  # nothing is coloured without a terminal
    loading, statistics = run("-m", alphabet_model, "-p", "x", "--seed", "5").stderr.splitlines()
    for part in (alphabet_model.name, "parameters", "bfloat16", "MiB", "context 4096 tokens"):
        assert part in loading.decode()
    for part in ("prompt", "27 new", "51/4096", " eot,", "seed 5"):
        assert part in statistics.decode()
    assert b"\x1b" not in loading + statistics
    assert run("-m", alphabet_model, "-p", "x", "--no-stats").stderr.splitlines() == [loading]
    assert run("-m", alphabet_model, "-p", "x", "-q") == Outcome(0, ANSWER, b"")


@pytest.mark.parametrize("answer", ["\x1b[31m", "🙂é"], ids=["controls", "several tokens"])
def test_an_answer_keeps_its_characters_in_a_pipe(run, reciting, answer):
    assert run("-m", reciting(answer.encode()), "-p", "x").stdout == f"{answer}\n".encode()


def test_bytes_that_are_no_utf8_are_read_as_replacement_characters(run, alphabet_model):
    broken = run("-m", alphabet_model, stdin=b"a\xffb\xc3 \xef\xbf\xbd")
    whole = run("-m", alphabet_model, stdin="a\ufffdb\ufffd \ufffd".encode())
    assert broken.stdout == whole.stdout == ANSWER
    assert broken.stderr.split(b"prompt")[0][-3:] == whole.stderr.split(b"prompt")[0][-3:]


def test_a_prompt_far_too_long_is_refused_unread(run, alphabet_model, tmp_path, monkeypatch):
    monkeypatch.setattr("src.cli.application.MOST_PROMPT_BYTES", 1024)
    path = tmp_path / "prompt"
    for text, code in ((b"x" * 1024, 0), (b"x" * 1025, 2)):
        path.write_bytes(text)
        for flags, stdin in ((("-f", path), b""), ((), text)):
            done = run("-m", alphabet_model, *flags, stdin=stdin)
            assert done.returncode == code
            assert (b": prompt: expected at most 4.0 MiB, got more\n" in done.stderr) == bool(code)
    assert run("-m", alphabet_model, "-f", "/dev/zero").returncode == 2


@pytest.mark.parametrize("stdin", [b"", b"\n", b" \t\r\n"])
def test_without_a_prompt_it_says_so_and_ends(run, alphabet_model, stdin):
    done = run("-m", alphabet_model, stdin=stdin)
    assert (done.returncode, done.stdout) == (2, b"")
    assert done.stderr == b"error: standard input: prompt: expected text, got none\n"


def test_a_closed_standard_input_is_an_empty_one(alphabet_model):
    done = run_program("-m", alphabet_model, prefix=["sh", "-c", '"$@" <&-', "sh"])
    assert (done.returncode, done.stderr.count(b"\n")) == (2, 1)


@pytest.mark.parametrize(
    ("script", "shown"),
    [('"$@" >&-', b""), ('"$@" | head -c 5; exit ${PIPESTATUS[0]}', b"abcde")],
    ids=["closed", "a reader that stops"],
)
def test_standard_output_that_takes_no_more_ends_the_answer_quietly(endless_model, script, shown):
    flags = ("-m", endless_model, "-p", "x", "-q", "-n", "1000")
    assert run_program(*flags, prefix=["bash", "-c", script, "bash"]) == Outcome(0, shown, b"")


def test_the_answer_streams_through_a_pipe_and_ctrl_c_ends_it_without_a_traceback(endless_model):
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    process = start_program("-m", endless_model, "-p", "x", "-c", "100000", **pipes)
    assert process.stdout.read(1) == b"a"
    assert process.poll() is None
    process.send_signal(signal.SIGINT)
    process.send_signal(signal.SIGINT)
    rest, notes = process.communicate(timeout=SECONDS)
    assert process.returncode == 130
    assert rest.endswith(b"\n")
    assert b"interrupted" in notes
    assert b"Traceback" not in notes


@pytest.mark.parametrize(
    ("path", "reason"),
    [(".", "Is a directory"), ("no/no", "No such file"), (sys.executable, "UTF-8, got other by")],
)
def test_a_prompt_file_that_cannot_be_read_is_refused(path, reason):
    with pytest.raises(UsageError, match=reason):
        find_prompt(parse_arguments(["-f", path]))


@pytest.mark.parametrize(
    ("content", "prompt"),
    [("a\n", "a"), ("a\r\n", "a"), (" a\n\n", " a\n"), ("a", "a"), ("\ufeffé\n", "é")],
)
def test_the_last_newline_and_the_byte_order_mark_are_left_out(tmp_path, content, prompt):
    path = tmp_path / "prompt"
    path.write_bytes(content.encode())
    assert find_prompt(parse_arguments(["-f", str(path)])) == prompt


def test_a_prompt_file_may_be_a_pipe(run, alphabet_model, tmp_path):
    fifo = tmp_path / "fifo"
    os.mkfifo(fifo)
    with subprocess.Popen(["sh", "-c", f"printf hello > {fifo}"]):
        assert run("-m", alphabet_model, "-f", fifo).stdout == ANSWER


@pytest.mark.parametrize(
    ("flags", "redirected", "where"),
    [
        (("-p", "x"), "< LICENSE", "--prompt"),
        (("-f", "LICENSE"), '<<< "a letter"', "LICENSE"),
        (("--example", "2"), "< LICENSE", "--prompt"),
    ],
)
def test_text_on_stdin_beside_a_prompt_is_refused(alphabet_model, flags, redirected, where):
    """It was left unread, and the answer knew nothing of it."""
    # Bash writes a text before the program starts, which waits for none.
    letter = ["bash", "-c", f'"$@" {redirected}', "bash"]
    done = run_program("-m", alphabet_model, "-q", *flags, prefix=letter)
    assert (done.returncode, done.stdout) == (2, b"")
    assert done.stderr.decode() == (
        f"error: standard input: expected nothing beside {where}, got text; "
        "< /dev/null leaves it out\n"
    )


def test_a_dash_reads_what_is_typed(spawn, alphabet_model):
    child = spawn("-m", alphabet_model, "-", "-q")
    child.sendline("Hello")
    child.sendeof()
    assert child.read().splitlines()[-1] == ALPHABET


def test_nothing_on_stdin_beside_a_prompt_is_not_waited_for(alphabet_model):
    reading, writing = os.pipe()
    with open("/dev/null", "rb") as nothing, open(reading) as silent, open(writing, "w"):
        for stream in (nothing, silent):
            arguments = ("-m", alphabet_model, "-q", "-p", "x", "-n", "1")
            assert start_program(*arguments, stdin=stream).wait(timeout=SECONDS) == 0


HELLO = b'{"prompt": "Hello"}\n'


def records(output: bytes) -> list[dict[str, Any]]:
    assert output.isascii()
    return [json.loads(line) for line in output.splitlines()]


def asked(run: Run, model: Path, lines: bytes, *flags: str) -> Outcome:
    return run("-m", model, "--jsonl", "-", "-c", "200", *flags, stdin=lines)


def test_each_line_is_answered_by_itself_with_the_record_of_json(run, alphabet_model, tmp_path):
    file = tmp_path / "prompts.jsonl"
    texts = (("user", "Hello"), ("assistant", "ab"), ("user", "more"))
    messages = [{"role": role, "content": content} for role, content in texts]
    lines = [HELLO.decode(), "\n", '"text"\n', json.dumps({"messages": messages})]
    file.write_text("".join(lines))
    done = run("-m", alphabet_model, "--jsonl", file, "-q", "--seed", "5")
    assert (done.returncode, done.stderr) == (0, b"")
    found = records(done.stdout)
    assert [record["line"] for record in found] == [1, 3, 4]
    for record in found:
        assert record.keys() == KEYS | {"line"}
        assert (record["text"], record["stop_reason"], record["seed"]) == (ALPHABET, "eot", 5)
    # Nothing of the lines before is in a conversation.
    turn = FORMAT_TOKENS + len("Helloab") + 1
    expected = [FORMAT_TOKENS + 5, FORMAT_TOKENS + 4, turn + FORMAT_TOKENS - 1 + len("more")]
    assert [record["prompt_tokens"] for record in found] == expected


@pytest.mark.parametrize(
    ("line", "error"),
    [
        (b'{"prompt": "a", "prompt": "b"}', "expected each key once"),
        (b'{"prompt": "x"', "expected JSON"),
        (b'"\xff"', "expected UTF-8"),
        (b"[" * 100000, "expected a few levels of nesting"),
        (b"[]", 'a text, or an object with "prompt" or "messages" alone, got a'),
        (b"7", "got 7"),
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
def test_a_bad_line_is_one_error_and_the_others_are_answered(run, alphabet_model, line, error):
    done = asked(run, alphabet_model, HELLO + line + b"\n" + HELLO, "-q")
    assert done.returncode == 2
    assert [record["line"] for record in records(done.stdout)] == [1, 3]
    first, last = done.stderr.decode().splitlines()
    assert first.startswith("error: standard input: line 2: ")
    assert error in first
    assert last.endswith("expected an answer to each line, got 1 of 3 without one")


def test_the_system_prompt_goes_before_lines_that_have_none(run, alphabet_model):
    own, asked_x = {"role": "system", "content": "four"}, {"role": "user", "content": "x"}
    lines = [{"prompt": "x"}, {"messages": [asked_x]}, {"messages": [own, asked_x]}]
    text = "\n".join(map(json.dumps, lines)).encode()
    counts = [r["prompt_tokens"] for r in records(asked(run, alphabet_model, text).stdout)]
    with_system = records(asked(run, alphabet_model, text, "-s", "four").stdout)
    assert counts[0] == counts[1] == FORMAT_TOKENS + 1
    assert [r["prompt_tokens"] for r in with_system] == [counts[2]] * 3
    assert counts[2] > counts[0]


def test_texts_are_continued_with_completion(run, alphabet_model):
    done = asked(run, alphabet_model, b'"see x"\n{"messages": []}\n', "--completion")
    assert records(done.stdout)[0]["text"] == "yz"
    assert b"line 2: expected a prompt, since texts are continued, got messages" in done.stderr


@pytest.mark.parametrize(
    ("name", "reason"),
    [("absent", "got No such file"), (".", "got Is a directory"), ("empty", "got no lines")],
)
def test_a_file_without_lines_is_refused_before_a_model_is_loaded(run, tmp_path, name, reason):
    (tmp_path / "empty").write_text("\n\n")
    done = run("-m", tmp_path / "no-model", "--jsonl", tmp_path / name)
    assert done.returncode == 2
    assert done.stderr.count(b"\n") == 1
    assert reason.encode() in done.stderr


def test_records_come_as_soon_as_their_line(alphabet_model):
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    with start_program("-m", alphabet_model, "--jsonl", "-", "-q", **pipes) as process:
        for number in (1, 2):
            process.stdin.write(HELLO)
            process.stdin.flush()
            assert json.loads(process.stdout.readline())["line"] == number
        process.stdin.close()
        assert process.wait() == 0


def test_a_lack_of_memory_is_the_error_of_its_line(run, alphabet_model, monkeypatch):
    def refuse(text: str) -> str:
        if "large" in text:
            raise MemoryError
        return text

    monkeypatch.setattr("src.tokenizer.tokenizer._without_surrogates", refuse)
    done = asked(run, alphabet_model, HELLO + b'{"prompt": "large"}\n' + HELLO)
    assert done.returncode == 2
    assert [record["line"] for record in records(done.stdout)] == [1, 3]
    assert b"line 2: [encode] memory: the system refused the allocation\n" in done.stderr


@pytest.mark.parametrize("flags", [("--json", "-p", "x"), ("--jsonl", "-")])
def test_ctrl_c_leaves_the_record_of_the_answer_it_stopped(run, endless_model, monkeypatch, flags):
    press_ctrl_c_at(monkeypatch, Sampler, "sample", 4, after=False)
    done = run("-m", endless_model, *flags, stdin=HELLO * 3 if "-" in flags else b"")
    assert done.returncode == 130
    (record,) = records(done.stdout)
    assert (record["text"], record["stop_reason"]) == ("abcd", "interrupted")
    assert record["token_ids"] == [*b"abcd"]
