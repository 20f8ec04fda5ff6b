"""The families next to Llama: their configurations, and the promises that hold for Llama
too.
"""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from src import ml
from src.checkpoint import CheckpointError
from src.model import InferenceContext, ModelArgs, ModelConfigError, load_model
from src.model.args import YarnRopeScaling
from src.model.sources import find_source
from src.model.sources.hugging_face import HuggingFaceSource
from tests.model.families import CONFIGS, LIMITED, config_of, write_family
from tests.model.test_llama import DTYPES, check_every_way, run
from tests.model.tiny import uniform
from tests.support.safetensors_writer import write_safetensors

LENGTH = 40
YARN: dict[str, Any] = CONFIGS["ministral3"]["rope_parameters"]
YARN_OF_GPT_OSS: dict[str, Any] = CONFIGS["gpt_oss"]["rope_scaling"]
WEIGHTS = "model.safetensors"
EVERY_FAMILY = pytest.mark.parametrize("family", [*CONFIGS, *LIMITED])
IDS = [int(65 * (x + 1)) for x in uniform(7, LENGTH)]


def args_of(directory: Path, family: str, **changes: object) -> ModelArgs:
    config = {k: v for k, v in config_of(family, **changes).items() if v != "absent"}
    (directory / "config.json").write_text(json.dumps(config))
    (directory / WEIGHTS).touch()
    return find_source(directory).args


@EVERY_FAMILY
@DTYPES
def test_every_way_to_run_a_text_gives_the_same_bits(
    tmp_path: Path, family: str, dtype: ml.DType
) -> None:
    check_every_way(load_model(write_family(tmp_path, family, dtype)).transformer, IDS)


@EVERY_FAMILY
@DTYPES
def test_fused_and_eager_attention_give_the_same_bits(
    tmp_path: Path, family: str, dtype: ml.DType
) -> None:
    network = load_model(write_family(tmp_path, family, dtype)).transformer
    context = InferenceContext(network.args, LENGTH, attention="eager")
    eager = network.forward(context, IDS, all_positions=True).numpy()
    np.testing.assert_array_equal(run(network, IDS), eager)


@pytest.mark.parametrize(
    ("family", "changes"),
    [
        ("smollm3", {"no_rope_layers": [1, 1, 1, 1]}),
        ("smollm3", {"no_rope_layer_interval": 2}),
        ("granite", {"embedding_multiplier": 3.1}),
        ("granite", {"residual_multiplier": 0.61}),
        ("granite", {"attention_multiplier": 0.21}),
        ("granite", {"logits_scaling": 1.6}),
        ("granite_swa", {"sliding_window": 9}),
        ("granite_swa", {"layer_types": ["sliding_attention"] * 4}),
        ("granite_swa", {"layer_rope_theta": [10000, 0, 10000, 0]}),
        ("granite_swa", {"layer_rope_theta": [10000, 0, 500000, 10000]}),
        ("qwen3_moe", {"norm_topk_prob": False}),
        ("qwen3_moe", {"num_experts_per_tok": 2}),
        ("olmoe", {"norm_topk_prob": True}),
        ("mixtral", {"sliding_window": 8}),
        ("granitemoe", {"residual_multiplier": 0.61}),
        ("gemma2", {"query_pre_attn_scalar": 11}),
        ("gemma2", {"sliding_window": 8}),
        ("gemma2", {"attn_logit_softcapping": None}),
        ("gemma2", {"final_logit_softcapping": 2.5}),
        ("gemma3_text", {"layer_types": ["full_attention"] * 7}),
        ("gemma3_text", {"rope_theta": 1e5}),
        ("ministral", {"sliding_window": 7}),
        ("ministral", {"layer_types": ["full_attention"] * 4}),
        ("mistral", {"sliding_window": 12}),
        ("mistral", {"sliding_window": None}),
        ("olmo3", {"sliding_window": 9}),
        ("olmo3", {"layer_types": ["sliding_attention"] * 4}),
        ("olmo3", {"rope_scaling": None}),
        ("olmo3", {"rope_theta": 1e4}),
        ("gpt_oss", {"sliding_window": 9}),
        ("gpt_oss", {"layer_types": ["sliding_attention"] * 4}),
        ("gpt_oss", {"num_experts_per_tok": 2}),
        ("gpt_oss", {"rope_scaling": YARN_OF_GPT_OSS | {"factor": 5.0}}),
        ("ministral3", {"sliding_window": 9}),
        ("ministral3", {"rope_parameters": YARN | {"llama_4_scaling_beta": 0.4}}),
        ("ministral3", {"rope_parameters": YARN | {"factor": 5.0}}),
        ("ministral3", {"rope_parameters": YARN | {"mscale_all_dim": 0.4}}),
        ("gemma3_text", {"rope_local_base_freq": 1e5}),
    ],
)
def test_each_key_of_a_family_counts(
    tmp_path: Path, family: str, changes: dict[str, Any]
) -> None:
    plain, other = (
        run(
            load_model(
                write_family(tmp_path / name, family, ml.float32, **keys)
            ).transformer,
            IDS,
        )
        for name, keys in (("plain", {}), ("other", changes))
    )
    assert np.abs(plain - other).max() > 1e-3


