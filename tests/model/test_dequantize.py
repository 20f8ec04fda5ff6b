"""Dequantizing on loading: plain weights, their bits, their memory, and what is made of
them.
"""

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from src import ml
from src.model import Model, ModelConfigError, forecast_memory, load_model
from src.model.errors import SaveError
from src.model.quantization import QUANTIZATIONS
from src.model.saving import save_quantized
from src.model.saving_gguf import save_gguf
from tests.model.families import CONFIGS, EVEN_SIZES, write_family
from tests.model.hugging_face_tiny import write_tiny
from tests.model.test_gguf import write as write_gguf
from tests.model.test_llama import check_bits, run
from tests.model.tiny import GROUPED, token_ids, weights
from tests.support.gguf_writer import gguf_name, q8_0

EVEN = replace(GROUPED, name="even", ffn=96)
IDS = token_ids(EVEN, 12)


def blocks_file(path: Path, **changes: Any) -> Path:
    """Write a GGUF file whose matrices, with the embedding table, are q8_0."""
    blocks = {gguf_name(n): q8_0(w) for n, w in weights(EVEN).items() if w.ndim == 2}
    return write_gguf(path, EVEN, tensors=blocks | changes)


def directory(kind: str) -> Callable[[Path], Path]:
    def write(path: Path) -> Path:
        plain = write_tiny(path.with_name("plain"), EVEN, ml.bfloat16)
        save_quantized(plain, path, kind)
        return path

    return write


SOURCES: dict[str, Callable[[Path], Path]] = {
    "q8_0": lambda path: blocks_file(path.with_suffix(".gguf")),
    "nf4": directory("nf4"),
    "int8": directory("int8"),
}
sources = pytest.mark.parametrize("write", SOURCES.values(), ids=SOURCES)


def bits_of(model: Model) -> Any:
    return run(model.transformer, IDS)


@sources
def test_each_quantized_weight_becomes_a_plain_one(
    tmp_path: Path, write: Callable[[Path], Path]
) -> None:
    path = write(tmp_path / "source")
    stored = load_model(path)
    plain = load_model(path, dequantize=True)
    assert plain.args == stored.args
    assert plain.parameter_count == stored.parameter_count
    count = 0
    for name, weight in stored.tensors.items():
        expected = weight
        if isinstance(weight, ml.QuantizedTensor):
            expected = weight.dequantize(ml.bfloat16)
            count += 1
        assert isinstance(expected, ml.Tensor)
        made = plain.tensors[name]
        assert isinstance(made, ml.Tensor)
        assert (made.dtype, made.name) == (expected.dtype, expected.name)
        np.testing.assert_array_equal(made.bits(), expected.bits())
    assert count >= 15
    assert any(note.startswith("dequantized from ") for note in plain.notes)
    assert not any("quantized matrices" in note for note in plain.notes)
    found = bits_of(plain)
    expected_logits = bits_of(stored)
    assert np.abs(found - expected_logits).max() < 0.05 * np.abs(expected_logits).max()


def test_weights_become_float32_where_activations_are(tmp_path: Path) -> None:
    table = {
        "token_embd.weight": weights(EVEN)["tok_embeddings.weight"].astype(np.float16)
    }
    path = blocks_file(tmp_path / "a.gguf", **table)
    stored = load_model(path)
    plain = load_model(path, dequantize=True)
    assert stored.args.dtype is ml.float32
    kinds = {str(weight.dtype) for weight in plain.tensors.values()}
    assert kinds == {"float16", "float32"}
    check_bits(bits_of(plain), bits_of(stored))


