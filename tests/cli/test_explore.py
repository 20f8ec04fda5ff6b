import errno
import json
import os
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from src import trace
from src.cli.console import UsageError
from src.explorer import collect, lens
from src.explorer import run as run_module
from src.inference import encode_chat
from src.trace.logger import tensor_text
from tests.cli.conftest import ALPHABET
from tests.explorer.test_explorer import runs_of
from tests.support.clock import Clock
from tests.trace.recording import read_trace

ANSWER = f"{ALPHABET}\n".encode()


def answered(run: dict[str, Any]) -> str:
    drawn = [one["token"] for one in run["passes"] if "token" in one]
    return "".join(run["texts"][str(token)][0] for token in drawn[:-1])


def test_a_run_is_explored_beside_its_log_and_its_diagrams(run, alphabet_model, tmp_path):
    target = tmp_path / "page.html"
    log = tmp_path / "debug.log"
    diagrams = tmp_path / "new" / "d"
    files = ("--explore", target, "--debug-log", log, "--diagrams", diagrams)
    done = run("-m", alphabet_model, "-p", "x <y>", *files)
    assert (done.returncode, done.stdout) == (0, ANSWER)
    assert f"{target}: ".encode() in done.stderr
    [found] = runs_of(target.read_text("utf-8"))
    assert answered(found) == ALPHABET
    assert found["prompt"]["messages"][-1]["content"] == "x <y>"
    assert "20 sampling" in log.read_text("utf-8")
    assert f"22 diagrams in {diagrams}\n".encode() in done.stderr
    stages = (f"stage-{number:02}.svg" for number in range(1, 22))
    assert sorted(os.listdir(diagrams)) == ["model.svg", *stages]
    assert "x &lt;y&gt;" in (diagrams / "stage-01.svg").read_text(encoding="utf-8")
    assert not trace.is_on()


def test_what_the_page_needs_is_no_time_of_the_answer(
    run, alphabet_model, tmp_path, monkeypatch
):
    seconds = 0.5
    clock = Clock(monkeypatch)
    read_lens = lens.read_lens

    def slow(*arguments: Any) -> Any:
        clock.advance(seconds)
        return read_lens(*arguments)

    monkeypatch.setattr(collect, "read_lens", slow)
    flags = ("-p", "x", "-n3", "--json", "--explore", tmp_path / "page.html")
    record = json.loads(run("-m", alphabet_model, *flags).stdout)
    assert clock.now > 3 * seconds
    assert record["prefill_seconds"] + record["decode_seconds"] < seconds


def test_another_prompt_or_another_model_is_beside_it(
    run, alphabet_model, random_model, tmp_path
):
    target = tmp_path / "page.html"
    flags = ("-m", alphabet_model, "-p", "x", "-n4", "--explore", target)
    assert run(*flags, "--explore-prompt", "yz").returncode == 0
    first, second = runs_of(target.read_text("utf-8"))
    assert len(second["tokens"]) == len(first["tokens"]) + 1
    assert not second["forced"]
    assert first["model"].startswith(f"{alphabet_model.name} (")  # and not where it is
    assert str(alphabet_model.parent) not in json.dumps(first)
    assert run(*flags, "--explore-with", random_model).returncode == 0
    first, second = runs_of(target.read_text("utf-8"))
    assert first["tokens"] == second["tokens"]
    assert second["forced"]
    assert any("drawn" in one for one in second["passes"])


def test_patches_of_another_prompt_are_added_or_refused(run, tmp_path):
    target = tmp_path / "page.html"
    question = "What is the capital of Peru? Answer in one word."
    flags = ("-p", question, "-n1", "--explore", target, "--explore-patches")
    other = question.replace("Peru", "Chile")
    assert run(*flags, "--explore-prompt", other).returncode == 0
    first, second = runs_of(target.read_text("utf-8"))
    patches = first["patches"]
    assert np.shape(patches["residual"]) == (4, first["passes"][0]["T"])
    assert np.shape(patches["heads"]) == (4, 6)
    assert patches["answer"] != patches["otherAnswer"]
    assert "patches" not in second
    done = run(*flags, "--explore-prompt", "What is 1 + 5 + 5?")
    assert b"--explore-patches: [patch] both prompts must have the same" in done.stderr
    assert not done.stdout  # it is rejected before the answer


