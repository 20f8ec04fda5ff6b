from pathlib import Path
from typing import Any

import pytest

from src.checkpoint.gguf import read_gguf
from src.checkpoint.gguf_config import GgufConfig, read_gguf_config
from src.model.families import ARCHITECTURES
from tests.checkpoint.refusals import refusal_of
from tests.support import gguf_writer as g
from tests.support.gguf_writer import Typed, gguf_bytes

KEYS: dict[str, Any] = {
    "general.architecture": "llama",
    "llama.context_length": 64,
    "llama.embedding_length": 12,
    "llama.block_count": 2,
    "llama.feed_forward_length": 20,
    "llama.attention.head_count": 3,
    "llama.attention.layer_norm_rms_epsilon": 1e-5,
}

# What changes nothing.
YARN = {"llama.rope.scaling.type": "yarn", "llama.rope.scaling.factor": 2.0}
NEUTRAL: dict[str, Any] = {
    "general.type": "model",
    "general.quantization_version": 2,
    "general.name": "any",
    "quantize.imatrix.file": "x",
    "other.key": [1, 2],
    "llama.expert_count": 0,
    "llama.expert_used_count": 0,
    "llama.attention.causal": True,
    "llama.attention.scale": 0.0,
    "llama.rope.scaling.finetuned": False,
    "llama.rope.scaling.original_context_length": 9,
    "llama.tensor_data_layout": "Meta AI original pth",
    "llama.logit_scale": 0.0,
    "llama.attention.clamp_kqv": 0.0,
    "llama.attention.max_alibi_bias": 0.0,
    "llama.rope.scaling.attn_factor": 1.0,
    "llama.nextn_predict_layers": 0,
}


def read(folder: Path, changes: dict[str, Any]) -> GgufConfig:
    path = folder / "a.gguf"
    keys = {name: value for name, value in (KEYS | changes).items() if value is not None}
    path.write_bytes(gguf_bytes(keys))
    return read_gguf_config(read_gguf(path), ARCHITECTURES)


def test_the_sizes_of_a_plain_llama_are_read(tmp_path: Path) -> None:
    config = read(tmp_path, {})
    assert config.architecture == "llama"
    assert config.sizes["head_dim"] == 4
    assert (config.sizes["rope_theta"], config.rope_factor) == (10000.0, 1.0)
    assert config.given["block_count"] == 2
    assert "architecture" not in config.given


