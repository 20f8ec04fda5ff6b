"""`config.json` and `generation_config.json`: their keys and values, checked.

A key that is skipped silently is a model that runs and talks nonsense. So each key is known to be
used, known not to matter, or refused by name; keys that nobody knows are refused too.

The rotary embedding has had two spellings in transformers. Up to version 4: `rope_theta`, and
`rope_scaling` with `type` or `rope_type`. Since 5: `rope_parameters`, which holds the base too.

Source: transformers 5.23, `configuration_utils.py`, `generation/configuration_utils.py`,
`modeling_rope_utils.py` and the `configuration_*.py` of each family; the files of the published
models.
"""

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from ..untrusted import described, is_integer, label_of, read_json_object, shown
from .errors import CheckpointError, mismatch
from .packed_weights import QuantizationConfig, read_quantization
from .params import (
    BOOLEAN,
    DEFAULT_ROPE_THETA,
    LARGEST_SIZE,
    MOST_CONFIG_BYTES,
    MOST_LAYERS,
    SIZE,
    Rule,
    check_keys,
    check_values,
    integer_in,
    is_one_of,
    number_in,
    value_of,
)

CONFIG_FILE = "config.json"
_GENERATION_FILE = "generation_config.json"

_MOST_END_TOKENS = 64


def _is_token(value: object) -> bool:
    return is_integer(value, 0, LARGEST_SIZE - 1)


def _is_token_or_tokens(value: object) -> bool:
    tokens = value if isinstance(value, list) else [value]
    return 0 < len(tokens) <= _MOST_END_TOKENS and all(map(_is_token, tokens))


def _text_of(*known: str) -> Rule:
    return " or ".join(f"'{word}'" for word in known), lambda value: value in known


def _names_of(*known: str) -> Rule:
    rule = f"only {' or '.join(known)}"
    return rule, lambda value: isinstance(value, list) and all(name in known for name in value)


_OBJECT: Rule = ("an object", lambda value: isinstance(value, dict))
_SWITCHES: Rule = (
    "a list of 0 and 1",
    lambda value: isinstance(value, list) and all(is_one_of(one, (0, 1)) for one in value),
)


@dataclass(frozen=True, slots=True)
class Family:
    """A `model_type` that is supported."""

    architecture: str  # its class in transformers
    # What a missing key stands for, where that differs from Llama's. A null is not a missing key.
    defaults: Mapping[str, object] = field(default_factory=dict)
    # Keys that only this family has. Where `max_window_layers` is among them, only
    # `use_sliding_window`, which is not supported, makes `sliding_window` count.
    rules: Mapping[str, Rule] = field(default_factory=dict)


_QWEN = {"num_key_value_heads": 32, "max_position_embeddings": 32768}
_WINDOW_RULES = {"max_window_layers": integer_in(0, MOST_LAYERS)}
FAMILIES: Mapping[str, Family] = {
    "llama": Family("LlamaForCausalLM"),
    "mistral": Family(
        "MistralForCausalLM",
        {"num_key_value_heads": 8, "max_position_embeddings": 131072, "sliding_window": 4096},
    ),
    "qwen2": Family("Qwen2ForCausalLM", _QWEN, _WINDOW_RULES),
    "qwen3": Family("Qwen3ForCausalLM", _QWEN | {"head_dim": 128}, _WINDOW_RULES),
    "smollm3": Family(
        "SmolLM3ForCausalLM",
        {"num_key_value_heads": 4, "max_position_embeddings": 32768, "rope_theta": 2e6,
         "tie_word_embeddings": True, "no_rope_layer_interval": 4},
        _WINDOW_RULES | {"no_rope_layers": _SWITCHES, "no_rope_layer_interval": SIZE},
    ),
    "granite": Family(
        "GraniteForCausalLM",
        {"attention_multiplier": 1.0},
        dict.fromkeys((
            "attention_multiplier", "embedding_multiplier", "residual_multiplier", "logits_scaling",
        ), number_in(1e-6, 1e6)),
    ),
    "olmo2": Family("Olmo2ForCausalLM", {"rms_norm_eps": 1e-5}),
}  # fmt: skip
"""The families by their `model_type`."""

