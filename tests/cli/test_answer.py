"""One answer: its settings, its text as it comes, and what is told of it."""

import json
import re
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pexpect
import pytest

from src.cli.answer import INTERRUPTED, SETTINGS, Settings, statistics_line, stream_answer
from src.cli.arguments import build_parser, parse_arguments
from src.cli.commands import run_command
from src.cli.console import Console, UsageError
from src.cli.session import Session
from src.inference import GenerationStats, InferenceEngine, SamplingArgs, SamplingError, Step
from tests.cli.conftest import ALPHABET, FORMAT_TOKENS, REPOSITORY, Run, Spawn, reply, session_of
from tests.cli.reciting_model import EOT_ID


def test_a_second_ctrl_c_does_not_disturb_the_end_of_an_answer() -> None:
    def steps() -> Iterator[Step]:
        try:
            yield Step(1, "a")
            signal.raise_signal(signal.SIGINT)
            yield Step(2, "b")
        finally:
            signal.raise_signal(signal.SIGINT)

    assert stream_answer(Console(quiet=True), steps) == ((Step(1, "a"),), INTERRUPTED)


def test_the_line_of_statistics_says_what_was_run_and_what_was_cached() -> None:
    stats = GenerationStats(100, 60, 21, 0.5, 2.0, 7)
    expected = "100 prompt (60 cached) 80/s, 21 new 10/s, 121/4096, eot, seed 7"
    assert statistics_line(stats, "eot", 4096) == expected


def test_the_line_of_statistics_knows_no_speed_where_nothing_was_run() -> None:
    stats = GenerationStats(10, 0, 1, 0.0, 0.0, 7)
    assert statistics_line(stats, "eot", 64) == "10 prompt, 1 new, 11/64, eot, seed 7"


