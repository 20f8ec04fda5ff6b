"""`config.json` and `generation_config.json`: their keys and values, checked as `params.py` says.

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

from ..untrusted import label_of, read_json_object
from .errors import CheckpointError, mismatch
from .packed_weights import QuantizationConfig, read_quantization
from .params import (
    ANY,
    BOOLEAN,
    DEFAULT_ROPE_THETA,
    LARGEST_SIZE,
    MOST_CONFIG_BYTES,
    MOST_LAYERS,
    OBJECT,
    SIZE,
    Rule,
    check_divides,
    check_object,
    integer_in,
    number_in,
    one_of,
    rules_of,
    value_of,
)

CONFIG_FILE = "config.json"
_GENERATION_FILE = "generation_config.json"

_MOST_END_TOKENS = 64
_TOKEN = integer_in(0, LARGEST_SIZE - 1)


def _is_token_or_tokens(value: object) -> bool:
    tokens = value if isinstance(value, list) else [value]
    return 0 < len(tokens) <= _MOST_END_TOKENS and all(map(_TOKEN[1], tokens))


def _is_off(value: object) -> bool:
    return value in (False, {}, [])


def _list_of(*known: object) -> Rule:
    rule, check = one_of(*known)
    return f"a list of only {rule}", lambda v: isinstance(v, list) and all(map(check, v))


@dataclass(frozen=True, slots=True)
class Family:
    """A `model_type` that is supported."""

    architecture: str  # its class in transformers
    # What a missing key stands for, where that differs from Llama's. A null is not a missing key.
    defaults: Mapping[str, object] = field(default_factory=dict)
    # Keys that only this family has, or that are refused elsewhere.
    rules: Mapping[str, Rule] = field(default_factory=dict)


MULTIPLIERS = (
    "attention_multiplier", "embedding_multiplier", "residual_multiplier", "logits_scaling",
)  # fmt: skip
"""The factors that only Granite has, which `ModelArgs` calls the same."""

_QWEN = {"num_key_value_heads": 32, "max_position_embeddings": 32768}
_WINDOW_RULES = {"sliding_window": SIZE}
# Only `use_sliding_window`, which is not supported, makes the window count.
_NO_WINDOW_RULES = _WINDOW_RULES | {"max_window_layers": integer_in(0, MOST_LAYERS)}
FAMILIES: Mapping[str, Family] = {
    "llama": Family("LlamaForCausalLM"),
    "mistral": Family(
        "MistralForCausalLM",
        {"num_key_value_heads": 8, "max_position_embeddings": 131072, "sliding_window": 4096},
        _WINDOW_RULES,
    ),
    "qwen2": Family("Qwen2ForCausalLM", _QWEN, _NO_WINDOW_RULES),
    "qwen3": Family("Qwen3ForCausalLM", _QWEN | {"head_dim": 128}, _NO_WINDOW_RULES),
    "smollm3": Family(
        "SmolLM3ForCausalLM",
        {"num_key_value_heads": 4, "max_position_embeddings": 32768, "rope_theta": 2e6,
         "tie_word_embeddings": True, "no_rope_layer_interval": 4},
        _NO_WINDOW_RULES | {"no_rope_layers": _list_of(0, 1), "no_rope_layer_interval": SIZE},
    ),
    "granite": Family(
        "GraniteForCausalLM",
        {"attention_multiplier": 1.0},
        dict.fromkeys(MULTIPLIERS, number_in(1e-6, 1e6)),
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
    **dict.fromkeys(("mixtral", "qwen2_moe", "qwen3_moe", "granitemoe"), "a mixture of experts"),
}

CONFIG_KEYS = {
    "dim": "hidden_size", "n_layers": "num_hidden_layers", "n_heads": "num_attention_heads",
    "n_kv_heads": "num_key_value_heads", "head_dim": "head_dim", "ffn_dim": "intermediate_size",
    "vocab_size": "vocab_size", "norm_eps": "rms_norm_eps", "rope_theta": "rope_theta",
    "max_context_length": "max_position_embeddings",
}  # fmt: skip
"""The keys of sizes and constants, by their names in `ModelArgs`."""

RULES: dict[str, Rule] = {
    "model_type": one_of(*FAMILIES),
    "architectures": _list_of(*(family.architecture for family in FAMILIES.values())),
    **rules_of(CONFIG_KEYS),
    "hidden_act": one_of("silu", "swish"),  # two names of one function
    "layer_types": _list_of("full_attention"),
    **dict.fromkeys(("rope_scaling", "rope_parameters", "quantization_config"), OBJECT),
    **dict.fromkeys(("tie_word_embeddings", "attention_bias", "mlp_bias"), BOOLEAN),
    "bos_token_id": _TOKEN,
    "eos_token_id": (f"a token id, or a list of 1 to {_MOST_END_TOKENS}", _is_token_or_tokens),
    # Into how many slices training cut each product; the sum is the same.
    "pretraining_tp": SIZE,
}
"""The keys of `config.json` that say what is computed."""

_NEEDED_KEYS = (
    "model_type", "hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads",
    "vocab_size",
)  # fmt: skip
_GENERATION_RULES = {key: RULES[key] for key in ("bos_token_id", "eos_token_id")}

NEUTRAL_VALUES: dict[str, tuple[object, ...]] = {
    **dict.fromkeys((
        "rope_interleaved", "is_encoder_decoder", "add_cross_attention", "tie_encoder_decoder",
        "use_bfloat16", "use_sliding_window", "remove_invalid_values", "renormalize_logits",
        "use_mtp", "use_mrope",
    ), (False,)),
    **dict.fromkeys((
        "num_experts", "num_local_experts", "no_repeat_ngram_size", "min_length", "min_new_tokens",
        "encoder_no_repeat_ngram_size", "diversity_penalty", "penalty_alpha", "epsilon_cutoff",
        "eta_cutoff",
    ), (0,)),
    **dict.fromkeys((
        "partial_rotary_factor", "encoder_repetition_penalty", "num_beams", "num_beam_groups",
        "guidance_scale", "typical_p", "num_return_sequences",
    ), (1,)),
    **dict.fromkeys((
        "suppress_tokens", "begin_suppress_tokens", "bad_words_ids", "force_words_ids",
        "constraints", "stop_strings",
    ), ([],)),
    **dict.fromkeys((
        "cross_attention_hidden_size", "forced_bos_token_id", "forced_eos_token_id",
        "exponential_decay_length_penalty", "dola_layers", "watermarking_config", "top_h",
    ), ()),
    **dict.fromkeys(("pruned_heads", "sequence_bias"), ({}, [])),
    "is_decoder": (False, True),
    "prefix": ("",),
}  # fmt: skip
"""Keys whose other values change the result in ways that are not supported; null is neutral too."""

REFUSED_KEYS = {
    "compression_config": "quantized weights",
    "auto_map": "a model that brings code",
    "num_experts_per_tok": "a mixture of experts",
    "num_nextn_predict_layers": "layers that predict several tokens",
    **dict.fromkeys(("vision_config", "text_config", "audio_config"), "a model of several parts"),
    **dict.fromkeys((
        *MULTIPLIERS, "logit_scale", "query_pre_attn_scalar",
    ), "scaled embeddings, residuals, scores or logits"),
    **dict.fromkeys(("final_logit_softcapping", "attn_logit_softcapping"), "capped scores"),
    **dict.fromkeys(("use_qk_norm", "qk_norm", "clip_qkv"), "normalized or clipped queries, keys"),
    **dict.fromkeys(("sliding_window", "attention_chunk_size"), "attention in windows or chunks"),
    **dict.fromkeys((
        "no_rope_layers", "no_rope_layer_interval", "rope_local_base_freq",
        "original_max_position_embeddings",
    ), "another rotary embedding, or none in some layers"),
}  # fmt: skip
"""Keys of models that compute something else, and what that is; null and false are accepted.

