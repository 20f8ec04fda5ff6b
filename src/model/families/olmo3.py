"""OLMo 3: OLMo 2 with windows in three of four layers, and YaRN in the others.

Source: transformers, models/olmo3/modeling_olmo3.py; llama.cpp, src/models/olmo2.cpp.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from ...checkpoint.gguf_config import GgufConfig
from ...checkpoint.hugging_face_config import (
    ATTENTION_BIAS,
    ConfigSchema,
    HuggingFaceConfig,
)
from ...checkpoint.params import MOST_LAYERS, SIZE, Rule, integer_in, value_of
from ..args import LinearRopeScaling, YarnRopeScaling
from ..errors import mismatch
from ..llama import LlamaTransformer
from ..windows import LocalRopeArgs, WindowAttention
from . import (
    GGUF_WINDOW_RULES,
    LAYER_TYPES,
    all_but_every,
    layer_types,
    layer_windows,
    yarn_keys,
)
from .olmo2 import FAMILY as OLMO2
from .olmo2 import GGUF_WINDOW, Olmo2Attention, Olmo2Block, Olmo2Family, has_no_window

_PERIOD = 4  # by default, every fourth layer has no window
_THETA = 500_000.0
_GGUF_PATTERN = "attention.sliding_window_pattern"


def _is_pattern(value: object) -> bool:
    if isinstance(value, list):
        return all(isinstance(each, bool) for each in value)
    return integer_in(1, MOST_LAYERS)[1](value)


_PATTERN: Rule = ("a number of layers, or an array of bools", _is_pattern)


@dataclass(frozen=True)
class Olmo3Args(LocalRopeArgs):
    """Llama's sizes and constants, the windows, and their rotary embedding."""

    local_rope_theta: float = _THETA


class Olmo3Attention(Olmo2Attention, WindowAttention):
    """OLMo 2's attention over a window in some layers."""


class Olmo3Block(Olmo2Block):
    """OLMo 2's layer with a window."""

    attention_class = Olmo3Attention


class Olmo3Transformer(LlamaTransformer):
    """Llama's network with OLMo 3's layers."""

    block_class = Olmo3Block


class _Olmo3(Olmo2Family):
    config = ConfigSchema(
        "Olmo3ForCausalLM",
        {"rms_norm_eps": 1e-5, "rope_theta": _THETA, "sliding_window": 4096},
        ATTENTION_BIAS | {"sliding_window": SIZE, "layer_types": LAYER_TYPES},
        per_layer=("layer_types",),
        local_rope_theta=_THETA,
    )
    gguf = replace(
        OLMO2.gguf,
        rules={GGUF_WINDOW: SIZE, _GGUF_PATTERN: _PATTERN, **GGUF_WINDOW_RULES},
        per_layer=(_GGUF_PATTERN,),
    )
    args_class = Olmo3Args
    transformer = Olmo3Transformer

    def reads_gguf(self, keys: Mapping[str, object]) -> bool:
        """Return whether a file has windows."""
        return not has_no_window(keys)

    def fields_of_config(self, config: HuggingFaceConfig) -> dict[str, Any]:
        """Return the fields of the windows and of their rotary embedding."""
        count = value_of(config.values, "num_hidden_layers", 0)
        windows = layer_windows(config, all_but_every(_PERIOD, count))
        return windows | {"local_rope_theta": config.local_rope_theta}

    def fields_of_gguf(self, config: GgufConfig) -> dict[str, Any]:
        """Return the fields of the windows. llama.cpp ignores an array of layers."""
        count = config.sizes["n_layers"]
        pattern: Any = value_of(config.given, _GGUF_PATTERN, _PERIOD)
        if isinstance(pattern, list):
            layers = tuple(n for n, is_window in enumerate(pattern) if is_window)
            if len(pattern) != count or layers != all_but_every(_PERIOD, count):
                rule = f"windows in all but every {_PERIOD}th layer, as in llama.cpp"
                raise mismatch(_GGUF_PATTERN, rule, "other layers")
            pattern = _PERIOD
        return {
            "window": config.given[GGUF_WINDOW],
            "window_layers": all_but_every(pattern, count),
            "local_rope_theta": config.sizes["rope_theta"],
        }

    def config_keys(self, args: Any) -> dict[str, object]:
        """Return the `config.json` keys that differ from OLMo 2's."""
        full: dict[str, object] = {"rope_type": "default"}
        if isinstance(args.rope_scaling, YarnRopeScaling):
            full = yarn_keys(args.rope_scaling)
        elif isinstance(args.rope_scaling, LinearRopeScaling):
            full = {"rope_type": "linear", "factor": args.rope_scaling.factor}
        local = {"rope_type": "default", "rope_theta": args.local_rope_theta}
        return super().config_keys(args) | {
            "rope_scaling": None,
            "rope_parameters": {
                "full_attention": full | {"rope_theta": args.rope_theta},
                "sliding_attention": local,
            },
            "sliding_window": args.window,
            "layer_types": layer_types(args),
        }

    def gguf_keys(self, args: Any) -> dict[str, Any]:
        """Return the metadata keys of the windows."""
        return {GGUF_WINDOW: args.window, _GGUF_PATTERN: self._period(args)}

    def check_gguf(self, args: Any) -> None:
        """Check that the windows are ones that GGUF files can describe."""
        self._period(args)
        if args.local_rope_theta != args.rope_theta:
            rule = f"rope_theta {args.rope_theta:g} in all layers, as GGUF files require"
            raise mismatch("save", rule, f"{args.local_rope_theta:g}")

    def _period(self, args: Olmo3Args) -> int:
        """Return the number of layers after which the windows repeat."""
        for period in range(2, args.n_layers + 2):
            if args.window_layers == all_but_every(period, args.n_layers):
                return period
        rule = "windows in all but every nth layer, as GGUF files require"
        raise mismatch("save", rule, "other layers")


FAMILY = _Olmo3()
