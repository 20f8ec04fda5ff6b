"""Granite with windows: Granite 3 with a window in three of four layers, a sink for each
head, and a base of the rotary embedding for each layer, or none.

Source: transformers, models/granite_swa/modeling_granite_swa.py; llama.cpp,
src/models/granite-swa.cpp.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from ... import ml
from ...checkpoint.gguf_config import GgufConfig
from ...checkpoint.hugging_face_config import ConfigSchema, HuggingFaceConfig
from ...checkpoint.names import SINKS, with_rows
from ...checkpoint.params import SIZE, Rule, list_of, number_in, one_of, value_of
from ..errors import mismatch
from ..windows import WindowArgs, WindowAttention
from . import GGUF_WINDOW_RULES, LAYER_TYPES, layer_types, layer_windows
from .granite import FAMILY as GRANITE
from .granite import (
    GRANITE_GGUF_RULES,
    GRANITE_RULES,
    GraniteArgs,
    GraniteAttention,
    GraniteBlock,
    GraniteFamily,
    GraniteTransformer,
)

_PERIOD = 4  # by default, every fourth layer has no window, from the first on
_WINDOW = 128
_THETAS = "layer_rope_theta"
_GGUF_WINDOW = "attention.sliding_window"
_GGUF_PATTERN = "attention.sliding_window_pattern"
_GGUF_ROTATED = "attention.rope_pattern"


_THETA_OR_0 = (one_of(0.0)[1], number_in(1, 1e12)[1])


def _is_list_of_thetas(value: object) -> bool:
    return isinstance(value, list) and all(
        any(check(each) for check in _THETA_OR_0) for each in value
    )


_LIST_OF_THETAS: Rule = ("a list of 0 or a number in 1..1e+12", _is_list_of_thetas)
_SWITCHES = list_of(True, False, 0, 1)


@dataclass(frozen=True)
class GraniteSwaArgs(GraniteArgs, WindowArgs):
    """Granite's sizes and constants, the windows, and the rotary embedding of layers.

    Attributes:
        layer_thetas: For each layer, the base of its rotary embedding, or 0 without one.
    """

    layer_thetas: tuple[float, ...] = ()

    @property
    def rotated_layers(self) -> Sequence[int]:
        """Return the layers in which queries and keys are rotated."""
        return [n for n, theta in enumerate(self.layer_thetas) if theta]

    @property
    def _thetas(self) -> list[float]:
        """Return the base of each rotary table."""
        return sorted({theta for theta in self.layer_thetas if theta})

    @property
    def rope_tables(self) -> Sequence[tuple[float, Any]]:
        """Return theta and the scaling of each rotary table."""
        return [(theta, self.rope_scaling) for theta in self._thetas or [self.rope_theta]]

    @property
    def rope_table_of_layer(self) -> Sequence[int]:
        """Return, for each layer, the index of its rotary table, or 0 without one."""
        thetas = self._thetas
        return [thetas.index(theta) if theta else 0 for theta in self.layer_thetas]


class GraniteSwaAttention(GraniteAttention, WindowAttention):
    """Granite's attention with a window in some layers, and a sink for each head."""

    def rotate(self, x: ml.Tensor, rotations: ml.Tensor) -> ml.Tensor:
        """Rotate queries or keys [T, heads, h], or return them unchanged without RoPE."""
        is_rotated = self.layer in self.args.rotated_layers
        return super().rotate(x, rotations) if is_rotated else x


class GraniteSwaBlock(GraniteBlock):
    """Granite's layer with a window and sinks."""

    attention_class = GraniteSwaAttention


class GraniteSwaTransformer(GraniteTransformer):
    """Granite's network with windows and sinks."""

    block_class = GraniteSwaBlock


