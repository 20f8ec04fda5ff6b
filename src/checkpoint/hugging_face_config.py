"""Read and validate `config.json` and `generation_config.json`.

The reference implementation is transformers. A key that its configuration class for the
`model_type` or its shared code reads is either used or harmless, or is rejected with an
error that names it unless it has its neutral value. All other keys are ignored, as in
transformers, and are listed in `HuggingFaceConfig.ignored`. A test compares the tables
below with the classes in the installed transformers package.

transformers has two formats for the rotary embedding. Up to version 4, it is described by
`rope_theta`, and by `rope_scaling` with `type` or `rope_type`. Since version 5, it is
described by `rope_parameters`, which also contains `rope_theta`.

Source: transformers 5.24, `configuration_utils.py`, `modeling_rope_utils.py`,
`cache_utils.py`, `masking_utils.py` and the `configuration_*.py` of each family; the
files of the published models.
"""

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

from ..untrusted import described, label_of, read_json_object
from .errors import CheckpointError, mismatch
from .model_directory import CONFIG_FILE
from .packed_weights import QuantizationConfig, read_quantization
from .params import (
    BOOLEAN,
    DEFAULT_ROPE_THETA,
    LARGEST_SIZE,
    MOST_CONFIG_BYTES,
    OBJECT,
    SIZE,
    Rule,
    check_divides,
    check_known,
    integer_in,
    list_of,
    missing_part,
    number_in,
    off,
    one_of,
    rules_of,
    value_of,
)
from .sampling_values import GENERATION_KEYS, sampling_values

GENERATION_FILE = "generation_config.json"

_MOST_END_TOKENS = 64
_TOKEN = integer_in(0, LARGEST_SIZE - 1)


def _is_token_or_tokens(value: object) -> bool:
    tokens = value if isinstance(value, list) else [value]
    return 0 < len(tokens) <= _MOST_END_TOKENS and all(map(_TOKEN[1], tokens))


@dataclass(frozen=True, slots=True)
class ConfigSchema:
    """The `config.json` keys that are specific to a model family.

    Attributes:
        architecture: The name of the model class in transformers.
        defaults: The defaults that differ from Llama's. They apply to missing keys, but
            not to null values.
        rules: Rules for the keys in the family's configuration class, in addition to
            `RULES`.
        per_layer: The keys whose value is a list with one element per layer.
        scalings: Additional types of rotary embedding scaling, each with the rules for
            its required keys.
        rope_rules: Rules for additional optional keys in the rotary embedding.
        default_rope: The rotary embedding of a file that describes none.
        wholes: The types of models of several parts, of which the family is the text
            part: their `text_config` has its keys.
        local_rope_theta: If layers with a window have a rotary embedding of their own,
            its default base; otherwise None.
    """

    architecture: str
    defaults: Mapping[str, object] = field(default_factory=dict)
    rules: Mapping[str, Rule] = field(default_factory=dict)
    per_layer: tuple[str, ...] = ()
    scalings: Mapping[str, Mapping[str, Rule]] = field(default_factory=dict)
    rope_rules: Mapping[str, Rule] = field(default_factory=dict)
    default_rope: Mapping[str, object] = field(default_factory=dict)
    wholes: tuple[str, ...] = ()
    local_rope_theta: float | None = None


class HasConfigSchema(Protocol):
    """A model family that can be read from Hugging Face's files."""

    @property
    def config(self) -> ConfigSchema:
        """The `config.json` keys that are specific to the family."""


ATTENTION_BIAS: dict[str, Rule] = {"attention_bias": BOOLEAN}
BIASES: dict[str, Rule] = {**ATTENTION_BIAS, "mlp_bias": BOOLEAN}
WINDOWS: dict[str, Rule] = {"sliding_window": SIZE, "use_sliding_window": BOOLEAN}
"""Rules for the sliding-window keys, which only matter with `use_sliding_window`."""

