"""Qwen3: Llama with an RMSNorm of each query and key head before the rotation.

Source: transformers, models/qwen3/modeling_qwen3.py.
"""

from ... import ml
from ...checkpoint.gguf_config import GgufSchema
from ...checkpoint.hugging_face_config import ATTENTION_BIAS, ConfigSchema
from ...checkpoint.names import tensor_row, with_rows
from ..args import ModelArgs
from ..llama import (
    LlamaAttention,
    LlamaTransformer,
    LlamaTransformerBlock,
    RMSNorm,
    Weights,
)
from . import Family
from .qwen2 import QWEN_DEFAULTS, QWEN_WINDOWS


class Qwen3Attention(LlamaAttention):
    """Llama's attention with normalized queries and keys."""

    def __init__(self, args: ModelArgs, tensors: Weights, layer: int) -> None:
        super().__init__(args, tensors, layer)
        name = f"layers.{layer}.attention"
        self.q_norm = RMSNorm(args, tensors, f"{name}.q_norm")  # [h]
        self.k_norm = RMSNorm(args, tensors, f"{name}.k_norm")  # [h]

    def heads(self, x: ml.Tensor) -> tuple[ml.Tensor, ml.Tensor, ml.Tensor]:
        """Return queries [T, H, h], keys and values [T, K, h] for x [T, D]."""
        xq, xk, xv = super().heads(x)
        return self.q_norm.forward(xq), self.k_norm.forward(xk), xv


class Qwen3Block(LlamaTransformerBlock):
    """Llama's layer with normalized queries and keys."""

    attention_class = Qwen3Attention


class Qwen3Transformer(LlamaTransformer):
    """Llama's network with Qwen3's layers."""

    block_class = Qwen3Block


HEAD_NORMS = (
    tensor_row("attention.q_norm", "self_attn.q_norm", "attn_q_norm", "none", "h"),
    tensor_row("attention.k_norm", "self_attn.k_norm", "attn_k_norm", "none", "h"),
)
"""The table rows for the norms of queries and keys."""


class _Qwen3(Family):
    config = ConfigSchema(
        "Qwen3ForCausalLM",
        QWEN_DEFAULTS | {"head_dim": 128},
        QWEN_WINDOWS | ATTENTION_BIAS,
    )
    gguf = GgufSchema("qwen3", "halves")
    layer_rows = with_rows(*HEAD_NORMS)
    transformer = Qwen3Transformer


FAMILY = _Qwen3()
