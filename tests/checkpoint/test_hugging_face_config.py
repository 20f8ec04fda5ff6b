"""`config.json` and `generation_config.json`: every key is used, harmless, rejected or
ignored.
"""

import json
import re
from pathlib import Path
from typing import Any

import pytest

from src.checkpoint.hugging_face_config import (
    HARMLESS_KEYS,
    REJECTED_KEYS,
    RULES,
    HuggingFaceConfig,
    read_hugging_face_config,
)
from src.checkpoint.params import BOOLEAN, OBJECT, SIZE
from src.model.families import FAMILIES
from tests.checkpoint.refusals import refusal_of
from tests.support.hugging_face_writer import CONFIG

LLAMA3_VALUES = {
    "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
    "original_max_position_embeddings": 8192,
}  # fmt: skip
LLAMA3: dict[str, Any] = LLAMA3_VALUES | {"rope_type": "llama3"}
NEW_LLAMA3 = LLAMA3 | {"rope_theta": 500000.0}
OLD_LLAMA3 = {"rope_scaling": LLAMA3, "rope_theta": 500000.0}
# As in the published files of these models.
LLAMA_2_7B = {
    "_name_or_path": "meta-llama/Llama-2-7b-hf",
    "architectures": ["LlamaForCausalLM"],
    "bos_token_id": 1,
    "eos_token_id": 2,
    "hidden_act": "silu",
    "hidden_size": 4096,
    "initializer_range": 0.02,
    "intermediate_size": 11008,
    "max_position_embeddings": 4096,
    "model_type": "llama",
    "num_attention_heads": 32,
    "num_hidden_layers": 32,
    "num_key_value_heads": 32,
    "pretraining_tp": 1,
    "rms_norm_eps": 1e-05,
    "rope_scaling": None,
    "tie_word_embeddings": False,
    "torch_dtype": "float16",
    "transformers_version": "4.31.0.dev0",
    "use_cache": True,
    "vocab_size": 32000,
}
LLAMA_3_2_1B = {
    "architectures": ["LlamaForCausalLM"],
    "attention_bias": False,
    "attention_dropout": 0.0,
    "bos_token_id": 128000,
    "eos_token_id": [128001, 128008, 128009],
    "head_dim": 64,
    "hidden_act": "silu",
    "hidden_size": 2048,
    "initializer_range": 0.02,
    "intermediate_size": 8192,
    "max_position_embeddings": 131072,
    "mlp_bias": False,
    "model_type": "llama",
    "num_attention_heads": 32,
    "num_hidden_layers": 16,
    "num_key_value_heads": 8,
    "pretraining_tp": 1,
    "rms_norm_eps": 1e-05,
    "rope_scaling": LLAMA3 | {"factor": 32.0},
    "rope_theta": 500000.0,
    "tie_word_embeddings": True,
    "torch_dtype": "bfloat16",
    "transformers_version": "4.45.0.dev0",
    "use_cache": True,
    "vocab_size": 128256,
}
# What the file of SmolLM2 135M has besides.
SMOLLM2_135M = LLAMA_3_2_1B | {
    "initializer_range": 0.041666666666666664, "is_llama_config": True, "pad_token_id": 2,
    "rope_interleaved": False, "rope_scaling": None, "rope_theta": 100000,
    "transformers.js_config": {"kv_cache_dtype": {"q4f16": "float16"}},
}  # fmt: skip
MISTRAL_7B_V01 = LLAMA_2_7B | {
    "architectures": ["MistralForCausalLM"],
    "intermediate_size": 14336,
    "model_type": "mistral",
    "max_position_embeddings": 32768,
    "num_key_value_heads": 8,
    "rope_theta": 10000.0,
    "sliding_window": 4096,
    "torch_dtype": "bfloat16",
    "transformers_version": "4.34.0.dev0",
}
PUBLISHED = {
    "Llama 2 7B": LLAMA_2_7B, "Llama 3.2 1B": LLAMA_3_2_1B, "SmolLM2 135M": SMOLLM2_135M,
    "Mistral 7B v0.1": MISTRAL_7B_V01, "ours": CONFIG,
}  # fmt: skip