CONFIG_KEYS = {
    "dim": "hidden_size",
    "n_layers": "num_hidden_layers",
    "n_heads": "num_attention_heads",
    "n_kv_heads": "num_key_value_heads",
    "head_dim": "head_dim",
    "ffn_dim": "intermediate_size",
    "vocab_size": "vocab_size",
    "norm_eps": "rms_norm_eps",
    "rope_theta": "rope_theta",
    "max_context_length": "max_position_embeddings",
}
"""A mapping from the `ModelArgs` name of each hyperparameter to its key."""

RULES: dict[str, Rule] = {
    **rules_of(CONFIG_KEYS),
    "hidden_act": one_of("silu", "swish"),  # two names for the same function
    "layer_types": list_of("full_attention"),
    **dict.fromkeys(("rope_scaling", "rope_parameters", "quantization_config"), OBJECT),
    "tie_word_embeddings": BOOLEAN,
    "bos_token_id": _TOKEN,
    "eos_token_id": (
        f"a token id, or a list of 1 to {_MOST_END_TOKENS}",
        _is_token_or_tokens,
    ),
}
"""Rules for the `config.json` keys that affect the computation in every family."""

_IN_EACH_PART = ("architectures", "model_type", "text_config", "transformers_version")
_NEEDED_KEYS = (
    "model_type",
    "hidden_size",
    "intermediate_size",
    "num_hidden_layers",
    "num_attention_heads",
    "vocab_size",
)
_GENERATION_RULES = {key: RULES[key] for key in ("bos_token_id", "eos_token_id")}

REJECTED_KEYS: Mapping[str, Rule] = {
    "is_encoder_decoder": one_of(False),
    "is_causal": one_of(True),
    "partial_rotary_factor": one_of(1),
    "original_max_position_embeddings": off("another rotary embedding"),
    "per_layer_config": off("layers of several kinds"),
    "kv_sharing_modes": off("layers that share keys and values"),
    **dict.fromkeys(
        ("sliding_window", "attention_chunk_size"), off("attention in windows")
    ),
    **dict.fromkeys(
        ("text_config", "text_encoder", "decoder", "generator"),
        off("a model of several parts"),
    ),
    "fusion_config": off("fused weights"),
    "transformers_weights": off("weights in a file of another name"),
    # transformers does not read this key, but it cannot read such a model either.
    "quantization": off("MLX's quantized weights"),
}
"""Rules for keys that transformers reads in every family, but that are not supported.

They accept only the neutral value of each key. A family that supports a key overrides its
rule.
"""

HARMLESS_KEYS = frozenset(
    {
        # Keys in the configuration classes that do not affect results. Each tensor has
        # its own dtype, and `pretraining_tp` only affects how products were split during
        # training.
        "architectures",
        "attention_dropout",
        "chunk_size_feed_forward",
        "dtype",
        "id2label",
        "initializer_range",
        "label2id",
        "output_hidden_states",
        "pad_token_id",
        "pretraining_tp",
        "problem_type",
        "return_dict",
        "transformers_version",
        "use_cache",
        # Keys that transformers writes itself, or converts to one of the keys above.
        "_commit_hash",
        "_from_model_config",
        "_name_or_path",
        "num_labels",
        "torch_dtype",
    }
)
"""Keys that transformers knows and that have no effect here."""

_FACTOR = {"factor": number_in(1, 1e6)}
_SCALINGS: Mapping[str, Mapping[str, Rule]] = {
    "default": {},
    "linear": _FACTOR,
    "llama3": _FACTOR
    | {
        "low_freq_factor": number_in(1e-6, 1e6),
        "high_freq_factor": number_in(1e-6, 1e6),
        "original_max_position_embeddings": SIZE,
    },
    "yarn": _FACTOR,
}
# Optional keys of a scaling. The default of the original context length is
# `max_position_embeddings`.
_OPTIONAL_KEYS: Mapping[str, Mapping[str, Rule]] = {
    "yarn": {
        "original_max_position_embeddings": SIZE,
        **dict.fromkeys(
            ("attention_factor", "beta_fast", "beta_slow"), number_in(1e-6, 1e6)
        ),
        **dict.fromkeys(("mscale", "mscale_all_dim"), number_in(0, 1e6)),
        "truncate": BOOLEAN,
    },
}
_ROPE_SPELLINGS = ("rope_scaling", "rope_parameters")
_ROPE_RULES: Mapping[str, Rule] = {
    "rope_theta": RULES["rope_theta"],
    "partial_rotary_factor": one_of(1.0),
}