_OTHER_FAMILIES = {
    "phi3": "joined weights and the rotary embedding LongRoPE",
    "gemma2": "four norms in a layer, GeLU, soft caps and windows",
    "gemma3_text": "four norms in a layer, GeLU and windows",
    "ministral": "windows in some layers",
    "ministral3": "the rotary embedding YaRN",
    "mixtral": "a mixture of experts",
    "qwen2_moe": "a mixture of experts",
    "qwen3_moe": "a mixture of experts",
    "granitemoe": "a mixture of experts",
}

RULES: dict[str, Rule] = {
    "model_type": _text_of(*FAMILIES),
    "architectures": _names_of(*(family.architecture for family in FAMILIES.values())),
    "hidden_size": SIZE,
    "intermediate_size": SIZE,
    "num_hidden_layers": integer_in(1, MOST_LAYERS),
    "num_attention_heads": SIZE,
    "num_key_value_heads": SIZE,
    "head_dim": SIZE,
    "vocab_size": SIZE,
    "rms_norm_eps": number_in(0, 1),
    "hidden_act": _text_of("silu", "swish"),  # two names of one function
    "max_position_embeddings": SIZE,
    "sliding_window": SIZE,
    "layer_types": _names_of("full_attention"),
    "rope_theta": number_in(1, 1e12),
    "rope_scaling": _OBJECT,
    "rope_parameters": _OBJECT,
    "tie_word_embeddings": BOOLEAN,
    "attention_bias": BOOLEAN,
    "mlp_bias": BOOLEAN,
    "bos_token_id": ("a token id", _is_token),
    "eos_token_id": (f"a token id, or a list of 1 to {_MOST_END_TOKENS}", _is_token_or_tokens),
    # Into how many slices training cut each product; the sum is the same.
    "pretraining_tp": SIZE,
    "quantization_config": _OBJECT,
}
"""The keys of `config.json` that say what is computed."""

_NEEDED_KEYS = (
    "model_type", "hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads",
    "vocab_size",
)  # fmt: skip
_GENERATION_RULES = {key: RULES[key] for key in ("bos_token_id", "eos_token_id")}

NEUTRAL_VALUES: dict[str, tuple[object, ...]] = {
    "rope_interleaved": (False,),
    "is_encoder_decoder": (False,),
    "add_cross_attention": (False,),
    "tie_encoder_decoder": (False,),
    "use_bfloat16": (False,),
    "use_sliding_window": (False,),
    "remove_invalid_values": (False,),
    "renormalize_logits": (False,),
    "use_mtp": (False,),
    "use_mrope": (False,),
    "num_experts": (0,),
    "num_local_experts": (0,),
    "no_repeat_ngram_size": (0,),
    "min_length": (0,),
    "min_new_tokens": (0,),
    "encoder_no_repeat_ngram_size": (0,),
    "diversity_penalty": (0,),
    "penalty_alpha": (0,),
    "epsilon_cutoff": (0,),
    "eta_cutoff": (0,),
    "partial_rotary_factor": (1,),
    "encoder_repetition_penalty": (1,),
    "num_beams": (1,),
    "num_beam_groups": (1,),
    "guidance_scale": (1,),
    "typical_p": (1,),
    "num_return_sequences": (1,),
    "suppress_tokens": ([],),
    "begin_suppress_tokens": ([],),
    "bad_words_ids": ([],),
    "force_words_ids": ([],),
    "constraints": ([],),
    "stop_strings": ([],),
    "cross_attention_hidden_size": (),
    "forced_bos_token_id": (),
    "forced_eos_token_id": (),
    "exponential_decay_length_penalty": (),
    "dola_layers": (),
    "watermarking_config": (),
    "top_h": (),
    "is_decoder": (False, True),
    "pruned_heads": ({}, []),
    "sequence_bias": ({}, []),
    "prefix": ("",),
}  # fmt: skip
"""Keys whose other values change the result in ways that are not supported; null is neutral too."""

