"""One form of sizes and constants for every configuration file,
completed by the tensors.
"""

import itertools
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from src import ml
from src.checkpoint.hugging_face_config import read_hugging_face_config
from src.checkpoint.names import LAYER_ROWS, rows_of
from src.model import LinearRopeScaling, ModelConfigError, RopeScaling
from src.model.args import (
    ModelArgs,
    activation_dtype,
    with_rope_factor,
)
from src.model.families import FAMILIES
from src.model.sources.hugging_face import args_from_config
from src.model.sources.meta import args_from_params, feed_forward_dim
from tests.checkpoint.test_hugging_face_config import (
    LLAMA3,
    LLAMA_2_7B,
    LLAMA_3_2_1B,
    MISTRAL_7B_V01,
    PUBLISHED,
)
from tests.model.tiny import GROUPED, Tiny
from tests.support.hugging_face_writer import CONFIG


def from_params(config: Tiny = GROUPED, **changes: object) -> ModelArgs:
    return args_from_params(config.params() | changes)


def from_config(directory: Path, config: dict[str, Any], **changes: object) -> ModelArgs:
    (directory / "config.json").write_text(json.dumps(config | changes))
    read = read_hugging_face_config(directory, FAMILIES)
    return args_from_config(read, FAMILIES[str(read.given["model_type"])])


def dtypes(matrices: ml.DType, **others: ml.DType) -> dict[str, ml.DType | ml.BlockDType]:
    """Return the dtypes of a model of one layer; `others` are those of some weights."""
    return {
        row.name: others.get(
            row.name.split(".")[-2], ml.bfloat16 if "norm" in row.name else matrices
        )
        for row in rows_of(1)
    }


def test_sizes_come_from_the_parameters_and_what_they_leave_open_is_0() -> None:
    expected = replace(GROUPED.args(ml.bfloat16), max_context_length=4096)
    assert from_params(multiple_of=90) == replace(expected, ffn_dim=180)
    assert from_params().ffn_dim == 0
    assert from_params().group_size == 4

    for vocabulary in (-1, None):
        args = from_params(vocab_size=vocabulary)
        assert args.vocab_size == 0
        assert args.tensor_sizes == {"D": 64, "H": 8, "Hh": 64, "Kh": 16, "h": 8}


@pytest.mark.parametrize(
    "key", ["n_kv_heads", "rope_theta", "max_seq_len", "use_scaled_rope"]
)
def test_null_is_as_good_as_absent(key: str) -> None:
    absent = {name: value for name, value in GROUPED.params().items() if name != key}
    assert from_params(**{key: None}) == args_from_params(absent)


@pytest.mark.parametrize(
    ("dim", "layers", "factor"),
    [(4096, 32, 8.0), (8192, 80, 8.0), (2048, 16, 32.0), (3072, 28, 32.0)],
    ids=["3.1 8B", "3.1 70B", "3.2 1B", "3.2 3B"],
)
def test_rope_is_scaled_by_8_but_by_32_in_llama_3_2(
    dim: int, layers: int, factor: float
) -> None:
    sizes = {"dim": dim, "n_layers": layers, "n_heads": 32, "rope_theta": 500000.0}
    args = from_params(**sizes, use_scaled_rope=True)
    assert args.rope_scaling == RopeScaling(factor, 1.0, 4.0, 8192)


@pytest.mark.parametrize(
    ("changes", "length"),
    [
        ({}, 4096), ({"rope_theta": None}, 4096), ({"rope_theta": 500000.0}, 8192),
        ({"rope_theta": 500000.0, "use_scaled_rope": True}, 131072),
        ({"use_scaled_rope": True, "max_seq_len": 1024}, 1024),
    ],
)  # fmt: skip
def test_the_longest_context_is_said_or_the_familys(
    changes: dict[str, object], length: int
) -> None:
    assert from_params(**changes).max_context_length == length


