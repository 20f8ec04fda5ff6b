"""The keys of `config.json` and `generation_config.json`: used, without effect here, or refused.

A key that is skipped silently is a model that runs and talks nonsense. So each key is known to be
used, known not to matter, or refused by name; keys that nobody knows are refused too.

Source: transformers 5.23, `configuration_utils.py`, `generation/configuration_utils.py`,
`models/llama/configuration_llama.py` and `models/mistral/configuration_mistral.py`; the files of
the published models.
"""

from __future__ import annotations

from .key_rules import LARGEST_SIZE, MOST_LAYERS, Rule, boolean, integer_in, number_in

__all__ = [
    "GENERATION_HARMLESS_KEYS",
    "GENERATION_RULES",
    "HARMLESS_KEYS",
    "NEUTRAL_VALUES",
    "REFUSED_KEYS",
    "RULES",
    "is_neutral",
]

_MOST_END_TOKENS = 64
_LARGEST_ID = 1 << 24


def _id(value: object) -> bool:
    return type(value) is int and 0 <= value < _LARGEST_ID


def _id_or_ids(value: object) -> bool:
    if isinstance(value, list):
        return 0 < len(value) <= _MOST_END_TOKENS and all(_id(item) for item in value)
    return _id(value)


def is_neutral(value: object, neutral: tuple[object, ...]) -> bool:
    """Tell whether a value is null or one of a tuple; `true` is not 1 here."""
    if value is None:
        return True
    return any(
        value == item and isinstance(value, bool) == isinstance(item, bool) for item in neutral
    )


def _text_of(*known: str) -> Rule:
    return " or ".join(f"'{word}'" for word in known), lambda value: value in known


def _names_of(*known: str) -> Rule:
    rule = f"only {' or '.join(known)}"
    return rule, lambda value: isinstance(value, list) and all(name in known for name in value)


_SIZE = integer_in(1, LARGEST_SIZE)
_TOKEN: Rule = ("a token id", _id)
_TOKENS: Rule = (f"a token id, or a list of 1 to {_MOST_END_TOKENS}", _id_or_ids)

RULES: dict[str, Rule] = {
    "model_type": _text_of("llama", "mistral"),
    "architectures": _names_of("LlamaForCausalLM", "MistralForCausalLM"),
    "hidden_size": _SIZE,
    "intermediate_size": _SIZE,
    "num_hidden_layers": integer_in(1, MOST_LAYERS),
    "num_attention_heads": _SIZE,
    "num_key_value_heads": _SIZE,
    "head_dim": _SIZE,
    "vocab_size": _SIZE,
    "rms_norm_eps": number_in(0, 1),
    "hidden_act": _text_of("silu", "swish"),  # two names of one function
    "max_position_embeddings": _SIZE,
    "sliding_window": _SIZE,
    "rope_theta": number_in(1, 1e12),
    "rope_scaling": ("an object", lambda value: isinstance(value, dict)),
    "rope_parameters": ("an object", lambda value: isinstance(value, dict)),
    "tie_word_embeddings": boolean(),
    "attention_bias": boolean(),
    "mlp_bias": boolean(),
    "bos_token_id": _TOKEN,
    "eos_token_id": _TOKENS,
    # Into how many slices training cut each product; the sum is the same.
    "pretraining_tp": _SIZE,
    # Its content has a table of its own, in `quantization_config.py`.
    "quantization_config": ("an object", lambda value: isinstance(value, dict)),
}
"""The keys of `config.json` that say what is computed: the rule in words and its check."""

