"""`params.json`, which says how large a Meta model is: strict, and with no key unaccounted for.

A key that is skipped silently is a model that runs and talks nonsense. So each key is known to be
used, known not to matter, or refused by name.

Source: meta-llama/llama-models, `models/llama3/args.py` and `models/llama4/args.py`.
"""

from __future__ import annotations

from pathlib import Path

from .errors import ParamsError, mismatch, shown, some_of
from .key_rules import (
    LARGEST_SIZE,
    MOST_LAYERS,
    boolean,
    check_values,
    integer_in,
    number_in,
    read_object,
)
from .mapped_file import label_of

__all__ = ["HARMLESS_KEYS", "REFUSED_KEYS", "USED_KEYS", "read_params"]

USED_KEYS = {
    "dim": integer_in(1, LARGEST_SIZE),
    "n_layers": integer_in(1, MOST_LAYERS),
    "n_heads": integer_in(1, LARGEST_SIZE),
    "n_kv_heads": integer_in(1, LARGEST_SIZE),
    # Llama 2 writes -1 for "as many as the tokenizer has".
    "vocab_size": ("-1 or " + integer_in(1, LARGEST_SIZE)[0], lambda value: _vocabulary(value)),
    "multiple_of": integer_in(1, LARGEST_SIZE),
    "ffn_dim_multiplier": number_in(1e-3, 1e3),
    "norm_eps": number_in(0, 1),
    "rope_theta": number_in(1, 1e12),
    "use_scaled_rope": boolean(),
    "max_seq_len": integer_in(1, LARGEST_SIZE),
}
"""The keys that say what is computed: the rule in words and its check."""

HARMLESS_KEYS = frozenset({"max_batch_size", "model_parallel_size"})
"""Keys that only sized the buffers of the program that wrote or ran the model."""

REFUSED_KEYS = {
    "quantization_args": "quantised weights",
    "lora_args": "LoRA adapters",
    "vision_chunk_size": "a vision model",
    "vision_max_num_chunks": "a vision model",
    "vision_num_cross_attention_layers": "a vision model",
    "vision_args": "a vision model",
    "moe_args": "a mixture of experts",
    "moe": "a mixture of experts",
    "num_experts": "a mixture of experts",
    "use_qk_norm": "normalised queries and keys",
    "attention_chunk_size": "chunked attention",
    "attn_temperature_tuning": "attention with a temperature",
    "floor_scale": "attention with a temperature",
    "attn_scale": "attention with a temperature",
    "nope_layer_interval": "layers without rotary embedding",
    "rope_scaling_factor": "the rotary embedding of Llama 4",
    "rope_high_freq_factor": "the rotary embedding of Llama 4",
    "sliding_window": "attention in a sliding window",
}
"""Keys of models that compute something else, and what that is."""

_NEEDED_KEYS = ("dim", "n_layers", "n_heads", "norm_eps")


def read_params(path: Path) -> dict[str, object]:
    """Read and check `params.json`.

    Args:
        path: the file.

    Returns:
        The object as it is in the file; each key is used or harmless, each value in
        its range or null where the key is optional.

    Raises:
        CheckpointError: unreadable, not strict JSON, a key missing, unknown or unsupported, a value
            out of range, or heads that do not divide.
    """
    label = label_of(path)
    value = read_object(path)
    _check_keys(label, value)
    check_values(label, value, USED_KEYS)
    _check_divisible(label, value)
    return value


def _check_keys(label: str, params: dict[str, object]) -> None:
    for key in params:
        if key in REFUSED_KEYS:
            got = f"{REFUSED_KEYS[key]}, which is not supported"
            raise ParamsError(mismatch(label, f"key {shown(key)}", "a plain Llama model", got))
    unknown = [key for key in params if key not in USED_KEYS and key not in HARMLESS_KEYS]
    if unknown:
        raise ParamsError(mismatch(label, "keys", "only known ones", some_of(unknown)))
    missing = [key for key in _NEEDED_KEYS if params.get(key) is None]
    if missing:
        got = f"without {some_of(missing)}"
        raise ParamsError(mismatch(label, "keys", ", ".join(_NEEDED_KEYS), got))


def _check_divisible(label: str, params: dict[str, object]) -> None:
    for over, under in (("dim", "n_heads"), ("n_heads", "n_kv_heads")):
        large, small = params[over], params.get(under)
        if not isinstance(large, int) or not isinstance(small, int):
            continue  # an absent size has a default that divides
        if large % small:
            what = f"{over} % {under}"
            raise ParamsError(mismatch(label, what, "0", f"{large} % {small} = {large % small}"))


def _vocabulary(value: object) -> bool:
    return type(value) is int and (value == -1 or 1 <= value <= LARGEST_SIZE)
