"""`--jsonl`: one record per line of a file, and one error per line that cannot be answered."""

import json
import subprocess
from pathlib import Path
from typing import Any

import pytest

from src.cli.one_shot import MOST_PROMPT_BYTES
from tests.cli.conftest import ALPHABET, FORMAT_TOKENS, PROGRAM, REPOSITORY, Run, environment
from tests.cli.test_interrupts import press_ctrl_c_at
from tests.cli.test_record import KEYS

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
        (b"[]", 'a text, or an object with "prompt" or "messages" alone, got a list'),
        (b"7", "got 7"),
        (b"null", "got nothing"),
        (b"{}", "alone, got an object"),
        (b'{"text": "x"}', "alone, got an object"),
        (b'{"prompt": "x", "messages": []}', "alone, got an object"),
        (b'{"prompt": 7}', "prompt: expected a text, got 7"),
        (b'{"prompt": " "}', "prompt: expected a text, got ' '"),
        (b'{"messages": "x"}', "must be a list of Message, or dicts such as"),
        (b'{"messages": []}', "at least one message"),
        (b'{"messages": [{"role": "user"}]}', "messages[0] must have the keys role and content"),
        (b'{"messages": [{"role": "boss", "content": "x"}]}', "role must be one of"),
        (b'"' + b"x" * 300 + b'"', "321 tokens >= 200 positions".replace("321", "323")),
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


def test_log_probabilities_are_told_in_each_record(run: Run, alphabet_model: Path) -> None:
    for record in records(asked(run, alphabet_model, HELLO * 2, "--logprobs", "2").stdout):
        assert len(record["logprobs"]["content"]) == len(record["token_ids"])


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


@pytest.mark.parametrize("other", [("-p", "x"), ("--info",), ("-",), ("--diagrams", "d")])
def test_another_task_beside_it_is_refused(run_process: Run, other: tuple[str, ...]) -> None:
    done = run_process("--jsonl", "x", *other)
    assert done.returncode == 2
    assert b"not allowed with" in done.stderr


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
