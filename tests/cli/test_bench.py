"""`--bench`: a table of speeds beside the machine's limits; no test asserts a speed."""

import re

import numpy as np
import pytest

from src import ml
from src.cli import bench
from src.cli.bench import attention_operations, operations, weights_of_a_step
from src.model import load_model
from tests.model.families import write_family
from tests.support.pth_writer import write_random_meta_directory

PARAMS = {
    "dim": 12,
    "n_layers": 3,
    "n_heads": 6,
    "n_kv_heads": 3,
    "vocab_size": 40,
    "multiple_of": 20,
    "norm_eps": 1e-5,
    "rope_theta": 10000.0,
}


def cells(output: bytes) -> dict[str, list[str]]:
    """Returns the cells of each line by its first one."""
    rows = [re.split(r"  +", line.strip()) for line in output.decode().splitlines()]
    return {row[0]: row[1:] for row in rows}


@pytest.fixture
def one_round(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bench, "ROUNDS", 1)
    monkeypatch.setattr("src.ml.roofline._ROUNDS", 1000)


def test_the_bundled_model_gets_a_table_of_speeds_and_limits(run, one_round):
    threads = ml.get_num_threads()
    done = run("--bench", "-t", "1")
    ml.set_num_threads(threads)
    assert done.returncode == 0, done.stderr
    assert len(done.stderr.splitlines()) == 1  # what is being measured
    table = cells(done.stdout)
    assert table["speed"] == ["tokens/s", "this machine's limit", "share"]
    for work in ("prompt", "one token after the other"):
        assert float(table[work][0]) > 0
    weights = weights_of_a_step(load_model())
    assert table["bytes per token, weights"][0].startswith(
        f"{sum(t.nbytes for t in weights)} ("
    )
    assert table["prompt tokens"] == ["128"]
    assert table["threads"] == ["1"]
    assert table["reading the weights"][0].endswith("GB/s")


def test_the_context_length_shortens_the_prompt_and_needs_room_for_two(
    run, alphabet_model, one_round
):
    for positions, prompt, steps in ((2, 1, 1), (3, 2, 1), (20, 12, 8), (2000, 128, 8)):
        table = cells(run("-m", alphabet_model, "--bench", "-c", str(positions)).stdout)
        assert table["prompt tokens"] == [str(prompt)]
        assert table["tokens one after the other"] == [str(steps)]
    done = run("-m", alphabet_model, "--bench", "-c", "1")
    assert (done.returncode, done.stdout) == (2, b"")
    assert b"--context-length: expected at least 2 for --bench, got 1" in done.stderr


def test_no_tokenizer_is_needed_and_logits_that_are_no_numbers_have_no_table(
    run, reciting
):
    directory = reciting(b"abc", poisoned=True)
    (directory / "tokenizer.model").unlink()
    done = run("-m", directory, "--bench")
    assert (done.returncode, done.stdout) == (5, b"")


def test_a_limit_that_is_unknown_has_no_share(
    run, alphabet_model, monkeypatch, one_round
):
    # The rate of bfloat16 is no limit of integers.
    table = cells(run("-m", alphabet_model, "--bench", "--quantize", "int8").stdout)
    assert table["prompt"][1:] == ["unknown"]
    monkeypatch.setattr("src.ml.roofline.multiply_add_rate", lambda _dtype: None)
    table = cells(run("-m", alphabet_model, "--bench").stdout)
    assert table["prompt"][1:] == ["unknown"]
    assert table["multiply-adds"][0].startswith("unknown")
    assert len(table["one token after the other"]) == 3


@pytest.mark.parametrize("tied", [True, False])
def test_the_operations_are_those_of_all_matrices(tmp_path, tied):
    write_random_meta_directory(tmp_path, PARAMS, tied=tied)
    model = load_model(tmp_path)
    read = weights_of_a_step(model)
    output = model.tensors.get("output.weight", model.tensors["tok_embeddings.weight"])
    assert any(tensor is output for tensor in read)
    assert len(read) == 2 + 9 * PARAMS["n_layers"]
    matrices = [tensor for tensor in read if tensor.ndim == 2]
    of_layers = sum(tensor.size for tensor in matrices) - output.size
    expected = (
        2 * 7 * of_layers + 2 * output.size + attention_operations(model.args, 5, 7)
    )
    assert operations(model.args, 5, 7) == expected


@pytest.mark.parametrize("family", ["qwen3_moe", "gpt_oss"])
def test_only_the_experts_that_a_token_uses_count(tmp_path, family):
    model = load_model(write_family(tmp_path / "model", family, ml.float32))
    args = model.args
    per_expert = 3 * args.dim * args.ffn_dim
    if "w1" in args.biases:
        per_expert += 2 * args.ffn_dim + args.dim
    unused = args.n_layers * (args.n_experts - args.n_active_experts) * per_expert
    table = args.vocab_size * args.dim
    read = sum(weight.size for weight in weights_of_a_step(model))
    assert read == model.parameter_count - unused - table
    matrices = [weight.size for weight in weights_of_a_step(model) if weight.ndim == 2]
    of_matrices = 2 * 7 * (sum(matrices) - table) + 2 * table
    assert operations(args, 5, 7) == of_matrices + attention_operations(args, 5, 7)
    used = (model.parameter_count - unused) / 1e6
    assert (
        f"of which a token uses {used:.1f} M (3 of {args.n_experts} experts)"
        in model.description
    )


def test_the_operations_of_attention_are_two_products_with_every_position_seen():
    args = load_model().args
    seen = int(np.tril(np.ones((7, 12)), 5).sum())
    per_position = 2 * 2 * args.n_heads * args.head_dim * args.n_layers
    assert attention_operations(args, 5, 7) == per_position * seen


@pytest.mark.parametrize(
    ("rates", "limits", "cells"),
    [
        ([50.0, 40.0, 60.0], [100.0, 90.0, 80.0], ("50.0", "100", "50 %")),
        ([130.0, 130.0, 130.0], [100.0, 90.0, 80.0], ("130", "unknown", "")),
        ([130.0, 130.0, 130.0], [100.0, 131.0, 80.0], ("130", "131", "99 %")),
        ([130.0], [], ("130", "unknown", "")),
    ],
)
def test_a_speed_is_never_more_than_the_whole_of_a_limit(rates, limits, cells):
    assert bench._row("prompt", rates, limits) == ("prompt", *cells)