Some of them belong to one family, which has a rule for it.
"""

HARMLESS_KEYS = frozenset({
    # Where the model comes from, and how it was trained. The tensors say their dtype themselves.
    "_name_or_path", "_commit_hash", "transformers_version", "transformers.js_config", "license",
    "unsloth_version", "unsloth_fixed", "model_name", "is_llama_config", "torch_dtype", "dtype",
    "initializer_range", "attention_dropout", "hidden_dropout", "tf_legacy_loss",
    # How another engine runs it and generates.
    "use_cache", "torchscript", "chunk_size_feed_forward", "_attn_implementation",
    "_attn_implementation_autoset", "attn_implementation", "_flash_attn_2_enabled",
    "use_flash_attention", "max_sequence_length", "_from_model_config", "assistant_early_exit",
    "assistant_confidence_threshold", "assistant_ensemble_weight", "assistant_lookbehind",
    "cache_config", "cache_implementation", "compile_config", "continuous_batching_config",
    "disable_compile", "generation_kwargs", "is_assistant", "low_memory", "max_cache_len",
    "max_matching_ngram_size", "num_assistant_tokens", "num_assistant_tokens_schedule",
    "prefill_chunk_size", "prompt_lookup_num_tokens", "speculation_type", "target_lookbehind",
    "token_healing", "trust_remote_code", "use_model_defaults",
    # Classification, and what a call of transformers takes and returns.
    "id2label", "label2id", "num_labels", "problem_type", "finetuning_task", "task_specific_params",
    "return_dict", "output_attentions", "output_hidden_states", "output_scores", "output_logits",
    "return_dict_in_generate", "tokenizer_class", "pad_token_id", "sep_token_id",
    "decoder_start_token_id",
    # How to sample is said on the command line or in SamplingArgs, never by the model's files.
    "do_sample", "temperature", "top_k", "top_p", "min_p", "repetition_penalty", "length_penalty",
    "early_stopping", "max_length", "max_new_tokens", "max_time",
})  # fmt: skip
"""Keys of either file that change nothing here."""

_FACTOR = {"factor": number_in(1, 1e6)}
_SCALINGS: Mapping[str, Mapping[str, Rule]] = {
    "default": {},
    "linear": _FACTOR,
    "llama3": _FACTOR | {
        "low_freq_factor": number_in(1e-6, 1e6), "high_freq_factor": number_in(1e-6, 1e6),
        "original_max_position_embeddings": SIZE,
    },
}  # fmt: skip
_ROPE_RULES: Mapping[str, Rule] = {
    **dict.fromkeys(("rope_type", "type"), one_of(*_SCALINGS)),
    "rope_theta": RULES["rope_theta"],
    "partial_rotary_factor": one_of(1),
}


@dataclass(frozen=True, slots=True)
class HuggingFaceConfig:
    """The configuration files of one model, their keys and values checked."""

    given: dict[str, object]  # `config.json` as it is in the file
    values: dict[str, object]  # what counts of it, with the family's defaults for missing keys
    generation: dict[str, object]  # `generation_config.json`; empty where there is none
    rope: dict[str, float]  # `rope_theta`, and the numbers that belong to a scaling, by their keys
    quantization: QuantizationConfig | None  # how quantized weights are stored


def read_hugging_face_config(directory: Path) -> HuggingFaceConfig:
    """Read `config.json`, and `generation_config.json` where it is."""
    path = directory / CONFIG_FILE
    label, given = label_of(path), _read(path, RULES, _NEEDED_KEYS)
    family = FAMILIES[str(given["model_type"])]
    # A key of another family, which is off, means nothing.
    counting = {k: v for k, v in given.items() if k in family.rules or k not in REFUSED_KEYS}
    config = {**family.defaults, **counting}
    if config.get("head_dim") is None:
        check_divides(label, config, "hidden_size", "num_attention_heads")
    for key in ("layer_types", "no_rope_layers"):
        value, count = config.get(key), config["num_hidden_layers"]
        if isinstance(value, list) and len(value) != count:
            raise mismatch(label, key, f"one for each of {count} layers", len(value))
    vocab_size = value_of(config, "vocab_size", 0)
    _check_tokens(label, config, vocab_size)
    path, generation = directory / _GENERATION_FILE, {}
    if os.path.exists(path):
        generation = _read(path, _GENERATION_RULES)
        _check_tokens(label_of(path), generation, vocab_size)
    rope = _rope(label, given, value_of(family.defaults, "rope_theta", DEFAULT_ROPE_THETA))
    return HuggingFaceConfig(given, config, generation, rope, read_quantization(label, config))


def _read(path: Path, rules: Mapping[str, Rule], needed: tuple[str, ...] = ()) -> dict[str, object]:
    """Read a file; refuse keys that change the result and keys that nobody knows, by name."""
    label, values = label_of(path), read_json_object(path, MOST_CONFIG_BYTES, CheckpointError)
    kind = values.get("model_type")
    if isinstance(kind, str) and kind in _OTHER_FAMILIES:
        got = f"{kind}: {_OTHER_FAMILIES[kind]}, which is not supported"
        raise mismatch(label, "model_type", "a plain Llama model", got)
    known = {
        **rules,
        **{key: one_of(*neutral) for key, neutral in NEUTRAL_VALUES.items()},
        **{k: (f"null or false (not supported: {w})", _is_off) for k, w in REFUSED_KEYS.items()},
        **dict.fromkeys(HARMLESS_KEYS, ANY),
    }
    if isinstance(kind, str) and kind in FAMILIES:
        known |= FAMILIES[kind].rules
    check_object(label, values, known, needed)
    return values


def _check_tokens(label: str, values: Mapping[str, object], vocab_size: int) -> None:
    """Check that the tokens that begin or end a text belong to the vocabulary."""
    for key in _GENERATION_RULES:
        value = values.get(key)
        for number in value if isinstance(value, list) else [value]:
            if isinstance(number, int) and number >= vocab_size:
                raise mismatch(label, key, f"0 <= id < {vocab_size}", number)


def _rope(label: str, config: Mapping[str, object], default_base: float) -> dict[str, float]:
    """Read the rotary embedding, which both spellings may say, and the base beside them."""
    outer: float | None = value_of(config, "rope_theta", None)
    spellings = [key for key in ("rope_scaling", "rope_parameters") if config.get(key)]
    found = [
        _rope_of(f"{label}: {key}", value_of(config, key, {}), outer, default_base)
        for key in spellings or ("rope_parameters",)
    ]
    if found[0] != found[-1]:
        raise mismatch(label, "rope_parameters", "the same as rope_scaling", "others")
    return found[0]


def _rope_of(
    label: str, values: Mapping[str, object], outer: float | None, default_base: float
) -> dict[str, float]:
    """Read one spelling, with `type` instead of `rope_type` in older files."""
    kind = value_of(values, "rope_type", value_of(values, "type", "default"))
    scaling = next((rules for known, rules in _SCALINGS.items() if known == kind), {})
    check_object(label, values, {**_ROPE_RULES, **scaling}, scaling)
    if value_of(values, "type", kind) != kind:
        raise mismatch(label, "type", f"rope_type '{kind}'", "another")
    theta = value_of(values, "rope_theta", default_base if outer is None else outer)
    if outer not in (None, theta):
        raise mismatch(label, "rope_theta", "one value", f"{theta}, and {outer} beside it")
    numbers = {key: float(value_of(values, key, 0.0)) for key in scaling}
    if kind == "llama3" and numbers["low_freq_factor"] >= numbers["high_freq_factor"]:
        low, high = numbers["low_freq_factor"], numbers["high_freq_factor"]
        raise mismatch(label, "low_freq_factor", f"below high_freq_factor {high}", low)
    return numbers | {"rope_theta": float(theta)}
