import base64
import json
import os
import re
import zlib
from pathlib import Path
from typing import Any

import pytest

from src import memory, trace
from src.cli.console import UsageError
from src.explorer import collect
from src.explorer import run as run_module
from src.inference import encode_chat
from src.model import forecast_memory
from tests.cli.conftest import ALPHABET, Run
from tests.support.clock import Clock

ANSWER = f"{ALPHABET}\n".encode()


def document(path: Path) -> dict[str, Any]:
    [text] = re.findall(r'id="document">([^<]*)<', path.read_text("utf-8"))
    found: dict[str, Any] = json.loads(zlib.decompress(base64.b64decode(text)))
    return found


def answered(run: dict[str, Any]) -> str:
    drawn = [one["token"] for one in run["passes"] if "token" in one]
    return "".join(run["texts"][str(token)][0] for token in drawn[:-1])


def test_a_run_is_explored_beside_its_log_and_its_diagrams(
    run: Run, alphabet_model: Path, tmp_path: Path
) -> None:
    target, log = tmp_path / "page.html", tmp_path / "debug.log"
    files = ("--explore", target, "--debug-log", log, "--diagrams", tmp_path / "d")
    done = run("-m", alphabet_model, "-p", "x <y>", *files)
    assert (done.returncode, done.stdout) == (0, ANSWER)
    assert f"{target}: ".encode() in done.stderr
    [found] = document(target)["runs"]
    assert answered(found) == ALPHABET
    assert found["prompt"]["messages"][-1]["content"] == "x <y>"
    assert "20 sampling" in log.read_text("utf-8")
    assert len(os.listdir(tmp_path / "d")) == 22
    assert not trace.is_on()


def test_what_the_page_needs_is_not_counted_as_time_of_the_answer(
    run: Run, alphabet_model: Path, tmp_path: Path, monkeypatch
) -> None:
    seconds, clock, read_lens = 0.5, Clock(monkeypatch), collect.read_lens

    def slow(*arguments: Any) -> Any:
        clock.advance(seconds)
        return read_lens(*arguments)

    monkeypatch.setattr(collect, "read_lens", slow)
    flags = ("-p", "x", "-n3", "--json", "--explore", tmp_path / "page.html")
    record = json.loads(run("-m", alphabet_model, *flags).stdout)
    assert clock.now > 3 * seconds
    assert record["prefill_seconds"] + record["decode_seconds"] < seconds


def test_another_prompt_stands_beside_it(run: Run, alphabet_model: Path, tmp_path: Path) -> None:
    target = tmp_path / "page.html"
    done = run(
        "-m", alphabet_model, "-p", "x", "-n4", "--explore", target, "--explore-prompt", "yz"
    )
    assert done.returncode == 0
    first, second = document(target)["runs"]
    assert len(second["tokens"]) == len(first["tokens"]) + 1
    assert not second["forced"]


def test_another_model_reads_the_same_tokens(
    run: Run, alphabet_model: Path, random_model: Path, tmp_path: Path
) -> None:
    target = tmp_path / "page.html"
    other = ("--explore-with", random_model)
    done = run("-m", alphabet_model, "-p", "x", "-n4", "--explore", target, *other)
    assert done.returncode == 0, done.stderr
    first, second = document(target)["runs"]
    assert first["tokens"] == second["tokens"]
    assert second["forced"]
    assert any("drawn" in one for one in second["passes"])


def test_another_model_that_does_not_fit_is_refused_before_anything_runs(
    run: Run, alphabet_model: Path, tmp_path: Path, monkeypatch
) -> None:
    needed = forecast_memory(alphabet_model, 512, 512).needed
    monkeypatch.setattr(memory, "available_memory", lambda: needed + 1000)
    flags = ("-m", alphabet_model, "-c", "512", "-p", "x", "--explore", tmp_path / "page.html")
    for other in (alphabet_model, "nf4"):
        done = run(*flags, "--explore-with", other)
        assert (done.returncode, done.stdout) == (4, b"")
        assert b"memory: expected at most " in done.stderr
        assert os.listdir(tmp_path) == []
    assert run(*flags).returncode == 0


@pytest.mark.parametrize(
    ("flags", "told"),
    [
        (("--explore", "."), "expected a writable file, got Is a directory"),
        (("--explore", "no/such/page.html"), "got No such file or directory"),
        (("--explore", "x.html", "--explore-limit", "0.2"), "expected at least 1 MB, got 0.2"),
        (("--explore", "x.html", "--explore-with", "no/such/model"), "no/such/model"),
    ],
)
def test_what_cannot_be_is_refused_before_anything_runs(
    run: Run, alphabet_model: Path, tmp_path: Path, monkeypatch, flags: tuple[str, ...], told: str
) -> None:
    monkeypatch.chdir(tmp_path)
    done = run("-m", alphabet_model, "-p", "x", *flags)
    assert done.returncode != 0
    assert done.stdout == b""
    assert told.encode() in done.stderr
    assert os.listdir(tmp_path) == []


def test_the_last_answer_of_a_chat_is_explored(session, typed, tmp_path: Path) -> None:
    target = tmp_path / "page.html"
    with pytest.raises(UsageError, match="nothing was answered yet"):
        typed(f"/explore {target}")
    answer = session.ask("hi")
    cached = session.engine.cached_ids
    typed(f"/explore {target}")
    [found] = document(target)["runs"]
    assert answered(found) == answer.text
    assert found["forced"]
    assert session.engine.cached_ids == cached
    assert not trace.is_on()


def test_an_answer_without_thoughts_is_run_again_without_them(
    session, typed, tmp_path: Path, monkeypatch
) -> None:
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


def test_the_page_does_not_tell_where_the_model_is(
    run: Run, alphabet_model: Path, tmp_path: Path
) -> None:
    run("-m", alphabet_model, "-p", "x", "-n1", "--explore", tmp_path / "page.html")
    [found] = document(tmp_path / "page.html")["runs"]
    assert found["model"].startswith(f"{alphabet_model.name} (")
    assert str(alphabet_model.parent) not in json.dumps(found)