def test_a_window_that_is_off_limits_nothing(tmp_path: Path) -> None:
    off = {"use_sliding_window": False, "sliding_window": 8, "max_window_layers": 1}
    in_no_layer = {
        "use_sliding_window": True,
        "sliding_window": 8,
        "max_window_layers": 4,
    }
    without_size = {
        "use_sliding_window": True,
        "sliding_window": None,
        "max_window_layers": 1,
    }
    cases: list[tuple[str, dict[str, Any]]] = [
        *((family, off) for family in ("qwen2", "qwen3", "smollm3")),
        *((family, in_no_layer) for family in ("qwen2", "qwen3")),
        *((family, without_size) for family in ("qwen2", "qwen3", "smollm3")),
    ]
    for family, changes in cases:
        args = args_of(tmp_path, family, **changes)
        assert (args.max_context_length, args.sliding_window) == (4096, None)


DEFAULTS: dict[str, dict[str, Any]] = {
    "qwen3_moe": {
        "n_kv_heads": 4,
        "max_context_length": 32768,
        "norm_eps": 1e-6,
        "head_dim": 2,
        "ffn_dim": 768,
        "n_experts": 128,
        "n_active_experts": 8,
        "has_shares_of_all": True,
    },
    "mixtral": {
        "n_kv_heads": 8,
        "max_context_length": 131072,
        "norm_eps": 1e-5,
        "head_dim": 2,
        "rope_theta": 1e6,
        "window": None,
        "n_experts": 8,
        "n_active_experts": 2,
        "has_shares_of_all": False,
    },
    "olmoe": {
        "n_kv_heads": 32,
        "max_context_length": 4096,
        "norm_eps": 1e-5,
        "n_experts": 64,
        "n_active_experts": 8,
        "has_shares_of_all": True,
    },
    "gpt_oss": {
        "n_kv_heads": 8,
        "max_context_length": 131072,
        "norm_eps": 1e-5,
        "head_dim": 64,
        "rope_theta": 150000.0,
        "rope_scaling": YarnRopeScaling(32.0, 4096, truncate=False),
        "window": 128,
        "window_layers": (0, 2),
        "biases": ("wq", "wk", "wv", "wo", "w1", "w2", "w3"),
        "n_experts": 128,
        "n_active_experts": 4,
        "has_shares_of_all": False,
    },
    "granitemoe": {
        "n_kv_heads": 32,
        "max_context_length": 2048,
        "embedding_multiplier": 1.0,
        "attention_multiplier": 1.0,
        "n_experts": 8,
        "n_active_experts": 2,
        "has_shares_of_all": False,
    },
    "mistral": {
        "n_kv_heads": 8,
        "max_context_length": 131072,
        "head_dim": 2,
        "window": 4096,
        "window_layers": (0, 1, 2, 3),
    },
    "ministral": {
        "n_kv_heads": 8,
        "max_context_length": 131072,
        "norm_eps": 1e-6,
        "head_dim": 2,
        "window": 4096,
        "window_layers": (0, 1, 2, 3),
        "rope_theta": 10000.0,
    },
    "ministral3": {
        "n_kv_heads": 8,
        "max_context_length": 262144,
        "norm_eps": 1e-5,
        "head_dim": 128,
        "window": None,
        "rope_theta": 1e6,
        "beta": 0.1,
    },
    "olmo3": {
        "n_kv_heads": 32,
        "max_context_length": 2048,
        "norm_eps": 1e-5,
        "head_dim": 2,
        "window": 4096,
        "window_layers": (0, 1, 2),
        "rope_theta": 500000.0,
        "local_rope_theta": 500000.0,
    },
    "qwen2": {
        "n_kv_heads": 32,
        "max_context_length": 32768,
        "norm_eps": 1e-6,
        "head_dim": 2,
    },
    "qwen3": {
        "n_kv_heads": 32,
        "max_context_length": 32768,
        "norm_eps": 1e-6,
        "head_dim": 128,
    },
    "smollm3": {
        "n_kv_heads": 4,
        "max_context_length": 32768,
        "rope_theta": 2e6,
        "head_dim": 2,
        "layers_without_rope": (3,),
    },
    "granite": {
        "n_kv_heads": 32,
        "max_context_length": 2048,
        "embedding_multiplier": 1.0,
        "attention_multiplier": 1.0,
        "residual_multiplier": 1.0,
        "logits_scaling": 1.0,
    },
    "granite_swa": {
        "n_kv_heads": 4,
        "max_context_length": 8192,
        "norm_eps": 1e-5,
        "head_dim": 2,
        "window": 128,
        "window_layers": (1, 2, 3),
        "layer_thetas": (10000.0,) * 4,
        "attention_multiplier": 1.0,
        "logits_scaling": 1.0,
    },
    "olmo2": {
        "n_kv_heads": 32,
        "max_context_length": 2048,
        "norm_eps": 1e-5,
        "head_dim": 2,
    },
    "gemma2": {
        "n_kv_heads": 4,
        "max_context_length": 8192,
        "head_dim": 256,
        "query_scalar": 256.0,
        "window": 4096,
        "window_layers": (0, 2),
        "score_cap": 50.0,
        "logits_cap": 30.0,
    },
    "gemma3_text": {
        "n_kv_heads": 4,
        "max_context_length": 131072,
        "head_dim": 256,
        "rope_theta": 1e6,
        "local_rope_theta": 1e4,
        "query_scalar": 256.0,
        "window": 4096,
        "window_layers": (0, 1, 2, 3, 4, 6),
        "score_cap": None,
        "logits_cap": None,
    },
}