def read(
    directory: Path, config: object, generation: object | None = None
) -> HuggingFaceConfig:
    for name, value in (("config.json", config), ("generation_config.json", generation)):
        if value is not None:
            text = value if isinstance(value, str) else json.dumps(value)
            (directory / name).write_text(text)
    return read_hugging_face_config(directory, FAMILIES)


def refusal(
    directory: Path, words: str, config: object, generation: object | None = None
) -> str:
    """Read files that are refused, and return the text of it, which has these words."""
    given = (directory, config, generation)
    return refusal_of(read, *given, begin=directory, match=re.escape(words), most=700)


@pytest.mark.parametrize("config", PUBLISHED.values(), ids=PUBLISHED)
def test_published_files_are_read_as_they_are(
    tmp_path: Path, config: dict[str, Any]
) -> None:
    found = read(tmp_path, config, {"bos_token_id": 9})
    assert found.given == config
    assert found.generation == {"bos_token_id": 9}
    assert found.quantization is None


def test_null_is_as_good_as_absent_but_not_for_a_size(tmp_path: Path) -> None:
    read(tmp_path, LLAMA_2_7B | {"head_dim": None, "num_key_value_heads": None})
    refusal(tmp_path, "'hidden_size'", LLAMA_2_7B | {"hidden_size": None})


def test_head_dim_may_differ_from_the_quotient(tmp_path: Path) -> None:
    read(tmp_path, CONFIG | {"head_dim": 10, "hidden_size": 25})
    words = "hidden_size % num_attention_heads: expected 0, got 25 % 4 = 1"
    refusal(tmp_path, words, CONFIG | {"head_dim": None, "hidden_size": 25})


def test_the_sampling_of_a_generation_configuration_is_accepted(tmp_path: Path) -> None:
    generation = {
        "_from_model_config": True,
        "bos_token_id": 128000,
        "do_sample": True,
        "temperature": 0.6,
        "top_p": 0.9,
        "eos_token_id": [128001, 128009],
        "transformers_version": "4.45.0",
    }
    config = CONFIG | {"vocab_size": 128256}
    assert read(tmp_path, config, generation).generation == generation
    assert read(tmp_path, CONFIG, {}).generation == {}


@pytest.mark.parametrize("key", sorted(HARMLESS_KEYS - {"architectures"}))
def test_harmless_keys_are_accepted(tmp_path: Path, key: str) -> None:
    found = read(tmp_path, CONFIG | {key: {"any": ["thing"]}}, {key: "anything"})
    assert not any(found.ignored.values())
    assert key not in found.values


NEUTRAL = {"is_encoder_decoder": False, "is_causal": True, "partial_rotary_factor": 1}


@pytest.mark.parametrize("key", REJECTED_KEYS)
def test_keys_that_transformers_reads_and_we_lack_must_be_neutral(
    tmp_path: Path, key: str
) -> None:
    neutral = [NEUTRAL[key]] if key in NEUTRAL else [False, {}, []]
    for value in (None, *neutral):
        found = read(tmp_path, CONFIG | {key: value})
        assert key not in found.values
        assert found.ignored["config.json"] == ()
    for other in (7, 0.5, "x", [3], {"bits": 4}, key not in NEUTRAL or not NEUTRAL[key]):
        refusal(tmp_path, f"{key}: expected", CONFIG | {key: other})


IGNORED = {
    "badwordsids": [[3]],
    "eos_token": "</s>",
    "pad_token": "<pad>",
    "use_cash": True,
    "num_headz": 3,
    "logit_scale": 0.5,
    "auto_map": {"AutoConfig": "x.Config"},
    "\x1b[2J": 1,
}


def test_keys_that_transformers_ignores_are_ignored_and_listed(tmp_path: Path) -> None:
    found = read(tmp_path, CONFIG | IGNORED)
    assert found.given == CONFIG | IGNORED
    assert found.values.keys().isdisjoint(IGNORED)
    assert found.ignored == {"config.json": tuple(IGNORED), "generation_config.json": ()}
    assert read(tmp_path, CONFIG).ignored == {
        "config.json": (),
        "generation_config.json": (),
    }


