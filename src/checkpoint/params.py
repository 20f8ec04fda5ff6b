"""Validation rules for hyperparameters, and a reader for Meta's `params.json`.

Each key that Meta's reference implementation reads is either used or harmless, or is
rejected with an error that names it unless it has its neutral value. All other keys are
ignored, as in the reference implementation. `-v` and `--metadata` list the ignored keys.

Source: meta-llama/llama-models, `models/llama3/args.py` and `models/llama4/args.py`;
mistralai/mistral-inference, `src/mistral_inference/args.py`.
"""

import re
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any, TypeVar

from ..untrusted import described, is_integer, label_of, read_json_object, some_of
from .errors import CheckpointError, mismatch

LARGEST_SIZE = 1 << 24
MOST_LAYERS = 1 << 10
DEFAULT_ROPE_THETA = 10000.0  # for Llama 1 and 2, whose files omit it
MOST_CONFIG_BYTES = 1 << 16

T = TypeVar("T")
Rule = tuple[str, Callable[[object], bool]]
"""The description of a rule, for error messages, and a function that checks a value."""


def integer_in(low: int, high: int) -> Rule:
    """Return a rule that accepts integers in a range, but neither `true` nor `1.0`."""
    return f"an integer in {low}..{high}", lambda value: is_integer(value, low, high)


def number_in(low: float, high: float) -> Rule:
    """Return a rule that accepts integers and decimal numbers in a range."""
    return (
        f"a number in {low:g}..{high:g}",
        lambda value: (
            isinstance(value, int | float)
            and not isinstance(value, bool)
            and low <= value <= high
        ),
    )


def one_of(*accepted: object) -> Rule:
    """Return a rule that accepts only the given values.

    The type must match too, so `true` and `1.0` do not match 1. However, the integer 1
    matches `1.0`.
    """
    rule = " or ".join(map(described, accepted)) or "null"
    return rule, lambda value: any(_is_accepted(value, each) for each in accepted)


def list_of(*accepted: object) -> Rule:
    """Return a rule that accepts lists containing only the given values."""
    rule, check = one_of(*accepted)
    return f"a list of only {rule}", lambda v: isinstance(v, list) and all(map(check, v))


def _is_accepted(value: object, accepted: object) -> bool:
    if type(accepted) is float and type(value) is int:
        return value == accepted
    return type(value) is type(accepted) and value == accepted


def off(reason: str) -> Rule:
    """Return a rule that accepts only null, false, or an empty object or list.

    Args:
        reason: The name of the unsupported feature, for the error message.
    """
    return (
        f"null or false (not supported: {reason})",
        lambda value: value in (False, {}, []),
    )


# Patterns of the names of families that are not supported, in `config.json` and in GGUF
# files, and the missing parts of the network.
_MISSING_PARTS: Mapping[str, str] = {
    r"deepseek_?v?[23]": "attention with compressed keys and values",
    r"gemma3n(_text)?": "embeddings for each layer",
    r"gemma4(_text)?": "heads of several sizes",
    r".*hybrid": "layers of a state space model",
    r"lfm2(_?moe)?": "layers of convolutions",
    r"llama4(_text)?": "attention in chunks, and experts that all tokens use",
    r"qwen2_moe|qwen2moe|.*moeshared": "experts that all tokens use",
    r"qwen\d(_5|5|_?next).*": "layers of linear attention",
}


def missing_part(family: object) -> str | None:
    """Return the name of an unsupported family with its missing part, if it is known."""
    for pattern, part in _MISSING_PARTS.items():
        if isinstance(family, str) and re.fullmatch(pattern, family):
            return f"{family}: {part}, which is not supported"
    return None


ANY: Rule = ("any value", lambda _: True)
OBJECT: Rule = ("an object", lambda value: isinstance(value, dict))
BOOLEAN = one_of(True, False)
SIZE = integer_in(1, LARGEST_SIZE)

# Rules for hyperparameters in all file formats, keyed by `ModelArgs` name. The rule for
# any other name is SIZE.
_RULES: Mapping[str, Rule] = {
    "n_layers": integer_in(1, MOST_LAYERS),
    "norm_eps": number_in(0, 1),
    "rope_theta": number_in(1, 1e12),
}


def rules_of(keys: Mapping[str, str]) -> dict[str, Rule]:
    """Return a rule for each key of a file format.

    Args:
        keys: A mapping from the `ModelArgs` name to the key.
    """
    return {key: _RULES.get(name, SIZE) for name, key in keys.items()}


def sizes_of(
    keys: Mapping[str, str], values: Mapping[str, object], **defaults: object
) -> dict[str, Any]:
    """Convert validated config values to `ModelArgs` fields.

    `vocab_size` is 0 if only the tensors determine it.
    """
    sizes: dict[str, Any] = {
        "vocab_size": 0,
        "rope_theta": DEFAULT_ROPE_THETA,
        **defaults,
    }
    sizes |= {
        name: values[key] for name, key in keys.items() if values.get(key) is not None
    }
    sizes = {
        "n_kv_heads": sizes["n_heads"],
        "head_dim": sizes["dim"] // sizes["n_heads"],
    } | sizes
    return sizes | {name: float(sizes[name]) for name in ("norm_eps", "rope_theta")}


