"""A model whose file name holds controls reaches no output unescaped, and breaks no
format.
"""

import json
import os
import sys
import zlib
from dataclasses import replace
from pathlib import Path
from urllib.parse import quote
from xml.etree import ElementTree

import pytest

from src.cli.answer import Settings
from src.cli.saved_chat import SavedChat, chat_as_json, read_chat
from src.cli.session import Turn
from src.inference import SamplingArgs
from src.model import Model, load_model
from src.model.saving_gguf import save_gguf
from src.untrusted import escape_controls, escape_line
from tests.cli.conftest import Outcome, run_program
from tests.server.running import running

# C1, BEL, bidirectional marks, two noncharacters, an escape sequence, a byte that is not
# UTF-8, a newline, marks of HTML, SO.
NAME = os.fsdecode(
    b"m\xc2\x9b31m\x07\xe2\x80\xae\xef\xbf\xbf\xef\xb7\x90\x1b]0;t\x07\xff\n<&\"'\xe2\x80\x8f\x0e"
)
SHOWN = (
    r"m\x9b31m\x07\u202e\uffff\ufdd0\x1b]0;t\x07\udcff\n" + "<&\"'" + r"\u200f\x0e.gguf"
)
pytestmark = pytest.mark.skipif(
    sys.platform != "linux", reason="the system allows no such name"
)


@pytest.fixture(scope="module")
def model_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("hostile") / NAME
    directory.mkdir()
    save_gguf(None, directory / f"{NAME}.gguf")
    return directory / f"{NAME}.gguf"


@pytest.fixture(scope="module")
def model(model_file: Path) -> Model:
    return load_model(model_file)


def harmless(data: bytes) -> str:
    """Returns UTF-8 text that has no control but newlines, and no invisible character."""
    text = data.decode()
    assert escape_controls(text) == text
    return text


def test_the_model_names_itself_in_printable_characters(model):
    assert model.source.name == SHOWN
    assert model.description.isprintable()
    assert repr(model).isprintable()


def test_every_file_and_line_of_a_run_is_harmless_and_well_formed(model_file, tmp_path):
    names = ("debug.log", "trace.json", "diagrams", "page.html")
    log, trace, diagrams, page = (tmp_path / name for name in names)
    outputs = (
        "--debug-log",
        log,
        "--trace-json",
        trace,
        "--diagrams",
        diagrams,
        "--explore",
        page,
    )
    done = run_program("-m", model_file, "-p", "Hi", "-n", "2", "-v", "--json", *outputs)
    assert done.returncode == 0, done.stderr
    assert SHOWN in harmless(done.stderr)
    record = json.loads(harmless(done.stdout))
    assert escape_line(record["model"]).endswith(SHOWN.replace(r"\udcff", "\ufffd"))
    assert SHOWN[:20] in harmless(log.read_bytes())
    for line in harmless(trace.read_bytes()).splitlines():
        json.dumps(json.loads(line), ensure_ascii=False).encode()
    pictures = sorted(diagrams.iterdir())
    assert len(pictures) == 22
    for picture in pictures:
        harmless(picture.read_bytes())
        texts = [*ElementTree.fromstring(picture.read_bytes()).itertext()]
        assert any("this run of" in text for text in texts)
        assert any(SHOWN[:20] in text for text in texts)
    harmless(page.read_bytes())


def test_reports_and_errors_are_harmless(model_file, tmp_path):
    prompts = tmp_path / "prompts.jsonl"
    prompts.write_text('{"prompt": "Hi"}\n')
    folder = model_file.parent
    calls: list[tuple[int, tuple[object, ...]]] = [
        (0, ("--metadata",)),
        (0, ("--jsonl", prompts)),
        (1, ("-p", "Hi", "--debug-log", folder)),
        (1, ("-p", "Hi", "--save-gguf", model_file)),
    ]
    for code, arguments in calls:
        done: Outcome = run_program("-m", model_file, *arguments)
        assert bool(done.returncode) == bool(code), done.stderr
        harmless(done.stdout)
        harmless(done.stderr)
    missing = run_program("-m", f"{model_file}.not", "-p", "Hi")
    assert r"\udcff\n" in harmless(missing.stderr)


def test_the_explorer_knows_the_model_by_its_escaped_name(model, monkeypatch):
    documents = []

    def compress(data: bytes, _level: int) -> bytes:
        documents.append(data)
        return data

    monkeypatch.setattr(zlib, "compress", compress)
    from src.explorer import explore

    explore(model, "Hi", 1, SamplingArgs(temperature=0.0))
    (document,) = [json.loads(x) for x in documents if bytes(x[:10]) == b'{"version"']
    run = document["runs"][0]
    assert run["name"] == f"{SHOWN}, bfloat16"
    assert SHOWN in run["model"]
    assert escape_line(run["model"]) == run["model"]


def test_a_saved_chat_is_harmless_and_loads(model_file, tmp_path):
    chat = SavedChat(str(model_file), False, Settings(seed=1), None, (Turn("Hi", "Ho"),))
    (tmp_path / "chat.json").write_bytes(chat_as_json(chat))
    text = harmless((tmp_path / "chat.json").read_bytes())
    model = json.loads(text)["model"]
    assert escape_line(model).endswith(SHOWN.replace(r"\udcff", "\ufffd"))
    assert read_chat(tmp_path / "chat.json") == replace(chat, model=model)


def test_the_server_lists_the_model_by_its_escaped_name(model_file, tmp_path):
    pytest.importorskip("starlette", reason="the serve extra is not installed")
    with running(tmp_path, "-m", str(model_file)) as server:
        status, listed = server.ask("/v1/models")
        assert (status, listed["data"][0]["id"]) == (200, SHOWN)
        assert server.ask(f"/v1/models/{quote(SHOWN, safe='')}") == (
            200,
            listed["data"][0],
        )
        assert server.chat(model=SHOWN, max_tokens=1)["model"] == SHOWN
        harmless(server.log.read_bytes())