@pytest.mark.parametrize(
    ("flags", "format_name"),
    [((), "nf4"), (("--quantize", "nf4"), "int8"), (("--quantize", "int8"), "nf4")],
)
def test_the_format_that_a_page_recommends_can_be_beside_it(
    run, tmp_path, flags, format_name
):
    target = tmp_path / "page.html"
    arguments = (*flags, "-p", "x", "-n1", "--explore", target)
    assert run(*arguments).returncode == 0
    [alone] = runs_of(target.read_text("utf-8"))
    assert alone["beside"] == format_name
    assert run(*arguments, "--explore-with", alone["beside"]).returncode == 0
    first, second = runs_of(target.read_text("utf-8"))
    assert first["weights"] == alone["weights"] != second["weights"]


def test_a_page_recommends_no_format_for_a_file_of_blocks(run, tmp_path):
    target = tmp_path / "page.html"
    model = tmp_path / "model.gguf"
    assert run("--save-gguf", model, "--quantize", "q8_0").returncode == 0
    arguments = ("-m", model, "-p", "x", "-n1", "--explore", target)
    assert run(*arguments).returncode == 0
    [alone] = runs_of(target.read_text("utf-8"))
    assert (alone["weights"], alone["beside"]) == ("q8_0", None)
    assert b"quantized already" in run(*arguments, "--explore-with", "nf4").stderr
    plain = tmp_path / "plain.gguf"
    assert run("--save-gguf", plain).returncode == 0
    assert run(*arguments, "--explore-with", plain).returncode == 0
    assert [x["weights"] for x in runs_of(target.read_text("utf-8"))] == [
        "q8_0",
        "bfloat16",
    ]


@pytest.mark.parametrize(
    ("flags", "told"),
    [
        (("--explore", "."), ".: cannot be written: Is a directory"),
        (
            ("--explore", "no/such/page.html"),
            "cannot be written: No such file or directory",
        ),
        (
            ("--explore", "x.html", "--explore-limit", "0.2"),
            "expected at least 1 MB, got 0.2",
        ),
        (("--explore", "x.html", "--explore-with", "no/such/model"), "no/such/model"),
    ],
)
def test_what_cannot_be_is_refused_at_once(
    run, alphabet_model, tmp_path, monkeypatch, flags, told
):
    monkeypatch.chdir(tmp_path)
    done = run("-m", alphabet_model, "-p", "x", *flags)
    assert done.returncode != 0
    assert done.stdout == b""
    assert told.encode() in done.stderr
    assert os.listdir(tmp_path) == []


def test_the_last_answer_of_a_chat_is_explored(session, typed, tmp_path):
    target = tmp_path / "page.html"
    with pytest.raises(UsageError, match="expected an answer, got none yet"):
        typed(f"/explore {target}")
    answer = session.ask("hi")
    cached = session.engine.cached_ids
    typed(f"/explore {target}")
    [found] = runs_of(target.read_text("utf-8"))
    assert answered(found) == answer.text
    assert found["forced"]
    assert session.engine.cached_ids == cached
    assert not trace.is_on()


def test_an_answer_without_thoughts_is_run_again_without_any(
    session, typed, tmp_path, monkeypatch
):
    asked = []

    def encode(*arguments: Any, think: bool, **named: Any) -> list[int]:
        asked.append(think)
        return encode_chat(*arguments, think=think, **named)

    monkeypatch.setattr(run_module, "encode_chat", encode)
    typed("/set think off")
    session.ask("hi")
    typed("/set think on")  # for what is asked next
    typed(f"/explore {tmp_path / 'page.html'}")
    assert asked == [False]


# Diagrams.


