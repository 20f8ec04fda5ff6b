"""One answer: its settings, its text as it comes, and what is told of it."""

import json
import re
from collections.abc import Iterator
from typing import Any

import pytest

from src.cli import session as session_module
from src.cli.answer import Settings, statistics_line
from src.cli.arguments import build_parser, parse_arguments
from src.cli.commands import run_command
from src.cli.console import UsageError
from src.inference import (
    GenerationStats,
    InferenceEngine,
    Request,
    SamplingError,
    Step,
    encode_chat,
)
from tests.cli.conftest import ALPHABET, FORMAT_TOKENS, REPOSITORY, reply, session_of
from tests.cli.reciting_model import EOT_ID


def test_the_line_of_statistics_says_what_was_run_cached_and_how_fast_if_anything_was_run():
    stats = GenerationStats(100, 60, 31, 0.5, 2.0, 7)
    expected = "100 prompt (60 cached) 80/s, 31 new 15/s, 131/4096, eot, seed 7"
    assert statistics_line(stats, "eot", 4096) == expected
    stats = GenerationStats(10, 0, 1, 0.0, 0.0, 7)
    assert statistics_line(stats, "eot", 64) == "10 prompt, 1 new, 11/64, eot, seed 7"


DEFAULTS = Settings()


def test_flags_become_settings_and_without_any_they_are_the_defaults():
    assert Settings.from_options(parse_arguments([])) == DEFAULTS
    flags = ["--temperature=0", "--top-k=3", "--seed=4", "-n5", "--stop=a", "--stop=b"]
    assert Settings.from_options(parse_arguments(flags)) == Settings(
        temperature=0.0, top_k=3, seed=4, max_tokens=5, stop=("a", "b")
    )


def test_defaults_of_the_model_are_below_flags():
    defaults = {"temperature": 0.2, "top_p": 0.7}
    found = Settings.from_options(parse_arguments(["--top-p=0.5", "--top-k=3"]), defaults)
    assert found == Settings(temperature=0.2, top_p=0.5, top_k=3)


def test_help_states_the_defaults_of_the_engine():
    text = re.sub(r"\s+", " ", build_parser().format_help())
    for name in ("temperature", "top_k", "top_p", "min_p", "repeat_penalty"):
        stated = text.split(f"--{name.replace('_', '-')} ")[1].split("(default: ")[1]
        assert float(re.split("[,)]", stated)[0]) == getattr(DEFAULTS, name)


@pytest.mark.parametrize(
    ("name", "text", "lines"),
    [
        ("temperature", "0", "temperature       0.0"),
        ("top-k", "7", "top_k             7"),
        ("seed", "9", "seed              9"),
        ("max_tokens", "12", "max_tokens        12"),
        ("stop", "the end", "stop              'the end'"),
        # As other programs call them.
        ("temp", "3", "temperature       3.0"),
        ("num_predict", "3", "max_tokens        3"),
        ("max_new_tokens", "3", "max_tokens        3"),
        ("max-new-tokens", "3", "max_tokens        3"),
        ("repetition_penalty", "3", "repeat_penalty    3.0"),
    ],
)
def test_a_setting_is_changed_and_shown_by_any_of_its_names(name, text, lines):
    changed = DEFAULTS.changed(name, text)
    assert lines in changed.lines()
    assert changed.line(name) == lines
    assert (
        sum(a != b for a, b in zip(changed.lines(), DEFAULTS.lines(), strict=True)) == 1
    )
    if name in ("seed", "max_tokens", "stop"):
        assert changed.changed(name, "none") == DEFAULTS


@pytest.mark.parametrize(
    ("name", "text", "error", "reason"),
    [
        ("temperature", "warm", UsageError, "temperature: must be a number: got warm"),
        ("temperature", "-1", SamplingError, "temperature"),
        ("top_p", "2", SamplingError, "top_p"),
        ("top_k", "1.5", UsageError, "top_k: must be a whole number"),
        ("max_tokens", "0", UsageError, "max_tokens: must be at least 1"),
        ("think", "maybe", UsageError, "think: must be on, off, hide: got maybe"),
        (
            "temprature",
            "0",
            UsageError,
            "no setting temprature: expected one of temperature",
        ),
    ],
)
def test_a_wrong_setting_is_refused(name, text, error, reason):
    with pytest.raises(error, match=reason):
        DEFAULTS.changed(name, text)


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


def test_a_record_has_text_tokens_counts_times_reason_and_seed(run, alphabet_model):
    done = run("-m", alphabet_model, "--json", "--seed", "5", "-c", "100", "-p", "Hello")
    assert done.returncode == 0
    found = record(done.stdout)
    assert found.pop("prefill_seconds") > 0
    assert found.pop("decode_seconds") > 0
    assert found.pop("accepted_tokens") <= found.pop("drafted_tokens")
    assert found == {
        "model": str(alphabet_model),
        "text": ALPHABET,
        "stop_reason": "eot",
        "seed": 5,
        "token_ids": [*ALPHABET.encode(), EOT_ID],
        "new_tokens": 27,
        "context_length": 100,
        "prompt_tokens": FORMAT_TOKENS + len("Hello"),
        "cached_tokens": 0,
    }
    assert b"27 new" in done.stderr


@pytest.mark.parametrize("answer", ["\x1b[3\u202e", "\x9bé", "é🙂"])
def test_a_record_escapes_controls_and_other_scripts_and_quiet_leaves_it_alone(
    run, reciting, answer
):
    done = run("-m", reciting(answer.encode()), "--json", "-q", "-p", "x")
    assert done.stderr == b""
    assert record(done.stdout)["text"] == answer