@pytest.mark.parametrize(
    ("changes", "head_dim", "factor"),
    [
        ({"llama.attention.key_length": 6, "llama.attention.value_length": 6}, 6, 1.0),
        ({"llama.attention.key_length": 6, "llama.rope.dimension_count": 6}, 6, 1.0),
        ({"llama.attention.key_length": 6, "llama.embedding_length": 13}, 6, 1.0),
        ({"llama.rope.scaling.type": "linear", "llama.rope.scaling.factor": 4.0}, 4, 4.0),
        ({"llama.rope.scaling.factor": 4.0}, 4, 4.0),
        ({"llama.rope.scale_linear": 4.0}, 4, 4.0),
        ({"llama.rope.scale_linear": 4.0, "llama.rope.scaling.type": "linear"}, 4, 4.0),
        ({"llama.rope.scale_linear": 4.0, "llama.rope.scaling.type": "none"}, 4, 1.0),
        ({"llama.rope.scale_linear": 4.0, "llama.rope.scaling.factor": 2.0}, 4, 2.0),
        ({"llama.rope.scaling.type": "none", "llama.rope.scaling.factor": 4.0}, 4, 1.0),
        (YARN, 4, 2.0),
        (NEUTRAL, 4, 1.0),
        ({"llama.block_count": Typed(g.UINT64, 2)}, 4, 1.0),
        ({"llama.block_count": 1024}, 4, 1.0),
    ],
)
def test_the_size_of_a_head_and_the_factor_of_frequencies_are_read_and_nothing_else(
    tmp_path: Path, changes: dict[str, Any], head_dim: int, factor: float
) -> None:
    config = read(tmp_path, changes)
    assert (config.sizes["head_dim"], config.rope_factor) == (head_dim, factor)


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"general.architecture": None}, "without 'general.architecture'"),
        ({"general.architecture": "bamba"}, "or 'smollm3', got 'bamba'"),
        (
            {"general.architecture": "deepseek2"},
            "got deepseek2: attention with compressed keys and values, which is not",
        ),
        ({"general.architecture": "\x1b["}, r"or 'smollm3', got '\x1b['"),
        ({"general.architecture": 3}, "or 'smollm3', got 3"),
        ({"general.type": "adapter"}, "general.type: expected 'model', got 'adapter'"),
        (
            {"general.quantization_version": 1},
            ("general.quantization_version: expected 2, go"),
        ),
        ({"llama.block_count": None}, "got without 'llama.block_count' (1 in all)"),
        (
            {"llama.block_count": 0},
            ("llama.block_count: expected an integer in 1..1024, got 0"),
        ),
        ({"llama.block_count": 10**9}, "expected an integer in 1..1024, got 1000000000"),
        (
            {"llama.attention.head_count": 5},
            ("llama.embedding_length % llama.attention.head_count:"),
        ),
        (
            {"llama.attention.value_length": 6},
            ("llama.attention.value_length: expected 4, the size"),
        ),
        (
            {"llama.rope.dimension_count": 2},
            ("llama.rope.dimension_count: expected 4, the size of "),
        ),
        (
            {"llama.rope.freq_base": 0.0},
            ("llama.rope.freq_base: expected a number in 1..1e+12, got"),
        ),
        (
            {"llama.rope.scaling.type": "longrope"},
            ("llama.rope.scaling.type: expected 'none' or 'linea"),
        ),
        (
            {"llama.rope.scaling.type": "yarn"},
            ("without 'llama.rope.scaling.factor' (1 in all)"),
        ),
        (
            YARN | {"llama.rope.scaling.original_context_length": 0},
            ("original_context_length: expected an integer in 1.."),
        ),
        (
            YARN | {"llama.rope.scaling.attn_factor": 0.0},
            ("attn_factor: expected a number in 1e-06..1e+06, got"),
        ),
        (
            {"llama.rope.scaling.type": "linear"},
            ("without 'llama.rope.scaling.factor' (1 in all)"),
        ),
        (
            {"llama.rope.scale_linear": 0.5},
            ("llama.rope.scale_linear: expected a number in 1..1e"),
        ),
        (
            {"llama.rope.scale_linear": "2"},
            ("llama.rope.scale_linear: expected a number in 1..1e"),
        ),
        (
            {"llama.rope.scaling.factor": 0.5},
            ("llama.rope.scaling.factor: expected a number in 1.."),
        ),
        ({"llama.expert_count": 8}, "llama.expert_count: expected 0, got 8"),
        (
            {"llama.attention.causal": False},
            ("llama.attention.causal: expected true, got fal"),
        ),
        (
            {"llama.nextn_predict_layers": 1},
            ("llama.nextn_predict_layers: expected 0, got 1"),
        ),
        (
            {"llama.rope.scaling.attn_factor": 2.0},
            ("rope.scaling.attn_factor: expected 1.0, got 2"),
        ),
    ],
)
def test_what_is_not_supported_is_refused_by_name(
    tmp_path: Path, changes: dict[str, Any], reason: str
) -> None:
    assert reason in refusal_of(read, tmp_path, changes, begin=f"{tmp_path / 'a.gguf'}: ")


def test_keys_that_llama_cpp_ignores_for_the_architecture_are_listed(
    tmp_path: Path,
) -> None:
    ignored = {"llama.embedding_scale": 12.0, "llama.attention.clamp_kqv": 1.0}
    ignored |= {"llama.unheard_of": [1, 2], "llama.attention.sliding_window": 4096}
    config = read(tmp_path, ignored | {"other.key": 1})
    assert config.ignored == tuple(ignored)
    assert config.sizes == read(tmp_path, {}).sizes


@pytest.mark.parametrize(
    ("name", "key", "value"),
    [
        ("olmo2", "attention.sliding_window", 4096),
        ("granite", "rope.scaling.finetuned", False),
        ("granite", "expert_shared_feed_forward_length", 8),
    ],
)
def test_keys_that_llama_cpp_reads_for_one_architecture_are_rejected_there(
    tmp_path: Path, name: str, key: str, value: object
) -> None:
    keys = {key.replace("llama.", f"{name}."): KEYS[key] for key in KEYS}
    keys |= {"general.architecture": name, f"{name}.{key}": value}
    assert f"{name}.{key}: expected " in refusal_of(read, tmp_path, keys)
    assert read(tmp_path, {f"llama.{key}": value}).architecture == "llama"


@pytest.mark.parametrize("value", [0.0, 0.5, 12, 1e6, -0.5, 1.1e6])
def test_the_scales_of_granite_are_numbers_up_to_a_million(
    tmp_path: Path, value: float
) -> None:
    keys = {name.replace("llama.", "granite."): KEYS[name] for name in KEYS}
    keys |= {"general.architecture": "granite", "granite.embedding_scale": value}
    if 0 <= value <= 1e6:
        assert read(tmp_path, keys).given["embedding_scale"] == value
        return
    assert "granite.embedding_scale: expected a number in 0.." in refusal_of(
        read, tmp_path, keys
    )
