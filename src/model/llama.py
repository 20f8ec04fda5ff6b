"""The whole Llama network, to be read from top to bottom: parts before wholes.

Other model families override its methods and classes in their modules in `families/`.

Attributes are named after Meta's checkpoint keys, so loading is a lookup:
`transformer.layers[3].attention.wq` is the tensor `layers.3.attention.wq.weight`. The
shape comments use these letters: T new tokens, S cached plus new tokens, D model
dimension, H query heads, K key/value heads, G = H/K, h head dimension, F feed-forward
dimension, V vocabulary. `mark(8)` informs the trace that stage 8 begins; it computes
nothing.

The residual stream, to which each part adds its result, is float32. Between the ops of a
part, activations have the dtype that matches the weights. For BF16 weights in GGUF files,
that dtype is also float32, and only the inputs of the feed-forward matrices are bfloat16.

Source: meta-llama/llama-models, models/llama3/model.py.
"""

import math
from collections.abc import Mapping
from typing import Any, ClassVar, TypeAlias

from .. import ml
from ..trace import mark
from .args import ModelArgs
from .context import InferenceContext, Tokens, token_tensor, wrong_weight
from .errors import ModelError
from .module import Module

# Tensors by checkpoint key: `ml.Tensor`, or `ml.QuantizedTensor` for some matrices.
Weights: TypeAlias = Mapping[str, Any]


class RMSNorm(Module):
    """Scales each row to a root mean square of 1 and multiplies it by learned weights.

    x / sqrt(mean(x^2) + eps) * weight

    Source: Zhang and Sennrich, Root Mean Square Layer Normalization, 2019.
    """

    def __init__(
        self, args: ModelArgs, tensors: Weights, name: str, dtype: ml.DType | None = None
    ) -> None:
        self.eps = args.norm_eps
        self.dtype = args.dtype if dtype is None else dtype
        self.weight = tensors[f"{name}.weight"]  # [D]

    def __repr__(self) -> str:
        return f"RMSNorm({list(self.weight.shape)} {self.weight.dtype}, eps={self.eps})"

    def forward(self, x: ml.Tensor) -> ml.Tensor:
        """Return the normalized rows of x, usually the residual stream [T, D]."""
        return ml.rms_norm(x, self.weight, self.eps, self.dtype)