@dataclass(frozen=True, slots=True)
class HuggingFaceConfig:
    """The validated configuration files of one model.

    Attributes:
        given: The content of `config.json`, or the part of it for text.
        values: The keys that have an effect, including the family's defaults.
        generation: The content of `generation_config.json`, or an empty dict.
        sampling: The sampling settings recommended by `generation_config.json`.
        rope: `rope_type`, `rope_theta` and the scaling parameters of the rotary
            embedding.
        local_rope_theta: The base of the rotary embedding in layers with a window, or
            None if all layers have the same.
        quantization: The storage format of quantized weights, if any.
        ignored: The keys that have no effect, by file name.
        prefix: The beginning of the names of the tensors for text, if the model has other
            parts too.
    """

    given: dict[str, object]
    values: dict[str, object]
    generation: dict[str, object]
    sampling: dict[str, float]
    rope: dict[str, Any]
    local_rope_theta: float | None
    quantization: QuantizationConfig | None
    ignored: dict[str, tuple[str, ...]]
    prefix: str = ""


def read_hugging_face_config(
    directory: Path, families: Mapping[str, HasConfigSchema]
) -> HuggingFaceConfig:
    """Read `config.json`, and `generation_config.json` if the directory has one.

    Args:
        directory: The directory that contains the files.
        families: The supported model families, keyed by `model_type`.
    """
    path = directory / CONFIG_FILE
    label = label_of(path)
    given = read_json_object(path, MOST_CONFIG_BYTES, CheckpointError)
    given, others = _text_part(label, given, families)
    kind = given.get("model_type")
    if (missing := missing_part(kind)) is not None:
        raise mismatch(label, "model_type", "a supported family", missing)
    family = families.get(kind) if isinstance(kind, str) else None
    if family is None:  # the check below always raises
        check_known(
            label, given, {"model_type": one_of(*families), **RULES}, _NEEDED_KEYS
        )
    assert family is not None, "its rule was checked"
    schema = family.config
    rules = {**RULES, **REJECTED_KEYS, **schema.rules}
    check_known(label, given, rules, _NEEDED_KEYS)

    used = {
        k: v
        for k, v in given.items()
        if k == "model_type" or k in RULES or k in schema.rules
    }
    config = {**schema.defaults, **used}
    _check_layers(label, config, ("layer_types", *schema.per_layer))
    ignored = [
        k
        for k in given
        if k != "model_type" and k not in rules and k not in HARMLESS_KEYS
    ]
    ignored += [*others, *_ignored_of_rope(given, schema)]
    if given.get("architectures") not in (None, [schema.architecture]):
        ignored.append("architectures")

    generation: dict[str, object] = {}
    generation_path = directory / GENERATION_FILE
    if os.path.exists(generation_path):
        generation = read_json_object(generation_path, MOST_CONFIG_BYTES, CheckpointError)
        check_known(label_of(generation_path), generation, _GENERATION_RULES)
    sampling = sampling_values(generation, GENERATION_KEYS)
    used_of_generation = {*_GENERATION_RULES, *HARMLESS_KEYS, "do_sample"}
    used_of_generation |= {
        key for key, name in GENERATION_KEYS.items() if name in sampling
    }
    ignored_of_generation = tuple(
        key for key in generation if key not in used_of_generation
    )

    return HuggingFaceConfig(
        given=given,
        values=config,
        generation=generation,
        sampling=sampling,
        rope=_rope(label, _without_local_rope(label, given, schema), schema),
        local_rope_theta=_local_rope_theta(label, given, schema),
        quantization=read_quantization(label, config),
        ignored={CONFIG_FILE: tuple(ignored), GENERATION_FILE: ignored_of_generation},
        prefix=_TEXT_PREFIX if others else "",
    )