def test_the_name_of_an_architecture_is_ignored_and_listed_if_it_is_another(
    tmp_path: Path,
) -> None:
    for names in (["LLaMAForCausalLM"], ["LlamaModel"], "LlamaForCausalLM", [3], []):
        found = read(tmp_path, CONFIG | {"architectures": names})
        assert found.ignored["config.json"] == ("architectures",)
    for names in (["LlamaForCausalLM"], None):
        assert not read(tmp_path, CONFIG | {"architectures": names}).ignored[
            "config.json"
        ]


@pytest.mark.parametrize("kind", FAMILIES)
def test_a_key_counts_only_in_a_family_that_has_it(tmp_path: Path, kind: str) -> None:
    values: dict[str, object] = {
        "attention_bias": True, "mlp_bias": True, "no_rope_layers": [1, 0],
        "no_rope_layer_interval": 3, "max_window_layers": 2, "use_sliding_window": False,
        "attention_multiplier": 0.5, "logits_scaling": 8.0,
    }  # fmt: skip
    own = FAMILIES[kind].config.rules
    config = (
        CONFIG
        | {"model_type": kind, "architectures": None, "num_hidden_layers": 2}
        | dict.fromkeys({"hidden_act"} & own.keys())  # another activation
        | values
    )
    found = read(tmp_path, config)
    assert found.ignored["config.json"] == tuple(key for key in values if key not in own)
    assert all(found.values[key] == values[key] for key in values if key in own)


def test_keys_of_generation_never_prevent_loading(tmp_path: Path) -> None:
    generation = {
        "encoder_repetition_penalty": 0.9,
        "temperature": "hot",
        "suppress_tokens": [1, 2],
        "num_beams": 4,
        "surprise": {"x": 1},
        "stop_strings": ["###"],
        "bos_token_id": 3,
    }
    found = read(tmp_path, CONFIG, generation)
    assert found.ignored["generation_config.json"] == tuple(generation)[:-1]
    in_config = {key: value for key, value in generation.items() if key != "bos_token_id"}
    assert read(tmp_path, CONFIG | in_config, {}).ignored["config.json"] == tuple(
        in_config
    )
    for bad in ({"bos_token_id": "x"}, {"eos_token_id": [-1]}, {"eos_token_id": "</s>"}):
        refusal(tmp_path, "generation_config.json: ", CONFIG, bad)


MLX = {"group_size": 64, "bits": 4}
GPTQ = {"quant_method": "gptq", "bits": 4, "group_size": 128}


@pytest.mark.parametrize("more", [{}, {"mode": "affine"}, {"model.embed_tokens": MLX}])
@pytest.mark.parametrize("keys", [("quantization",), ("quantization_config",), ()])
def test_the_weights_of_mlx_are_named(
    tmp_path: Path, keys: tuple[str, ...], more: dict[str, object]
) -> None:
    both = keys or ("quantization", "quantization_config")
    refusal(tmp_path, "MLX's quantized weights", CONFIG | dict.fromkeys(both, MLX | more))
    read(tmp_path, CONFIG | dict.fromkeys(both))
    text = refusal(tmp_path, "got 'gptq'", CONFIG | {"quantization_config": GPTQ})
    assert "MLX" not in text


def test_a_missing_size_is_refused_by_name(tmp_path: Path) -> None:
    sizes = (
        "hidden_size",
        "intermediate_size",
        "num_hidden_layers",
        "num_attention_heads",
    )
    for key in ("model_type", "vocab_size", *sizes):
        refusal(tmp_path, f"without '{key}'", {k: CONFIG[k] for k in CONFIG if k != key})


# What the rules are made of is tested with `params.json`.
BAD_VALUES = [
    *[
        (key, value)
        for key, rule in RULES.items()
        if rule is SIZE
        for value in (0, 1.0, True)
    ],
    *[("num_hidden_layers", value) for value in (0, 1.0, True, 10**9)],
    *[("rope_theta", value) for value in (0, "x", 1e300)],
    *[("rms_norm_eps", value) for value in (-1e-5, 2)],
    *[("hidden_act", value) for value in ("gelu", "SiLU", 1, ["silu"])],
    *[("model_type", value) for value in ("gpt2", "Qwen2", 3, ["llama"])],
    *[(key, 1) for key, rule in RULES.items() if rule is BOOLEAN],
    *[
        ("eos_token_id", value)
        for value in (-1, 1.5, True, "2", [], [2, "3"], [True], [[2]])
    ],
    *[("eos_token_id", value) for value in (2**24, list(range(65)), {"a": 1})],
    *[("bos_token_id", value) for value in (-1, [1], "1", False)],
    *[(key, []) for key, rule in RULES.items() if rule is OBJECT],
]