class LlamaAttention(Module):
    """Lets each token attend to itself and to all earlier tokens.

    Computes softmax(q k^T / sqrt(h) + mask) v with H query heads that share K key/value
    heads.

    Source: Vaswani et al., Attention Is All You Need, 2017; Ainslie et al., GQA, 2023.
    """

    def __init__(self, args: ModelArgs, tensors: Weights, layer: int) -> None:
        self.args = args
        self.layer = layer
        name = f"layers.{layer}.attention"
        self.wq = tensors[f"{name}.wq.weight"]  # [H*h, D]
        self.wk = tensors[f"{name}.wk.weight"]  # [K*h, D]
        self.wv = tensors[f"{name}.wv.weight"]  # [K*h, D]
        self.wo = tensors[f"{name}.wo.weight"]  # [D, H*h]
        # Meta's models have no biases. Some models in Hugging Face's layout have biases.
        self.wq_bias = tensors.get(f"{name}.wq.bias")  # [H*h]
        self.wk_bias = tensors.get(f"{name}.wk.bias")  # [K*h]
        self.wv_bias = tensors.get(f"{name}.wv.bias")  # [K*h]
        self.wo_bias = tensors.get(f"{name}.wo.bias")  # [D]
        self.divisor = args.score_divisor  # sqrt(h)

    def forward(
        self,
        x: ml.Tensor,
        context: InferenceContext,
        positions: ml.Positions,
        rotations: ml.Tensor,
        mask: ml.Tensor | None,
    ) -> ml.Tensor:
        """Return, for each token, a weighted sum of the values that it may attend to.

        Args:
            x: Normalized hidden state [T, D].
            context: KV cache, to which the keys and values of the T new tokens are
                written.
            positions: Where the new tokens are in the cache: the position of the first
                one, or the spans of several sequences.
            rotations: Rotary table for the new positions, complex64 [T, h/2].
            mask: float32 [T, S], 0 for visible positions and -inf for all others. None
                for a single token, which sees every position, and for fused attention.

        Returns:
            The term to add to the residual stream, float32 [T, D].
        """
        mark(7)  # attention
        xq, xk, xv = self.heads(x)  # [T, D] -> [T, H, h], [T, K, h], [T, K, h]

        mark(10)  # rotary embedding: position becomes an angle
        xq = self.rotate(xq, rotations)
        xk = self.rotate(xk, rotations)

        mark(11)  # KV cache update
        cache = context.caches[self.layer]
        ml.write_cache(cache, positions, xk, xv)

        if context.is_eager and isinstance(positions, int):
            output = self.eager(xq, cache, positions, mask)  # [T, H, h]
        else:
            output = ml.attention(xq, cache, positions, self.divisor)  # [T, H, h]
        T, H, h = output.shape
        return self.project(output.reshape(T, H * h))  # [T, H*h] -> [T, D]

    def __call__(
        self, x: ml.Tensor, context: InferenceContext | None = None, start_pos: int = 0
    ) -> ml.Tensor:
        """Return `forward`, in a new context of the length of x [T, D] by default."""
        inputs = pass_inputs(self.args, x, context, start_pos)
        result = self.forward(x, *inputs)
        inputs[0].end()
        return result

    def queries_keys_values(self, x: ml.Tensor) -> tuple[ml.Tensor, ml.Tensor, ml.Tensor]:
        """Return queries [T, H*h], keys and values [T, K*h] of x [T, D]."""
        mark(8)  # queries, keys and values
        xq, xk, xv = ml.linear_transformations(  # [T, D] -> [T, H*h], [T, K*h], [T, K*h]
            x,
            (self.wq, self.wk, self.wv),
            None,
            (self.wq_bias, self.wk_bias, self.wv_bias),
        )
        return xq, xk, xv

    def heads(self, x: ml.Tensor) -> tuple[ml.Tensor, ml.Tensor, ml.Tensor]:
        """Return queries [T, H, h], keys and values [T, K, h] of x [T, D]."""
        xq, xk, xv = self.queries_keys_values(x)
        T = x.shape[0]
        H = self.args.n_heads
        K = self.args.n_kv_heads
        h = self.args.head_dim
        mark(9)  # reshape to heads
        xq = xq.reshape(T, H, h)  # [T, H*h] -> [T, H, h]
        xk = xk.reshape(T, K, h)  # [T, K*h] -> [T, K, h]
        xv = xv.reshape(T, K, h)  # [T, K*h] -> [T, K, h]
        return xq, xk, xv

    def rotate(self, x: ml.Tensor, rotations: ml.Tensor) -> ml.Tensor:
        """Rotate queries or keys [T, heads, h] by the angles of their token positions."""
        return ml.rotary_embedding(x, rotations, self.args.rope_pairs)

    def project(self, output: ml.Tensor) -> ml.Tensor:
        """Project the output of all heads [T, H*h] to model dimension: float32 [T, D]."""
        return ml.linear_transformation(output, self.wo, ml.float32, self.wo_bias)

    def eager(
        self,
        xq: ml.Tensor,
        cache: ml.KeyValueCache,
        start_pos: int,
        mask: ml.Tensor | None,
    ) -> ml.Tensor:
        """Compute attention with one op per stage, with the same bits as `ml.attention`.

        The new keys and values are already in the cache. The queries and the result have
        the shape [T, H, h].
        """
        keys, values = ml.read_cache(cache, 0, start_pos + xq.shape[0])  # [S, K, h]

        mark(12)  # repeat and transpose: pair each query head with its key/value head
        keys = ml.repeat_heads(keys, self.args.group_size)  # [S, K, h] -> [S, H, h]
        values = ml.repeat_heads(values, self.args.group_size)  # [S, K, h] -> [S, H, h]
        xq = xq.transpose(0, 1)  # [T, H, h] -> [H, T, h]
        keys = keys.transpose(0, 1).transpose(1, 2)  # [S, H, h] -> [H, h, S]
        values = values.transpose(0, 1)  # [S, H, h] -> [H, S, h]

        mark(13)  # scores, mask, softmax, in float32
        # [H, T, h] x [H, h, S] -> [H, T, S]
        scores = ml.matmul(xq, keys, dtype=ml.float32)
        scores = ml.multiply(scores, 1 / self.divisor)
        if mask is not None:
            scores = ml.add(scores, mask)
        weights = ml.softmax(scores, dim=-1)

        mark(14)  # attention output
        # [H, T, S] x [H, S, h] -> [H, T, h]
        output = ml.matmul(weights, values, xq.dtype)
        return output.transpose(0, 1)  # [H, T, h] -> [T, H, h]


