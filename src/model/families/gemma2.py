"""Gemma 2: Llama with four norms in a layer, GeGLU, windows in every second layer, and
soft caps on scores and logits.

The weights of norms are stored as their difference from 1 in Hugging Face's files, and as
the sums in GGUF files. The embeddings are multiplied by sqrt(D) in float32; transformers
rounds the factor to the dtype of the embeddings.

Source: transformers, models/gemma2/modeling_gemma2.py; llama.cpp, src/models/gemma2.cpp.
"""

import math
from dataclasses import dataclass
from typing import Any, ClassVar

from ... import ml
from ...checkpoint.gguf_config import GgufConfig, GgufSchema
from ...checkpoint.hugging_face_config import (
    ATTENTION_BIAS,
    ConfigSchema,
    HuggingFaceConfig,
)
from ...checkpoint.names import tensor_row, with_rows
from ...checkpoint.params import SIZE, Rule, number_in, off, one_of, value_of
from ...trace import mark
from ..args import ModelArgs
from ..context import InferenceContext
from ..errors import mismatch
from ..llama import (
    LlamaFeedForward,
    LlamaTransformer,
    LlamaTransformerBlock,
    RMSNorm,
    Weights,
)
from ..windows import WindowArgs, WindowAttention
from . import (
    GGUF_WINDOW_RULES,
    LAYER_TYPES,
    Family,
    all_but_every,
    layer_types,
    layer_windows,
)

_ACTIVATION = "gelu_pytorch_tanh"
_CAP = number_in(1e-6, 1e6)

GEMMA_DEFAULTS: dict[str, object] = {
    "num_key_value_heads": 4,
    "head_dim": 256,
    "hidden_activation": _ACTIVATION,
    "sliding_window": 4096,
    "query_pre_attn_scalar": 256,
    "tie_word_embeddings": True,
}
GEMMA_RULES: dict[str, Rule] = {
    **ATTENTION_BIAS,
    "hidden_act": one_of(_ACTIVATION),
    "hidden_activation": one_of(_ACTIVATION),
    "sliding_window": SIZE,
    "layer_types": LAYER_TYPES,
    "query_pre_attn_scalar": number_in(1e-6, 1e6),
    "attn_logit_softcapping": _CAP,
    "final_logit_softcapping": _CAP,
    "use_bidirectional_attention": one_of(False),
}
GEMMA_GGUF_RULES: dict[str, Rule] = {
    "attention.sliding_window": SIZE,
    "attn_logit_softcapping": number_in(0, 1e6),
    "final_logit_softcapping": number_in(0, 1e6),
    "attention.sliding_window_pattern": off("windows in other layers"),
    "rope.freq_base_swa": off("a separate rotary embedding"),
    **GGUF_WINDOW_RULES,
}
NORM_ROWS = (
    tensor_row(
        "attention_post_norm",
        "post_attention_layernorm",
        "post_attention_norm",
        "none",
        "D",
    ),
    tensor_row("ffn_norm", "pre_feedforward_layernorm", "ffn_norm", "none", "D"),
    tensor_row(
        "ffn_post_norm", "post_feedforward_layernorm", "post_ffw_norm", "none", "D"
    ),
)


@dataclass(frozen=True)
class GemmaArgs(WindowArgs):
    """Llama's sizes and constants, and those of the windows and soft caps.

    Attributes:
        query_scalar: The square of the divisor of the attention scores.
        score_cap, logits_cap: The limits of the scores and of the logits, or None.
    """

    query_scalar: float = 256.0
    score_cap: float | None = None
    logits_cap: float | None = None

    @property
    def score_divisor(self) -> float:
        """Return the divisor of the attention scores before the softmax."""
        return math.sqrt(self.query_scalar)


class GemmaRMSNorm(RMSNorm):
    """Llama's norm, with the weights of Hugging Face's files increased by 1."""

    def __init__(
        self, args: ModelArgs, tensors: Weights, name: str, dtype: ml.DType | None = None
    ) -> None:
        super().__init__(args, tensors, name, dtype)
        if args.norm_offset:
            self.weight = ml.add(self.weight.to(ml.float32), args.norm_offset)