_TEXT_PREFIX = "language_model."
# Keys next to `text_config` that apply to text too.
_KEYS_OF_TEXT = (
    "bos_token_id",
    "dtype",
    "eos_token_id",
    "quantization_config",
    "tie_word_embeddings",
    "torch_dtype",
)


def _text_part(
    label: str, given: dict[str, object], families: Mapping[str, HasConfigSchema]
) -> tuple[dict[str, object], list[str]]:
    """Return the configuration of the text part of a model, and the keys of the others.

    A configuration of text alone is returned unchanged, without other keys.
    """
    kind = given.get("model_type")
    if not isinstance(kind, str) or kind in families or "text_config" not in given:
        return given, []
    name = next((n for n in families if kind in families[n].config.wholes), None)
    if name is None:
        return given, []
    check_known(label, given, {"text_config": OBJECT}, ("text_config",))
    text: dict[str, object] = value_of(given, "text_config", {})
    check_known(f"{label}: text_config", text, {"model_type": one_of(name)})
    of_text = {key: given[key] for key in _KEYS_OF_TEXT if key in given}
    others = [key for key in given if key not in (*_KEYS_OF_TEXT, *_IN_EACH_PART)]
    return {**of_text, **text, "model_type": name}, others


def _check_layers(
    label: str, config: Mapping[str, object], per_layer: Sequence[str]
) -> None:
    """Check the keys that depend on the number of layers or heads.

    Sliding windows are rejected if any layer uses them.
    """
    if config.get("head_dim") is None:
        check_divides(label, config, "hidden_size", "num_attention_heads")
    count = value_of(config, "num_hidden_layers", 0)
    for key in per_layer:
        value = config.get(key)
        if isinstance(value, list) and len(value) != count:
            raise mismatch(label, key, f"one for each of {count} layers", len(value))
    has_windows = (
        config.get("use_sliding_window") is True and config.get("layer_types") is None
    )
    first = value_of(config, "max_window_layers", 0)
    if has_windows and config.get("sliding_window") is not None and first < count:
        rule = f"false, or true and max_window_layers >= {count}"
        raise mismatch(label, "use_sliding_window", rule, f"true and {first}")


def _rope(
    label: str, config: Mapping[str, object], schema: ConfigSchema
) -> dict[str, Any]:
    """Read the rotary embedding from either format, and check that they agree."""
    outer: float | None = value_of(config, "rope_theta", None)
    spellings = [key for key in _ROPE_SPELLINGS if config.get(key)]
    readings = [
        _rope_of(
            f"{label}: {key}",
            value_of(config, key, dict[str, object]()) or schema.default_rope,
            outer,
            schema,
        )
        for key in spellings or ("rope_parameters",)
    ]
    if readings[0] != readings[-1]:
        raise mismatch(label, "rope_parameters", "the same as rope_scaling", "others")
    return readings[0]


_LOCAL_THETA = "rope_local_base_freq"
_FULL = "full_attention"
_SLIDING = "sliding_attention"


def _ropes_of_kinds(
    label: str, config: Mapping[str, object], schema: ConfigSchema
) -> dict[str, dict[str, object]] | None:
    """Return the rotary embeddings by kind of layer, or None if they are not divided."""
    values: Mapping[str, object] = value_of(config, "rope_parameters", {})
    if schema.local_rope_theta is None or not {_FULL, _SLIDING} & values.keys():
        return None
    check_known(
        f"{label}: rope_parameters", values, dict.fromkeys((_FULL, _SLIDING), OBJECT), ()
    )
    return {kind: value_of(values, kind, {}) for kind in (_FULL, _SLIDING)}


def _without_local_rope(
    label: str, config: Mapping[str, object], schema: ConfigSchema
) -> Mapping[str, object]:
    """Return the keys with the rotary embedding of the layers without a window only."""
    ropes = _ropes_of_kinds(label, config, schema)
    return config if ropes is None else {**config, "rope_parameters": ropes[_FULL]}