@pytest.mark.parametrize(("key", "value"), BAD_VALUES)
def test_a_value_out_of_range_is_refused_by_its_key(
    tmp_path: Path, key: str, value: object
) -> None:
    refusal(tmp_path, f"{key}: expected", CONFIG | {key: value})


def test_up_to_64_tokens_may_end_an_answer(tmp_path: Path) -> None:
    read(tmp_path, CONFIG | {"vocab_size": 64, "eos_token_id": list(range(64))})


@pytest.mark.parametrize("key", ["bos_token_id", "eos_token_id"])
@pytest.mark.parametrize("beside", [False, True])
def test_a_token_beyond_the_vocabulary_is_left_to_the_model(
    tmp_path: Path, key: str, beside: bool
) -> None:
    """transformers writes the default end token of OLMo 2 beside a smaller vocabulary."""
    for number in (39, 40, 10**7):
        changes: dict[str, object] = {key: number}
        files = (CONFIG, changes) if beside else (CONFIG | changes, {})
        found = read(tmp_path, *files)
        assert (found.generation if beside else found.values)[key] == number
        assert not any(found.ignored.values())


@pytest.mark.parametrize("name", ["config.json", "generation_config.json"])
def test_a_file_beyond_64_kib_is_refused(tmp_path: Path, name: str) -> None:
    read(tmp_path, CONFIG, {})
    content = (tmp_path / name).read_text()
    (tmp_path / name).write_text(content.ljust(65536))
    read(tmp_path, None)
    (tmp_path / name).write_text(content.ljust(65537))
    assert f"{name}: size: expected at most 65536" in refusal(tmp_path, "got 65537", None)


def without_rope(**changes: object) -> dict[str, object]:
    return {k: v for k, v in CONFIG.items() if k != "rope_parameters"} | changes


def default(theta: float) -> dict[str, object]:
    return {"rope_type": "default", "rope_theta": theta}


LINEAR = {"rope_type": "linear", "rope_theta": 10000.0, "factor": 2.0}
SCALED = {"rope_type": "llama3", "rope_theta": 500000.0} | LLAMA3_VALUES
YARN = {"rope_type": "yarn", "rope_theta": 10000.0, "factor": 4.0}
YARN_VALUES = {
    "original_max_position_embeddings": 64.0,
    "attention_factor": 1.2,
    "beta_fast": 16.0,
    "beta_slow": 2.0,
    "mscale": 0.5,
    "mscale_all_dim": 0.0,
    "truncate": 0.0,
}
BOTH_WORDS = {"type": "linear", "rope_type": "linear", "factor": 2}
WHOLE_HEAD = {"rope_type": "default", "partial_rotary_factor": 1.0}
SPELLINGS = {
    "none": ({}, default(10000.0)),
    "base": ({"rope_theta": 130000}, default(130000.0)),
    "null": ({"rope_scaling": None}, default(10000.0)),
    "empty": ({"rope_parameters": {}, "rope_theta": 7}, default(7.0)),
    "default": ({"rope_scaling": {"type": "default"}}, default(10000.0)),
    "null type": ({"rope_scaling": {"rope_type": None}}, default(10000.0)),
    "old linear": ({"rope_scaling": {"type": "linear", "factor": 2.0}}, LINEAR),
    "linear": ({"rope_scaling": {"rope_type": "linear", "factor": 2}}, LINEAR),
    "both words": ({"rope_scaling": BOTH_WORDS}, LINEAR),
    "new linear": ({"rope_parameters": {"rope_type": "linear", "factor": 2.0}}, LINEAR),
    "llama3": (OLD_LLAMA3, SCALED),
    "new llama3": ({"rope_parameters": NEW_LLAMA3}, SCALED),
    "base twice": ({"rope_parameters": NEW_LLAMA3, "rope_theta": 500000}, SCALED),
    "both": (OLD_LLAMA3 | {"rope_parameters": NEW_LLAMA3}, SCALED),
    "YaRN": ({"rope_scaling": {"type": "yarn", "factor": 4}}, YARN),
    "YaRN with all keys": (
        {
            "rope_parameters": YARN
            | YARN_VALUES
            | {"truncate": False, "original_max_position_embeddings": 64}
        },
        YARN | YARN_VALUES,
    ),
    "whole head": ({"rope_parameters": WHOLE_HEAD}, default(10000.0)),
    "ignored": (
        {"rope_scaling": {"rope_type": "default", "mrope_section": [1]}},
        default(10000.0),
    ),
}