@pytest.mark.parametrize("quantize", QUANTIZATIONS)
@sources
def test_what_is_quantized_after_it_is_what_is_made_of_the_plain_model(
    tmp_path: Path, write: Callable[[Path], Path], quantize: str
) -> None:
    path = write(tmp_path / "source")
    save_quantized(path, tmp_path / "new", dequantize=True)
    assert "quantization_config" not in json.loads(
        (tmp_path / "new/config.json").read_text()
    )
    check_bits(
        bits_of(load_model(tmp_path / "new")), bits_of(load_model(path, dequantize=True))
    )
    found = load_model(path, dequantize=True, quantize=quantize)
    check_bits(bits_of(found), bits_of(load_model(tmp_path / "new", quantize=quantize)))
    assert any(
        "quantized matrices" in note and "in memory" in note for note in found.notes
    )
    if quantize in ("nf4", "int8"):
        save_quantized(path, tmp_path / "saved", quantize, dequantize=True)
        check_bits(bits_of(load_model(tmp_path / "saved")), bits_of(found))
    else:
        save_gguf(path, tmp_path / "saved.gguf", quantize, dequantize=True)
        check_bits(bits_of(load_model(tmp_path / "saved.gguf")), bits_of(found))


SIZES = EVEN_SIZES | {"num_attention_heads": 4, "num_key_value_heads": 2}
BIASED = {"model_type": "llama", "use_sliding_window": None, "sliding_window": None}
FAMILIES: dict[str, dict[str, Any]] = {
    **{family: {"based_on": family} for family in CONFIGS},
    "llama with biases": {
        "based_on": "qwen2",
        "attention_bias": True,
        "mlp_bias": True,
        **BIASED,
    },
    "linear scaling": {
        "based_on": "olmo2",
        "model_type": "llama",
        "rope_parameters": {"rope_type": "linear", "factor": 4.0, "rope_theta": 10000.0},
    },
    "scaling of Llama 3.1": {
        "based_on": "olmo2",
        "model_type": "llama",
        "rope_theta": 500000.0,
        "rope_scaling": {
            "rope_type": "llama3",
            "factor": 8.0,
            "low_freq_factor": 1.0,
            "high_freq_factor": 4.0,
            "original_max_position_embeddings": 8192,
        },
    },
}


@pytest.mark.parametrize("changes", FAMILIES.values(), ids=FAMILIES)
def test_a_gguf_file_of_each_family_becomes_a_directory(
    tmp_path: Path, changes: dict[str, Any]
) -> None:
    based_on = changes["based_on"]
    changes = SIZES | {key: value for key, value in changes.items() if key != "based_on"}
    save_gguf(
        write_family(tmp_path / "m", based_on, **changes), tmp_path / "a.gguf", "q8_0"
    )
    save_quantized(tmp_path / "a.gguf", tmp_path / "new", dequantize=True)
    made = load_model(tmp_path / "new")
    given = load_model(tmp_path / "a.gguf", dequantize=True)
    assert made.args.rope_pairs == "halves"
    if "rope_scaling" in changes:  # the last bits of some frequencies differ
        difference = np.abs(bits_of(made) - bits_of(given)).max()
        assert difference < 0.02 * np.abs(bits_of(given)).max()
    else:
        check_bits(bits_of(made), bits_of(given))
    assert made.args.rope_scaling == load_model(tmp_path / "m").args.rope_scaling
    save_gguf(tmp_path / "a.gguf", tmp_path / "b.gguf", "q8_0", dequantize=True)
    again = load_model(tmp_path / "a.gguf", dequantize=True, quantize="q8_0")
    check_bits(bits_of(load_model(tmp_path / "b.gguf")), bits_of(again))


def test_the_bundled_model_goes_through_a_gguf_file_with_its_tokenizer(
    tmp_path: Path,
) -> None:
    save_gguf(None, tmp_path / "a.gguf", "q8_0", chat_template="{{ a template }}")
    save_quantized(tmp_path / "a.gguf", tmp_path / "new", dequantize=True)
    made = load_model(tmp_path / "new")
    given = load_model()
    assert made.tokenizer is not None
    assert given.tokenizer is not None
    assert made.tokenizer.first_difference(given.tokenizer) is None
    assert made.stop_ids == given.stop_ids
    assert made.tokenizer.adds_bos
    assert (tmp_path / "new" / "chat_template.jinja").read_text() == "{{ a template }}"


