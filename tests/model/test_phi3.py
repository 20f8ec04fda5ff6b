"""Tiny random models like Phi-3-mini, Phi-3.5, Phi-4 and Phi-4-mini, and the oracles of
each.
"""

import contextlib
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from src.checkpoint import CheckpointError
from src.inference import BatchEngine, InferenceEngine, SamplingArgs
from src.model import ModelConfigError, load_model
from src.model.saving import save_quantized
from src.model.saving_gguf import save_gguf

pytest.importorskip("torch", reason="needs the oracle extra")
pytest.importorskip("transformers", reason="needs the oracle extra")

import torch
import transformers

from tests.model import oracle
from tests.model.test_hugging_face_oracle import FLOAT32_BOUND, randomise
from tests.model.test_llama import check_bits, check_every_way, run
from tests.support import llama_cpp

pytestmark = pytest.mark.oracle

TOKENS = 200


def long_rope(
    pairs: int, original: int, positions: int, part: float = 1.0
) -> dict[str, Any]:
    return {
        "rope_parameters": {
            "rope_type": "longrope",
            "rope_theta": 10000.0,
            "short_factor": [1.0 + 0.05 * i for i in range(pairs)],
            "long_factor": [1.0 + 0.7 * i for i in range(pairs)],
            "partial_rotary_factor": part,
        },
        "original_max_position_embeddings": original,
        "max_position_embeddings": positions,
    }


SIZES: dict[str, Any] = {
    "hidden_size": 96,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "intermediate_size": 160,
    "vocab_size": 211,
    "num_hidden_layers": 3,
    "pad_token_id": None,
    "bos_token_id": None,
    "eos_token_id": 3,
    "max_position_embeddings": 4096,
}
CONFIGS: dict[str, dict[str, Any]] = {
    "Phi-3-mini": {"num_key_value_heads": 4, "sliding_window": 2047},
    "Phi-3.5, short factors": long_rope(12, 2048, 16384),
    "Phi-3.5, long factors": long_rope(12, 64, 16384),
    "Phi-4": {"rope_parameters": {"rope_type": "default", "rope_theta": 250000.0}},
    "Phi-4-mini": {
        "hidden_size": 128, "tie_word_embeddings": True, **long_rope(12, 64, 1024, 0.75),
    },
}  # fmt: skip
EVERY_CONFIG = pytest.mark.parametrize("name", CONFIGS)


def save(directory: Path, name: str) -> Path:
    """Write a random float32 model with `save_pretrained`."""
    config = transformers.AutoConfig.for_model("phi3", **SIZES | CONFIGS[name])
    model = transformers.AutoModelForCausalLM.from_config(config)
    randomise(model, bool(CONFIGS[name].get("tie_word_embeddings")))
    model.save_pretrained(directory)
    return directory


def read(directory: Path) -> Any:
    model = transformers.AutoModelForCausalLM.from_pretrained(
        directory, dtype=torch.float32, attn_implementation="eager"
    )
    return model.eval()


def ids_of(count: int = TOKENS) -> list[int]:
    ids: list[int] = (
        np.random.default_rng(7).integers(0, SIZES["vocab_size"], count).tolist()
    )
    return ids


@EVERY_CONFIG
def test_float32_logits_are_those_of_transformers(tmp_path: Path, name: str) -> None:
    directory = save(tmp_path, name)
    exact = oracle.logits(read(directory), ids_of())
    assert exact.std() > 0.5
    ours = run(load_model(directory).transformer, ids_of())
    assert oracle.errors(ours, exact)[0] < FLOAT32_BOUND


@EVERY_CONFIG
def test_a_gguf_file_gives_the_bits_of_its_directory_and_llama_cpp_runs_it(
    tmp_path: Path, name: str
) -> None:
    llama_cpp.needed()
    directory = save(tmp_path / "source", name)
    path = tmp_path / "a.gguf"
    save_gguf(directory, path)
    given = load_model(directory)
    made = load_model(path)
    assert made.args.rotary_dim == given.args.rotary_dim
    assert made.args.max_context_length == given.args.max_context_length
    ids = ids_of(24)
    ours = run(made.transformer, ids, length=256)
    check_bits(ours, run(given.transformer, ids, length=256))
    with llama_cpp.LlamaCpp(path) as other:
        theirs = other.run_each(ids)
    # The cache of llama.cpp is float16; the other factors would differ by more than 0.1.
    assert np.abs(theirs - ours).max() < 1e-2 * np.abs(ours).max()