@EVERY_FAMILY
def test_a_missing_key_has_the_default_of_transformers(
    tmp_path: Path, family: str
) -> None:
    absent = dict.fromkeys(
        (
            "num_key_value_heads", "head_dim", "rms_norm_eps", "max_position_embeddings",
            *(
                k for k in (CONFIGS | LIMITED)[family]
                if k not in ("model_type", "num_hidden_layers")
            ),
        ), "absent",
    )  # fmt: skip
    sizes = {"hidden_size": 64, "num_attention_heads": 32}
    args = args_of(tmp_path, family, **absent | sizes)
    assert {key: getattr(args, key) for key in DEFAULTS[family]} == DEFAULTS[family]
    source = find_source(tmp_path)
    assert isinstance(source, HuggingFaceSource)
    is_tied = family in ("smollm3", "granite_swa", "gemma2", "gemma3_text")
    assert source.tied is is_tied
    null = args_of(tmp_path, family, **absent | sizes | {"num_key_value_heads": None})
    assert null.n_kv_heads == 32
    rope = YARN if family == "ministral3" else {"rope_type": "default"}
    others = dict.fromkeys(("rope_scaling", "rope_theta", "layer_rope_theta"), "absent")
    theta = others | {"rope_parameters": rope | {"rope_theta": 7.0}}
    assert args_of(tmp_path, family, **theta).rope_theta == 7.0


