"""One prompt, and with `--jsonl` one per line: what is read, answered, refused and
interrupted.
"""

import io
import json
import os
import signal
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from src.cli.application import MOST_PROMPT_BYTES, find_prompt
from src.cli.arguments import parse_arguments
from src.cli.console import Console, UsageError
from src.inference import Sampler
from tests.cli.conftest import (
    ALPHABET,
    FORMAT_TOKENS,
    PROGRAM,
    REPOSITORY,
    SECONDS,
    Outcome,
    Run,
    environment,
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
        (["-p", "Hello"], b"three\n", ANSWER, f"{FORMAT_TOKENS + 5 + 2 + 5} prompt"),
        (["-p", "Hello", "-"], b"three", ANSWER, f"{FORMAT_TOKENS + 5 + 2 + 5} prompt"),
        (
            ["-f", "FILE", "-p", "Summarize"],
            b"",
            ANSWER,
            f"{FORMAT_TOKENS + 5 + 2 + 9} prompt",
        ),
        (
            ["-f", "-", "-p", "Hello"],
            b"three",
            ANSWER,
            f"{FORMAT_TOKENS + 5 + 2 + 5} prompt",
        ),
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


def test_notes_are_lines_of_standard_error_unless_left_out(
    run, alphabet_model, monkeypatch
):
    monkeypatch.setenv("FORCE_COLOR", "1")  # nothing is coloured without a terminal
    loading, statistics = run(
        "-m", alphabet_model, "-p", "x", "--seed", "5"
    ).stderr.splitlines()
    for part in (
        alphabet_model.name,
        "parameters",
        "bfloat16",
        "MiB",
        "context 4096 tokens",
    ):
        assert part in loading.decode()
    for part in ("prompt", "27 new", "51/4096", " eot,", "seed 5"):
        assert part in statistics.decode()
    assert b"\x1b" not in loading + statistics
    assert run("-m", alphabet_model, "-p", "x", "--no-stats").stderr.splitlines() == [
        loading
    ]
    assert run("-m", alphabet_model, "-p", "x", "-q") == Outcome(0, ANSWER, b"")


@pytest.mark.parametrize(
    "answer", ["\x1b[31m", "🙂é"], ids=["controls", "several tokens"]
)
def test_an_answer_keeps_its_characters_in_a_pipe(run, reciting, answer):
    assert (
        run("-m", reciting(answer.encode()), "-p", "x").stdout == f"{answer}\n".encode()
    )


def test_bytes_that_are_no_utf8_are_read_as_replacement_characters(run, alphabet_model):
    broken = run("-m", alphabet_model, stdin=b"a\xffb\xc3 \xef\xbf\xbd")
    whole = run("-m", alphabet_model, stdin="a\ufffdb\ufffd \ufffd".encode())
    assert broken.stdout == whole.stdout == ANSWER
    assert broken.stderr.split(b"prompt")[0][-3:] == whole.stderr.split(b"prompt")[0][-3:]


def test_a_prompt_far_too_long_is_refused_unread(
    run, alphabet_model, tmp_path, monkeypatch
):
    monkeypatch.setattr("src.cli.application.MOST_PROMPT_BYTES", 1024)
    path = tmp_path / "prompt"
    for text, code in ((b"x" * 1024, 0), (b"x" * 1025, 2)):
        path.write_bytes(text)
        for flags, stdin in ((("-f", path), b""), ((), text)):
            done = run("-m", alphabet_model, *flags, stdin=stdin)
            assert done.returncode == code
            assert (
                b": prompt: expected at most 4.0 MiB, got more\n" in done.stderr
            ) == bool(code)
    assert run("-m", alphabet_model, "-f", "/dev/zero").returncode == 2


@pytest.mark.parametrize("stdin", [b"", b"\n", b" \t\r\n"])
def test_without_a_prompt_it_says_so_and_ends(run, alphabet_model, stdin):
    done = run("-m", alphabet_model, stdin=stdin)
    assert (done.returncode, done.stdout) == (2, b"")
    assert (
        done.stderr
        == b"error: standard input: prompt: expected text, got an empty text\n"
    )


def test_a_closed_standard_input_is_an_empty_one(alphabet_model):
    done = run_program("-m", alphabet_model, prefix=["sh", "-c", '"$@" <&-', "sh"])
    assert (done.returncode, done.stderr.count(b"\n")) == (2, 1)


@pytest.mark.parametrize(
    ("script", "shown"),
    [('"$@" >&-', b""), ('"$@" | head -c 5; exit ${PIPESTATUS[0]}', b"abcde")],
    ids=["closed", "a reader that stops"],
)
def test_standard_output_that_takes_no_more_ends_the_answer_quietly(
    endless_model, script, shown
):
    flags = ("-m", endless_model, "-p", "x", "-q", "-n", "1000")
    assert run_program(*flags, prefix=["bash", "-c", script, "bash"]) == Outcome(
        0, shown, b""
    )


def test_the_answer_streams_through_a_pipe_and_ctrl_c_ends_it_without_a_traceback(
    endless_model,
):
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
    [
        (".", "Is a directory"),
        ("no/no", "No such file"),
        (sys.executable, "UTF-8, got an invalid by"),
    ],
)
def test_a_prompt_file_that_cannot_be_read_is_refused(path, reason):
    with pytest.raises(UsageError, match=reason):
        find_prompt(parse_arguments(["-f", path]), Console())