class GemmaAttention(WindowAttention):
    """Attention over a window in some layers, with capped scores."""

    def __init__(self, args: GemmaArgs, tensors: Weights, layer: int) -> None:
        super().__init__(args, tensors, layer)
        self.soft_cap = args.score_cap


class GemmaFeedForward(LlamaFeedForward):
    """Transforms each token independently: w2(gelu(w1(x)) * w3(x))."""

    def forward(self, x: ml.Tensor) -> ml.Tensor:
        """Return the term to add to the residual stream for x [T, D]: float32 [T, D]."""
        mark(17)  # feed-forward
        weights = self.w1, self.w3
        biases = self.w1_bias, self.w3_bias
        hidden = ml.geglu(  # [T, D] -> [T, F], [T, F] -> [T, F]
            *ml.linear_transformations(x, weights, self.dtype, biases)
        )
        if self.dtype is not None:
            hidden = hidden.to(x.dtype)
        return self.project(hidden)  # [T, F] -> [T, D]


class GemmaBlock(LlamaTransformerBlock):
    """One layer: attention and feed-forward, each with a norm before and after it."""

    attention_class: ClassVar[type[GemmaAttention]] = GemmaAttention
    feed_forward_class = GemmaFeedForward

    def __init__(self, args: GemmaArgs, tensors: Weights, layer: int) -> None:
        super().__init__(args, tensors, layer)
        name = f"layers.{layer}"
        self.attention_norm = GemmaRMSNorm(args, tensors, f"{name}.attention_norm")
        # The result of each post-norm is added to the residual stream, which is float32.
        self.attention_post_norm = GemmaRMSNorm(
            args, tensors, f"{name}.attention_post_norm", ml.float32
        )
        self.ffn_norm = GemmaRMSNorm(
            args, tensors, f"{name}.ffn_norm", self.feed_forward_dtype
        )
        self.ffn_post_norm = GemmaRMSNorm(
            args, tensors, f"{name}.ffn_post_norm", ml.float32
        )
        self.norm_after_attention = self.attention_post_norm

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
        normed = self.attention_norm.forward(x)
        attention = self.attention.forward(normed, context, positions, rotations, mask)
        mark(15)  # attention residual
        x = ml.add(x, self.attention_post_norm.forward(attention))
        mark(16)  # feed-forward pre-norm
        normed = self.ffn_norm.forward(x)
        feed_forward = self.feed_forward.forward(normed)
        mark(18)  # feed-forward residual
        return ml.add(x, self.ffn_post_norm.forward(feed_forward))


class GemmaTransformer(LlamaTransformer):
    """Llama's network with Gemma's layers, scaled embeddings and capped logits."""

    args: GemmaArgs
    block_class: ClassVar[type[GemmaBlock]] = GemmaBlock

    def __init__(self, args: GemmaArgs, tensors: Weights) -> None:
        super().__init__(args, tensors)
        self.norm = GemmaRMSNorm(args, tensors, "norm")

    def embed(self, ids: ml.Tensor) -> ml.Tensor:
        """Look up the embeddings of token ids [T], times sqrt(D): float32 [T, D]."""
        return ml.multiply(super().embed(ids), math.sqrt(self.args.dim))

    def logits(self, x: ml.Tensor) -> ml.Tensor:
        """Return the logits [T, V] for normalized rows x [T, D], capped if necessary."""
        logits = super().logits(x)
        cap = self.args.logits_cap
        return logits if cap is None else ml.soft_cap(logits, cap)


