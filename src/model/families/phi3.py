"""Phi-3, Phi-3.5, Phi-4 and Phi-4-mini: Llama with joined matrices and LongRoPE.

One stored matrix contains the rows of the query, key and value matrices, and another one
contains the rows of gate and up. Phi-4-mini rotates only the first three quarters of each
head. LongRoPE divides each frequency by its own factor, and uses different factors in
contexts longer than the training length. A sliding window limits the context.

Source: transformers, models/phi3/modeling_phi3.py and modeling_rope_utils.py
(`_compute_longrope_parameters`); llama.cpp, src/models/phi3.cpp.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from ... import ml
from ...checkpoint.gguf_config import GgufConfig, GgufSchema
from ...checkpoint.hugging_face_config import ConfigSchema, HuggingFaceConfig
from ...checkpoint.names import tensor_row, with_rows
from ...checkpoint.params import ANY, SIZE, Rule, number_in, one_of, value_of
from ..args import ComputedRopeScaling, ModelArgs
from ..errors import mismatch
from . import Family, window_fields

_FACTOR = number_in(1e-6, 1e6)
_LONG = "rope_factors_long.weight"
_SHORT = "rope_factors_short.weight"
_POSITIONS = 4096  # default training context length


def _is_factors(value: object) -> bool:
    return (
        isinstance(value, list)
        and 0 < len(value) <= 1 << 12
        and all(map(_FACTOR[1], value))
    )


_FACTORS: Rule = ("a list of numbers in 1e-06..1e+06", _is_factors)
_LONG_ROPE = {"short_factor": _FACTORS, "long_factor": _FACTORS}


@dataclass(frozen=True)
class LongRope(ComputedRopeScaling):
    """LongRoPE: a divisor for each frequency, with different ones for long contexts.

    Attributes:
        short_factors: The divisors of the frequencies [r/2] in contexts of up to
            `original_context_length` positions.
        long_factors: The divisors in longer contexts.
        original_context_length: The context length in training.
        attention_factor: The factor applied to rotated queries and keys.
    """

    short_factors: tuple[float, ...]
    long_factors: tuple[float, ...]
    original_context_length: int
    attention_factor: float

    @property
    def magnitude(self) -> float:
        """Return the attention factor."""
        return self.attention_factor

    def scaled(
        self, frequencies: npt.NDArray[np.float64], _theta: float, length: int, /
    ) -> npt.NDArray[np.float64]:
        """Return the scaled frequencies [r/2] for a context of `length` positions."""
        is_long = length > self.original_context_length
        factors = np.array(
            self.long_factors if is_long else self.short_factors, np.float64
        )
        return frequencies / factors

    @property
    def note(self) -> str:
        """Return a one-line description of the scaling for the user."""
        return (
            "LongRoPE: other factors in contexts of more than "
            f"{self.original_context_length}"
        )


@dataclass(frozen=True)
class Phi3Args(ModelArgs):
    """Llama's sizes and constants, and the number of rotated elements in each head."""

    rotated: int = 0

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.rotated % 2 or not 0 < self.rotated <= self.head_dim:
            rule = f"an even number of rotated elements in 2..{self.head_dim}"
            raise mismatch("partial_rotary_factor", rule, self.rotated)
        scaling = self.rope_scaling
        if isinstance(scaling, LongRope):
            for factors in (scaling.short_factors, scaling.long_factors):
                if len(factors) != self.rotated // 2:
                    rule = f"{self.rotated // 2} factors of LongRoPE"
                    raise mismatch("rope", rule, len(factors))

    @property
    def rotary_dim(self) -> int:
        """Return the number of rotated elements, which are at the beginning of a head."""
        return self.rotated


def _round_to_float32(factors: tuple[float, ...]) -> tuple[float, ...]:
    return tuple(np.array(factors, np.float32).tolist())


def _magnitude(factor: float, original: int) -> float:
    """Return sqrt(1 + ln(factor) / ln(original)), or 1 for a factor of at most 1."""
    return 1.0 if factor <= 1 else math.sqrt(1 + math.log(factor) / math.log(original))