REFUSED_KEYS = {
    "compression_config": "quantized weights",
    "auto_map": "a model that brings code",
    "vision_config": "a vision model",
    "text_config": "a model of several parts",
    "audio_config": "a model of several parts",
    "num_experts_per_tok": "a mixture of experts",
    "attention_multiplier": "scaled attention (Granite)",
    "embedding_multiplier": "scaled embeddings (Granite)",
    "residual_multiplier": "scaled residuals (Granite)",
    "logits_scaling": "scaled logits (Granite)",
    "logit_scale": "scaled logits (Cohere)",
    "final_logit_softcapping": "capped logits (Gemma)",
    "attn_logit_softcapping": "capped attention (Gemma)",
    "query_pre_attn_scalar": "scaled attention (Gemma)",
    "use_qk_norm": "normalized queries and keys",
    "qk_norm": "normalized queries and keys",
    "clip_qkv": "clipped queries, keys and values",
    "attention_chunk_size": "chunked attention",
    "no_rope_layers": "layers without rotary embedding",
    "no_rope_layer_interval": "layers without rotary embedding",
    "rope_local_base_freq": "two rotary embeddings",
    "original_max_position_embeddings": "the rotary embedding of Phi-3",
    "num_nextn_predict_layers": "layers that predict several tokens",
}
"""Keys of models that compute something else, and what that is; null and false are accepted.

Some of them belong to one family, which has a rule for it.
"""

HARMLESS_KEYS = frozenset({
    # Where the model comes from.
    "_name_or_path", "_commit_hash", "transformers_version", "transformers.js_config", "license",
    "unsloth_version", "unsloth_fixed", "model_name", "is_llama_config",
    # The tensors say their dtype themselves.
    "torch_dtype", "dtype",
    # Training.
    "initializer_range", "attention_dropout", "hidden_dropout", "tf_legacy_loss",
    # How another engine runs it.
    "use_cache", "torchscript", "chunk_size_feed_forward", "_attn_implementation",
    "_attn_implementation_autoset", "attn_implementation", "_flash_attn_2_enabled",
    "use_flash_attention", "max_sequence_length",
    # Classification.
    "id2label", "label2id", "num_labels", "problem_type", "finetuning_task", "task_specific_params",
    # What a call of transformers returns.
    "return_dict", "output_attentions", "output_hidden_states", "output_scores", "output_logits",
    "return_dict_in_generate", "tokenizer_class", "pad_token_id", "sep_token_id",
    "decoder_start_token_id",
    # How to sample is said on the command line or in SamplingArgs, never by the model's files.
    "do_sample", "temperature", "top_k", "top_p", "min_p", "repetition_penalty", "length_penalty",
    "early_stopping", "max_length", "max_new_tokens", "max_time",
})  # fmt: skip
"""Keys of `config.json` that change nothing here."""

GENERATION_HARMLESS_KEYS = HARMLESS_KEYS | {
    "_from_model_config", "assistant_confidence_threshold", "assistant_early_exit",
    "assistant_ensemble_weight", "assistant_lookbehind", "cache_config", "cache_implementation",
    "compile_config", "continuous_batching_config", "disable_compile", "generation_kwargs",
    "is_assistant", "low_memory", "max_cache_len", "max_matching_ngram_size",
    "num_assistant_tokens", "num_assistant_tokens_schedule", "prefill_chunk_size",
    "prompt_lookup_num_tokens", "speculation_type", "target_lookbehind", "token_healing",
    "trust_remote_code", "use_model_defaults",
}  # fmt: skip
"""Keys of `generation_config.json` that change nothing here."""