BAD: dict[str, tuple[str, dict[str, object], str]] = {
    "a window": (
        "qwen2",
        {"use_sliding_window": True, "max_window_layers": 3},
        (
            "use_sliding_window: expected false, or true and max_window_layers >= 4, got "
            "true and 3"
        ),
    ),
    "a window of SmolLM3": (
        "smollm3",
        {"use_sliding_window": True, "sliding_window": 16},
        "use_sliding_window: expect",
    ),
    "YaRN in layers with a window": (
        "olmo3",
        {
            "rope_scaling": "absent",
            "rope_parameters": {"sliding_attention": {"rope_type": "yarn", "factor": 2}},
        },
        "rope_parameters.sliding_attention: expected an unscaled rotary embedding",
    ),
    "no switch": (
        "qwen3",
        {"use_sliding_window": 1},
        "use_sliding_window: expected true or false",
    ),
    "layers without experts": (
        "qwen3_moe",
        {"mlp_only_layers": [0]},
        "mlp_only_layers: expected null or false (not supported: layers without",
    ),
    "clipped queries": (
        "olmoe",
        {"clip_qkv": 8.0},
        "clip_qkv: expected null or false (not supported: clipped queries",
    ),
    "queries without biases": (
        "gpt_oss",
        {"attention_bias": False},
        "attention_bias: expected true",
    ),
    "other limits of experts": (
        "gpt_oss",
        {"swiglu_limit": 6.0},
        "swiglu_limit: expected 7.0, got 6.0",
    ),
    "another factor of experts": (
        "gpt_oss",
        {"swiglu_alpha": 1.7},
        "swiglu_alpha: expected 1.702, got 1.7",
    ),
    "a window of granite": (
        "granite",
        {"sliding_window": 8},
        "sliding_window: expected null",
    ),
    "layers of several kinds": (
        "qwen3",
        {"layer_types": ["full_attention", "sliding_attention"] * 2},
        "layer_types: expected a list of only 'full_attention'",
    ),
    "too few kinds": (
        "qwen2",
        {"layer_types": ["full_attention"] * 3},
        "layer_types: expected one for each of 4 layers, got 3",
    ),
    "too few bases": (
        "granite_swa",
        {"layer_rope_theta": [10000.0] * 3},
        "layer_rope_theta: expected one for each of 4 layers, got 3",
    ),
    "a base below 1": (
        "granite_swa",
        {"layer_rope_theta": [0, 0.5, 0, 0]},
        "layer_rope_theta: expected a list of 0 or a number in 1..1e+12",
    ),
    "too few layers with RoPE": (
        "smollm3",
        {"no_rope_layers": [1, 0, 1]},
        "no_rope_layers: expected one for each of 4 layers, got 3",
    ),
    "no list of 0 and 1": (
        "smollm3",
        {"no_rope_layers": [1, 1, 1, 2]},
        "a list of only 0 or 1",
    ),
    "true is no 1": ("smollm3", {"no_rope_layers": [True] * 4}, "a list of only 0 or 1"),
    "an interval of 0": (
        "smollm3",
        {"no_rope_layer_interval": 0},
        "no_rope_layer_interval: ",
    ),
    "a factor of 0": (
        "granite",
        {"residual_multiplier": 0},
        "residual_multiplier: expected a",
    ),
    "a factor of text": (
        "granite",
        {"logits_scaling": "8"},
        "logits_scaling: expected a number",
    ),
    "dynamic scaling": (
        "qwen2",
        {"rope_scaling": {"type": "dynamic", "factor": 4}},
        "type: expected 'default'",
    ),
    "GeLU": ("olmo2", {"hidden_act": "gelu"}, "hidden_act: expected 'silu'"),
    "another activation": (
        "gemma2",
        {"hidden_activation": "relu"},
        "hidden_activation: expected 'gelu_pytorch_tanh'",
    ),
    "experts for all tokens": (
        "qwen2",
        {"model_type": "qwen2_moe"},
        "qwen2_moe: experts that all tokens use, which is not supported",
    ),
    "a family that nobody knows": (
        "qwen2",
        {"model_type": "bamba"},
        "model_type: expected 'gemma2' or 'gemma3_text' or 'gpt_oss'",
    ),
    "a part of another kind": (
        "qwen2",
        {"model_type": "gemma3", "text_config": {"model_type": "gemma3n_text"}},
        "text_config: model_type: expected 'gemma3_text', got 'gemma3n_text'",
    ),
    "no part for text": (
        "qwen2",
        {"model_type": "gemma3", "text_config": None},
        "without 'text_config'",
    ),
    "missing sizes": (
        "qwen2",
        {"num_hidden_layers": None},
        "without 'num_hidden_layers'",
    ),
}