NEUTRAL_VALUES: dict[str, tuple[object, ...]] = {
    "partial_rotary_factor": (1,),
    "rope_interleaved": (False,),
    "is_encoder_decoder": (False,),
    "add_cross_attention": (False,),
    "cross_attention_hidden_size": (),
    "tie_encoder_decoder": (False,),
    "is_decoder": (False, True),
    "pruned_heads": ({}, []),
    "use_bfloat16": (False,),
    "use_sliding_window": (False,),
    "num_experts": (0,),
    "num_local_experts": (0,),
    "forced_bos_token_id": (),
    "forced_eos_token_id": (),
    "suppress_tokens": ([],),
    "begin_suppress_tokens": ([],),
    "bad_words_ids": ([],),
    "force_words_ids": ([],),
    "constraints": ([],),
    "sequence_bias": ({}, []),
    "exponential_decay_length_penalty": (),
    "no_repeat_ngram_size": (0,),
    "encoder_no_repeat_ngram_size": (0,),
    "encoder_repetition_penalty": (1,),
    "min_length": (0,),
    "min_new_tokens": (0,),
    "num_beams": (1,),
    "num_beam_groups": (1,),
    "diversity_penalty": (0,),
    "penalty_alpha": (0,),
    "guidance_scale": (1,),
    "dola_layers": (),
    "watermarking_config": (),
    "stop_strings": ([],),
    "remove_invalid_values": (False,),
    "renormalize_logits": (False,),
    "typical_p": (1,),
    "epsilon_cutoff": (0,),
    "eta_cutoff": (0,),
    "top_h": (),
    "num_return_sequences": (1,),
    "use_mtp": (False,),
    "prefix": ("",),
}
"""Keys whose other values change the result in ways that are not supported; null is neutral too."""

REFUSED_KEYS = {
    "compression_config": "quantised weights",
    "auto_map": "a model with code of its own",
    "layer_types": "layers of several kinds",
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
    "use_qk_norm": "normalised queries and keys",
    "qk_norm": "normalised queries and keys",
    "clip_qkv": "clipped queries, keys and values",
    "attention_chunk_size": "chunked attention",
    "no_rope_layers": "layers without rotary embedding",
    "no_rope_layer_interval": "layers without rotary embedding",
    "rope_local_base_freq": "two rotary embeddings",
    "original_max_position_embeddings": "the rotary embedding of Phi-3",
    "num_nextn_predict_layers": "layers that predict several tokens",
}
"""Keys of models that compute something else, and what that is; null and false are accepted."""

_PROVENANCE = {
    "_name_or_path", "_commit_hash", "transformers_version", "transformers.js_config", "license",
    "unsloth_version", "unsloth_fixed", "model_name", "is_llama_config",
}  # fmt: skip
# The tensors say their dtype themselves.
_DTYPE = {"torch_dtype", "dtype"}
_TRAINING = {"initializer_range", "attention_dropout", "hidden_dropout", "tf_legacy_loss"}
_IMPLEMENTATION = {
    "use_cache", "torchscript", "chunk_size_feed_forward", "_attn_implementation",
    "_attn_implementation_autoset", "attn_implementation", "_flash_attn_2_enabled",
    "use_flash_attention", "max_sequence_length",
}  # fmt: skip
_CLASSIFICATION = {
    "id2label", "label2id", "num_labels", "problem_type", "finetuning_task", "task_specific_params",
}  # fmt: skip
_OUTPUTS = {
    "return_dict", "output_attentions", "output_hidden_states", "output_scores", "output_logits",
    "return_dict_in_generate", "tokenizer_class", "pad_token_id", "sep_token_id",
    "decoder_start_token_id",
}  # fmt: skip
# How to choose tokens is said on the command line or in SamplingArgs, never by the model's files.
_SAMPLING = {
    "do_sample", "temperature", "top_k", "top_p", "min_p", "repetition_penalty", "length_penalty",
    "early_stopping", "max_length", "max_new_tokens", "max_time",
}  # fmt: skip
HARMLESS_KEYS = frozenset(
    _PROVENANCE | _DTYPE | _TRAINING | _IMPLEMENTATION | _CLASSIFICATION | _OUTPUTS | _SAMPLING
)
"""Keys of `config.json` that change nothing here."""

GENERATION_RULES: dict[str, Rule] = {"bos_token_id": _TOKEN, "eos_token_id": _TOKENS}
"""The keys of `generation_config.json` that are used."""

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
