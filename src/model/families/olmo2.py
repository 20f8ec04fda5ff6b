"""OLMo 2: Llama with post-norms instead of pre-norms, and normalized queries and keys.

Source: transformers, models/olmo2/modeling_olmo2.py.
"""

from collections.abc import Mapping
from typing import ClassVar

from ... import ml
from ...checkpoint.gguf_config import GgufSchema
from ...checkpoint.hugging_face_config import ATTENTION_BIAS, ConfigSchema
from ...checkpoint.names import tensor_row, with_rows
from ...checkpoint.params import one_of
from ...trace import mark
from ..args import ModelArgs
from ..context import InferenceContext
from ..llama import (
    LlamaAttention,
    LlamaTransformer,
    LlamaTransformerBlock,
    RMSNorm,
    Weights,
)
from . import Family

GGUF_WINDOW = "attention.sliding_window"


class Olmo2Attention(LlamaAttention):
    """Llama's attention with queries and keys that are normalized across all heads."""

    def __init__(self, args: ModelArgs, tensors: Weights, layer: int) -> None:
        super().__init__(args, tensors, layer)
        name = f"layers.{layer}.attention"
        self.q_norm = RMSNorm(args, tensors, f"{name}.q_norm")  # [H*h]
        self.k_norm = RMSNorm(args, tensors, f"{name}.k_norm")  # [K*h]

    def queries_keys_values(self, x: ml.Tensor) -> tuple[ml.Tensor, ml.Tensor, ml.Tensor]:
        """Return queries [T, H*h], keys and values [T, K*h] for x [T, D]."""
        xq, xk, xv = super().queries_keys_values(x)
        return self.q_norm.forward(xq), self.k_norm.forward(xk), xv


class Olmo2Block(LlamaTransformerBlock):
    """One layer: attention and feed-forward, each with a post-norm and a residual."""

    attention_class = Olmo2Attention

    def __init__(self, args: ModelArgs, tensors: Weights, layer: int) -> None:
        super().__init__(args, tensors, layer)
        self.dtype = args.dtype
        # The result of each norm is added to the residual stream, which is float32.
        self.attention_norm.dtype = ml.float32
        self.ffn_norm.dtype = ml.float32
        self.norm_after_attention = self.attention_norm

    def forward(
        self,
        x: ml.Tensor,
        context: InferenceContext,
        positions: ml.Positions,
        rotations: ml.Tensor,
        mask: ml.Tensor | None,
    ) -> ml.Tensor:
        """Pass the residual stream x, float32 [T, D], through the layer."""
        mark(5, layer=self.layer)  # each transformer block
        mark(6)  # attention pre-norm
        rounded = x.to(self.dtype)
        attention = self.attention.forward(rounded, context, positions, rotations, mask)
        mark(15)  # attention residual
        x = ml.add(x, self.attention_norm.forward(attention))
        mark(16)  # feed-forward pre-norm
        feed_forward = self.feed_forward.forward(x.to(self.feed_forward_dtype))
        mark(18)  # feed-forward residual
        return ml.add(x, self.ffn_norm.forward(feed_forward))


class Olmo2Transformer(LlamaTransformer):
    """Llama's network with OLMo 2's layers."""

    block_class = Olmo2Block


ROW_NORMS = (
    tensor_row("attention.q_norm", "self_attn.q_norm", "attn_q_norm", "none", "Hh"),
    tensor_row("attention.k_norm", "self_attn.k_norm", "attn_k_norm", "none", "Kh"),
)
"""The table rows for the norms of all queries and all keys."""


class Olmo2Family(Family):
    """The files and the network of OLMo 2."""

    config = ConfigSchema("Olmo2ForCausalLM", {"rms_norm_eps": 1e-5}, ATTENTION_BIAS)
    gguf = GgufSchema(
        "olmo2",
        "halves",
        rules={GGUF_WINDOW: one_of(0)},
        biases=(),
        has_own_output=True,
        heads_fill_dim=True,
    )
    layer_rows = with_rows(
        tensor_row(
            "attention_norm",
            "post_attention_layernorm",
            "post_attention_norm",
            "none",
            "D",
        ),
        tensor_row(
            "ffn_norm", "post_feedforward_layernorm", "post_ffw_norm", "none", "D"
        ),
        *ROW_NORMS,
    )
    transformer: ClassVar[type[LlamaTransformer]] = Olmo2Transformer

    def reads_gguf(self, keys: Mapping[str, object]) -> bool:
        """Return whether a file has no windows."""
        return has_no_window(keys)


def has_no_window(keys: Mapping[str, object]) -> bool:
    """Return whether a GGUF file of this architecture has no windows."""
    return keys.get(f"olmo2.{GGUF_WINDOW}") in (None, 0)


FAMILY = Olmo2Family()