PARAMS_KEYS = {"max_context_length": "max_seq_len"} | {
    name: name
    for name in (
        "dim",
        "n_layers",
        "n_heads",
        "n_kv_heads",
        "vocab_size",
        "norm_eps",
        "rope_theta",
    )
}
"""A mapping from the `ModelArgs` name of each hyperparameter to its key."""

USED_KEYS: Mapping[str, Rule] = {
    **rules_of(PARAMS_KEYS),
    # In Llama 2's files, -1 means the tokenizer's vocabulary size.
    "vocab_size": (
        f"-1 or {SIZE[0]}",
        lambda value: is_integer(value, -1, -1) or SIZE[1](value),
    ),
    "multiple_of": SIZE,
    "ffn_dim_multiplier": number_in(1e-3, 1e3),
    "use_scaled_rope": BOOLEAN,
}
"""Rules for the keys that affect the computation."""

HARMLESS_KEYS = frozenset(
    {"max_batch_size", "model_parallel_size", "vision_max_num_chunks"}
)
"""Keys that only concern the buffers or image processing of other programs."""

REJECTED_KEYS: Mapping[str, Rule] = {
    "quantization_args": off("Meta's quantized weights"),
    **dict.fromkeys(("lora_args", "lora"), off("LoRA adapters")),
    **dict.fromkeys(("vision_model", "vision_args"), off("images")),
    **dict.fromkeys(
        ("vision_chunk_size", "vision_num_cross_attention_layers"), one_of(-1)
    ),
    # Keys for Llama 4 and Mistral, which use the same file names.
    **dict.fromkeys(("moe_args", "moe"), off("a mixture of experts")),
    **dict.fromkeys(
        ("attention_chunk_size", "sliding_window"), off("attention in windows")
    ),
    **dict.fromkeys(
        ("nope_layer_interval", "rope_scaling_factor"), off("Llama 4's RoPE")
    ),
    **dict.fromkeys(
        ("use_qk_norm", "attn_temperature_tuning"), off("Llama 4's attention")
    ),
    "model_type": one_of("transformer"),
}
"""Rules for keys of unsupported features, which accept only the neutral value."""

_RULES_OF_KEYS = {**USED_KEYS, **dict.fromkeys(HARMLESS_KEYS, ANY), **REJECTED_KEYS}

_NEEDED_KEYS = ("dim", "n_layers", "n_heads", "norm_eps")


def read_params(path: Path) -> dict[str, object]:
    """Read and validate `params.json`.

    Returns:
        The content of the file. Each known key has a value in its range, or null if the
        key is optional.

    Raises:
        CheckpointError: The file is unreadable or not strict JSON, a key is missing or
            unsupported, a value is out of range, or the number of heads does not divide
            the dimension.
    """
    label = label_of(path)
    params = read_json_object(path, MOST_CONFIG_BYTES, CheckpointError)
    check_known(label, params, _RULES_OF_KEYS, _NEEDED_KEYS)
    check_divides(label, params, "dim", "n_heads")
    check_divides(label, params, "n_heads", "n_kv_heads")
    return params


def ignored_params(params: Mapping[str, object]) -> tuple[str, ...]:
    """Return the keys in `params.json` that Meta's reference implementation ignores."""
    return tuple(key for key in params if key not in _RULES_OF_KEYS)


def check_known(
    label: str,
    values: Mapping[str, object],
    rules: Mapping[str, Rule],
    needed: Iterable[str] = (),
) -> None:
    """Check the values of known keys, and that all needed keys are present.

    A null value counts as absent. Keys without a rule are allowed.
    """
    for key, (rule, check) in rules.items():
        value = values.get(key)
        if value is not None and not check(value):
            raise mismatch(label, key, rule, described(value))
    missing = [key for key in needed if values.get(key) is None]
    if missing:
        raise mismatch(label, "keys", ", ".join(needed), f"without {some_of(missing)}")


def check_object(
    label: str,
    values: Mapping[str, object],
    rules: Mapping[str, Rule],
    needed: Iterable[str] = (),
) -> None:
    """Check values as `check_known` does, but reject keys without a rule."""
    check_known(label, values, rules)
    unknown = [key for key in values if key not in rules]
    if unknown:
        raise mismatch(label, "keys", "only known keys", some_of(unknown))
    check_known(label, values, {}, needed)


def check_divides(
    label: str, values: Mapping[str, object], over: str, under: str
) -> None:
    """Check that the value of `over` is a multiple of the value of `under`.

    The check passes if either value is absent.
    """
    large = value_of(values, over, 0)
    small = value_of(values, under, 1)
    if large % small:
        raise mismatch(
            label, f"{over} % {under}", 0, f"{large} % {small} = {large % small}"
        )


def value_of(values: Mapping[str, object], key: str, default: T) -> T:
    """Return a validated value, or the default if the key is absent or null."""
    value = values.get(key)
    if value is None:
        return default
    return value  # type: ignore[return-value]  # the rule has checked the type