class GemmaFamily(Family):
    """The files and the network of Gemma 2; Gemma 3 overrides some attributes.

    Attributes:
        pattern: The number of layers after which the windows repeat. The last of them has
            no window.
        largest: The number of layers of the largest model, whose scores are divided by
            sqrt(D / H) in llama.cpp. Those of all others are divided by sqrt(h).
    """

    config = ConfigSchema(
        "Gemma2ForCausalLM",
        GEMMA_DEFAULTS
        | {
            "max_position_embeddings": 8192,
            "attn_logit_softcapping": 50.0,
            "final_logit_softcapping": 30.0,
        },
        GEMMA_RULES,
        per_layer=("layer_types",),
    )
    gguf = GgufSchema("gemma2", "halves", GEMMA_GGUF_RULES, biases=())
    layer_rows = with_rows(*NORM_ROWS)
    norm_offset = 1.0
    args_class: ClassVar[type[ModelArgs]] = GemmaArgs
    transformer: ClassVar[type[LlamaTransformer]] = GemmaTransformer
    pattern: ClassVar[int] = 2
    largest: ClassVar[int] = 46

    def fields_of_config(self, config: HuggingFaceConfig) -> dict[str, Any]:
        """Return the fields of Gemma from its keys in `config.json`."""
        values: Any = config.values
        pattern = value_of(values, "sliding_window_pattern", self.pattern)
        layers = all_but_every(pattern, values["num_hidden_layers"])
        return layer_windows(config, layers) | {
            "query_scalar": float(values["query_pre_attn_scalar"]),
            "score_cap": _float(values.get("attn_logit_softcapping")),
            "logits_cap": _float(values.get("final_logit_softcapping")),
        }

    def fields_of_gguf(self, config: GgufConfig) -> dict[str, Any]:
        """Return the fields of Gemma from its keys in a GGUF file."""
        values: Any = config.given
        sizes = config.sizes
        window = values.get("attention.sliding_window")
        layers = all_but_every(self.pattern, sizes["n_layers"]) if window else ()
        return {
            "window": window if layers else None,
            "window_layers": layers,
            "query_scalar": self._query_scalar(
                sizes["n_layers"], sizes["dim"], sizes["n_heads"], sizes["head_dim"]
            ),
            "score_cap": _float(values.get("attn_logit_softcapping")),
            "logits_cap": _float(values.get("final_logit_softcapping")),
        }

    def _query_scalar(self, layers: int, dim: int, heads: int, head_dim: int) -> float:
        """Return the query scalar that llama.cpp uses for a model of these sizes."""
        return float(dim // heads if layers == self.largest else head_dim)

    def config_keys(self, args: Any) -> dict[str, object]:
        """Return the `config.json` keys that differ from Llama's."""
        return super().config_keys(args) | {
            "hidden_act": _ACTIVATION,
            "hidden_activation": _ACTIVATION,
            "sliding_window": args.window or 4096,
            "layer_types": layer_types(args),
            "query_pre_attn_scalar": args.query_scalar,
            "attn_logit_softcapping": args.score_cap,
            "final_logit_softcapping": args.logits_cap,
        }

    def gguf_keys(self, args: Any) -> dict[str, Any]:
        """Return Gemma's GGUF metadata keys without the architecture prefix."""
        keys: dict[str, Any] = {}
        if args.window is not None:
            keys["attention.sliding_window"] = args.window
        if args.score_cap is not None:
            keys["attn_logit_softcapping"] = args.score_cap
        if args.logits_cap is not None:
            keys["final_logit_softcapping"] = args.logits_cap
        return keys

    def check_gguf(self, args: Any) -> None:
        """Check that the constants are the ones implied by GGUF files."""
        layers = all_but_every(self.pattern, args.n_layers)
        if args.window_layers != layers:
            rule = f"a window in all but every {self.pattern}th layer"
            raise mismatch("save", f"{rule}, as GGUF files require", "other layers")
        scalar = self._query_scalar(args.n_layers, args.dim, args.n_heads, args.head_dim)
        if args.query_scalar != scalar:
            rule = f"query_pre_attn_scalar {scalar:g}, as GGUF files require"
            raise mismatch("save", rule, f"{args.query_scalar:g}")


def _float(value: float | None) -> float | None:
    """Return a number as float, or None if it is absent or 0."""
    return float(value) if value else None


FAMILY = GemmaFamily()