@pytest.mark.parametrize(("family", "changes", "words"), BAD.values(), ids=BAD)
def test_what_is_not_supported_is_refused_in_a_line(
    tmp_path: Path, family: str, changes: dict[str, object], words: str
) -> None:
    args_of(tmp_path, family)
    with pytest.raises(CheckpointError) as caught:
        args_of(tmp_path, family, **changes)
    assert str(caught.value).startswith(str(tmp_path / "config.json"))
    assert words in str(caught.value)
    assert str(caught.value).isprintable()


@pytest.mark.parametrize(
    ("family", "changes", "words"),
    [
        (
            "ministral3",
            {"rope_parameters": {"rope_type": "yarn", "factor": 4}},
            "rope_parameters: expected YaRN with llama_4_scaling_beta, got none",
        ),
        (
            "ministral3",
            {"rope_parameters": {"llama_4_scaling_beta": 0.1}},
            "rope_parameters: expected YaRN, got another scaling or none",
        ),
        ("olmo3", {"sliding_window": None}, "sliding_window: expected a whole number"),
        (
            "mixtral",
            {"num_experts_per_tok": 6},
            "experts per token: expected at most the 5 experts, got 6",
        ),
        (
            "qwen3_moe",
            {"num_local_experts": 8},
            "num_experts: expected the same as num_local_experts, got 7 and 8",
        ),
    ],
)
def test_a_part_that_a_family_needs_is_not_left_out(
    tmp_path: Path, family: str, changes: dict[str, object], words: str
) -> None:
    with pytest.raises(ModelConfigError) as caught:
        args_of(tmp_path, family, **changes)
    assert words in str(caught.value)


SHAPES = {
    "a norm over all heads": ("qwen3", "self_attn.q_norm.weight", (120,), "[10]"),
    "a norm over one head": ("olmo2", "self_attn.k_norm.weight", (10,), "[30]"),
    "a short bias": ("qwen2", "self_attn.k_proj.bias", (29,), "[30]"),
    "a sink for each element": ("granite_swa", "self_attn.sinks", (120,), "[12]"),
    "a short norm": ("olmo2", "post_feedforward_layernorm.weight", (19,), "[20]"),
}


@pytest.mark.parametrize(
    ("family", "name", "shape", "right"), SHAPES.values(), ids=SHAPES
)
def test_tensors_of_a_family_are_checked(
    tmp_path: Path, family: str, name: str, shape: tuple[int, ...], right: str
) -> None:
    model = load_model(write_family(tmp_path, family, ml.float32))
    path = tmp_path / WEIGHTS
    names = model.checkpoint.names_in_files
    tensors = {names[key]: np.array(x) for key, x in model.tensors.items()}
    full = f"model.layers.2.{name}"
    write_safetensors(path, tensors | {full: np.ones(shape, np.float32)})
    with pytest.raises(
        CheckpointError, match=r"shapes: expected the shapes by config\.json"
    ) as caught:
        load_model(tmp_path)
    assert f"'{full}' {list(shape)} instead of {right}" in str(caught.value)
    write_safetensors(path, {key: x for key, x in tensors.items() if key != full})
    with pytest.raises(CheckpointError, match=f"without '{full}'"):
        load_model(tmp_path)


def test_a_family_has_the_tensors_of_its_own_and_no_others(tmp_path: Path) -> None:
    write_family(tmp_path, "qwen3", ml.float32)
    config = json.loads((tmp_path / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps(config | {"model_type": "llama"}))
    with pytest.raises(
        CheckpointError, match=r"also 'model.layers.0.self_attn.k_norm.weight', "
    ):
        load_model(tmp_path)