@pytest.mark.parametrize(("changes", "rope"), SPELLINGS.values(), ids=SPELLINGS)
def test_both_spellings_of_rope_are_read(
    tmp_path: Path, changes: dict[str, object], rope: dict[str, object]
) -> None:
    assert read(tmp_path, without_rope(**changes)).rope == rope


def test_ignored_keys_of_the_rotary_embedding_are_listed(tmp_path: Path) -> None:
    linear = {"rope_type": "linear", "factor": 2.0}
    config = without_rope(
        rope_scaling=linear | {"finetuned": True}, rope_parameters=linear
    )
    assert read(tmp_path, config).ignored["config.json"] == ("rope_scaling.finetuned",)


BAD_ROPES = {
    "dynamic": ({"rope_type": "dynamic", "factor": 4}, "'yarn', got 'dynamic'"),
    "YaRN without a factor": ({"rope_type": "yarn"}, "without 'factor'"),
    "YaRN that shortens": ({"rope_type": "yarn", "factor": 0.5}, "1..1e+06, got 0.5"),
    "no whole index": (
        {"rope_type": "yarn", "factor": 4, "truncate": 1},
        "true or false, got 1",
    ),
    "no attention": (
        {"rope_type": "yarn", "factor": 4, "attention_factor": 0},
        "1e-06..1e+06, got 0",
    ),
    "list": ({"rope_type": ["linear"]}, "got a list"),
    "two kinds": (BOTH_WORDS | {"type": "llama3"}, "rope_type 'linear', got another"),
    "per layer": (
        {"full_attention": {"rope_type": "default"}},
        "one rotary embedding for all",
    ),
    "no factor": ({"rope_type": "linear"}, "without 'factor'"),
    "factor null": ({"rope_type": "linear", "factor": None}, "without 'factor'"),
    "factor below 1": ({"rope_type": "linear", "factor": 0.5}, "got 0.5"),
    "half a llama3": (
        {"rope_type": "llama3", "factor": 8},
        "without 'low_freq_factor', 'high",
    ),
    "equal factors": (
        LLAMA3 | {"low_freq_factor": 4.0},
        "below high_freq_factor 4.0, got 4.0",
    ),
    "partial": (
        {"partial_rotary_factor": 0.5},
        "partial_rotary_factor: expected 1.0, got 0.5",
    ),
    "base": (LLAMA3 | {"rope_theta": -1}, "rope_theta: expected"),
}


@pytest.mark.parametrize("key", ["rope_scaling", "rope_parameters"])
@pytest.mark.parametrize(("rope", "words"), BAD_ROPES.values(), ids=BAD_ROPES)
def test_bad_rope_is_refused(
    tmp_path: Path, key: str, rope: dict[str, object], words: str
) -> None:
    assert key in refusal(tmp_path, words, without_rope(**{key: rope}))


def test_two_spellings_that_say_different_things_are_refused(tmp_path: Path) -> None:
    linear = {"rope_type": "linear", "factor": 2.0}
    both = without_rope(rope_scaling=linear, rope_parameters=linear | {"factor": 4.0})
    refusal(tmp_path, "the same as rope_scaling, got others", both)
    bases = without_rope(rope_parameters=linear | {"rope_theta": 5.0}, rope_theta=6.0)
    refusal(tmp_path, "rope_theta: expected one value, got 5.0 and 6.0", bases)
