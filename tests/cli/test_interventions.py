"""Changes of tensors on the command line and in the chat."""

import json
from pathlib import Path

import numpy as np
import pytest

from src.cli.arguments import parse_arguments
from src.cli.commands import run_command
from src.cli.console import UsageError
from src.inference import InferenceEngine, SamplingArgs
from src.inference.vectors import read_array, save_arrays
from src.model import Intervention, load_model
from src.model.sources import BUNDLED_MODEL
from tests.cli.conftest import reply, session_of
from tests.explorer.test_explorer import runs_of

ASK = ("-p", "Once upon a time", "--completion", "-n", "8", "--temperature", "0")
HEAD = "layers.0.attention.heads[2]"


def expected(*interventions: Intervention) -> list[int]:
    model = load_model()
    assert model.tokenizer is not None
    ids = model.tokenizer.encode("Once upon a time", bos=True, eos=False)
    greedy = SamplingArgs(temperature=0.0)
    steps = InferenceEngine(model, 64).generate(
        ids, 8, greedy, interventions=interventions
    )
    return [step.token_id for step in steps]


def test_flags_have_an_address_an_operator_and_a_value() -> None:
    options = parse_arguments(
        [
            *("--set-activation", f"{HEAD}*=-2", "--set-activation", "x[layer 1]@5*=2"),
            *("--vector", "v.safetensors:0.5", "--save-activation", "x[layer 1]=x.st"),
        ]
    )
    assert options.set_activation == (f"{HEAD}*=-2", "x[layer 1]@5*=2")
    assert options.vector == ((Path("v.safetensors"), 0.5),)
    assert options.save_activation == (("x[layer 1]", Path("x.st")),)
    with pytest.raises(SystemExit):
        parse_arguments(["--save-activation", "x[layer 1]"])
    with pytest.raises(SystemExit):
        parse_arguments(["--set-activation", "x[layer 1]=0", "--bench"])


def test_a_prompt_runs_with_changes_and_its_log_names_them(run, tmp_path: Path) -> None:
    log = tmp_path / "debug.log"
    saved = tmp_path / "x.safetensors"
    model = load_model()
    flip = Intervention.scale(model, HEAD, -2)
    half = Intervention.scale(model, "x[layer 1]@2", 0.5)
    flags = (*ASK, "--json", "--debug-log", log)
    changes = ("--set-activation", f"{HEAD}*=-2", "--set-activation", "x[layer 1]@2*=0.5")
    done = run(*flags, *changes, "--save-activation", f"x[layer 2]={saved}")
    record = json.loads(done.stdout)
    assert record["token_ids"] == expected(flip, half) != expected()
    assert record["interventions"] == [f"{HEAD}*=-2", "x[layer 1]@2*=0.5"]
    text = " ".join(log.read_text("utf-8").replace("#", "").split())
    assert f"interventions {HEAD}*=-2, x[layer 1]@2*=0.5" in text
    assert f"changed = {HEAD}*=-2" in text
    assert f"changes {HEAD}*=-2" in done.stderr.decode()
    array = read_array(saved, "x[layer 2]")
    again = Intervention.record(model, "x[layer 2]")
    expected(flip, half, again)
    assert (array == again.recorded).all()
    # Everything of the saved run gives its answer in a run without the other changes.
    patch = ("--set-activation", f"x[layer 2]={saved}:x[layer 2]")
    bare = json.loads(run(*ASK, "--json", *patch).stdout)
    assert bare["token_ids"][0] == record["token_ids"][0]


def test_wrong_changes_are_one_line(run, tmp_path: Path) -> None:
    for text, words in (
        ("layers.0.attention.head=0", "name must be one of embedding, layers.L."),
        ("x[layer 0]", "text must be ADDRESS=VALUE, ADDRESS*=NUMBER or ADDRESS+=VALUE"),
        ("x[layer 0]=much", "must be a number or FILE:KEY: got 'much'"),
        ("x[layer 0]=nan", "must be finite: 1 of 1 elements are not"),
        ("x[layer 0]@4096=1", "must be below the context length 4096: got 4096"),
    ):
        done = run(*ASK, "--set-activation", text)
        assert done.returncode == 2, done.stderr
        assert words in done.stderr.decode().splitlines()[-1]
    file = tmp_path / "v.safetensors"
    save_arrays(file, {"a": np.ones(5, np.float32)}, {})
    for text, words in (
        (f"x[layer 0]+={file}:b", "'b': expected one of a, got another"),
        (f"x[layer 0]+={file}:a", "must be [192] or [T, 192]: got [5]"),
    ):
        done = run(*ASK, "--set-activation", text)
        assert done.returncode == 2
        assert words in done.stderr.decode()
    done = run(*ASK, "--set-activation", "x[layer 0]@900=1")
    assert "x[layer 0]@900=1: no position of the run is in it" in done.stderr.decode()


def test_the_chat_adds_lists_and_removes_changes(capsys) -> None:
    session = session_of(BUNDLED_MODEL, "--completion", "-n", "8", "--temperature", "0")

    def answer() -> list[int]:
        return list(session.answer_apart("Once upon a time").ids)

    plain = answer()
    assert reply(capsys, session, "/intervene").strip() == "interventions: none"
    text = reply(capsys, session, f"/intervene {HEAD}*=-2").strip()
    assert text == f"changes {HEAD}*=-2 (0 rows so far)"
    flip = Intervention.scale(session.engine.model, HEAD, -2)
    assert answer() == expected(flip) != plain
    with pytest.raises(UsageError, match=r"usage: /intervene ADDRESS=VALUE.*name must"):
        run_command(session, "/intervene nothing=0")
    with pytest.raises(UsageError, match="below the context length"):
        run_command(session, "/intervene x[layer 0]@99999=0")
    assert reply(capsys, session, "/intervene off").strip() == "interventions: none"
    assert answer() == plain


def test_the_explorer_shows_the_run_with_a_change_beside_the_run_without(
    run, tmp_path: Path
) -> None:
    page = tmp_path / "explore.html"
    flags = (*ASK, "--explore", page, "--explore-with", "base")
    assert run(*flags, "--set-activation", f"{HEAD}*=-2").returncode == 0
    first, second = runs_of(page.read_text("utf-8"))
    assert first["name"] == f"bundled model, bfloat16; changed {HEAD}*=-2"
    assert second["name"] == "bundled model, bfloat16"
    assert first["tokens"] == second["tokens"]
    assert first["passes"] != second["passes"]
