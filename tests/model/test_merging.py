"""Adapters merged into the weights of a model that is saved."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from src import ml
from src.checkpoint import CheckpointError
from src.model import Model, load_adapter, load_model
from src.model.saving import save_quantized
from src.model.saving_gguf import save_gguf
from tests.model.families import write_family
from tests.model.hugging_face_tiny import write_tiny
from tests.model.test_adapters import EVERYTHING, IDS, logits
from tests.model.tiny import GROUPED, TIED, write_meta_directory
from tests.support import llama_cpp
from tests.support.adapters import random_pairs, write_peft

SCALES = (1.0, -0.5)


def adapters_of(model: Model, place: Path, modules: str = EVERYTHING) -> list[Any]:
    """Writes two adapters; returns their paths with factors."""
    return [
        (
            write_peft(
                place / f"a{seed}",
                random_pairs(model.args, 3 + seed, seed, modules),
                alpha=6.0,
            ),
            scale,
        )
        for seed, scale in enumerate(SCALES)
    ]


def adapted(model: Model, adapters: list[Any]) -> Any:
    return logits(model, *((load_adapter(model, path), x) for path, x in adapters))


@pytest.mark.parametrize("target", ["directory", "gguf"])
@pytest.mark.parametrize("layout", ["Meta", "Hugging Face", "tied", "qwen3"])
def test_a_merged_model_has_the_logits_of_the_adapted_one(
    tmp_path: Path, layout: str, target: str
) -> None:
    if layout == "Meta":
        path = write_meta_directory(tmp_path / "m", GROUPED)
    elif layout == "qwen3":
        path = write_family(tmp_path / "m", "qwen3", ml.float32)
    else:
        path = write_tiny(tmp_path / "m", TIED if layout == "tied" else GROUPED)
    model = load_model(path)
    adapters = adapters_of(model, tmp_path)
    merged = tmp_path / ("merged.gguf" if target == "gguf" else "merged")
    if target == "gguf":
        save_gguf(path, merged, adapters=adapters)
    else:
        save_quantized(path, merged, adapters=adapters)
    found = logits(load_model(merged))
    np.testing.assert_allclose(found, adapted(model, adapters), atol=3e-4)
    assert np.abs(found - logits(model)).max() > 1


@pytest.mark.parametrize("modules", ["embed_tokens", "lm_head", "q_proj"])
def test_a_tied_output_becomes_a_separate_matrix_if_it_must(
    tmp_path: Path, modules: str
) -> None:
    path = write_tiny(tmp_path / "m", TIED)
    model = load_model(path)
    adapters = adapters_of(model, tmp_path, modules)
    save_quantized(path, tmp_path / "merged", adapters=adapters)
    merged = load_model(tmp_path / "merged")
    assert ("output.weight" in merged.tensors) is (modules != "q_proj")
    found = logits(merged)
    np.testing.assert_allclose(found, adapted(model, adapters), atol=3e-4)


def test_the_sum_is_rounded_once_to_the_dtype_of_the_weight(tmp_path: Path) -> None:
    path = write_tiny(tmp_path / "m", GROUPED, ml.bfloat16)
    model = load_model(path)
    adapters = adapters_of(model, tmp_path)
    save_quantized(path, tmp_path / "merged", adapters=adapters)
    name = "layers.1.attention.wk.weight"
    found = load_model(tmp_path / "merged").tensors[name]
    assert found.dtype is ml.bfloat16
    exact = model.tensors[name].to(ml.float32).numpy().astype(np.float64)
    for adapter_path, factor in adapters:
        pair = load_adapter(model, adapter_path).products[name]
        product = pair.b.numpy().astype(np.float64) @ pair.a.numpy()
        exact += pair.scale * factor * product
    difference = found.to(ml.float32).numpy() - exact
    assert (np.abs(difference) <= 2.0**-8 * np.abs(exact) + 1e-6).all()


@pytest.mark.parametrize("quantize", ["nf4", "q8_0"])
def test_a_quantized_base_is_dequantized_to_float32_first(
    tmp_path: Path, quantize: str
) -> None:
    sizes = {"hidden_size": 64, "intermediate_size": 96, "head_dim": 16}
    path = write_family(tmp_path / "m", "qwen3", ml.bfloat16, **sizes)
    base = tmp_path / ("base.gguf" if quantize == "q8_0" else "base")
    save = save_gguf if quantize == "q8_0" else save_quantized
    save(path, base, quantize)
    model = load_model(base)
    adapters = adapters_of(model, tmp_path)
    save_quantized(base, tmp_path / "merged", dequantize=True, adapters=adapters)
    name = "layers.1.attention.wk.weight"
    found = load_model(tmp_path / "merged").tensors[name]
    weight: Any = model.tensors[name]
    exact = weight.dequantize(ml.float32).numpy().astype(np.float64)
    for adapter_path, factor in adapters:
        pair = load_adapter(model, adapter_path).products[name]
        exact += pair.scale * factor * (pair.b.numpy() @ pair.a.numpy())
    difference = found.to(ml.float32).numpy() - exact
    assert (np.abs(difference) <= 2.0**-8 * np.abs(exact) + 1e-5).all()


def test_merged_weights_can_be_quantized(tmp_path: Path) -> None:
    path = write_family(tmp_path / "m", "qwen3", ml.bfloat16, hidden_size=64)
    adapters = adapters_of(load_model(path), tmp_path)
    save_quantized(path, tmp_path / "nf4", "nf4", adapters=adapters)
    save_quantized(path, tmp_path / "plain", adapters=adapters)
    expected = logits(load_model(tmp_path / "plain", quantize="nf4"))
    np.testing.assert_array_equal(logits(load_model(tmp_path / "nf4")), expected)


def test_a_bad_adapter_leaves_nothing_behind(tmp_path: Path) -> None:
    path = write_tiny(tmp_path / "m", GROUPED)
    other = write_peft(tmp_path / "a", random_pairs(TIED.args(), 3))
    for merged in ("merged", "merged.gguf"):
        save = save_gguf if merged.endswith("gguf") else save_quantized
        with pytest.raises(CheckpointError, match="by the base model"):
            save(path, tmp_path / merged, adapters=[(other, 1.0)])
        assert not (tmp_path / merged).exists()


@pytest.mark.oracle
@pytest.mark.parametrize("family", ["llama", "tied"])
def test_transformers_and_llama_cpp_run_the_merged_model(
    tmp_path: Path, family: str
) -> None:
    pytest.importorskip("transformers", reason="needs the oracle extra")
    llama_cpp.needed()
    import torch
    import transformers

    config = TIED if family == "tied" else GROUPED
    path = write_tiny(tmp_path / "m", config)
    model = load_model(path)
    adapters = adapters_of(model, tmp_path)
    expected = adapted(model, adapters)
    save_quantized(path, tmp_path / "merged", adapters=adapters)
    other = transformers.AutoModelForCausalLM.from_pretrained(
        tmp_path / "merged", dtype=torch.float32
    ).eval()
    with torch.no_grad():
        found = other(torch.tensor([IDS])).logits[0].numpy()
    np.testing.assert_allclose(found, expected, atol=5e-4)
    save_gguf(path, tmp_path / "merged.gguf", adapters=adapters)
    # llama.cpp keeps keys and values in float16.
    with llama_cpp.LlamaCpp(tmp_path / "merged.gguf") as third:
        np.testing.assert_allclose(third.run_chunk(IDS, 0), expected, atol=0.1)
