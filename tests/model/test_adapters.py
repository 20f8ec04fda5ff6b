"""Adapters of models in every layout: the rows of wq and wk, joined matrices, tied
outputs, and the same adapter in each format.
"""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from src import ml
from src.checkpoint import CheckpointError
from src.model import LoadedAdapter, Model, load_adapter, load_model
from src.model.saving_gguf import save_gguf
from tests.model.families import write_family
from tests.model.hugging_face_tiny import write_tiny
from tests.model.tiny import GROUPED, TIED, token_ids, write_meta_directory
from tests.support.adapters import (
    gguf_arrays,
    random_pairs,
    write_gguf,
    write_mlx,
    write_peft,
)

IDS = token_ids(GROUPED, 40)
EVERYTHING = (
    "q_proj k_proj v_proj o_proj gate_proj up_proj down_proj embed_tokens lm_head"
)


def logits(model: Model, *adapters: tuple[LoadedAdapter, float]) -> Any:
    with ml.adapted_rows([(len(IDS), len(IDS), adapters)]):
        return model(IDS, all_positions=True).numpy()


@pytest.fixture(scope="module")
def formats(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Returns one adapter of each matrix, in each format."""
    place = tmp_path_factory.mktemp("adapters")
    pairs = random_pairs(GROUPED.args(), 4, modules=EVERYTHING)
    arrays = gguf_arrays(pairs, GROUPED.args(), is_interleaved=True)
    return {
        "peft": write_peft(place / "peft", pairs, alpha=6.0),
        "mlx": write_mlx(place / "mlx", pairs, scale=1.5),
        "llama.cpp": write_gguf(place / "a.gguf", arrays, alpha=6.0),
    }


@pytest.fixture(scope="module")
def layouts(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Returns one float32 model, in each layout."""
    place = tmp_path_factory.mktemp("models")
    directory = write_tiny(place / "hugging_face", GROUPED)
    save_gguf(directory, place / "m.gguf")
    return {
        "Meta": write_meta_directory(place / "meta", GROUPED),
        "Hugging Face": directory,
        "GGUF": place / "m.gguf",
    }


def test_an_adapter_has_the_same_effect_in_each_format_and_layout(
    formats: dict[str, Path], layouts: dict[str, Path]
) -> None:
    models = {name: load_model(path) for name, path in layouts.items()}
    plain = logits(models["Hugging Face"])
    first = logits(
        models["Hugging Face"],
        (load_adapter(models["Hugging Face"], formats["peft"]), 1.0),
    )
    assert np.abs(first - plain).max() > 1
    for name, model in models.items():
        for kind, path in formats.items():
            adapter = load_adapter(model, path)
            assert adapter.kind == kind
            found = logits(model, (adapter, 1.0))
            np.testing.assert_allclose(found, first, atol=2e-4, err_msg=f"{name}, {kind}")


def test_a_model_without_active_adapters_has_its_own_bits(
    formats: dict[str, Path], layouts: dict[str, Path]
) -> None:
    model = load_model(layouts["Meta"])
    before = logits(model)
    adapter = load_adapter(model, formats["peft"])
    logits(model, (adapter, 1.0))
    np.testing.assert_array_equal(logits(model), before)


def test_an_adapter_describes_itself(
    formats: dict[str, Path], layouts: dict[str, Path], tmp_path: Path
) -> None:
    model = load_model(layouts["Meta"])
    adapter = load_adapter(model, formats["peft"])
    assert adapter.description == "peft (peft, rank 4, 16 weights)"
    assert load_adapter(model, formats["llama.cpp"]).name == "a"
    assert load_adapter(model, formats["peft"], name="mine").name == "mine"
    pairs = random_pairs(GROUPED.args(), 4, modules=EVERYTHING)
    size = sum(pair.a.nbytes + pair.b.nbytes for pair in pairs.values())
    assert adapter.nbytes == size
    again = load_adapter(model, formats["peft"])
    other = load_adapter(model, write_peft(tmp_path / "b", pairs, alpha=7.0))
    assert adapter.digest() == again.digest() != other.digest()


@pytest.mark.parametrize("modules", ["embed_tokens", "lm_head", "embed_tokens lm_head"])
def test_a_tied_matrix_changes_only_where_the_adapter_names_it(
    tmp_path: Path, modules: str
) -> None:
    args = TIED.args()
    pairs = random_pairs(args, 3, modules=modules)
    model = load_model(write_tiny(tmp_path / "m", TIED))
    adapter = load_adapter(model, write_peft(tmp_path / "a", pairs, alpha=3.0))
    table = model.transformer.tok_embeddings.numpy().copy()
    output = table.copy()
    if "model.embed_tokens" in pairs:
        pair = pairs["model.embed_tokens"]
        table += (pair.b @ pair.a).T
    if "lm_head" in pairs:
        output += pairs["lm_head"].b @ pairs["lm_head"].a
    merged = load_model(tmp_path / "m")
    merged.transformer.tok_embeddings = ml.Tensor.from_numpy(table)
    merged.transformer.output = ml.Tensor.from_numpy(output)
    found = logits(model, (adapter, 1.0))
    np.testing.assert_allclose(found, logits(merged), atol=2e-4)
    assert np.abs(found - logits(model)).max() > 0.1


@pytest.mark.parametrize("quantize", ["nf4", "int8", "q8_0", "q4_0"])
def test_an_adapter_changes_a_quantized_model_as_its_dequantized_one(
    tmp_path: Path, quantize: str
) -> None:
    sizes = {"hidden_size": 64, "intermediate_size": 96, "head_dim": 16}
    directory = write_family(tmp_path / "m", "qwen3", ml.float32, **sizes)
    model = load_model(directory, quantize=quantize)
    pairs = random_pairs(model.args, 5, modules=EVERYTHING)
    path = write_peft(tmp_path / "a", pairs)
    plain = load_model(directory)
    for name, weight in model.tensors.items():
        if isinstance(weight, ml.QuantizedTensor):
            holder = plain.transformer
            *parts, last = name.removesuffix(".weight").split(".")
            for part in parts:
                holder = holder[int(part)] if part.isdigit() else getattr(holder, part)
            setattr(holder, last, weight.dequantize())
    found = logits(model, (load_adapter(model, path), 1.0))
    expected = logits(plain, (load_adapter(plain, path), 1.0))
    np.testing.assert_allclose(found, expected, atol=2e-4)
    assert np.abs(found - logits(model)).max() > 0.3


def test_adapters_of_experts_are_refused_and_those_of_attention_are_not(
    tmp_path: Path,
) -> None:
    model = load_model(write_family(tmp_path / "model", "qwen3_moe"))
    pairs = random_pairs(model.args, 3, modules="q_proj v_proj")
    load_adapter(model, write_peft(tmp_path / "a", pairs))
    pair = next(iter(pairs.values()))
    of_expert = pairs | {"model.layers.0.mlp.experts.1.gate_proj": pair}
    with pytest.raises(CheckpointError, match=r"without those of experts \(not support"):
        load_adapter(model, write_peft(tmp_path / "b", of_expert))


def test_an_adapter_of_another_model_is_refused(tmp_path: Path) -> None:
    model = load_model(write_tiny(tmp_path / "m", GROUPED))
    path = write_peft(tmp_path / "a", random_pairs(TIED.args(), 3))
    with pytest.raises(CheckpointError, match=r"expected \[3, 90\] by the base model"):
        load_adapter(model, path)
    arrays = gguf_arrays(random_pairs(GROUPED.args(), 3), GROUPED.args(), True)
    other = write_gguf(tmp_path / "a.gguf", arrays, architecture="qwen2")
    with pytest.raises(CheckpointError, match="expected llama, the architecture"):
        load_adapter(model, other)