class LlamaFeedForward(Module):
    """Transforms each token independently: w2(silu(w1(x)) * w3(x)).

    Source: Shazeer, GLU Variants Improve Transformer, 2020.
    """

    def __init__(self, args: ModelArgs, tensors: Weights, layer: int) -> None:
        self.args = args
        # The dtype of the gate and up projections if it differs from the dtype of x.
        self.dtype = args.dtype if args.feed_forward_dtype else None
        name = f"layers.{layer}.feed_forward"
        self.w1 = tensors[f"{name}.w1.weight"]  # [F, D]
        self.w2 = tensors[f"{name}.w2.weight"]  # [D, F]
        self.w3 = tensors[f"{name}.w3.weight"]  # [F, D]
        self.w1_bias = tensors.get(f"{name}.w1.bias")  # [F]
        self.w2_bias = tensors.get(f"{name}.w2.bias")  # [D]
        self.w3_bias = tensors.get(f"{name}.w3.bias")  # [F]

    def forward(self, x: ml.Tensor) -> ml.Tensor:
        """Return the term to add to the residual stream for x [T, D]: float32 [T, D]."""
        mark(17)  # feed-forward
        weights = self.w1, self.w3
        biases = self.w1_bias, self.w3_bias
        # Gate and up, the two largest activations, are not assigned to variables, so that
        # they are freed before w2 runs.
        hidden = ml.swiglu(  # [T, D] -> [T, F], [T, F] -> [T, F]
            *ml.linear_transformations(x, weights, self.dtype, biases)
        )
        if self.dtype is not None:
            hidden = hidden.to(x.dtype)
        return self.project(hidden)  # [T, F] -> [T, D]

    def project(self, hidden: ml.Tensor) -> ml.Tensor:
        """Project hidden [T, F] to model dimension: float32 [T, D]."""
        return ml.linear_transformation(hidden, self.w2, ml.float32, self.w2_bias)


class LlamaTransformerBlock(Module):
    """One layer: attention and feed-forward, each with a pre-norm and a residual."""

    attention_class: ClassVar[type[LlamaAttention]] = LlamaAttention
    feed_forward_class: ClassVar[type[LlamaFeedForward]] = LlamaFeedForward

    def __init__(self, args: ModelArgs, tensors: Weights, layer: int) -> None:
        self.layer = layer
        self.feed_forward_dtype = args.feed_forward_dtype or args.dtype
        name = f"layers.{layer}"
        self.attention_norm = RMSNorm(args, tensors, f"{name}.attention_norm")
        self.attention = self.attention_class(args, tensors, layer)
        self.ffn_norm = RMSNorm(
            args, tensors, f"{name}.ffn_norm", self.feed_forward_dtype
        )
        self.feed_forward = self.feed_forward_class(args, tensors, layer)

    def __call__(
        self, x: ml.Tensor, context: InferenceContext | None = None, start_pos: int = 0
    ) -> ml.Tensor:
        """Return `forward`, in a new context of the length of x [T, D] by default."""
        inputs = pass_inputs(self.attention.args, x, context, start_pos)
        result = self.forward(x, *inputs)
        inputs[0].end()
        return result

    def forward(
        self,
        x: ml.Tensor,
        context: InferenceContext,
        positions: ml.Positions,
        rotations: ml.Tensor,
        mask: ml.Tensor | None,
    ) -> ml.Tensor:
        """Pass the residual stream x, float32 [T, D], through the layer.

        The other arguments are the same as in `LlamaAttention.forward`.
        """
        mark(5, layer=self.layer)  # each transformer block
        mark(6)  # attention pre-norm
        normed = self.attention_norm.forward(x)
        attention = self.attention.forward(normed, context, positions, rotations, mask)
        mark(15)  # attention residual
        x = ml.add(x, attention)
        mark(16)  # feed-forward pre-norm
        normed = self.ffn_norm.forward(x)
        feed_forward = self.feed_forward.forward(normed)
        mark(18)  # feed-forward residual
        return ml.add(x, feed_forward)