def test_a_full_disk_leaves_nothing_of_the_diagrams(
    run, alphabet_model, tmp_path, monkeypatch
):
    """Half of them, and no word which half, were left before."""
    old = tmp_path / "old"
    old.mkdir()
    (old / "stage-01.svg").write_text("kept")
    written = 0
    write_text = Path.write_text

    def fill(path: Path, text: str, encoding: str) -> int:
        nonlocal written
        written += 1
        if written % 12 == 0:
            raise OSError(errno.ENOSPC, "No space left on device")
        return write_text(path, text, encoding)

    monkeypatch.setattr(Path, "write_text", fill)
    for target in (tmp_path / "new", old):
        done = run("-m", alphabet_model, "-p", "x", "-q", "--diagrams", target)
        assert (done.returncode, done.stdout) == (2, ANSWER)
        assert done.stderr.endswith(b"writable directory, got No space left on device\n")
    monkeypatch.undo()
    assert os.listdir(tmp_path / "new") == []
    assert os.listdir(old) == ["stage-01.svg"]
    assert (old / "stage-01.svg").read_text() == "kept"
    assert run("-m", alphabet_model, "-p", "x", "--diagrams", old).returncode == 0
    assert len(os.listdir(old)) == 22


def test_what_cannot_be_written_is_refused_before_or_after_the_answer(
    run, alphabet_model, tmp_path
):
    target = tmp_path / "file"
    target.touch()
    (tmp_path / "stage-07.svg").mkdir()
    refused = ((target, b"", "File exists"), (tmp_path, ANSWER, "Is a directory"))
    for path, answer, reason in refused:
        done = run("-m", alphabet_model, "-p", "x", "-q", "--diagrams", path)
        assert (done.returncode, done.stdout) == (2, answer)
        text = f"error: {path}: --diagrams: expected a writable directory, got {reason}\n"
        assert done.stderr == text.encode()


def test_log_json_and_diagrams_of_one_run_show_the_same_numbers(
    run, alphabet_model, tmp_path
):
    log = tmp_path / "debug.log"
    lines = tmp_path / "t.jsonl"
    target = tmp_path / "d"
    files = ("--debug-log", log, "--trace-json", lines, "--diagrams", target)
    done = run("-m", alphabet_model, "-p", "x", "-n", "2", "--seed", "3", *files)
    assert done.returncode == 0
    assert not trace.is_on()
    shown = log.read_text("utf-8")
    pictures = {
        n: (target / f"stage-{n:02}.svg").read_text("utf-8") for n in range(1, 22)
    }
    for event in read_trace(lines)[1]:
        picture = pictures[event.stage]
        step = event.step
        details = event.details
        for x in event.outputs if event.stage > 1 else ():
            assert tensor_text(x) in shown
            if event.stage in range(6, 20) and step == 0 and event.op != "mark":
                assert f">{list(x.shape)} {x.dtype}<" in picture
        if event.stage == 3:
            sizes = f"T = {details['T']}, S = {details['S']}"
            assert f": step {step}, {sizes}, " in shown
            assert f">step {step}</text>" in picture
            assert f">{sizes}<" in picture
        elif event.op == "write_cache" and not event.layer:
            assert f", written = {details['written']}, " in shown
            assert f">step {step}: writes {details['written']}, then " in picture
        elif event.stage == 20:
            assert f"random number {details['random']:.6f}" in shown
            assert f"random number {details['random']:.4f}" in picture
            candidates = details["choice"]["candidates"]
            for candidate, logit in zip(candidates, details["logits"], strict=True):
                first, *_, last = (f"{p:.4f}" for p in candidate["probabilities"])
                assert re.search(rf" {logit:.3f} +{first} .*\b{last}\b", shown)
                assert f">{first} {last} {logit:.2f}<" in picture


def test_diagrams_need_a_prompt(spawn, alphabet_model, tmp_path):
    child = spawn("-m", alphabet_model, "--diagrams", tmp_path)
    child.expect("error: --diagrams: expected a prompt")
