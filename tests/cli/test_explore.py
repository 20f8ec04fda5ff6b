import json
import os
from typing import Any

import pytest

from src import trace
from src.cli.console import UsageError
from src.explorer import collect
from src.explorer import run as run_module
from src.inference import encode_chat
from tests.cli.conftest import ALPHABET
from tests.explorer.test_explorer import runs_of
from tests.support.clock import Clock

ANSWER = f"{ALPHABET}\n".encode()


def answered(run: dict[str, Any]) -> str:
    drawn = [one["token"] for one in run["passes"] if "token" in one]
    return "".join(run["texts"][str(token)][0] for token in drawn[:-1])


def test_a_run_is_explored_beside_its_log_and_its_diagrams(run, alphabet_model, tmp_path):
    target, log = tmp_path / "page.html", tmp_path / "debug.log"
    files = ("--explore", target, "--debug-log", log, "--diagrams", tmp_path / "d")
    done = run("-m", alphabet_model, "-p", "x <y>", *files)
    assert (done.returncode, done.stdout) == (0, ANSWER)
    assert f"{target}: ".encode() in done.stderr
    [found] = runs_of(target.read_text("utf-8"))
    assert answered(found) == ALPHABET
    assert found["prompt"]["messages"][-1]["content"] == "x <y>"
    assert "20 sampling" in log.read_text("utf-8")
    assert len(os.listdir(tmp_path / "d")) == 22
    assert not trace.is_on()


def test_what_the_page_needs_is_no_time_of_the_answer(run, alphabet_model, tmp_path, monkeypatch):
    seconds, clock, read_lens = 0.5, Clock(monkeypatch), collect.read_lens

    def slow(*arguments: Any) -> Any:
        clock.advance(seconds)
        return read_lens(*arguments)

    monkeypatch.setattr(collect, "read_lens", slow)
    flags = ("-p", "x", "-n3", "--json", "--explore", tmp_path / "page.html")
    record = json.loads(run("-m", alphabet_model, *flags).stdout)
    assert clock.now > 3 * seconds
    assert record["prefill_seconds"] + record["decode_seconds"] < seconds


def test_another_prompt_or_another_model_is_beside_it(run, alphabet_model, random_model, tmp_path):
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


@pytest.mark.parametrize(
    ("flags", "told"),
    [
        (("--explore", "."), "expected a writable file, got Is a directory"),
        (("--explore", "no/such/page.html"), "got No such file or directory"),
        (("--explore", "x.html", "--explore-limit", "0.2"), "expected at least 1 MB, got 0.2"),
        (("--explore", "x.html", "--explore-with", "no/such/model"), "no/such/model"),
    ],
)
def test_what_cannot_be_is_refused_at_once(run, alphabet_model, tmp_path, monkeypatch, flags, told):
    monkeypatch.chdir(tmp_path)
    done = run("-m", alphabet_model, "-p", "x", *flags)
    assert done.returncode != 0
    assert done.stdout == b""
    assert told.encode() in done.stderr
    assert os.listdir(tmp_path) == []


def test_the_last_answer_of_a_chat_is_explored(session, typed, tmp_path):
    target = tmp_path / "page.html"
    with pytest.raises(UsageError, match="nothing was answered yet"):
        typed(f"/explore {target}")
    answer = session.ask("hi")
    cached = session.engine.cached_ids
    typed(f"/explore {target}")
    [found] = runs_of(target.read_text("utf-8"))
    assert answered(found) == answer.text
    assert found["forced"]
    assert session.engine.cached_ids == cached
    assert not trace.is_on()


def test_an_answer_without_thoughts_is_run_again_without_any(session, typed, tmp_path, monkeypatch):
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