@pytest.mark.parametrize(
    ("changes", "match"),
    [
        (
            {"n_heads": 8, "n_kv_heads": 3},
            "n_heads: expected a multiple of n_kv_heads 3, got 8",
        ),
        ({"n_heads": 64, "n_kv_heads": 64}, "head dimension: expected an even number"),
        ({"norm_eps": 0}, "norm_eps: expected 1e-12 to 1, got 0"),
        ({"norm_eps": 1e-300}, "norm_eps: expected 1e-12 to 1, got 1e-300"),
    ],
)
def test_contradictions_are_refused_by_name(
    changes: dict[str, object], match: str
) -> None:
    with pytest.raises(ModelConfigError, match=match):
        from_params(**changes)


@pytest.mark.parametrize(
    ("dim", "multiple_of", "multiplier", "size"),
    [
        (4096, 256, None, 11008),  # Llama 2 7B
        (5120, 256, None, 13824),  # Llama 2 13B
        (8192, 4096, 1.3, 28672),  # Llama 2 70B, Llama 3 70B
        (4096, 1024, 1.3, 14336),  # Llama 3 8B
        (2048, 256, 1.5, 8192),  # Llama 3.2 1B
        (3072, 256, 1.0, 8192),  # Llama 3.2 3B
        (16384, 4096, 1.2, 53248),  # Llama 3.1 405B
    ],
)
def test_the_feed_forward_size_is_that_of_the_published_models(
    dim: int, multiple_of: int, multiplier: float | None, size: int
) -> None:
    params = {"dim": dim, "multiple_of": multiple_of, "ffn_dim_multiplier": multiplier}
    assert feed_forward_dim(params) == size
    # Without `multiple_of` the tensors say it.
    assert feed_forward_dim(params | {"multiple_of": None}) is None
    assert feed_forward_dim({"dim": dim}) is None


@pytest.mark.parametrize("config", PUBLISHED.values(), ids=PUBLISHED)
def test_published_models_have_the_sizes_of_their_files(
    tmp_path: Path, config: dict[str, Any]
) -> None:
    args = from_config(tmp_path, config)
    assert (args.dim, args.n_layers) == (
        config["hidden_size"],
        config["num_hidden_layers"],
    )
    assert args.head_dim * args.n_heads == config["hidden_size"]
    assert args.n_kv_heads == config["num_key_value_heads"]
    assert (args.ffn_dim, args.vocab_size) == (
        config["intermediate_size"],
        config["vocab_size"],
    )
    assert args.rope_pairs == "halves"
    named = config.get("torch_dtype", config.get("dtype"))
    assert args.dtype is (ml.bfloat16 if named == "bfloat16" else ml.float32)


def test_scaled_rope_of_both_kinds_is_read(tmp_path: Path) -> None:
    args = from_config(tmp_path, LLAMA_3_2_1B)
    assert args.rope_scaling == RopeScaling(32.0, 1.0, 4.0, 8192)
    assert (args.rope_theta, args.max_context_length) == (500000.0, 131072)
    linear = from_config(
        tmp_path, LLAMA_2_7B, rope_scaling={"type": "linear", "factor": 2}
    )
    assert linear.rope_scaling == LinearRopeScaling(2.0)
    assert from_config(tmp_path, LLAMA_2_7B).rope_scaling is None
    llama3 = LLAMA3 | {"rope_theta": 1e6}
    assert from_config(tmp_path, CONFIG, rope_parameters=llama3).rope_theta == 1e6


def test_a_missing_key_has_the_default_of_transformers(tmp_path: Path) -> None:
    sizes = {
        "model_type": "llama",
        "hidden_size": 64,
        "intermediate_size": 100,
        "vocab_size": 50,
        "num_hidden_layers": 2,
        "num_attention_heads": 16,
    }
    llama = from_config(tmp_path, sizes)
    assert (llama.n_kv_heads, llama.head_dim, llama.norm_eps) == (16, 4, 1e-6)
    assert (llama.rope_theta, llama.rope_scaling) == (10000.0, None)
    assert (llama.max_context_length, llama.sliding_window) == (2048, None)
    assert (llama.layer_rows, llama.biases, llama.dtype) == (LAYER_ROWS, (), ml.bfloat16)
    mistral = from_config(tmp_path, sizes, model_type="mistral")
    assert mistral.n_kv_heads == 8
    assert (mistral.max_context_length, mistral.windows) == (131072, [4096, 4096])
    unlimited = from_config(tmp_path, sizes, model_type="mistral", sliding_window=None)
    assert (unlimited.max_context_length, unlimited.windows) == (131072, [None, None])


