"""`params.json`, which says how large a Meta model is: strict, and with no key unaccounted for.

A key that is skipped silently is a model that runs and talks nonsense. So each key is known to be
used, known not to matter, or refused by name.

Source: meta-llama/llama-models, `models/llama3/args.py` and `models/llama4/args.py`.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from .errors import ParamsError, mismatch, shown, some_of
from .mapped_file import label_of, read_small_file
from .strict_json import parse_strict_json

__all__ = ["HARMLESS_KEYS", "REFUSED_KEYS", "USED_KEYS", "read_params"]

_MOST_BYTES = 1 << 16
_LARGEST = 1 << 24
_MOST_LAYERS = 1 << 10


def _integer_in(low: int, high: int) -> tuple[str, Callable[[object], bool]]:
    rule = f"an integer in {low}..{high}"
    return rule, lambda value: type(value) is int and low <= value <= high


def _number_in(low: float, high: float) -> tuple[str, Callable[[object], bool]]:
    rule = f"a number in {low:g}..{high:g}"

    def check(value: object) -> bool:
        if isinstance(value, bool) or not isinstance(value, int | float):
            return False
        return low <= value <= high

    return rule, check


USED_KEYS = {
    "dim": _integer_in(1, _LARGEST),
    "n_layers": _integer_in(1, _MOST_LAYERS),
    "n_heads": _integer_in(1, _LARGEST),
    "n_kv_heads": _integer_in(1, _LARGEST),
    # Llama 2 writes -1 for "as many as the tokenizer has".
    "vocab_size": ("-1 or " + _integer_in(1, _LARGEST)[0], lambda value: _vocabulary(value)),
    "multiple_of": _integer_in(1, _LARGEST),
    "ffn_dim_multiplier": _number_in(1e-3, 1e3),
    "norm_eps": _number_in(0, 1),
    "rope_theta": _number_in(1, 1e12),
    "use_scaled_rope": ("true or false", lambda value: isinstance(value, bool)),
    "max_seq_len": _integer_in(1, _LARGEST),
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
    try:
        value = parse_strict_json(read_small_file(path, _MOST_BYTES))
    except ValueError as error:
        raise ParamsError(f"{label}: content: {error}") from None
    if not isinstance(value, dict):
        got = f"a value of type {type(value).__name__}"
        raise ParamsError(mismatch(label, "content", "a JSON object", got))
    _check_keys(label, value)
    for key, (rule, check) in USED_KEYS.items():
        if value.get(key) is not None and not check(value[key]):
            raise ParamsError(mismatch(label, key, rule, _shown_value(value[key])))
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
    dim, heads = params["dim"], params["n_heads"]
    kv_heads = params.get("n_kv_heads") or heads
    for what, large, small in (
        ("dim % n_heads", dim, heads),
        ("n_heads % n_kv_heads", heads, kv_heads),
    ):
        assert isinstance(large, int)
        assert isinstance(small, int)
        if large % small:
            raise ParamsError(mismatch(label, what, "0", f"{large} % {small} = {large % small}"))


def _vocabulary(value: object) -> bool:
    return type(value) is int and (value == -1 or 1 <= value <= _LARGEST)


def _shown_value(value: object) -> str:
    """Show a scalar; a container from a file is only named."""
    if isinstance(value, dict | list):
        return f"a value of type {type(value).__name__}"
    return shown(str(value))
