"""Quantizing on loading: which weights, in what order, how much memory, and the same bits
after.
"""

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from src import ml
from src.model import LlamaTransformer, ModelError, forecast_memory, load_model
from src.model.quantization import QUANTIZATIONS, quantize_weights
from src.model.sources import BUNDLED_MODEL
from tests.model.hugging_face_tiny import config_of, renamed, write_tiny
from tests.model.test_llama import run
from tests.model.tiny import GROUPED, TIED, weights, write_meta_directory
from tests.support.held import NativeBytes
from tests.support.hugging_face_writer import write_hugging_face_directory
from tests.support.pth_writer import SMALL_PARAMS, write_random_meta_directory


@pytest.mark.parametrize("name", QUANTIZATIONS)
def test_matrices_of_layers_and_the_output_are_quantized_and_counted(name: str) -> None:
    calls: list[tuple[int, int]] = []
    model = load_model(quantize=name, progress=lambda *counted: calls.append(counted))
    assert calls == [(done, 29) for done in range(30)]
    kinds = {key: weight.dtype for key, weight in model.tensors.items()}
    assert kinds["layers.0.attention.wq.weight"] is QUANTIZATIONS[name]
    assert kinds["output.weight"] is QUANTIZATIONS[name]
    assert kinds["tok_embeddings.weight"] is ml.bfloat16
    assert {kinds[key] for key in kinds if "norm" in key} == {ml.bfloat16}
    assert sum(kind is QUANTIZATIONS[name] for kind in kinds.values()) == 7 * 4 + 1
    assert f"quantized matrices: 29 {QUANTIZATIONS[name]}" in model.description


@pytest.mark.parametrize(
    ("name", "dtype", "most"),
    [
        ("nf4", ml.float32, 0.0),
        ("int8", ml.float32, 0.0),
        # Sums of integers differ by less than rounding to bfloat16 does, which makes
        # 0.013 here.
        ("int8", ml.bfloat16, 2.0**-5),
    ],
    ids=str,
)
def test_a_quantized_model_is_near_its_dequantized_one(
    name: str, dtype: ml.DType, most: float
) -> None:
    model = load_model(quantize=name)
    args = replace(model.args, dtype=dtype)
    small: dict[str, ml.Weight] = {}
    plain: dict[str, ml.Weight] = {}
    for key, weight in model.tensors.items():
        is_small = isinstance(weight, ml.QuantizedTensor)
        plain[key] = weight.dequantize(dtype) if is_small else weight.to(dtype)
        small[key] = weight if is_small else plain[key]
    found, expected = (
        run(LlamaTransformer(args, tensors), list(range(1, 13)))
        for tensors in (small, plain)
    )
    error = np.sqrt(np.mean((found - expected) ** 2) / np.mean(expected**2))
    assert error <= most


def test_a_tied_output_becomes_a_matrix_of_its_own(tmp_path: Path) -> None:
    directory = write_meta_directory(tmp_path, TIED, ml.bfloat16)
    plain = load_model(directory)
    model = load_model(directory, quantize="nf4")
    assert model.tensors["output.weight"].dtype is ml.nf4
    assert model.parameter_count == plain.parameter_count
    assert "output tied to tok_embeddings, and a quantized copy" in model.description


def test_an_unknown_quantization_is_refused_by_name() -> None:
    with pytest.raises(
        ModelError, match="must be one of nf4, int8, q8_0, q4_0: got 'int4'"
    ):
        load_model(quantize="int4")


@pytest.mark.parametrize("name", QUANTIZATIONS)
def test_merged_shards_are_quantized_one_by_one_to_the_same_bits(
    tmp_path: Path, name: str
) -> None:
    write_random_meta_directory(tmp_path / "parts", SMALL_PARAMS, shards=2)
    model = load_model(tmp_path / "parts", quantize=name)
    assert model.checkpoint.mapped_bytes == 0
    merged = load_model(tmp_path / "parts")
    whole = dict(quantize_weights(merged.tensors, QUANTIZATIONS[name]))
    for key, weight in model.tensors.items():
        other = whole[key]
        assert weight.dtype is other.dtype
        if isinstance(weight, ml.QuantizedTensor):
            assert isinstance(other, ml.QuantizedTensor)
            np.testing.assert_array_equal(weight.codes.bits(), other.codes.bits())


class Watched(dict[str, ml.Weight]):
    """Tensors that are made when they are looked up, as those of merged shards."""

    def __getitem__(self, key: str) -> ml.Tensor:
        weight = super().__getitem__(key)
        assert isinstance(weight, ml.Tensor)
        return weight.copy()


@pytest.mark.parametrize("name", QUANTIZATIONS)
def test_memory_is_at_most_what_is_made_and_one_weight(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    tensors = Watched(load_model().tensors)
    largest = max(weight.nbytes for weight in dict.values(tensors))
    native = NativeBytes(monkeypatch)
    made = dict(quantize_weights(tensors, QUANTIZATIONS[name]))
    held = sum(weight.nbytes for weight in made.values())
    assert held <= native.alive <= held + (1 << 12)
    assert native.peak <= held + largest + (1 << 12)


@pytest.mark.parametrize("name", QUANTIZATIONS)
@pytest.mark.parametrize("layout", ["Meta", "Hugging Face", "shards", "bundled"])
def test_the_forecast_counts_the_quantized_bytes(
    tmp_path: Path, name: str, layout: str
) -> None:
    if layout == "Meta":
        config = replace(TIED, dim=64, ffn=96)
        directory = write_meta_directory(tmp_path, config, ml.bfloat16)
        params = config.params() | {"vocab_size": TIED.vocab}
        (directory / "params.json").write_text(json.dumps(params))
    elif layout == "Hugging Face":
        directory = write_tiny(tmp_path, replace(GROUPED, ffn=96), ml.bfloat16)
    elif layout == "shards":
        write_random_meta_directory(directory := tmp_path, SMALL_PARAMS, shards=2)
    else:
        directory = BUNDLED_MODEL
    forecast = forecast_memory(directory, 16, 16, name)
    weights = load_model(directory, quantize=name).tensors
    held = sum(w.nbytes for w in weights.values() if isinstance(w, ml.QuantizedTensor))
    if layout == "shards":
        held += 2 * weights["tok_embeddings.weight"].nbytes
    if layout != "Meta":  # its params.json does not say F, which is guessed
        assert forecast.copied == held
    assert f"weights in {name}" in forecast.copied_as


def test_a_weight_that_is_not_finite_is_refused_by_name(tmp_path: Path) -> None:
    load_model(write_tiny(tmp_path, GROUPED), quantize="nf4")
    arrays = renamed(GROUPED, weights(GROUPED))
    arrays["model.layers.1.self_attn.o_proj.weight"][3, 5] = np.nan
    write_hugging_face_directory(tmp_path, config_of(GROUPED), arrays)
    with pytest.raises(
        ModelError, match=r"layers\.1\.attention\.wo\.weight.*finite: 1 of"
    ):
        load_model(tmp_path, quantize="nf4")
