"""Gemma 3: Gemma 2 with normalized queries and keys, a rotary embedding of their own for
layers with a window, and without soft caps. Every sixth layer has no window.

Source: transformers, models/gemma3/modeling_gemma3.py; llama.cpp, src/models/gemma3.cpp.
"""

from dataclasses import dataclass
from typing import Any

from ... import ml
from ...checkpoint.gguf_config import GgufConfig, GgufSchema
from ...checkpoint.hugging_face_config import ConfigSchema, HuggingFaceConfig
from ...checkpoint.names import tensor_row, with_rows
from ...checkpoint.params import SIZE, number_in, value_of
from ..llama import Weights
from ..windows import LocalRopeArgs
from .gemma2 import (
    GEMMA_DEFAULTS,
    GEMMA_GGUF_RULES,
    GEMMA_RULES,
    NORM_ROWS,
    GemmaArgs,
    GemmaAttention,
    GemmaBlock,
    GemmaFamily,
    GemmaRMSNorm,
    GemmaTransformer,
)

_THETA = 1_000_000.0
_LOCAL_THETA = 10_000.0
_THETAS = number_in(1, 1e12)


@dataclass(frozen=True)
class Gemma3Args(GemmaArgs, LocalRopeArgs):
    """Gemma's sizes and constants, and a rotary embedding for layers with a window."""

    local_rope_theta: float = _LOCAL_THETA


class Gemma3Attention(GemmaAttention):
    """Gemma's attention with normalized queries and keys."""

    def __init__(self, args: Gemma3Args, tensors: Weights, layer: int) -> None:
        super().__init__(args, tensors, layer)
        name = f"layers.{layer}.attention"
        self.q_norm = GemmaRMSNorm(args, tensors, f"{name}.q_norm")  # [h]
        self.k_norm = GemmaRMSNorm(args, tensors, f"{name}.k_norm")  # [h]

    def heads(self, x: ml.Tensor) -> tuple[ml.Tensor, ml.Tensor, ml.Tensor]:
        """Return queries [T, H, h], keys and values [T, K, h] for x [T, D]."""
        xq, xk, xv = super().heads(x)
        return self.q_norm.forward(xq), self.k_norm.forward(xk), xv


class Gemma3Block(GemmaBlock):
    """Gemma's layer with normalized queries and keys."""

    attention_class = Gemma3Attention


class Gemma3Transformer(GemmaTransformer):
    """Gemma's network with the layers of Gemma 3."""

    block_class = Gemma3Block


class _Gemma3(GemmaFamily):
    config = ConfigSchema(
        "Gemma3ForCausalLM",
        GEMMA_DEFAULTS | {"max_position_embeddings": 131072, "rope_theta": _THETA},
        GEMMA_RULES | {"sliding_window_pattern": SIZE, "rope_local_base_freq": _THETAS},
        per_layer=("layer_types",),
        wholes=("gemma3",),
        local_rope_theta=_LOCAL_THETA,
    )
    gguf = GgufSchema(
        "gemma3",
        "halves",
        GEMMA_GGUF_RULES | {"rope.freq_base_swa": _THETAS},
        biases=(),
    )
    layer_rows = with_rows(
        *NORM_ROWS,
        tensor_row("attention.q_norm", "self_attn.q_norm", "attn_q_norm", "none", "h"),
        tensor_row("attention.k_norm", "self_attn.k_norm", "attn_k_norm", "none", "h"),
    )
    args_class = Gemma3Args
    transformer = Gemma3Transformer
    pattern = 6
    largest = 62

    def fields_of_config(self, config: HuggingFaceConfig) -> dict[str, Any]:
        local = {"local_rope_theta": config.local_rope_theta}
        return super().fields_of_config(config) | local

    def fields_of_gguf(self, config: GgufConfig) -> dict[str, Any]:
        theta: float = value_of(config.given, "rope.freq_base_swa", _LOCAL_THETA)
        local = {"local_rope_theta": float(theta)}
        return super().fields_of_gguf(config) | local

    def config_keys(self, args: Any) -> dict[str, object]:
        local = {"rope_local_base_freq": args.local_rope_theta}
        return super().config_keys(args) | local

    def gguf_keys(self, args: Any) -> dict[str, Any]:
        local = {"rope.freq_base_swa": args.local_rope_theta}
        return super().gguf_keys(args) | local


FAMILY = _Gemma3()