class _Phi3(Family):
    config = ConfigSchema(
        "Phi3ForCausalLM",
        defaults={
            "max_position_embeddings": 4096,
            "rms_norm_eps": 1e-5,
            "original_max_position_embeddings": _POSITIONS,
        },
        rules={
            "sliding_window": SIZE,
            "partial_rotary_factor": number_in(1e-6, 1),
            "original_max_position_embeddings": SIZE,
            "resid_pdrop": ANY,
            "embd_pdrop": ANY,
        },
        scalings=dict.fromkeys(("longrope", "su", "yarn"), _LONG_ROPE),
        rope_rules={
            "partial_rotary_factor": number_in(1e-6, 1),
            "factor": _FACTOR,
            "attention_factor": _FACTOR,
        },
    )
    gguf = GgufSchema(
        "phi3",
        "halves",
        rules={
            "rope.dimension_count": SIZE,
            "rope.scaling.type": one_of("none", "longrope"),
            "rope.scaling.attn_factor": _FACTOR,
            "rope.scaling.original_context_length": SIZE,
            "attention.sliding_window": ANY,  # llama.cpp ignores it
        },
        biases=(),
        heads_fill_dim=True,
        rope_tensors=(_LONG, _SHORT),
    )
    layer_rows = with_rows(
        *(
            replace(
                tensor_row(
                    f"attention.{name}",
                    "self_attn.qkv_proj",
                    "attn_qkv",
                    "rows",
                    letter,
                    "D",
                ),
                joined=("Hh", "Kh", "Kh"),
                part=part,
            )
            for part, (name, letter) in enumerate(
                (("wq", "Hh"), ("wk", "Kh"), ("wv", "Kh"))
            )
        ),
        *(
            replace(
                tensor_row(
                    f"feed_forward.{name}", "mlp.gate_up_proj", "ffn_up", "rows", "F", "D"
                ),
                joined=("F", "F"),
                part=part,
            )
            for part, name in enumerate(("w1", "w3"))
        ),
    )
    args_class = Phi3Args

    def fields_of_config(self, config: HuggingFaceConfig) -> dict[str, Any]:
        values: Any = config.values
        head_dim = value_of(
            values, "head_dim", values["hidden_size"] // values["num_attention_heads"]
        )
        outer = value_of(values, "partial_rotary_factor", 1.0)
        part = config.rope.get("partial_rotary_factor", outer)
        fields = window_fields(config) | {
            "rotated": int(head_dim * part),
            "rope_scaling": None,
        }
        if "short_factor" in config.rope:
            original = values["original_max_position_embeddings"]
            factor = config.rope.get(
                "factor", values["max_position_embeddings"] / original
            )
            magnitude = config.rope.get("attention_factor", _magnitude(factor, original))
            # transformers and GGUF files store the factors as float32.
            short = _round_to_float32(config.rope["short_factor"])
            long = _round_to_float32(config.rope["long_factor"])
            fields["rope_scaling"] = LongRope(
                short, long, original, float(np.float32(magnitude))
            )
        return fields

    def fields_of_gguf(self, config: GgufConfig) -> dict[str, Any]:
        rotated = value_of(config.given, "rope.dimension_count", config.sizes["head_dim"])
        positions = config.sizes["max_context_length"]
        window: Any = config.given.get("attention.sliding_window")
        fields: dict[str, Any] = {"rotated": rotated}
        if isinstance(window, int) and 0 < window < positions:
            fields |= {"max_context_length": window, "sliding_window": window}
        # The factors are tensors and are read later. Until then, all of them are 1.
        original = value_of(
            config.given, "rope.scaling.original_context_length", _POSITIONS
        )
        magnitude = float(value_of(config.given, "rope.scaling.attn_factor", 1.0))
        ones = (1.0,) * (rotated // 2)
        if "rope.scaling.attn_factor" in config.given:
            fields["rope_scaling"] = LongRope(ones, ones, original, magnitude)
        return fields

    def with_rope_tensors(
        self, args: Any, tensors: Mapping[str, tuple[float, ...]]
    ) -> ModelArgs:
        """Return args completed with the LongRoPE factors."""
        if len(tensors) != len(self.gguf.rope_tensors):
            raise mismatch("rope", f"both {_LONG} and {_SHORT}", "one of them")
        scaling = args.rope_scaling
        if not isinstance(scaling, LongRope):
            raise mismatch("rope", "rope.scaling.attn_factor next to factors", "none")
        scaling = replace(
            scaling, short_factors=tensors[_SHORT], long_factors=tensors[_LONG]
        )
        completed: ModelArgs = replace(args, rope_scaling=scaling)
        return completed

    def gguf_tensors(self, args: Phi3Args) -> dict[str, ml.Tensor]:
        """Return the tensors of LongRoPE factors by name."""
        scaling = args.rope_scaling
        if not isinstance(scaling, LongRope):
            return {}
        factors = {_LONG: scaling.long_factors, _SHORT: scaling.short_factors}
        return {
            name: ml.tensor(list(values), dtype=ml.float32)
            for name, values in factors.items()
        }

    def gguf_keys(self, args: Phi3Args) -> dict[str, Any]:
        keys: dict[str, Any] = {"rope.dimension_count": args.rotated}
        if args.sliding_window is not None:
            keys["attention.sliding_window"] = args.sliding_window
        scaling = args.rope_scaling
        if isinstance(scaling, LongRope):
            keys["rope.scaling.attn_factor"] = scaling.attention_factor
            keys["rope.scaling.original_context_length"] = scaling.original_context_length
        return keys

    def config_keys(self, args: Phi3Args) -> dict[str, object]:
        keys: dict[str, object] = {"sliding_window": args.sliding_window}
        keys["partial_rotary_factor"] = args.rotated / args.head_dim
        scaling = args.rope_scaling
        if isinstance(scaling, LongRope):
            keys["original_max_position_embeddings"] = scaling.original_context_length
            keys["rope_scaling"] = {
                "type": "longrope",
                "short_factor": list(scaling.short_factors),
                "long_factor": list(scaling.long_factors),
                "attention_factor": scaling.attention_factor,
            }
        return super().config_keys(args) | keys


FAMILY = _Phi3()