def test_biases_are_those_of_the_two_settings(tmp_path: Path) -> None:
    attention = from_config(tmp_path, CONFIG, attention_bias=True)
    assert attention.biases == ("wq", "wk", "wv", "wo")
    assert from_config(tmp_path, CONFIG, mlp_bias=True).biases == ("w1", "w2", "w3")


@pytest.mark.parametrize("window", [None, 4096, 32768, 65536])
def test_every_layer_of_a_mistral_has_the_window(
    tmp_path: Path, window: int | None
) -> None:
    args = from_config(tmp_path, MISTRAL_7B_V01, sliding_window=window)
    assert args.max_context_length == 32768
    assert args.windows == [window] * args.n_layers


SCALED = replace(GROUPED.args(), rope_scaling=RopeScaling(8.0))


def test_the_scaling_factor_can_be_overridden_where_there_is_one() -> None:
    assert with_rope_factor(SCALED, 16.0).rope_scaling == RopeScaling(16.0)
    linear = replace(SCALED, rope_scaling=LinearRopeScaling(2.0))
    assert with_rope_factor(linear, 3.0).rope_scaling == LinearRopeScaling(3.0)
    assert with_rope_factor(SCALED, None) is SCALED
    with pytest.raises(
        ModelConfigError, match="expected a model with one scaling factor"
    ):
        with_rope_factor(GROUPED.args(), 8.0)
    for factor in (0.0, -8.0, 0.5, float("nan"), float("inf"), 1e7):
        with pytest.raises(
            ModelConfigError, match="rope_scaling_factor: expected 1 to 1e\\+06"
        ):
            with_rope_factor(SCALED, factor)


def test_activations_follow_the_weights() -> None:
    for weight in (ml.bfloat16, ml.float8_e4m3fn, ml.float8_e5m2):
        assert activation_dtype(dtypes(weight)) is ml.bfloat16
    for weight in (ml.float16, ml.float32):
        assert activation_dtype(dtypes(weight)) is ml.float32
    assert activation_dtype(dtypes(ml.bfloat16, norm=ml.float32)) is ml.bfloat16
    quantized = dtypes(ml.float16) | {"layers.0.attention.wq.weight": ml.nf4}
    assert activation_dtype(quantized) is ml.float32
    for one, other in itertools.permutations((ml.bfloat16, ml.float16, ml.float32), 2):
        assert activation_dtype(dtypes(one, output=other)) is ml.float32
        assert activation_dtype(dtypes(one, tok_embeddings=other)) is ml.float32
    # Only the embeddings may be bfloat16 beside float8.
    mixed = dtypes(ml.float8_e4m3fn, tok_embeddings=ml.bfloat16)
    assert activation_dtype(mixed) is ml.bfloat16


MIXED = "matrices of one dtype, got "


@pytest.mark.parametrize(
    ("weights", "match"),
    [
        (dtypes(ml.bfloat16, output=ml.float8_e4m3fn), f"{MIXED}bfloat16, float8_e4m3fn"),
        (dtypes(ml.float8_e4m3fn, tok_embeddings=ml.float16), MIXED),
        (dtypes(ml.float8_e4m3fn, tok_embeddings=ml.bfloat16, output=ml.bfloat16), MIXED),
        (dtypes(ml.float8_e4m3fn, output=ml.bfloat16), MIXED),
        (
            dtypes(ml.float8_e4m3fn, output=ml.float8_e5m2),
            f"{MIXED}float8_e4m3fn, float8_e5m2",
        ),
        (
            dtypes(ml.float8_e5m2, norm=ml.float8_e5m2),
            r"norm\.weight: expected .*got float8_e5m2",
        ),
        (dtypes(ml.int32), "floating-point weights, got int32"),
    ],
)
def test_other_weights_are_refused(weights: dict[str, Any], match: str) -> None:
    with pytest.raises(ModelConfigError, match=match):
        activation_dtype(weights)