class _GraniteSwa(GraniteFamily):
    config = ConfigSchema(
        "GraniteSWAForCausalLM",
        defaults={
            "num_key_value_heads": 4,
            "max_position_embeddings": 8192,
            "rms_norm_eps": 1e-5,
            "attention_multiplier": 1.0,
            "sliding_window": _WINDOW,
            "tie_word_embeddings": True,
        },
        rules=GRANITE_RULES
        | {"sliding_window": SIZE, "layer_types": LAYER_TYPES, _THETAS: _LIST_OF_THETAS},
        per_layer=("layer_types", _THETAS),
    )
    gguf = replace(
        GRANITE.gguf,
        architecture="granite_swa",
        rules={
            **GRANITE_GGUF_RULES,
            **GGUF_WINDOW_RULES,
            _GGUF_WINDOW: SIZE,
            _GGUF_PATTERN: _SWITCHES,
            _GGUF_ROTATED: _SWITCHES,
        },
        per_layer=(_GGUF_PATTERN, _GGUF_ROTATED),
    )
    layer_rows = with_rows(SINKS)
    args_class = GraniteSwaArgs
    transformer = GraniteSwaTransformer

    def fields_of_config(self, config: HuggingFaceConfig) -> dict[str, Any]:
        """Return the fields of the factors, the windows and the rotary embedding."""
        count = value_of(config.values, "num_hidden_layers", 0)
        layers = tuple(n for n in range(count) if n % _PERIOD)
        theta = config.rope["rope_theta"]
        thetas: Sequence[float] = value_of(config.values, _THETAS, [theta] * count)
        return (
            super().fields_of_config(config)
            | layer_windows(config, layers)
            | _fields_of_thetas(thetas)
        )

    def fields_of_gguf(self, config: GgufConfig) -> dict[str, Any]:
        """Return the fields of the factors, the windows and the rotary embedding."""
        count = config.sizes["n_layers"]
        given: Any = config.given
        for key in (_GGUF_WINDOW, _GGUF_PATTERN):
            if key not in given:
                raise mismatch(key, "a value, as in llama.cpp", "none")
        has_window = given[_GGUF_PATTERN]
        is_rotated = given.get(_GGUF_ROTATED, [True] * count)
        for key, switches in ((_GGUF_PATTERN, has_window), (_GGUF_ROTATED, is_rotated)):
            if len(switches) != count:
                raise mismatch(key, f"one for each of {count} layers", len(switches))
        layers = tuple(n for n in range(count) if has_window[n])
        theta = config.sizes["rope_theta"]
        return (
            super().fields_of_gguf(config)
            | {"window": given[_GGUF_WINDOW] if layers else None, "window_layers": layers}
            | _fields_of_thetas([theta if rotated else 0 for rotated in is_rotated])
        )

    def config_keys(self, args: Any) -> dict[str, object]:
        """Return the `config.json` keys that differ from Granite's."""
        return super().config_keys(args) | {
            "sliding_window": args.window or _WINDOW,
            "layer_types": layer_types(args),
            _THETAS: list(args.layer_thetas),
        }

    def gguf_keys(self, args: Any) -> dict[str, Any]:
        """Return the metadata keys that differ from Granite's."""
        return super().gguf_keys(args) | {
            _GGUF_WINDOW: args.window or args.max_context_length,
            _GGUF_PATTERN: [window is not None for window in args.windows],
            _GGUF_ROTATED: [theta != 0 for theta in args.layer_thetas],
        }

    def check_gguf(self, args: Any) -> None:
        """Check that GGUF files can describe the rotary embedding."""
        thetas = [theta for theta, _ in args.rope_tables]
        if len(thetas) > 1:
            rule = "one rope_theta for all layers, as GGUF files require"
            raise mismatch("save", rule, ", ".join(f"{theta:g}" for theta in thetas))


def _fields_of_thetas(thetas: Sequence[float]) -> dict[str, Any]:
    """Return the fields for the bases of layers, which replace a base that they share."""
    fields: dict[str, Any] = {"layer_thetas": tuple(float(theta) for theta in thetas)}
    different = {theta for theta in fields["layer_thetas"] if theta}
    return fields if len(different) != 1 else fields | {"rope_theta": different.pop()}


FAMILY = _GraniteSwa()
