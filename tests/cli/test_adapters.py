"""LoRA adapters on the command line and in the chat."""

import json
from pathlib import Path

import numpy as np
import pytest

from src import ml
from src.checkpoint import CheckpointError
from src.cli.arguments import parse_arguments
from src.cli.commands import run_command
from src.cli.console import UsageError
from src.inference import (
    InferenceEngine,
    SamplingArgs,
    perplexity_of,
    score_chunks,
    text_chunks,
)
from src.model import load_adapter, load_model
from src.model.sources import BUNDLED_MODEL
from tests.cli.conftest import PROGRAM, reply, session_of
from tests.cli.test_bench import cells
from tests.cli.test_perplexity import TEXT
from tests.explorer.test_explorer import runs_of
from tests.support.adapters import random_pairs, write_peft
from tests.support.mpi import mpirun, needs_mpi

ASK = ("-p", "Once upon a time", "--completion", "-n", "8", "--temperature", "0")


@pytest.fixture(scope="module")
def paths(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    place = tmp_path_factory.mktemp("adapters")
    args = load_model().args
    return [
        write_peft(place / name, random_pairs(args, 4, seed, size=2.5), alpha=4)
        for seed, name in enumerate(("first", "second"), 1)
    ]


def expected(paths: list[Path], *scales: float) -> list[int]:
    model = load_model()
    tokenizer = model.tokenizer
    assert tokenizer is not None
    ids = tokenizer.encode("Once upon a time", bos=True, eos=False)
    adapters = tuple(
        (load_adapter(model, path), scale)
        for path, scale in zip(paths, scales, strict=False)
    )
    engine = InferenceEngine(model, 64)
    greedy = SamplingArgs(temperature=0.0)
    steps = engine.generate(ids, 8, greedy, adapters=adapters)
    return [step.token_id for step in steps]


@pytest.mark.parametrize(
    ("texts", "pairs"),
    [
        (["a"], [("a", 1.0)]),
        (["a:0.5", "b/c:-2"], [("a", 0.5), ("b/c", -2.0)]),
        (["a:b"], [("a:b", 1.0)]),
        (["a:b:1e-3"], [("a:b", 0.001)]),
        ([":2"], [(":2", 1.0)]),
    ],
    ids=str,
)
def test_a_flag_has_a_path_and_perhaps_a_scale(texts, pairs):
    flags = [word for text in texts for word in ("--lora", text)]
    found = parse_arguments(flags).lora
    assert found == tuple((Path(path), scale) for path, scale in pairs)


@pytest.mark.parametrize("text", ["", "a:1001", "a:-1e9"])
def test_a_bad_scale_is_a_usage_error(text, capsys):
    with pytest.raises(SystemExit) as ended:
        parse_arguments(["--lora", text])
    assert ended.value.code == 2
    assert "must be PATH or PATH:SCALE, SCALE from -1000" in capsys.readouterr().err


@pytest.mark.parametrize(
    "flags",
    [
        ["--verify"],
        ["--bench"],
        ["--metadata"],
        ["--quantize", "q8_0", "--save-gguf", "x"],
    ],
    ids=str,
)
def test_a_report_has_no_adapters(flags, capsys):
    with pytest.raises(SystemExit) as ended:
        parse_arguments(["--lora", "a", *flags])
    assert ended.value.code == 2
    assert "not allowed with" in capsys.readouterr().err


def test_an_answer_has_the_adapters_of_the_flags(run, paths):
    first, second = paths
    plain = json.loads(run(*ASK, "--json").stdout)
    assert "lora" not in plain
    done = run(*ASK, "--json", "--lora", first, "--lora", f"{second}:-0.5")
    record = json.loads(done.stdout)
    assert record["lora"] == [
        {"name": "first", "scale": 1.0}, {"name": "second", "scale": -0.5},
    ]  # fmt: skip
    assert record["token_ids"] == expected(paths, 1.0, -0.5) != plain["token_ids"]
    assert "adapter second (peft, rank 4, 28 weights), scale -0.5" in done.stderr.decode()
    off = json.loads(run(*ASK, "--json", "--lora", f"{first}:0").stdout)
    assert off["token_ids"] == plain["token_ids"]
    assert "lora" not in off


def test_a_bad_adapter_is_one_line(run, paths, tmp_path):
    done = run(*ASK, "--lora", tmp_path / "none")
    assert done.returncode == 3
    last = done.stderr.decode().splitlines()[-1]
    assert last == (
        f"error: {tmp_path / 'none'}: path: expected a directory of peft or mlx, or a GGUF "
        "file, got nothing"
    )


def test_a_perplexity_is_that_of_the_adapted_model(run, paths):
    done = run("--perplexity", TEXT, "-c", "64", "--chunks", "2", "--lora", paths[0])
    model = load_model()
    text = TEXT.read_text("utf-8").removesuffix("\n")
    assert model.tokenizer is not None
    chunks = text_chunks(model.tokenizer, text, 64)[:2]
    adapters = ((load_adapter(model, paths[0]), 1.0),)
    scores = score_chunks(model.transformer, chunks, adapters=adapters)
    estimate = perplexity_of(np.concatenate([score.losses for score in scores]))
    shown = f"{estimate.value:.4f} ± {estimate.error:.5f}"
    assert cells(done.stdout)["perplexity"] == [shown]
    plain = cells(run("--perplexity", TEXT, "-c", "64", "--chunks", "2").stdout)
    assert plain["perplexity"] != [shown]


def test_a_prompt_cache_belongs_to_its_adapters(run, paths, tmp_path):
    cache = ("--prompt-cache", tmp_path / "cache")
    for number in range(2):
        done = run(*ASK, "--json", "--lora", paths[0], *cache)
        record = json.loads(done.stdout)
        assert record["token_ids"] == expected(paths, 1.0)
        assert bool(record["cached_tokens"]) == bool(number)
    done = run(*ASK, *cache)
    assert done.returncode == 3
    assert b"adapters: expected none, got" in done.stderr


def test_a_chat_adds_changes_and_removes_adapters(paths, capsys):
    first, second = paths
    session = session_of(BUNDLED_MODEL, "--completion", "-n", "8", "--temperature", "0")

    def answer() -> list[int]:
        return list(session.answer_apart("Once upon a time").ids)

    plain = answer()
    assert reply(capsys, session, "/lora").strip() == "adapters: none"
    assert reply(capsys, session, f"/lora {first}").strip() == (
        "adapter first (peft, rank 4, 28 weights), scale 1"
    )
    assert answer() == expected(paths, 1.0) != plain
    lines = reply(capsys, session, f"/lora {second}:-0.5").strip().splitlines()
    assert [line.split()[1] for line in lines] == ["first", "second"]
    assert answer() == expected(paths, 1.0, -0.5)
    assert "first (peft, rank 4, 28 weights), scale 0" in reply(
        capsys, session, "/lora first:0"
    )
    assert answer() == expected(paths[1:], -0.5)
    assert reply(capsys, session, "/lora off").strip() == "adapters: none"
    assert answer() == plain


@pytest.mark.parametrize(
    ("argument", "error", "words"),
    [
        ("x:5000", UsageError, "usage: /lora PATH.*must be PATH or PATH:SCALE"),
        ("/no/such", CheckpointError, "path: expected a directory of peft or mlx"),
    ],
)
def test_a_bad_argument_changes_nothing(argument, error, words, paths, capsys):
    session = session_of(BUNDLED_MODEL, "--completion", "--lora", str(paths[0]))
    before = session.adapters
    with pytest.raises(error, match=words):
        run_command(session, f"/lora {argument}")
    assert session.adapters == before
    assert len(before) == 1


def test_another_model_has_no_adapters(paths, alphabet_model, capsys):
    session = session_of(BUNDLED_MODEL, "--lora", str(paths[0]))
    run_command(session, f"/model {alphabet_model}")
    assert session.adapters == ()
    assert session.options.lora == ()


def test_the_explorer_shows_the_base_next_to_the_adapter(run, paths, tmp_path):
    page = tmp_path / "page.html"
    flags = (*ASK, "--json", "--explore", page, "--explore-with", "base")
    done = run(*flags, "--lora", paths[0])
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["token_ids"] == expected(paths, 1.0)
    first, second = runs_of(page.read_text("utf-8"))
    assert first["name"] == "bundled model+first, bfloat16"
    assert second["name"] == "bundled model, bfloat16"
    assert first["tokens"] == second["tokens"]
    assert first["passes"] != second["passes"]
    done = run(*flags)
    assert done.returncode == 2
    assert b"--explore-with base: expected --lora or --set-activation" in done.stderr


def test_a_trace_names_the_adapters_and_has_the_tokens_of_the_answer(
    run, paths, tmp_path
):
    log = tmp_path / "debug.log"
    flags = (*ASK, "--json", "--debug-log", log, "--lora", f"{paths[0]}:0.5")
    record = json.loads(run(*flags).stdout)
    assert record["token_ids"] == expected(paths, 0.5)
    assert "adapters" in log.read_text("utf-8")
    assert "first x 0.5" in log.read_text("utf-8")


@pytest.mark.parametrize("name", ["merged", "merged.gguf"])
def test_a_merged_model_answers_like_the_adapted_one(run, paths, tmp_path, name):
    target = tmp_path / name
    flags = ("--lora", paths[0], "--lora", f"{paths[1]}:-0.5")
    done = run(*flags, "--merge-lora", target)
    assert done.returncode == 0, done.stderr
    assert f"{target}: " in done.stderr.decode()
    merged = load_model(target)
    base = load_model()
    assert base.tokenizer is not None
    ids = base.tokenizer.encode("Once upon a time there was a llama", bos=True, eos=False)
    adapters = tuple(
        (load_adapter(base, path), scale)
        for path, scale in zip(paths, (1.0, -0.5), strict=True)
    )
    with ml.adapted_rows([(len(ids), len(ids), adapters)]):
        wanted = base(ids, all_positions=True).numpy()
    found = merged(ids, all_positions=True).numpy()
    plain = base(ids, all_positions=True).numpy()
    error = np.sqrt(((found - wanted) ** 2).mean())
    assert error < 0.05 * np.sqrt(((plain - wanted) ** 2).mean())


def test_merging_needs_an_adapter(capsys):
    with pytest.raises(SystemExit) as ended:
        parse_arguments(["--merge-lora", "x"])
    assert ended.value.code == 2
    assert "--merge-lora: needs --lora" in capsys.readouterr().err


@needs_mpi
def test_ranks_answer_as_one_process(run, paths):
    flags = (*ASK, "--json", "-t", "1", "--lora", str(paths[0]))
    one = json.loads(run(*flags).stdout)["token_ids"]
    two = mpirun(2, *PROGRAM, *flags)
    assert two.returncode == 0, two.stderr
    assert json.loads(two.stdout)["token_ids"] == one
    bad = mpirun(2, *PROGRAM, *ASK, "--lora", "/no/such")
    assert bad.returncode == 3
    assert "path: expected a directory of peft or mlx" in bad.stderr
