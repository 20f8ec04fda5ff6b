"""gpt-oss: its network, and its files, in which experts lie in other arrangements."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from src import ml
from src.checkpoint import CheckpointError
from src.checkpoint.safetensors import read_safetensors
from src.inference import BatchEngine, InferenceEngine, SamplingArgs
from src.model import (
    InferenceContext,
    Model,
    ModelConfigError,
    forecast_memory,
    load_model,
)
from src.model.saving import save_quantized
from src.model.saving_gguf import save_gguf
from tests.model.families import EVEN_SIZES, write_family
from tests.model.test_llama import check_bits, check_every_way, run
from tests.model.tiny import uniform
from tests.support.mxfp4 import pack_experts
from tests.support.safetensors_writer import write_safetensors

IDS = [int(65 * (x + 1)) for x in uniform(7, 24)]
EXPERTS = "model.layers.1.mlp.experts"
OURS = "layers.1.feed_forward.experts"
# As in the files of gpt-oss: a transition of YaRN between fractional indices.
PUBLISHED = {
    "rope_theta": 150000,
    "rope_scaling": {
        "rope_type": "yarn",
        "factor": 32.0,
        "beta_fast": 32.0,
        "beta_slow": 1.0,
        "truncate": False,
        "original_max_position_embeddings": 4096,
    },
    "initial_context_length": 4096,
    "experts_per_token": 3,
}


def packed(directory: Path) -> Path:
    write_family(directory, "gpt_oss", **EVEN_SIZES)
    pack_experts(directory)
    return directory


def stored(directory: Path) -> dict[str, Any]:
    tensors = read_safetensors(directory / "model.safetensors")
    return {name: tensor.numpy().copy() for name, tensor in tensors.items()}


def values(weight: ml.Weight) -> Any:
    plain = weight.dequantize() if isinstance(weight, ml.QuantizedTensor) else weight
    return plain.to(ml.float32).numpy()


def check_experts(model: Model, plain: dict[str, Any]) -> None:
    """Compare the experts with the stored tensors [E, in, out] of all experts."""
    for expert in range(model.args.n_experts):
        for matrix, name, rows in (
            ("w1", "gate_up_proj", slice(0, None, 2)),
            ("w3", "gate_up_proj", slice(1, None, 2)),
            ("w2", "down_proj", slice(None)),
        ):
            expected = plain[f"{EXPERTS}.{name}"][expert].T[rows]
            weight = model.tensors[f"{OURS}.{expert}.{matrix}.weight"]
            np.testing.assert_array_equal(values(weight), expected.astype(np.float32))
            biases = plain.get(f"{EXPERTS}.{name}_bias")
            if biases is not None:
                bias = model.tensors[f"{OURS}.{expert}.{matrix}.bias"]
                np.testing.assert_array_equal(bias.numpy(), biases[expert][rows])


def test_gate_and_up_alternate_in_a_transposed_tensor(tmp_path: Path) -> None:
    directory = write_family(tmp_path, "gpt_oss", ml.float32)
    model = load_model(directory)
    check_experts(model, stored(directory))
    layer: Any = model.transformer.layers[1]
    assert layer.feed_forward.w1.shape == (6, 50, 20)
    assert layer.feed_forward.router_bias.shape == (6,)
    assert layer.attention.sinks.shape == (12,)
    assert model.args.windows == [8, None, 8, None]


def test_blocks_of_mxfp4_are_repacked(tmp_path: Path) -> None:
    write_family(tmp_path, "gpt_oss", **EVEN_SIZES)
    plain = pack_experts(tmp_path)
    model = load_model(tmp_path)
    check_experts(model, plain)
    (dtype,) = {
        weight.dtype
        for weight in model.tensors.values()
        if isinstance(weight, ml.QuantizedTensor)
    }
    assert dtype.name == "mxfp4"
    assert model.args.dtype is ml.bfloat16
    (note,) = [note for note in model.notes if "arrangement" in note]
    assert note.startswith("120 tensors of experts copied (")
    check_every_way(model.transformer, IDS)


@pytest.mark.parametrize("is_packed", [False, True])
def test_the_forecast_counts_what_is_copied(tmp_path: Path, is_packed: bool) -> None:
    write_family(tmp_path, "gpt_oss", **EVEN_SIZES)
    if is_packed:
        pack_experts(tmp_path)
    forecast = forecast_memory(tmp_path, 40, 4096)
    model = load_model(tmp_path)
    copied = [model.tensors[name] for name in model.checkpoint.rearranged]
    assert forecast.copied == sum(tensor.nbytes for tensor in copied)
    assert forecast.mapped == model.checkpoint.mapped_bytes - forecast.copied
    assert "rearranged weights of experts" in forecast.parts
    quantized = forecast_memory(tmp_path, 40, 4096, "q8_0", dequantize=is_packed)
    assert "weights in q8_0" in quantized.parts


@pytest.mark.parametrize("is_packed", [False, True])
def test_plain_weights_are_saved_in_the_arrangement_that_was_read(
    tmp_path: Path, is_packed: bool
) -> None:
    source = write_family(tmp_path / "a", "gpt_oss", **EVEN_SIZES)
    if is_packed:
        plain = pack_experts(source)
        save_quantized(source, tmp_path / "b", dequantize=True)
        given = load_model(source, dequantize=True)
    else:  # through a file whose experts are in other arrangements
        plain = stored(source)
        save_gguf(source, tmp_path / "a.gguf", "q8_0")
        save_quantized(tmp_path / "a.gguf", tmp_path / "b", dequantize=True)
        given = load_model(tmp_path / "a.gguf", dequantize=True)
    again = load_model(tmp_path / "b")
    check_bits(run(again.transformer, IDS), run(given.transformer, IDS))
    config = json.loads((tmp_path / "b" / "config.json").read_text())
    assert config["model_type"] == "gpt_oss"
    assert "quantization_config" not in config
    shapes = {name: array.shape for name, array in stored(tmp_path / "b").items()}
    for name, array in plain.items():
        assert shapes[name] == array.shape


def test_quantizing_while_loading_converts_one_matrix_at_a_time(tmp_path: Path) -> None:
    source = packed(tmp_path / "a")
    model = load_model(source, dequantize=True, quantize="q8_0")
    assert model.checkpoint.rearranged == ()
    plain = load_model(source, dequantize=True)
    expert = f"{OURS}.2.w3.weight"
    expected = ml.quantize(plain.tensors[expert], "q8_0").dequantize()
    np.testing.assert_array_equal(values(model.tensors[expert]), expected.numpy())


def test_gguf_files_keep_the_frequencies_that_the_model_was_trained_with(
    tmp_path: Path,
) -> None:
    """llama.cpp rounds the indices of the transition, and its files do not say so."""
    source = write_family(tmp_path / "a", "gpt_oss", ml.float32, **PUBLISHED)
    save_gguf(source, tmp_path / "a.gguf")
    given, made = load_model(source), load_model(tmp_path / "a.gguf")
    eps = {"norm_eps": made.args.norm_eps}
    assert made.args == replace(given.args, **eps)
    assert made.args.max_context_length == 131072
    check_bits(run(made.transformer, IDS), run(given.transformer, IDS))
    scaling: Any = dict(PUBLISHED["rope_scaling"], truncate=True)
    other = write_family(
        tmp_path / "b", "gpt_oss", ml.float32, **PUBLISHED | {"rope_scaling": scaling}
    )
    with pytest.raises(ModelConfigError, match="gpt-oss requires in GGUF files, got tr"):
        save_gguf(other, tmp_path / "b.gguf")
    (note,) = [note for note in given.notes if note.startswith("ignored keys")]
    assert "'initial_context_length', 'experts_per_token' (2 in all)" in note


def test_windows_that_gguf_files_do_not_describe_are_rejected(tmp_path: Path) -> None:
    kinds = ["full_attention", "sliding_attention"] * 2
    source = write_family(tmp_path / "a", "gpt_oss", layer_types=kinds)
    with pytest.raises(ModelConfigError, match="a window in all but every 2nd layer"):
        save_gguf(source, tmp_path / "a.gguf")


def test_a_window_and_a_cache_that_is_a_ring_give_the_same_bits(tmp_path: Path) -> None:
    model = load_model(write_family(tmp_path, "gpt_oss", sliding_window=128))
    ids = [int(65 * (x + 1)) for x in uniform(9, 700)]
    whole = run(model.transformer, ids)
    context = InferenceContext(model.args, 4096)
    assert context.caches[0].ring_blocks is not None
    assert context.caches[1].ring_blocks is None
    rows = [
        model.transformer.forward(context, ids[start : start + 50], start, True).numpy()
        for start in range(0, len(ids), 50)
    ]
    check_bits(np.concatenate(rows), whole)


BLOCKS = f"{EXPERTS}.gate_up_proj_blocks"
SCALES = f"{EXPERTS}.gate_up_proj_scales"
DAMAGED: dict[str, tuple[dict[str, Any], str]] = {
    "no scales": ({SCALES: None}, f"expected '{SCALES}' in the file, got none"),
    "no blocks": ({BLOCKS: None}, f"without '{EXPERTS}.gate_up_proj'"),
    "scales of another dtype": (
        {SCALES: np.zeros((6, 192, 2), np.int8)},
        "expected U8 [6, 192, 2], got I8 [6, 192, 2]",
    ),
    "too few scales": (
        {SCALES: np.zeros((6, 192, 1), np.uint8)},
        "expected U8 [6, 192, 2], got U8 [6, 192, 1]",
    ),
    "blocks of another size": (
        {BLOCKS: np.zeros((6, 192, 4, 8), np.uint8)},
        "expected U8 [experts, out, in / 32, 16], got U8 [6, 192, 4, 8]",
    ),
    "blocks of two experts fewer": (
        {
            BLOCKS: np.zeros((4, 192, 2, 16), np.uint8),
            SCALES: np.zeros((4, 192, 2), np.uint8),
        },
        f"'{EXPERTS}.gate_up_proj' [4, 64, 192] instead of [6, 64, 192]",
    ),
    "both kinds": (
        {f"{EXPERTS}.gate_up_proj": np.zeros((6, 64, 192), np.float32)},
        "expected a plain tensor or an MXFP4 tensor, got both",
    ),
    "biases of one expert": (
        {f"{EXPERTS}.down_proj_bias": np.zeros((64,), np.float32)},
        f"'{EXPERTS}.down_proj_bias' [64] instead of [6, 64]",
    ),
    "no bias of the router": (
        {"model.layers.0.mlp.router.bias": None},
        "without 'model.layers.0.mlp.router.bias'",
    ),
}


@pytest.mark.parametrize(("changes", "words"), DAMAGED.values(), ids=DAMAGED)
def test_damaged_experts_are_refused_in_a_line(
    tmp_path: Path, changes: dict[str, Any], words: str
) -> None:
    packed(tmp_path)
    load_model(tmp_path)
    tensors = stored(tmp_path) | changes
    kept = {name: array for name, array in tensors.items() if array is not None}
    write_safetensors(tmp_path / "model.safetensors", kept)
    with pytest.raises(CheckpointError) as caught:
        load_model(tmp_path)
    assert words in str(caught.value)
    assert str(caught.value).isprintable()


def test_other_keys_of_mxfp4_are_rejected(tmp_path: Path) -> None:
    packed(tmp_path)
    path = tmp_path / "config.json"
    config = json.loads(path.read_text())
    config["quantization_config"]["group_size"] = 32
    path.write_text(json.dumps(config))
    with pytest.raises(CheckpointError, match=r"only known keys, got 'group_size'"):
        load_model(tmp_path)


@pytest.mark.parametrize("is_packed", [False, True])
def test_answers_in_a_batch_have_the_probabilities_of_answers_alone(
    tmp_path: Path, is_packed: bool
) -> None:
    source = write_family(tmp_path, "gpt_oss", **EVEN_SIZES)
    if is_packed:
        pack_experts(source)
    model = load_model(source)
    prompts = [IDS[:5], IDS[3:20], IDS[9:10]]
    sampling = SamplingArgs(temperature=0.0)

    def steps(answers: Any) -> list[list[tuple[int, float]]]:
        return [
            [(x.token_id, x.choice.candidates[0].log_probability) for x in answer]
            for answer in answers
        ]

    alone = []
    for prompt in prompts:
        engine = InferenceEngine(model, sequence_length=64)
        alone.append(
            [*engine.generate(prompt, max_new_tokens=12, sampling=sampling, candidates=1)]
        )
    with BatchEngine(model, sequence_length=64) as batch:
        together = [
            batch.submit(prompt, max_new_tokens=12, sampling=sampling, candidates=1)
            for prompt in prompts
        ]
        assert steps(map(list, together)) == steps(alone)


def test_the_bias_of_the_router_decides_and_of_equal_logits_the_lower_number(
    tmp_path: Path,
) -> None:
    source = write_family(tmp_path, "gpt_oss", ml.float32)
    router = "model.layers.0.mlp.router"
    x = ml.tensor(uniform(5, 2 * 20).reshape(2, 20).astype(np.float32))
    for biases, chosen in (
        ([1, 1, 1, 1, 1, 1], [0, 1, 2]),
        ([0, 5, 1, 5, 1, 5], [1, 3, 5]),
        ([2, 0, 2, 0, 2, 2], [0, 2, 4]),
    ):
        changed = {
            f"{router}.weight": np.zeros((6, 20), np.float32),
            f"{router}.bias": np.array(biases, np.float32),
        }
        write_safetensors(source / "model.safetensors", stored(source) | changed)
        layer: Any = load_model(source).transformer.layers[0].feed_forward
        experts, weights = layer.choose(x)
        assert experts.numpy().tolist() == [chosen] * 2
        np.testing.assert_allclose(weights.numpy(), 1 / 3, rtol=1e-6)