@pytest.mark.parametrize(
    ("content", "prompt"),
    [("a\n", "a"), ("a\r\n", "a"), (" a\n\n", " a\n"), ("a", "a"), ("\ufeffé\n", "é")],
)
def test_the_last_newline_and_the_byte_order_mark_are_left_out(tmp_path, content, prompt):
    path = tmp_path / "prompt"
    path.write_bytes(content.encode())
    assert find_prompt(parse_arguments(["-f", str(path)]), Console()) == prompt


@pytest.mark.parametrize(
    ("flags", "content", "prompt"),
    [
        ((), "a\n", "a\n\nWhy?"),
        ((), " a\nb\n\n\n", " a\nb\n\nWhy?"),
        ((), "\ufeffé", "é\n\nWhy?"),
        ((), "", "Why?"),
        ((), "\n \n", "Why?"),
        (("-",), "a", "a\n\nWhy?"),
        (("-",), "", "Why?"),
        (("--completion",), "a", "a\n\nWhy?"),
    ],
)
def test_a_question_goes_after_the_text_on_standard_input(
    monkeypatch, capsys, flags, content, prompt
):
    stream = io.TextIOWrapper(io.BytesIO(content.encode()), encoding="utf-8")
    monkeypatch.setattr(sys, "stdin", stream)
    options = parse_arguments(["-p", "Why?", *flags])
    assert find_prompt(options, Console()) == prompt
    said = capsys.readouterr().err
    assert ("characters before the question" in said) == (prompt != "Why?")


def test_an_empty_file_before_a_question_and_an_empty_question_are_refused(run, tmp_path):
    path = tmp_path / "empty"
    path.write_text("\n")
    for flags, where in (
        (("-f", path, "-p", "Why?"), "empty: prompt"),
        (("-p", " "), "--prompt"),
    ):
        done = run("-m", tmp_path, *flags, stdin=b"text" if "-f" not in flags else b"")
        assert (done.returncode, done.stderr.count(b"\n")) == (2, 1)
        assert f"{where}: expected text, got an empty text" in done.stderr.decode()


def test_a_prompt_file_may_be_a_pipe(run, alphabet_model, tmp_path):
    fifo = tmp_path / "fifo"
    os.mkfifo(fifo)
    with subprocess.Popen(["sh", "-c", f"printf hello > {fifo}"]):
        assert run("-m", alphabet_model, "-f", fifo).stdout == ANSWER


@pytest.mark.parametrize(
    ("flags", "redirected", "where"),
    [
        (("-f", "README.md"), "< LICENSE", "README.md"),
        (("-f", "LICENSE", "-p", "x"), '<<< "a letter"', "LICENSE"),
        (("--example", "2"), "< LICENSE", "--example"),
    ],
)
def test_text_on_stdin_with_another_text_is_refused(
    alphabet_model, flags, redirected, where
):
    """It was left unread, and the answer knew nothing of it."""
    # Bash writes a text before the program starts, which waits for none.
    letter = ["bash", "-c", f'"$@" {redirected}', "bash"]
    done = run_program("-m", alphabet_model, "-q", *flags, prefix=letter)
    assert (done.returncode, done.stdout) == (2, b"")
    assert done.stderr.decode() == (
        f"error: standard input: expected no text together with {where}, got text "
        "(< /dev/null ignores it)\n"
    )