@pytest.mark.parametrize("name", ["Phi-3-mini", "Phi-3.5, short factors"])
def test_every_way_to_run_a_text_gives_the_same_bits(tmp_path: Path, name: str) -> None:
    check_every_way(load_model(save(tmp_path, name)).transformer, ids_of(70))


def test_chunks_of_a_long_context_give_the_same_bits(tmp_path: Path) -> None:
    network = load_model(save(tmp_path, "Phi-4-mini")).transformer
    whole = run(network, ids_of())
    for chunk in (1, 7, 64):
        check_bits(run(network, ids_of(), chunk), whole)
    short = run(network, ids_of(60))
    assert np.abs(short - run(network, ids_of(60), length=65)).max() > 1e-3


@EVERY_CONFIG
@pytest.mark.parametrize("quantize", ["nf4", "int8"])
def test_a_quantized_directory_gives_the_bits_of_quantizing(
    tmp_path: Path, name: str, quantize: str
) -> None:
    directory = save(tmp_path / "source", name)
    save_quantized(directory, tmp_path / "saved", quantize)
    saved = load_model(tmp_path / "saved").transformer
    check_bits(
        run(saved, ids_of(30)),
        run(load_model(directory, quantize=quantize).transformer, ids_of(30)),
    )


def test_the_joined_matrices_are_views_of_the_file(tmp_path: Path) -> None:
    model = load_model(save(tmp_path, "Phi-3.5, long factors"))
    layer = model.transformer.layers[0]
    q = layer.attention.wq
    k = layer.attention.wk
    v = layer.attention.wv
    assert (q.shape, k.shape, v.shape) == ((96, 96), (48, 96), (48, 96))
    assert k.data_pointer == q.data_pointer + q.nbytes
    assert v.data_pointer == k.data_pointer + k.nbytes
    assert layer.feed_forward.w3.data_pointer == (
        layer.feed_forward.w1.data_pointer + layer.feed_forward.w1.nbytes
    )


def test_a_window_caps_the_context(tmp_path: Path) -> None:
    assert load_model(save(tmp_path, "Phi-3-mini")).args.max_context_length == 2047


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"short_factor": [1.0] * 11}, "rope: expected 12 factors of LongRoPE, got 11"),
        ({"long_factor": ["x"] * 12}, "long_factor: expected a list of numbers"),
        (
            {"partial_rotary_factor": 0.9},
            "partial_rotary_factor: expected an even number",
        ),
    ],
)
def test_bad_factors_are_refused(
    tmp_path: Path, changes: dict[str, Any], words: str
) -> None:
    directory = save(tmp_path, "Phi-3.5, long factors")
    path = directory / "config.json"
    config = json.loads(path.read_text())
    config["rope_parameters"] |= changes
    path.write_text(json.dumps(config))
    with pytest.raises((CheckpointError, ModelConfigError), match=words):
        load_model(directory)


def test_two_ranks_give_the_bits_of_one(tmp_path: Path) -> None:
    pytest.importorskip("mpi4py", reason="needs the mpi extra")
    from tests.model.test_ranks import same_bits

    cases = [(save(tmp_path / name, name), None) for name in ("Phi-4", "Phi-4-mini")]
    same_bits([*cases, (tmp_path / "Phi-4-mini", "nf4")], tmp_path, (2,))


def test_a_batch_gives_the_tokens_of_each_prompt_alone(tmp_path: Path) -> None:
    model = load_model(save(tmp_path, "Phi-3.5, long factors"))
    prompts = [ids_of(5), ids_of(90), ids_of(3)]
    greedy = SamplingArgs(temperature=0.0)
    with contextlib.closing(BatchEngine(model, sequence_length=256)) as engine:
        requests = [engine.submit(p, sampling=greedy, max_new_tokens=8) for p in prompts]
        together = [[step.token_id for step in request] for request in requests]
    for prompt, tokens in zip(prompts, together, strict=True):
        steps = InferenceEngine(model, 256).generate(prompt, 8, greedy)
        assert [step.token_id for step in steps] == tokens