@pytest.mark.parametrize("reason", ["eot", "max tokens", "stop string", "context full"])
@pytest.mark.parametrize("tokens", [316, 4096, 65000, 130000])
def test_the_line_of_statistics_fits_80_columns_and_keeps_its_seed(
    reason: str, tokens: int
) -> None:
    stats = GenerationStats(tokens, tokens * 9 // 10, tokens // 3, 0.01, 3.0, 4294967295)
    line = statistics_line(stats, reason, 131072)
    assert len(line) <= 80
    assert line.startswith(f"{tokens} prompt ({tokens * 9 // 10} cached) ")
    assert f", {reason}" in line
    if tokens < 65000:
        assert line.endswith(", seed 4294967295")


DEFAULTS = Settings(SamplingArgs())


def test_without_flags_the_settings_are_the_defaults() -> None:
    assert Settings.from_options(parse_arguments([])) == DEFAULTS


def test_flags_become_settings() -> None:
    flags = ["--temperature=0", "--top-k=3", "--seed=4", "-n5", "--stop=a", "--stop=b"]
    assert Settings.from_options(parse_arguments(flags)) == Settings(
        SamplingArgs(temperature=0.0, top_k=3, seed=4), 5, ("a", "b")
    )


def test_help_states_the_defaults_of_the_engine() -> None:
    text = re.sub(r"\s+", " ", build_parser().format_help())
    stated = {
        name: text.split(f"--{name.replace('_', '-')} ")[1].split("(default: ")[1].split(")")[0]
        for name in ("temperature", "top_k", "top_p", "min_p", "repeat_penalty")
    }
    assert {name: float(v.split(",")[0]) for name, v in stated.items()} == {
        name: float(getattr(DEFAULTS.sampling, name)) for name in stated
    }


@pytest.mark.parametrize(
    ("name", "text", "lines"),
    [
        ("temperature", "0", "temperature       0.0"), ("top-k", "7", "top_k             7"),
        ("seed", "9", "seed              9"), ("max_tokens", "12", "max_tokens        12"),
        ("stop", "the end", "stop              'the end'"),
    ],
)  # fmt: skip
def test_a_setting_is_changed_and_shown(name: str, text: str, lines: str) -> None:
    changed = DEFAULTS.changed(name, text)
    assert lines in changed.lines()
    assert len(changed.lines()) == len(SETTINGS)
    assert sum(a != b for a, b in zip(changed.lines(), DEFAULTS.lines(), strict=True)) == 1


@pytest.mark.parametrize("name", ["seed", "max_tokens", "stop"])
def test_none_takes_a_setting_back(name: str) -> None:
    assert DEFAULTS.changed(name, "3").changed(name, "none") == DEFAULTS


@pytest.mark.parametrize(
    ("theirs", "ours"),
    [
        ("temp", "temperature"), ("num_predict", "max_tokens"), ("max_new_tokens", "max_tokens"),
        ("max-new-tokens", "max_tokens"), ("repetition_penalty", "repeat_penalty"),
    ],
)  # fmt: skip
def test_a_setting_may_have_its_name_in_other_programs(theirs: str, ours: str) -> None:
    assert DEFAULTS.changed(theirs, "3") == DEFAULTS.changed(ours, "3") != DEFAULTS
    assert DEFAULTS.line(theirs) == DEFAULTS.line(ours)


@pytest.mark.parametrize(
    ("name", "text", "error", "reason"),
    [
        ("temperature", "warm", UsageError, "temperature: must be a number: got warm"),
        ("temperature", "-1", SamplingError, "temperature"),
        ("top_p", "2", SamplingError, "top_p"),
        ("top_k", "1.5", UsageError, "top_k: must be a whole number"),
        ("max_tokens", "0", UsageError, "max_tokens: must be at least 1"),
        ("temprature", "0", UsageError, "no setting temprature: expected one of temperature"),
    ],
)
def test_a_wrong_setting_is_refused(
    name: str, text: str, error: type[Exception], reason: str
) -> None:
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
    from tests.cli.conftest import press_ctrl_c_at

    press_ctrl_c_at(monkeypatch, Sampler, "sample", 4, after=False)
    done = run("-m", endless_model, "--json", "-p", "x")
    assert done.returncode == 130
    found = record(done.stdout)
    assert (found["text"], found["stop_reason"]) == ("abcd", "interrupted")
    assert found["token_ids"] == [*b"abcd"]


def test_the_page_on_the_command_line_names_the_fields_of_a_record() -> None:
    page = (REPOSITORY / "docs" / "COMMAND-LINE.md").read_text(encoding="utf-8")
    table = page.split("| field |")[1].split("\n\n")[0]
    assert set(re.findall(r"^\| `(\w+)` \|", table, flags=re.MULTILINE)) == KEYS | {"thoughts"}


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


def asked(session: Session, capsys: pytest.CaptureFixture[str], text: str) -> str:
    capsys.readouterr()
    session.ask(text)
    return capsys.readouterr().err


def test_each_new_token_gets_its_candidates_and_the_drawn_one_is_marked(
    alphabet_model: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    session = session_of(alphabet_model, "-c", "300", "-n", "2", "--temperature", "0")
    assert "the 1 most probable" in reply(capsys, session, "/probs 1")
    # The logits are 10 * sqrt(512) for the next letter and 0 for all others.
    assert asked(session, capsys, "Hello") == (
        "    model  temperature 0  position 28\n"
        "* 100.00%        100.00%  97 'a'\n"
        "      512              1  tokens have a chance\n"
        "\n"
        "    model  temperature 0  position 29\n"
        "* 100.00%        100.00%  98 'b'\n"
        "      512              1  tokens have a chance\n"
    )


def test_what_a_step_left_out_is_a_dash(
    alphabet_model: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    session = session_of(alphabet_model, "-c", "300", "-n", "1", "--seed", "1")
    reply(capsys, session, "/probs 2")
    lines = asked(session, capsys, "Hello").splitlines()
    assert lines[0].split("  ")[-1] == "position 28"
    assert re.findall(r"\w+ [\d.]+", lines[0])[:3] == ["temperature 0.6", "top_k 50", "top_p 0.9"]
    assert re.fullmatch(r" +<0\.01% +- +- +-  0 '\\x00'", lines[2]) or lines[2].count("-") >= 1


def test_probs_off_ends_the_tables(
    alphabet_model: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    session = session_of(alphabet_model, "-c", "300", "-n", "1")
    reply(capsys, session, "/probs 2")
    assert reply(capsys, session, "/probs off") == "candidates: off\n"
    assert asked(session, capsys, "Hello") == ""


@pytest.mark.parametrize("argument", ["", "x", "0", "-1", "101", "1.5", "9" * 5000])
def test_a_wrong_number_of_candidates_is_refused(session: Session, argument: str) -> None:
    with pytest.raises(UsageError, match=r"^/probs"):
        run_command(session, f"/probs {argument}")
    assert session.candidates == 0
    run_command(session, "/probs 100")
    assert session.candidates == 100


# Thoughts.


@pytest.fixture
def thinking(monkeypatch: pytest.MonkeyPatch) -> list[bool]:
    """Makes the engine think before each answer; notes whether it was asked to."""
    asked: list[bool] = []

    def chat(engine: InferenceEngine, *given: Any) -> Iterator[Step]:
        asked.append(given[-2])  # the last one is the mask
        engine.last_stats = GenerationStats(5, 0, 4, 0.1, 0.1, 1)
        for text in ("<think>", "\nHm\x1b.\n", "</thi"):
            yield Step(1, text)
        yield Step(1, "nk>\n\nYes.", "eot")

    monkeypatch.setattr(InferenceEngine, "chat", chat)
    return asked


def test_thoughts_go_to_standard_error_and_the_answer_to_standard_output(
    run: Run, alphabet_model: Path, thinking: list[bool]
) -> None:
    done = run("-m", alphabet_model, "-p", "x", "--no-stats")
    assert done.stdout == b"Yes.\n"
    assert done.stderr.endswith(b"Hm\\x1b.\n\n")
    hidden = run("-m", alphabet_model, "-p", "x", "--no-stats", "--think", "hide")
    assert (hidden.stdout, b"Hm" in hidden.stderr) == (b"Yes.\n", False)
    quiet = run("-m", alphabet_model, "-p", "x", "-q")
    assert (quiet.stdout, quiet.stderr) == (b"Yes.\n", b"")
    assert thinking == [True] * 3


def test_a_record_has_thoughts_apart(run: Run, alphabet_model: Path, thinking: list[bool]) -> None:
    for flags in ((), ("--think", "hide")):
        found = json.loads(run("-m", alphabet_model, "-p", "x", "--json", *flags).stdout)
        assert found.keys() == KEYS | {"thoughts"}
        assert (found["thoughts"], found["text"]) == ("Hm\x1b.", "Yes.")
    assert thinking == [True, True]


def test_thoughts_stay_in_the_history_for_the_format_to_leave_out(
    alphabet_model: Path, thinking: list[bool]
) -> None:
    session = session_of(alphabet_model, "-q")
    run_command(session, "/set think hide")
    session.ask("x")
    assert session.turns[0].answer == "<think>\nHm\x1b.\n</think>\n\nYes."
    run_command(session, "/set think off")
    session.ask("y")
    assert thinking == [True, False]
    with pytest.raises(UsageError, match="think: must be on, off, hide: got maybe"):
        run_command(session, "/set think maybe")


def test_think_changes_nothing_where_there_are_no_thoughts(run: Run, alphabet_model: Path) -> None:
    plain = run("-m", alphabet_model, "-p", "x").stdout
    for what in ("on", "off", "hide"):  # a model of Llama's format has no thoughts
        done = run("-m", alphabet_model, "-p", "x", "--think", what)
        assert (done.returncode, done.stdout) == (0, plain)
    with pytest.raises(SystemExit):
        parse_arguments(["-p", "x", "--think", "on", "--completion"])