class LlamaTransformer(Module):
    """The network from token ids to logits.

    Args:
        args: The model's sizes and constants.
        tensors: The weights by checkpoint key; `checkpoint/names.py` lists their shapes.
            Matrices may be block-quantized. Without `output.weight`, the embedding table
            also serves as the output matrix (tied embeddings).
    """

    block_class: ClassVar[type[LlamaTransformerBlock]] = LlamaTransformerBlock

    def __init__(self, args: ModelArgs, tensors: Weights) -> None:
        self.args = args
        self.tok_embeddings = tensors["tok_embeddings.weight"]  # [V, D]
        self.layers = tuple(
            self.block_class(args, tensors, layer) for layer in range(args.n_layers)
        )
        self.norm = RMSNorm(args, tensors, "norm")
        self.output = tensors.get("output.weight", self.tok_embeddings)  # [V, D]

    def __call__(
        self,
        tokens: Tokens,
        context: InferenceContext | None = None,
        start_pos: int = 0,
        all_positions: bool = False,
    ) -> ml.Tensor:
        """Return `forward`, in a new context of the length of the tokens by default."""
        if context is None:
            ids = token_tensor(tokens, self.args.vocab_size)
            context = InferenceContext(self.args, start_pos + ids.shape[0])
        return self.forward(context, tokens, start_pos, all_positions)

    def forward(
        self,
        context: InferenceContext,
        tokens: Tokens,
        start_pos: int = 0,
        all_positions: bool = False,
    ) -> ml.Tensor:
        """Compute the logits for the next token.

        The logits are bit-identical however a sequence is divided into calls, and
        whatever other sequences are in the same call.

        Args:
            context: KV cache. Positions before start_pos are read, the positions of the
                new tokens are written, and any later positions are discarded. A
                `BatchContext` contains several sequences, and `tokens` is then the
                concatenation of their new tokens.
            tokens: Ids of the new tokens: int32 [T], or any one-dimensional sequence of
                integers.
            start_pos: Position of the first new token, at most `context.length`. It is 0
                for a `BatchContext`, which contains the positions of its sequences.
            all_positions: Whether to return the logits after each token instead of only
                after the last one.

        Returns:
            Logits float32 [1, V], or [T, V] with all_positions. For several sequences,
            the shape is [n, V], with one row for each token that the context selects.

        Raises:
            TokenIdError: `tokens` is empty, or an id is not a row of the embedding table.
            PositionError: The positions leave a gap or do not fit into the context.
            ModelError: The context was created for a model with other sizes.
        """
        if context.args is not self.args and context.args != self.args:
            raise ModelError(
                "[forward] context must be made for this model: its sizes differ"
            )
        ids = token_tensor(tokens, self.args.vocab_size)
        T = ids.shape[0]

        mark(4, position=start_pos, T=T)  # input tensor (embedding), rotations, mask
        x = self.embed(ids)  # [T] -> [T, D]
        positions, rotations = context.begin(start_pos, T)  # [T, h/2]
        mask = causal_mask(T, start_pos) if context.is_eager else None
        for layer in self.layers:
            try:
                x = layer.forward(x, context, positions, rotations, mask)
            except (ml.ShapeError, ml.DTypeError) as error:
                weight = wrong_weight(layer, layer.layer, self.args)
                raise type(error)(f"{weight}: {error}") from error
        context.end()

        mark(19)  # output norm and logits
        if not all_positions:
            x = context.last_rows(x)  # [T, D] -> [1, D]
        x = self.norm.forward(x)
        return self.logits(x)  # [T, D] -> [T, V]

    def embed(self, ids: ml.Tensor) -> ml.Tensor:
        """Look up the embeddings of token ids [T]: float32 [T, D]."""
        return ml.get_rows(self.tok_embeddings, ids).to(ml.float32)

    def logits(self, x: ml.Tensor) -> ml.Tensor:
        """Return the logits [T, V] for normalized rows x [T, D]."""
        return ml.linear_transformation(x, self.output, dtype=ml.float32)


def causal_mask(T: int, start_pos: int) -> ml.Tensor | None:
    """Return a mask with 0 for visible and -inf for later positions: float32 [T, S].

    Row t belongs to position start_pos + t, which sees all cached columns and the new
    columns up to its own. A single token sees every position and needs no mask.
    """
    if T == 1:
        return None
    later = ml.full((T, start_pos + T), -math.inf, dtype=ml.float32)
    return ml.triu(later, start_pos + 1)


def pass_inputs(
    args: ModelArgs, x: ml.Tensor, context: InferenceContext | None, start_pos: int
) -> tuple[InferenceContext, ml.Positions, ml.Tensor, ml.Tensor | None]:
    """Begin a pass of one layer over x [T, D]; the caller ends it.

    Returns:
        The context, which is a new one of length T by default, and the positions,
        rotations and mask that `LlamaAttention.forward` describes.
    """
    if not isinstance(x, ml.Tensor):
        raise ml.TensorTypeError(f"[layer] x must be a Tensor: {type(x).__name__}")
    T = x.shape[0]
    if context is None:
        context = InferenceContext(args, start_pos + T)
    positions, rotations = context.begin(start_pos, T)
    mask = causal_mask(T, start_pos) if context.is_eager else None
    return context, positions, rotations, mask