RopeType = Literal["default", "linear", "llama3"]
_ROPE_KEYS: Mapping[RopeType, tuple[str, ...]] = {
    "default": (),
    "linear": ("factor",),
    "llama3": (
        "factor", "low_freq_factor", "high_freq_factor", "original_max_position_embeddings",
    ),
}  # fmt: skip
_COMMON_ROPE_KEYS = ("rope_type", "type", "rope_theta", "partial_rotary_factor")
_ROPE_RULES: Mapping[str, Rule] = {
    "rope_theta": RULES["rope_theta"],
    "factor": number_in(1, 1e6),
    "low_freq_factor": number_in(1e-6, 1e6),
    "high_freq_factor": number_in(1e-6, 1e6),
    "original_max_position_embeddings": SIZE,
    "partial_rotary_factor": ("1, the whole head", lambda value: is_one_of(value, (1,))),
}


@dataclass(frozen=True, slots=True)
class HuggingFaceConfig:
    """The configuration files of one model, their keys and values checked.

    Args:
        given: `config.json` as it is in the file.
        values: The same, with the family's defaults where a key is missing.
        generation: `generation_config.json`; empty where there is none.
        rope_type: How the frequencies of the rotary embedding are scaled.
        rope: `rope_theta`, and the numbers that belong to the type, by their keys.
        quantization: How quantized weights are stored, or None where all are plain.
    """

    given: dict[str, object]
    values: dict[str, object]
    generation: dict[str, object]
    rope_type: RopeType
    rope: dict[str, float]
    quantization: QuantizationConfig | None


def read_hugging_face_config(directory: Path) -> HuggingFaceConfig:
    """Read `config.json`, and `generation_config.json` where it is.

    Raises:
        CheckpointError: Unreadable, not strict JSON, a key missing, unknown or unsupported, a value
            out of range, heads that do not divide, or parts that contradict each other.
    """
    path = directory / CONFIG_FILE
    label, given = label_of(path), _read(path, RULES, HARMLESS_KEYS, _NEEDED_KEYS)
    family = FAMILIES[str(given["model_type"])]
    config = {**family.defaults, **given}
    _check_sizes(label, config, family)
    vocab_size = value_of(config, "vocab_size", 0)
    _check_tokens(label, config, vocab_size)
    path, generation = directory / _GENERATION_FILE, {}
    if os.path.exists(path):
        generation = _read(path, _GENERATION_RULES, GENERATION_HARMLESS_KEYS, ())
        _check_tokens(label_of(path), generation, vocab_size)
    theta = family.defaults.get("rope_theta", DEFAULT_ROPE_THETA)
    rope_type, rope = _rope(label, given, theta)
    quantization = read_quantization(label, config)
    return HuggingFaceConfig(given, config, generation, rope_type, rope, quantization)


def _read(
    path: Path, rules: Mapping[str, Rule], harmless: frozenset[str], needed: tuple[str, ...]
) -> dict[str, object]:
    """Read a file; refuse keys that change the result and keys that nobody knows, by name."""
    label, values = label_of(path), read_json_object(path, MOST_CONFIG_BYTES, CheckpointError)
    kind = values.get("model_type")
    if isinstance(kind, str) and kind in _OTHER_FAMILIES:
        raise _refused_key(label, "model_type", f"{kind}: {_OTHER_FAMILIES[kind]}")
    if isinstance(kind, str) and kind in FAMILIES:
        rules = {**rules, **FAMILIES[kind].rules}
    for key, value in values.items():
        if key in REFUSED_KEYS and key not in rules and value not in (None, False, {}, []):
            raise _refused_key(label, key, REFUSED_KEYS[key])
        neutral = NEUTRAL_VALUES.get(key)
        if neutral is not None and value is not None and not is_one_of(value, neutral):
            rule = " or ".join(["null", *map(described, neutral)])
            got = f"{described(value)}, which is not supported"
            raise mismatch(label, f"key {shown(key)}", rule, got)
    known = rules.keys() | harmless | NEUTRAL_VALUES.keys() | REFUSED_KEYS.keys()
    check_keys(label, values, known, needed)
    check_values(label, values, rules)
    return values


def _refused_key(label: str, key: str, what: str) -> CheckpointError:
    """Make the error for a key of a model that computes something else."""
    got = f"{what}, which is not supported"
    return mismatch(label, f"key {shown(key)}", "a plain Llama model", got)


