"""`config.json` and `generation_config.json`: what they say of a Llama, checked, in one form.

Where a key is absent, the default is that of transformers' `LlamaConfig` or `MistralConfig`; the
sizes have no default here, because a guessed size helps nobody.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from .errors import ParamsError, mismatch, shown, some_of
from .hugging_face_keys import (
    GENERATION_HARMLESS_KEYS,
    GENERATION_RULES,
    HARMLESS_KEYS,
    NEUTRAL_VALUES,
    REFUSED_KEYS,
    RULES,
    is_neutral,
)
from .hugging_face_rope import RopeParameters, read_rope_parameters
from .key_rules import check_values, read_object, shown_value
from .mapped_file import label_of
from .quantization_config import QuantizationConfig, read_quantization

__all__ = ["CONFIG_FILE", "HuggingFaceConfig", "read_hugging_face_config"]

CONFIG_FILE = "config.json"

_NEEDED_KEYS = (
    "model_type", "hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads",
    "vocab_size",
)  # fmt: skip
_DEFAULT_EPS = 1e-6
_DEFAULT_POSITIONS = {"llama": 2048, "mistral": 131072}
_DEFAULT_MISTRAL_KV_HEADS = 8
_DEFAULT_MISTRAL_WINDOW = 4096

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class HuggingFaceConfig:
    """What the configuration files of one model say, defaults filled in.

    Args:
        given: `config.json` as it is in the file.
        kv_heads: key/value heads; equal to `heads` without grouped queries.
        context_length: the positions that the model may use. Within a sliding window every token
            sees all before it, so a window caps the context and changes nothing else.
        attention_bias: whether wq, wk, wv and wo have biases.
        mlp_bias: whether w1, w2 and w3 have.
        tied: whether the embeddings serve as output where `lm_head.weight` is absent.
        bos_id: the token that begins a text, or None.
        end_ids: the tokens that end an answer, `generation_config.json` before `config.json`.
        sliding_window: the window that caps the context, or None.
        quantization: how quantised weights are stored, or None where all are plain.
    """

    given: dict[str, object]
    hidden_size: int
    intermediate_size: int
    layers: int
    heads: int
    kv_heads: int
    head_dim: int
    vocab_size: int
    norm_eps: float
    rope: RopeParameters
    context_length: int
    attention_bias: bool
    mlp_bias: bool
    tied: bool
    bos_id: int | None
    end_ids: tuple[int, ...]
    sliding_window: int | None
    quantization: QuantizationConfig | None


def read_hugging_face_config(directory: Path) -> HuggingFaceConfig:
    """Read `config.json`, and `generation_config.json` where it is.

    Raises:
        CheckpointError: unreadable, not strict JSON, a key missing, unknown or unsupported, a value
            out of range, heads that do not divide, or parts that contradict each other.
    """
    path = directory / CONFIG_FILE
    label, config = label_of(path), read_object(path)
    _check_known(label, config, set(RULES), HARMLESS_KEYS)
    missing = [key for key in _NEEDED_KEYS if config.get(key) is None]
    if missing:
        got = f"without {some_of(missing)}"
        raise ParamsError(mismatch(label, "keys", ", ".join(_NEEDED_KEYS), got))
    check_values(label, config, RULES)
    generation = _read_generation_config(directory / "generation_config.json")
    mistral = config["model_type"] == "mistral"
    heads = _of(config, "num_attention_heads", 0)
    positions = _of(
        config, "max_position_embeddings", _DEFAULT_POSITIONS[str(config["model_type"])]
    )
    window = _sliding_window(label, config, mistral)
    ends = generation.get("eos_token_id")
    ends = config.get("eos_token_id") if ends is None else ends
    return HuggingFaceConfig(
        given=config,
        hidden_size=_of(config, "hidden_size", 0),
        intermediate_size=_of(config, "intermediate_size", 0),
        layers=_of(config, "num_hidden_layers", 0),
        heads=heads,
        kv_heads=_kv_heads(label, config, heads, mistral),
        head_dim=_head_dim(label, config, heads),
        vocab_size=_of(config, "vocab_size", 0),
        norm_eps=float(_of(config, "rms_norm_eps", _DEFAULT_EPS)),
        rope=read_rope_parameters(label, config),
        context_length=min(positions, window or positions),
        attention_bias=_of(config, "attention_bias", False),
        mlp_bias=_of(config, "mlp_bias", False),
        tied=_of(config, "tie_word_embeddings", False),
        bos_id=_of(generation, "bos_token_id", _of(config, "bos_token_id", None)),
        end_ids=_ids(ends),
        sliding_window=window if window is not None and window < positions else None,
        quantization=read_quantization(label, config),
    )


def _of(values: Mapping[str, object], key: str, default: T) -> T:
    """Give a checked value, or the default where it is absent or null."""
    value = values.get(key)
    return default if value is None else value  # type: ignore[return-value]  # its rule holds


def _check_known(
    label: str, values: Mapping[str, object], used: set[str], harmless: frozenset[str]
) -> None:
    """Refuse keys that change the result, and keys that nobody knows, by name."""
    for key, value in values.items():
        if key in REFUSED_KEYS and value not in (None, False, {}, []):
            got = f"{REFUSED_KEYS[key]}, which is not supported"
            raise ParamsError(mismatch(label, f"key {shown(key)}", "a plain Llama model", got))
        if key in NEUTRAL_VALUES and not is_neutral(value, NEUTRAL_VALUES[key]):
            rule = " or ".join(["null", *(shown_value(item) for item in NEUTRAL_VALUES[key])])
            got = f"{shown_value(value)}, which is not supported"
            raise ParamsError(mismatch(label, f"key {shown(key)}", rule, got))
    known = used | harmless | NEUTRAL_VALUES.keys() | REFUSED_KEYS.keys()
    unknown = [key for key in values if key not in known]
    if unknown:
        raise ParamsError(mismatch(label, "keys", "only known ones", some_of(unknown)))


def _read_generation_config(path: Path) -> dict[str, object]:
    if not os.path.exists(path):
        return {}
    label, values = label_of(path), read_object(path)
    _check_known(label, values, set(GENERATION_RULES), GENERATION_HARMLESS_KEYS)
    check_values(label, values, GENERATION_RULES)
    return values


def _ids(value: object) -> tuple[int, ...]:
    if isinstance(value, list):
        return tuple(value)
    return (value,) if isinstance(value, int) else ()


def _kv_heads(label: str, config: Mapping[str, object], heads: int, mistral: bool) -> int:
    """Give the key/value heads; only a missing key has Mistral's default, null means all heads."""
    default = (
        _DEFAULT_MISTRAL_KV_HEADS if mistral and "num_key_value_heads" not in config else heads
    )
    kv_heads = _of(config, "num_key_value_heads", default)
    if heads % kv_heads:
        what = "num_attention_heads % num_key_value_heads"
        raise ParamsError(mismatch(label, what, 0, f"{heads} % {kv_heads} = {heads % kv_heads}"))
    return kv_heads


def _head_dim(label: str, config: Mapping[str, object], heads: int) -> int:
    """Give the head dimension: named, or the model dimension divided by the heads."""
    hidden = _of(config, "hidden_size", 0)
    if config.get("head_dim") is None and hidden % heads:
        what = "hidden_size % num_attention_heads"
        raise ParamsError(mismatch(label, what, 0, f"{hidden} % {heads} = {hidden % heads}"))
    return _of(config, "head_dim", hidden // heads)


def _sliding_window(label: str, config: Mapping[str, object], mistral: bool) -> int | None:
    """Give the window of a Mistral: null is none, and a missing key means the default of 4096."""
    if mistral:
        default = None if "sliding_window" in config else _DEFAULT_MISTRAL_WINDOW
        return _of(config, "sliding_window", default)
    if config.get("sliding_window") is not None:
        got = "attention in a sliding window, which a llama has not"
        raise ParamsError(mismatch(label, "key 'sliding_window'", "null", got))
    return None
