"""`--json`: one record per answer, and nothing else on standard output."""

import json
import re
from pathlib import Path
from typing import Any

import pexpect
import pytest

from src.inference import GenerationStats
from tests.cli.conftest import ALPHABET, FORMAT_TOKENS, REPOSITORY, Run, Spawn
from tests.cli.reciting_model import EOT_ID

KEYS = {
    "model", "text", "token_ids", "stop_reason", "context_length",
    *GenerationStats.__dataclass_fields__,
}  # fmt: skip


def record(output: bytes) -> dict[str, Any]:
    assert output.count(b"\n") == 1
    assert output.isascii()
    found = json.loads(output)
    assert found.keys() == KEYS
    return dict(found)


def test_a_record_has_text_tokens_counts_times_reason_and_seed(
    run: Run, alphabet_model: Path
) -> None:
    for given in ({"stdin": b"Hello\n"}, {}):
        flags = () if given else ("-p", "Hello")
        done = run("-m", alphabet_model, "--json", "--seed", "5", "-c", "100", *flags, **given)
        assert done.returncode == 0
        found = record(done.stdout)
        assert found["model"] == str(alphabet_model)
        assert found["text"] == ALPHABET
        assert found["token_ids"] == [*ALPHABET.encode(), EOT_ID]
        assert found["stop_reason"] == "eot"
        assert found["seed"] == 5
        assert found["prompt_tokens"] == FORMAT_TOKENS + len("Hello")
        assert (found["cached_tokens"], found["new_tokens"]) == (0, 27)
        assert found["context_length"] == 100
        assert found["prefill_seconds"] > 0
        assert found["decode_seconds"] > 0
        assert b"27 new" in done.stderr


def test_quiet_leaves_the_record_alone(run: Run, alphabet_model: Path) -> None:
    done = run("-m", alphabet_model, "--json", "-q", "-p", "x", "-n", "3")
    assert done.stderr == b""
    found = record(done.stdout)
    assert (found["text"], found["stop_reason"]) == ("abc", "max tokens")


def test_controls_and_other_scripts_are_escaped_as_json_has_it(run: Run, reciting: Any) -> None:
    for answer in ("\x1b[3\u202e", "\x9bé", "é🙂"):
        done = run("-m", reciting(answer.encode()), "--json", "-p", "x")
        assert record(done.stdout)["text"] == answer


def test_an_error_leaves_standard_output_empty(run: Run, alphabet_model: Path) -> None:
    done = run("-m", alphabet_model, "--json", "-p", "x" * 100, "-c", "50")
    assert (done.returncode, done.stdout) == (2, b"")


def test_a_chat_writes_a_record_for_each_answer(
    spawn: Spawn, alphabet_model: Path, tmp_path: Path
) -> None:
    records = tmp_path / "records"
    to_file = ["sh", "-c", f'"$@" > {records}', "sh"]
    child = spawn("-m", alphabet_model, "--json", prefix=to_file, TERM="dumb")
    for message in ("Hello", "more"):
        child.expect("> ")
        child.sendline(message)
        child.expect_exact("27 new")
        assert ALPHABET not in child.before
    child.send("\x04")
    child.expect(pexpect.EOF)
    first, second = map(record, records.read_bytes().splitlines(keepends=True))
    assert first["text"] == second["text"] == ALPHABET
    assert second["cached_tokens"] == first["prompt_tokens"] + first["new_tokens"] - 1


def test_an_interrupted_answer_has_its_record(
    run: Run, endless_model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from src.inference import Sampler
    from tests.cli.test_interrupts import press_ctrl_c_at

    press_ctrl_c_at(monkeypatch, Sampler, "sample", 4, after=False)
    done = run("-m", endless_model, "--json", "-p", "x")
    assert done.returncode == 130
    found = record(done.stdout)
    assert (found["text"], found["stop_reason"]) == ("abcd", "interrupted")
    assert found["token_ids"] == [*b"abcd"]


def test_the_page_on_the_command_line_names_the_fields_of_a_record() -> None:
    page = (REPOSITORY / "docs" / "COMMAND-LINE.md").read_text(encoding="utf-8")
    table = page.split("| field |")[1].split("\n\n")[0]
    assert set(re.findall(r"^\| `(\w+)` \|", table, flags=re.MULTILINE)) == KEYS


def test_log_probabilities_are_told_on_request(run: Run, alphabet_model: Path) -> None:
    done = run("-m", alphabet_model, "--json", "-p", "x", "--logprobs", "2", "-n", "3")
    found = json.loads(done.stdout)
    assert found.keys() == KEYS | {"logprobs"}
    content = found["logprobs"]["content"]
    assert [each["id"] for each in content] == found["token_ids"] == [*b"abc"]
    for each, letter in zip(content, "abc", strict=True):
        assert (each["token"], each["bytes"]) == (letter, [ord(letter)])
        top = each["top_logprobs"]
        assert top[0] == {name: each[name] for name in ("id", "token", "bytes", "logprob")}
        assert len(top) == 2
        assert 0 >= top[0]["logprob"] > top[1]["logprob"]


def test_without_neighbours_the_drawn_token_alone_is_told(run: Run, alphabet_model: Path) -> None:
    done = run("-m", alphabet_model, "--json", "-p", "x", "--logprobs", "0", "-n", "1")
    (only,) = json.loads(done.stdout)["logprobs"]["content"]
    assert only["top_logprobs"] == []
    assert -1 < only["logprob"] <= 0


def test_sampling_does_not_change_the_log_probabilities(run: Run) -> None:
    question = ("--json", "-p", "What is the capital of Norway?", "--logprobs", "3", "-n", "4")
    greedy, sampled = (
        json.loads(run(*question, *flags).stdout)["logprobs"]["content"]
        for flags in (("--temperature", "0"), ("--temperature", "0.3", "--top-k", "1"))
    )
    assert greedy == sampled


@pytest.mark.parametrize("count", ["-1", "101", "x"])
def test_a_wrong_number_of_log_probabilities_is_refused(run_process: Run, count: str) -> None:
    done = run_process("--json", "-p", "x", "--logprobs", count)
    assert (done.returncode, done.stdout) == (2, b"")
    assert b"argument --logprobs: must be " in done.stderr


def test_log_probabilities_need_a_record(run_process: Run) -> None:
    done = run_process("-p", "x", "--logprobs", "1")
    assert done.returncode == 2
    assert b"--logprobs: needs --json or --jsonl" in done.stderr