def test_a_dash_reads_what_is_typed(spawn, alphabet_model):
    child = spawn("-m", alphabet_model, "-", "-q")
    child.sendline("Hello")
    child.sendeof()
    assert child.read().splitlines()[-1] == ALPHABET


def test_nothing_on_stdin_with_a_question_is_not_waited_for(alphabet_model):
    """As cron, CI and ssh leave it: at its end, or open without a word."""
    reading, writing = os.pipe()
    ours, theirs = socket.socketpair()
    with (
        open("/dev/null", "rb") as nothing,
        open(reading) as silent,
        open(writing, "w"),
        ours,
    ):
        for stream, is_silent in ((nothing, False), (silent, True), (theirs, True)):
            arguments = ("-m", alphabet_model, "-q", "-p", "Hello", "-n", "1")
            pipes = {
                "stdin": stream,
                "stdout": subprocess.PIPE,
                "stderr": subprocess.PIPE,
            }
            shown, said = start_program(*arguments, **pipes).communicate(timeout=SECONDS)
            assert shown == b"a\n"
            warning = b"warning: standard input: expected text or its end within 1 s, got neither"
            assert said.startswith(warning) is is_silent
            assert said.count(b"\n") == is_silent
        theirs.close()


PIPELINE = 'exec 3>&1; { sleep 3; printf three; } | "$@"'


@pytest.mark.parametrize(
    ("script", "flags", "is_read"),
    [
        pytest.param(PIPELINE, (), True, marks=pytest.mark.skipif(
            sys.platform != "linux", reason="Linux alone says who writes to a pipe")),
        pytest.param(('sleep 3 | sh -c \'"$@"; true\' sh '
                     '"$@"'), (), False, marks=pytest.mark.slow),
        pytest.param(('{ sleep 3; printf three; } | sh -c \'"$@"; true\' sh '
                     '"$@"'), ("-",), True,
            marks=pytest.mark.slow),
    ],
    ids=["a pipeline", "an outer program", "an outer program and a hyphen"],
)  # fmt: skip
def test_a_slow_pipeline_is_waited_for_and_an_outer_program_only_with_a_hyphen(
    alphabet_model, script, flags, is_read
):
    prefix = ["sh", "-c", script, "sh"]
    arguments = ("-m", alphabet_model, "-p", "Hello", *flags)
    reading, writing = os.pipe()
    with open(reading) as silent, open(writing, "w"):
        command = [*prefix, *PROGRAM, *map(str, arguments)]
        done = subprocess.run(
            command, stdin=silent, capture_output=True, cwd=REPOSITORY, env=environment(),
            timeout=SECONDS, check=True,
        )  # fmt: skip
    tokens = FORMAT_TOKENS + 5 + (2 + 5 if is_read else 0)
    assert f"{tokens} prompt" in done.stderr.decode()
    assert done.stdout == ANSWER


HELLO = b'{"prompt": "Hello"}\n'


def records(output: bytes) -> list[dict[str, Any]]:
    assert output.isascii()
    return [json.loads(line) for line in output.splitlines()]


def asked(run: Run, model: Path, lines: bytes, *flags: str) -> Outcome:
    return run("-m", model, "--jsonl", "-", "-c", "200", *flags, stdin=lines)


def test_each_line_is_answered_by_itself_with_the_record_of_json(
    run, alphabet_model, tmp_path
):
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
        assert (record["text"], record["stop_reason"], record["seed"]) == (
            ALPHABET,
            "eot",
            5,
        )
    # Nothing of the lines before is in a conversation.
    turn = FORMAT_TOKENS + len("Helloab") + 1
    expected = [
        FORMAT_TOKENS + 5,
        FORMAT_TOKENS + 4,
        turn + FORMAT_TOKENS - 1 + len("more"),
    ]
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
        (
            b'{"messages": [{"role": "user"}]}',
            "messages[0] must have the keys role and content",
        ),
        (b'{"messages": [{"role": "boss", "content": "x"}]}', "role must be one of"),
        (b'"' + b"x" * 300 + b'"', "323 tokens >= 200 positions"),
        (b'"' + b"x" * MOST_PROMPT_BYTES + b'"', "expected at most 4.0 MiB, got more"),
    ],
    ids=lambda value: repr(value[:40]),
)
def test_a_bad_line_is_one_error_and_the_others_are_answered(
    run, alphabet_model, line, error
):
    done = asked(run, alphabet_model, HELLO + line + b"\n" + HELLO, "-q")
    assert done.returncode == 2
    assert [record["line"] for record in records(done.stdout)] == [1, 3]
    first, last = done.stderr.decode().splitlines()
    assert first.startswith("error: standard input: line 2: ")
    assert error in first
    assert last.endswith("expected an answer to each line, got 1 of 3 without an answer")


