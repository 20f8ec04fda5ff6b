"""Read hyperparameters from a GGUF file's keys, and validate them.

Only keys with the architecture's prefix are hyperparameters. Each key that llama.cpp
reads is either used, or is rejected with an error that names it unless it has its neutral
value. All other keys with this prefix are ignored, as in llama.cpp. Keys without the
prefix describe the file.

Source: ggml-org/ggml, docs/gguf.md; llama.cpp `src/llama-arch.cpp`, `src/llama-model.cpp`
and `convert_hf_to_gguf.py`.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol

from .errors import mismatch
from .gguf import GgufFile
from .params import (
    ANY,
    MOST_LAYERS,
    SIZE,
    Rule,
    check_divides,
    check_known,
    check_object,
    missing_part,
    number_in,
    one_of,
    rules_of,
    sizes_of,
    value_of,
)

ARCHITECTURE_KEY = "general.architecture"
ROPE_FACTORS = "rope_freqs.weight"
# Template name -> key.
CHAT_TEMPLATE_KEYS = {
    "default": "tokenizer.chat_template",
    "tool_use": "tokenizer.chat_template.tool_use",
}
RopePairs = Literal["interleaved", "halves"]


@dataclass(frozen=True, slots=True)
class GgufSchema:
    """The keys and tensors that a model family has in GGUF files.

    Attributes:
        architecture: The value of `general.architecture`.
        rope_pairs: Which rows of q and k are rotated together.
        rules: Rules for the keys that llama.cpp reads only for this architecture.
        biases: The matrices whose biases llama.cpp reads.
        has_rope_factors: Whether llama.cpp reads `rope_freqs.weight`.
        has_yarn_keys: Whether llama.cpp reads the `rope.scaling.yarn_*` keys for the
            transition and the attention factor.
        yarn_truncates: Whether the transition of YaRN begins and ends at whole indices.
            GGUF files do not contain this, and llama.cpp always truncates.
        has_own_output: Whether llama.cpp requires `output.weight`.
        heads_fill_dim: Whether the total size of the query heads must equal the model
            dimension.
        per_layer: The keys whose value may be an array with one element per layer.
        rope_tensors: The names of the rotary frequency factors that a file may contain.

    Source: llama.cpp src/models/*.cpp (`load_arch_tensors`), and tests with xllamacpp.
    """

    architecture: str
    rope_pairs: RopePairs
    rules: Mapping[str, Rule] = field(default_factory=dict)
    biases: tuple[str, ...] = ("wq", "wk", "wv")
    has_rope_factors: bool = False
    has_yarn_keys: bool = False
    yarn_truncates: bool = True
    has_own_output: bool = False
    heads_fill_dim: bool = False
    rope_tensors: tuple[str, ...] = (ROPE_FACTORS,)
    per_layer: tuple[str, ...] = ()


class HasGgufSchema(Protocol):
    """A model family that can be read from GGUF files."""

    @property
    def gguf(self) -> GgufSchema:
        """The keys and tensors in the family's GGUF files."""


GGUF_KEYS = {
    "vocab_size": "vocab_size",
    "max_context_length": "context_length",
    "dim": "embedding_length",
    "n_layers": "block_count",
    "ffn_dim": "feed_forward_length",
    "n_heads": "attention.head_count",
    "n_kv_heads": "attention.head_count_kv",
    "head_dim": "attention.key_length",
    "norm_eps": "attention.layer_norm_rms_epsilon",
    "rope_theta": "rope.freq_base",
}
"""A mapping from the `ModelArgs` name of each hyperparameter to its key."""

RULES: Mapping[str, Rule] = {
    **rules_of(GGUF_KEYS),
    **dict.fromkeys(("attention.value_length", "rope.dimension_count"), SIZE),
    "rope.scaling.type": one_of("none", "linear", "yarn"),
    # `rope.scale_linear` is an older name, which is used if the newer one is missing.
    **dict.fromkeys(("rope.scaling.factor", "rope.scale_linear"), number_in(1, 1e6)),
    # Any other value of these keys requires a feature that is not supported.
    **dict.fromkeys(
        ("expert_count", "expert_used_count", "expert_group_count"), one_of(0)
    ),
    "nextn_predict_layers": one_of(0),
    "attention.causal": one_of(True),
    "rope.scaling.attn_factor": one_of(1.0),
    # These keys are only informative.
    **dict.fromkeys(
        ("rope.scaling.original_context_length", "rope.scaling.finetuned"), ANY
    ),
    "tensor_data_layout": ANY,
}
"""Rules for the keys that llama.cpp reads for every architecture, without the prefix.

All other keys have no effect on the logits, as in llama.cpp.
`tests/checkpoint/test_gguf_keys_oracle.py` compares the two.
"""

_YARN_RULES: Mapping[str, Rule] = {
    "rope.scaling.original_context_length": SIZE,
    "rope.scaling.attn_factor": number_in(1e-6, 1e6),
}
"""Rules that differ from `RULES` for files with YaRN."""

_NEEDED_KEYS = (
    "context_length",
    "embedding_length",
    "block_count",
    "feed_forward_length",
    "attention.head_count",
    "attention.layer_norm_rms_epsilon",
)

_TEXT: Rule = ("a text", lambda value: isinstance(value, str))
_GENERAL_RULES: Mapping[str, Rule] = {
    "general.type": one_of("model"),
    "general.quantization_version": one_of(2),
    **dict.fromkeys(CHAT_TEMPLATE_KEYS.values(), _TEXT),
}


@dataclass(frozen=True, slots=True)
class GgufConfig:
    """The validated hyperparameters of one model."""

    architecture: str
    # The file's values, keyed without the architecture prefix.
    given: Mapping[str, object]
    sizes: Mapping[str, Any]  # keyed by `ModelArgs` name
    rope_factor: float  # divisor of all rotary frequencies, 1 by default
    # Architecture keys that have no effect, with their prefix.
    ignored: tuple[str, ...]


def read_gguf_config(file: GgufFile, families: Mapping[str, HasGgufSchema]) -> GgufConfig:
    """Read a model's hyperparameters from the header of its first file.

    Args:
        file: The header.
        families: The supported model families, keyed by architecture name.
    """
    label = file.label
    keys = file.keys
    general = {key: value for key, value in keys.items() if key in _GENERAL_RULES}
    check_object(label, general, _GENERAL_RULES)
    architecture = keys.get(ARCHITECTURE_KEY)
    if (missing := missing_part(architecture)) is not None:
        raise mismatch(label, ARCHITECTURE_KEY, "a supported family", missing)
    family = families.get(architecture) if isinstance(architecture, str) else None
    if family is None:
        rules = {ARCHITECTURE_KEY: one_of(*families)}
        check_known(
            label,
            {} if architecture is None else {ARCHITECTURE_KEY: architecture},
            rules,
            rules,
        )
    assert family is not None, "its rule was checked"
    name = family.gguf.architecture
    own_rules = family.gguf.rules
    prefix = f"{name}."
    arrays = {prefix + key: MOST_LAYERS for key in family.gguf.per_layer}
    values = file.decoded(prefix, arrays)
    kind = values.get(f"{prefix}rope.scaling.type")
    of_yarn = _YARN_RULES if kind == "yarn" else {}
    rules = {
        prefix + key: rule for key, rule in {**RULES, **of_yarn, **own_rules}.items()
    }
    needed = [prefix + key for key in _NEEDED_KEYS]
    if kind in ("linear", "yarn") and f"{prefix}rope.scale_linear" not in values:
        needed.append(f"{prefix}rope.scaling.factor")
    check_known(label, values, rules, needed)
    given = {key.removeprefix(prefix): value for key, value in values.items()}
    if "attention.key_length" not in given:
        check_divides(
            label, values, f"{prefix}embedding_length", f"{prefix}attention.head_count"
        )
    sizes = sizes_of(GGUF_KEYS, given)
    for key in ("attention.value_length", "rope.dimension_count"):
        if (
            key not in own_rules
            and given.get(key, sizes["head_dim"]) != sizes["head_dim"]
        ):
            rule = f"{sizes['head_dim']}, the size of a head"
            raise mismatch(label, prefix + key, rule, given[key])
    factor = value_of(
        given, "rope.scaling.factor", value_of(given, "rope.scale_linear", 1.0)
    )
    ignored = tuple(key for key in values if key not in rules)
    return GgufConfig(
        name, given, sizes, 1.0 if kind == "none" else float(factor), ignored
    )