@pytest.mark.parametrize("quantize", [None, *QUANTIZATIONS])
@sources
def test_the_forecast_counts_the_plain_bytes(
    tmp_path: Path, write: Callable[[Path], Path], quantize: str | None
) -> None:
    path = write(tmp_path / "source")
    stored = load_model(path)
    plain = load_model(path, dequantize=True, quantize=quantize)
    forecast = forecast_memory(path, 16, 16, quantize, dequantize=True)
    made = sum(
        weight.nbytes
        for name, weight in plain.tensors.items()
        if isinstance(weight, ml.QuantizedTensor)
        or weight.dtype != stored.tensors[name].dtype
    )
    if quantize is None:
        assert forecast.copied == made
        assert forecast.mapped == 0
        assert "weights in bfloat16" in forecast.copied_as
    else:
        most = 2 * plain.tensors["tok_embeddings.weight"].nbytes
        assert made <= forecast.copied <= made + most


def test_what_makes_no_sense_is_one_line(tmp_path: Path) -> None:
    plain = write_tiny(tmp_path / "plain", EVEN, ml.bfloat16)
    blocks = blocks_file(tmp_path / "a.gguf")
    rule = "expected quantized weights, got plain weights"
    with pytest.raises(ModelConfigError, match=f"plain: dequantize: {rule}"):
        load_model(plain, dequantize=True)
    with pytest.raises(ModelConfigError, match=f"plain: dequantize: {rule}"):
        save_quantized(plain, tmp_path / "new", dequantize=True)
    rule = (
        r"expected plain weights, got a model that is quantized already \(q8_0\); "
        r"dequantize mak"
    )
    with pytest.raises(ModelConfigError, match=rf"a.gguf: quantize: {rule}"):
        save_gguf(blocks, tmp_path / "b.gguf")
    with pytest.raises(ModelConfigError, match=rf"a.gguf: quantize: {rule}"):
        load_model(blocks, quantize="nf4")
    with pytest.raises(
        SaveError, match="quantize must be nf4 or int8 in a directory: got None"
    ):
        save_quantized(plain, tmp_path / "new")
    with pytest.raises(
        SaveError, match="quantize must be nf4 or int8 in a directory: got q8_0"
    ):
        save_quantized(blocks, tmp_path / "new", "q8_0", dequantize=True)
    factors = blocks_file(
        tmp_path / "c.gguf", **{"rope_freqs.weight": np.array([1, 1, 3, 3], np.float32)}
    )
    with pytest.raises(
        ModelConfigError, match=r"rope_freqs.weight of Llama 3.1 or 3.2, got other"
    ):
        save_quantized(factors, tmp_path / "new", dequantize=True)
    bias = {
        "blk.0.attn_q.bias": np.ones(64, np.float32),
        "blk.1.attn_q.bias": np.ones(64, np.float32),
    }
    biased = blocks_file(tmp_path / "d.gguf", **bias)
    with pytest.raises(
        ModelConfigError, match=r"a model that config\.json can describe, got ano"
    ):
        save_quantized(biased, tmp_path / "new", dequantize=True)
    names = {path.name for path in tmp_path.iterdir()}
    assert names == {"plain", "a.gguf", "c.gguf", "d.gguf"}
    load_model(biased, dequantize=True)
    save_gguf(factors, tmp_path / "e.gguf", dequantize=True)
    assert (
        load_model(tmp_path / "e.gguf").args.rope_scaling
        == load_model(factors).args.rope_scaling
    )


def test_a_plain_gguf_file_is_quantized_into_a_directory_too(tmp_path: Path) -> None:
    path = write_gguf(tmp_path / "a.gguf", EVEN, ml_dtypes.bfloat16)
    save_quantized(path, tmp_path / "new", "nf4")
    found = load_model(tmp_path / "new")
    assert found.args.dtype is ml.bfloat16
    check_bits(bits_of(found), bits_of(load_model(path, quantize="nf4")))
