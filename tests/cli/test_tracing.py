import json
import os
from pathlib import Path

import pytest

from src import trace
from src.cli.commands import run_command
from src.ml import op
from tests.cli.conftest import ALPHABET, Outcome, run_program, session_of
from tests.cli.reciting_model import HEADS
from tests.trace.recording import read_trace

ANSWER = f"{ALPHABET}\n".encode()
NASTY = 'a\nb "c" {} {0}\u2028\u202e\x1b[31m 🙂'


@pytest.fixture(autouse=True)
def in_own_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def test_the_answer_is_the_same_with_a_trace(run, alphabet_model):
    arguments = ("-m", alphabet_model, "-p", "x", "--seed", "4", "--temperature", "2")
    plain = run(*arguments)
    traced = run(
        *arguments, "--debug-log", "--trace-json", "t.jsonl", "--trace-statistics"
    )
    assert (traced.returncode, traced.stdout) == (plain.returncode, plain.stdout)
    assert Path("debug.log").stat().st_size > 10_000
    _, events = read_trace(Path("t.jsonl"))
    assert sum(event.stage == 21 for event in events) == len(plain.stdout)


def test_the_trace_is_off_after_a_run_and_a_new_run_begins_its_files_anew(
    run, alphabet_model
):
    arguments = ("-m", alphabet_model, "-p", "x", "-n", "1")
    sizes = []
    for _ in range(2):
        run(*arguments, "--trace-json", "t.jsonl")
        sizes.append(len(Path("t.jsonl").read_text().splitlines()))
        assert not trace.is_on()
        assert not op._observers
    assert sizes[0] == sizes[1]
    run(*arguments)
    assert [path.name for path in Path().iterdir()] == ["t.jsonl"]


def test_a_prompt_of_any_characters_comes_back_from_the_trace(run, alphabet_model):
    flags = ("-n", "1", "--debug-log", "--trace-json", "t.jsonl")
    run("-m", alphabet_model, "-p", NASTY, *flags)
    chat = read_trace(Path("t.jsonl"))[1][0].details
    assert chat["messages"] == [{"role": "user", "content": NASTY}]
    run("-m", alphabet_model, "-p", NASTY, "--completion", *flags)
    event = read_trace(Path("t.jsonl"))[1][0]
    assert event.details["text"] == NASTY
    assert len(event.details["ids"]) == 1 + len(NASTY.encode())
    lines = Path("debug.log").read_text("utf-8").split("\n")
    assert all(line.isprintable() for line in lines)
    assert repr(NASTY) in "".join(lines)


def test_layers_and_stages_can_be_chosen_of_those_that_the_model_has(run, alphabet_model):
    flags = ("--trace-json", "t.jsonl", "--trace-layers", "0", "--trace-stages", "8-9,21")
    run("-m", alphabet_model, "-p", "x", "-n", "2", *flags)
    records = [json.loads(line) for line in Path("t.jsonl").read_text().splitlines()[1:]]
    assert {record["stage"] for record in records} == {8, 9, 21}
    done = run(
        "-m", alphabet_model, "-p", "x", "-q", "--debug-log", "--trace-layers", "0-1"
    )
    said = b"error: --trace-layers: expected layers from 0 to 0, got 1\n"
    assert done == Outcome(2, b"", said)


def test_one_row_of_each_result_is_in_the_log_and_in_the_json_lines(run, alphabet_model):
    flags = ("--debug-log", "--trace-json", "t.jsonl", "--trace-row", "last")
    run("-m", alphabet_model, "-p", "xy", "--completion", "-n", "2", *flags)
    events = read_trace(Path("t.jsonl"))[1]
    shown = [x for event in events for x in event.outputs if x.row]
    last = {e.step: e.position + e.details["T"] - 1 for e in events if e.stage == 3}
    norms = [event for event in events if (event.stage, event.op) == (6, "rms_norm")]
    assert [(e.step, e.outputs[0].row["index"][0]) for e in norms] == [
        (step, 0 if step else place) for step, place in last.items()
    ]
    lines = [line.strip() for line in Path("debug.log").read_text().splitlines()]
    for x in shown:
        assert any(line.startswith(f"{x.name}[") for line in lines), x
    refused = run(
        "-m", alphabet_model, "-p", "x", "-q", "--debug-log", "--trace-row", f"0:{HEADS}"
    )
    said = f"error: --trace-row: expected a head from 0 to {HEADS - 1}, got {HEADS}\n"
    assert refused == Outcome(2, b"", said.encode())


@pytest.mark.parametrize("flag", ["--debug-log", "--trace-json"])
def test_a_file_that_cannot_be_written_is_refused_before_the_answer(
    run, alphabet_model, flag
):
    places = [(".", "Is a directory"), ("none/t", "No such file or directory")]
    if Path("/dev/full").exists():
        places.append(("/dev/full", "No space left on device"))
    if os.geteuid() != 0:
        Path("locked").touch(0o444)
        places.append(("locked", "Permission denied"))
    for path, reason in places:
        done = run("-m", alphabet_model, "-p", "x", "-q", flag, path)
        assert (done.returncode, done.stdout) == (2, b"")
        text = f"error: {path}: trace: expected a writable file, got {reason}\n"
        assert done.stderr == text.encode()
        assert not trace.is_on()


def test_a_disk_that_fills_up_ends_the_trace_with_a_warning_and_not_the_answer(
    alphabet_model, tmp_path
):
    # Blocks of 512 bytes, or of 1024.
    small = [
        "sh",
        "-c",
        'ulimit -f 8; exec "$@"',
        "sh",
    ]
    log = tmp_path / "t"
    flags = ("-m", alphabet_model, "-p", "x", "-q", "--debug-log", log)
    # Nor half of a module.
    done = run_program(*flags, prefix=small, PYTHONDONTWRITEBYTECODE="1")
    text = f"warning: {log}: the trace ends here: File too large\n"
    assert done == Outcome(0, ANSWER, text.encode())


def test_the_trace_can_be_turned_on_and_off_in_a_chat(alphabet_model, capsys):
    session = session_of(alphabet_model, "-c", "300", "-n", "1")
    try:
        session.ask("x")
        assert not Path("debug.log").exists()
        for _ in range(2):
            run_command(session, "/trace on")
        session.ask("x")
        run_command(session, "/trace off")
        first = Path("debug.log").read_text().splitlines()
        session.ask("x")
        assert Path("debug.log").read_text().splitlines() == first
        run_command(session, "/trace on")
        session.ask("x")
        again = Path("debug.log").read_text().splitlines()
        assert again[: len(first)] == first
        assert len(again) > len(first)
    finally:
        trace.stop()
    replies = capsys.readouterr().err.splitlines()
    assert replies == ["trace: debug.log"] * 2 + ["trace: off", "trace: debug.log"]