def test_the_system_prompt_goes_before_lines_that_have_none(run, alphabet_model):
    own = {"role": "system", "content": "four"}
    asked_x = {"role": "user", "content": "x"}
    lines = [{"prompt": "x"}, {"messages": [asked_x]}, {"messages": [own, asked_x]}]
    text = "\n".join(map(json.dumps, lines)).encode()
    counts = [
        r["prompt_tokens"] for r in records(asked(run, alphabet_model, text).stdout)
    ]
    with_system = records(asked(run, alphabet_model, text, "-s", "four").stdout)
    assert counts[0] == counts[1] == FORMAT_TOKENS + 1
    assert [r["prompt_tokens"] for r in with_system] == [counts[2]] * 3
    assert counts[2] > counts[0]


def test_texts_are_continued_with_completion(run, alphabet_model):
    done = asked(run, alphabet_model, b'"see x"\n{"messages": []}\n', "--completion")
    assert records(done.stdout)[0]["text"] == "yz"
    assert (
        b"line 2: messages: expected a prompt with --completion, got messages"
        in done.stderr
    )


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("absent", "got No such file"),
        (".", "got Is a directory"),
        ("empty", "got no lines"),
    ],
)
def test_a_file_without_lines_is_refused_before_a_model_is_loaded(
    run, tmp_path, name, reason
):
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
def test_ctrl_c_leaves_the_record_of_the_answer_it_stopped(
    run, endless_model, monkeypatch, flags
):
    press_ctrl_c_at(monkeypatch, Sampler, "sample", 4, after=False)
    done = run("-m", endless_model, *flags, stdin=HELLO * 3 if "-" in flags else b"")
    assert done.returncode == 130
    (record,) = records(done.stdout)
    assert (record["text"], record["stop_reason"]) == ("abcd", "interrupted")
    assert record["token_ids"] == [*b"abcd"]


@pytest.fixture
def with_grammars() -> None:
    pytest.importorskip("llguidance", reason="the serve extra is not installed")


@pytest.mark.usefixtures("with_grammars")
def test_an_answer_follows_a_schema_in_a_file_or_written_out(tmp_path):
    schema = tmp_path / "schema.json"
    schema.write_text('{"enum": ["Oslo"]}')
    for given in (schema, schema.read_text(), ' {"enum": ["Oslo"]}'):
        done = run_program("-p", "Hello", "--json-schema", given, "-q")
        assert (done.returncode, done.stdout) == (0, b'"Oslo"\n')


@pytest.mark.usefixtures("with_grammars")
@pytest.mark.parametrize("grammar", ['start: "Oslo" | "Oslo!"', 'root ::= "Oslo" "!"?'])
def test_an_answer_follows_a_grammar_of_lark_or_of_llama_cpp(tmp_path, grammar):
    file = tmp_path / "grammar"
    file.write_text(grammar)
    done = run_program("-p", "Hello", "--grammar", file, "-q")
    assert done.returncode == 0
    assert done.stdout in (b"Oslo\n", b"Oslo!\n")


@pytest.mark.parametrize(
    ("flag", "text", "error"),
    [
        (
            "--json-schema",
            '{"enum": ',
            "--json-schema: [grammar] json_schema: expected JSON, got",
        ),
        ("--json-schema", "no.json", "no.json: cannot be opened: No such file"),
        (
            "--grammar",
            "bad.gbnf",
            "[grammar] llama.cpp's notation (GBNF): line 1 column 10: exp",
        ),
    ],
)
def test_a_wrong_schema_or_grammar_is_one_line_before_a_model_is_loaded(
    run, tmp_path, monkeypatch, flag, text, error
):
    monkeypatch.chdir(tmp_path)
    Path("bad.gbnf").write_text("root ::= nothing")
    done = run("-m", tmp_path / "no-model", "-p", "Hello", flag, text)
    assert (done.returncode, done.stderr.count(b"\n")) == (2, 1)
    assert error in done.stderr.decode()