def _local_rope_theta(
    label: str, config: Mapping[str, object], schema: ConfigSchema
) -> float | None:
    """Return the base of the rotary embedding in layers with a window, if it has one."""
    if schema.local_rope_theta is None:
        return None
    theta = schema.local_rope_theta
    if _LOCAL_THETA in schema.rules:
        theta = value_of(config, _LOCAL_THETA, theta)
    ropes = _ropes_of_kinds(label, config, schema)
    if ropes is not None:
        rope = _rope_of(f"{label}: rope_parameters", ropes[_SLIDING], None, schema)
        if rope["rope_type"] != "default":
            rule = "an unscaled rotary embedding"
            raise mismatch(label, f"rope_parameters.{_SLIDING}", rule, "a scaled one")
        theta = value_of(ropes[_SLIDING], "rope_theta", theta)
    return float(theta)


def _rope_of(
    label: str, values: Mapping[str, object], outer: float | None, schema: ConfigSchema
) -> dict[str, Any]:
    """Read the rotary embedding from one format.

    Args:
        label: The file and the key, for error messages.
        values: The value of `rope_scaling` or `rope_parameters`.
        outer: The value of `rope_theta` in `config.json` itself, if present.
        schema: The keys of the model family.
    """
    scalings = {**_SCALINGS, **schema.scalings}
    kind = value_of(values, "rope_type", value_of(values, "type", "default"))
    scaling = next((rules for name, rules in scalings.items() if name == kind), {})
    of_kind = (rules for name, rules in _OPTIONAL_KEYS.items() if name == kind)
    kinds = dict.fromkeys(("rope_type", "type"), one_of(*scalings))
    optional_rules = dict(schema.rope_rules)
    if scaling is not schema.scalings.get(str(kind)):
        optional_rules |= next(of_kind, {})
    check_known(
        label, values, {**kinds, **_ROPE_RULES, **optional_rules, **scaling}, scaling
    )
    for key, value in values.items():
        if isinstance(value, dict):
            raise mismatch(
                label, key, "one rotary embedding for all layers", described(value)
            )
    if value_of(values, "type", kind) != kind:
        raise mismatch(label, "type", f"rope_type '{kind}'", "another")
    default_base = value_of(schema.defaults, "rope_theta", DEFAULT_ROPE_THETA)
    theta = value_of(values, "rope_theta", default_base if outer is None else outer)
    if outer not in (None, theta):
        raise mismatch(label, "rope_theta", "one value", f"{theta} and {outer}")
    optional = [key for key in optional_rules if values.get(key) is not None]
    rope: dict[str, Any] = {key: _numbers(values[key]) for key in (*scaling, *optional)}
    if kind == "llama3" and rope["low_freq_factor"] >= rope["high_freq_factor"]:
        low = rope["low_freq_factor"]
        high = rope["high_freq_factor"]
        raise mismatch(label, "low_freq_factor", f"below high_freq_factor {high}", low)
    return rope | {"rope_type": kind, "rope_theta": float(theta)}


def _numbers(value: Any) -> float | tuple[float, ...]:
    """Convert a validated number to float, or a validated list to a tuple of floats."""
    return tuple(map(float, value)) if isinstance(value, list) else float(value)


def _ignored_of_rope(config: Mapping[str, object], schema: ConfigSchema) -> list[str]:
    """Return the keys in `rope_scaling` or `rope_parameters` that have no effect."""
    scalings = (
        *_SCALINGS.values(),
        *_OPTIONAL_KEYS.values(),
        *schema.scalings.values(),
    )
    known = {"rope_type", "type", *_ROPE_RULES, *schema.rope_rules}
    known.update(key for rules in scalings for key in rules)
    return [
        f"{spelling}.{key}"
        for spelling in _ROPE_SPELLINGS
        for key in value_of(config, spelling, dict[str, object]())
        if key not in known and key not in (_FULL, _SLIDING)
    ]