def _check_tokens(label: str, values: Mapping[str, object], vocab_size: int) -> None:
    """Check that the tokens that begin or end a text belong to the vocabulary."""
    for key in _GENERATION_RULES:
        value = values.get(key)
        for number in value if isinstance(value, list) else [value]:
            if isinstance(number, int) and number >= vocab_size:
                raise mismatch(label, key, f"0 <= id < {vocab_size}", number)


def _check_sizes(label: str, config: Mapping[str, object], family: Family) -> None:
    """Check heads against the model dimension, lists against the layers, and who has a window."""
    hidden, heads = value_of(config, "hidden_size", 0), value_of(config, "num_attention_heads", 0)
    if config.get("head_dim") is None and hidden % heads:
        what = "hidden_size % num_attention_heads"
        raise mismatch(label, what, 0, f"{hidden} % {heads} = {hidden % heads}")
    for key in ("layer_types", "no_rope_layers"):
        value, count = config.get(key), config["num_hidden_layers"]
        if isinstance(value, list) and len(value) != count:
            raise mismatch(label, key, f"one for each of {count} layers", len(value))
    has_window = "sliding_window" in family.defaults or "max_window_layers" in family.rules
    if not has_window and config.get("sliding_window") is not None:
        got = f"attention in a sliding window, which a {config['model_type']} does not have"
        raise mismatch(label, "key 'sliding_window'", "null", got)


def _rope(
    label: str, config: Mapping[str, object], default_theta: object
) -> tuple[RopeType, dict[str, float]]:
    """Read the rotary embedding of a configuration whose top-level values are checked."""
    found = []
    for key in ("rope_scaling", "rope_parameters"):
        value = config.get(key)
        if isinstance(value, dict) and value:
            outer = config.get("rope_theta")
            found.append(_rope_of(f"{label}: {key}", value, outer, default_theta))
    if len(found) == 2 and found[0] != found[1]:
        raise mismatch(label, "rope_parameters", "the same as rope_scaling", "others")
    theta = _theta(config.get("rope_theta"), default_theta)
    return found[0] if found else ("default", {"rope_theta": theta})


def _rope_of(
    label: str, values: Mapping[str, object], outer_theta: object, default_theta: object
) -> tuple[RopeType, dict[str, float]]:
    kind = _rope_type(label, values)
    keys = _ROPE_KEYS[kind]
    check_keys(label, values, (*keys, *_COMMON_ROPE_KEYS), keys)
    check_values(label, values, _ROPE_RULES)
    inner_theta = values.get("rope_theta")
    if inner_theta is not None and outer_theta is not None and inner_theta != outer_theta:
        got = f"{inner_theta}, and {outer_theta} beside it"
        raise mismatch(label, "rope_theta", "one value", got)
    numbers = {key: float(each) for key in keys if isinstance(each := values[key], int | float)}
    if kind == "llama3" and numbers["low_freq_factor"] >= numbers["high_freq_factor"]:
        low, high = numbers["low_freq_factor"], numbers["high_freq_factor"]
        raise mismatch(label, "low_freq_factor", f"below high_freq_factor {high}", low)
    theta = _theta(inner_theta, outer_theta, default_theta)
    return kind, numbers | {"rope_theta": theta}


def _rope_type(label: str, values: Mapping[str, object]) -> RopeType:
    """Read the type, `rope_type` or in older files `type`; null is the default one."""
    named = [values[key] for key in ("rope_type", "type") if values.get(key) is not None]
    if len(named) == 2 and named[0] != named[1]:
        raise mismatch(label, "type", f"rope_type {described(named[0])}", "another")
    value = named[0] if named else "default"
    for kind in _ROPE_KEYS:
        if value == kind:
            return kind
    raise mismatch(label, "rope_type", f"one of {', '.join(_ROPE_KEYS)}", described(value))


def _theta(*values: object) -> float:
    return float(next(value for value in values if isinstance(value, int | float)))