def test_a_chat_writes_a_record_for_each_answer(alphabet_model, capsysbinary):
    session = session_of(alphabet_model, "--json")
    session.ask("Hello")
    session.ask("more")
    first, second = map(record, capsysbinary.readouterr().out.splitlines(keepends=True))
    assert first["text"] == second["text"] == ALPHABET
    assert second["cached_tokens"] == first["prompt_tokens"] + first["new_tokens"] - 1


def test_the_page_on_the_command_line_names_the_fields_of_a_record():
    page = (REPOSITORY / "docs" / "COMMAND-LINE.md").read_text(encoding="utf-8")
    table = page.split("| field |")[1].split("\n\n")[0]
    assert set(re.findall(r"^\| `(\w+)` \|", table, flags=re.MULTILINE)) == KEYS | {
        "thoughts"
    }


def test_log_probabilities_are_told_on_request(run, alphabet_model):
    def told(count: int, tokens: int) -> list[dict[str, Any]]:
        flags = ("--json", "-p", "x", "--logprobs", str(count), "-n", str(tokens))
        found = json.loads(run("-m", alphabet_model, *flags).stdout)
        assert found.keys() == KEYS | {"logprobs"}
        assert [each["id"] for each in found["logprobs"]["content"]] == found["token_ids"]
        return found["logprobs"]["content"]

    for each, letter in zip(told(2, 3), "abc", strict=True):
        assert (each["token"], each["bytes"]) == (letter, [ord(letter)])
        top = each["top_logprobs"]
        assert top[0] == {
            name: each[name] for name in ("id", "token", "bytes", "logprob")
        }
        assert len(top) == 2
        assert 0 >= top[0]["logprob"] > top[1]["logprob"]
    (only,) = told(0, 1)
    assert only["top_logprobs"] == []
    assert -1 < only["logprob"] <= 0


def test_each_new_token_gets_its_candidates_until_they_are_off(alphabet_model, capsys):
    session = session_of(alphabet_model, "-c", "300", "-n", "2", "--temperature", "0")
    assert "the 1 most probable" in reply(capsys, session, "/probs 1")
    session.ask("Hello")
    # The logits are 10 * sqrt(512) for the next letter and 0 for all others.
    assert capsys.readouterr().err == (
        "    model  temperature 0  position 28\n"
        "* 100.00%        100.00%  97 'a'\n"
        "      512              1  tokens have a chance\n"
        "\n"
        "    model  temperature 0  position 29\n"
        "* 100.00%        100.00%  98 'b'\n"
        "      512              1  tokens have a chance\n"
    )
    assert reply(capsys, session, "/probs off") == "candidates: off\n"
    session.ask("Hello")
    assert capsys.readouterr().err == ""


def test_what_a_step_left_out_is_a_dash(alphabet_model, capsys):
    session = session_of(alphabet_model, "-c", "300", "-n", "1", "--seed", "1")
    reply(capsys, session, "/probs 2")
    session.ask("Hello")
    assert capsys.readouterr().err.splitlines()[::2] == [
        "    model  temperature 0.6  top_k 50  top_p 0.9  position 28",
        r"   <0.01%           <0.01%    <0.01%          -  0 '\x00'",
    ]


# Thoughts.


@pytest.fixture
def thinking(monkeypatch: pytest.MonkeyPatch) -> list[bool]:
    """Makes the engine think before each answer; notes whether it was asked to."""
    asked: list[bool] = []
    encoded: list[bool] = []

    def encode(*given: Any) -> list[int]:
        encoded.append(given[-1])
        return encode_chat(*given)

    def answer(
        engine: InferenceEngine, _request: Request, _progress: Any
    ) -> Iterator[Step]:
        asked.append(encoded[-1])
        engine.last_stats = GenerationStats(5, 0, 4, 0.1, 0.1, 1)
        for text in ("<think>", "\nHm\x1b.\n", "</thi"):
            yield Step(1, text)
        yield Step(1, "nk>\n\nYes.", "eot")

    monkeypatch.setattr(session_module, "encode_chat", encode)
    monkeypatch.setattr(InferenceEngine, "answer", answer)
    return asked


@pytest.mark.parametrize(
    ("flags", "out", "err"),
    [
        (["--no-stats"], b"Yes.\n", rb"[^\n]*\nHm\\x1b\.\n\n"),
        (["--no-stats", "--think", "hide"], b"Yes.\n", rb"[^\n]*\n"),
        (["-q"], b"Yes.\n", b""),
    ],
)
def test_thoughts_go_to_standard_error_and_records_have_them_apart(
    run, alphabet_model, thinking, flags, out, err
):
    done = run("-m", alphabet_model, "-p", "x", *flags)
    assert done.stdout == out
    assert re.fullmatch(err, done.stderr)
    found = json.loads(run("-m", alphabet_model, "-p", "x", "--json", *flags).stdout)
    assert found.keys() == KEYS | {"thoughts"}
    assert (found["thoughts"], found["text"]) == ("Hm\x1b.", "Yes.")
    assert thinking == [True, True]


def test_thoughts_stay_in_the_history_for_the_format_to_leave_out(
    alphabet_model, thinking
):
    session = session_of(alphabet_model, "-q")
    run_command(session, "/set think hide")
    session.ask("x")
    assert session.turns[0].answer == "<think>\nHm\x1b.\n</think>\n\nYes."
    run_command(session, "/set think off")
    session.ask("y")
    assert thinking == [True, False]


def test_think_changes_nothing_where_there_are_no_thoughts(run, alphabet_model):
    plain = run("-m", alphabet_model, "-p", "x").stdout
    for what in ("on", "off", "hide"):  # a model of Llama's format has no thoughts
        done = run("-m", alphabet_model, "-p", "x", "--think", what)
        assert (done.returncode, done.stdout) == (0, plain)
