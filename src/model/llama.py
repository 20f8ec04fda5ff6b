"""The whole Llama network, to be read from top to bottom: parts before wholes.

The families next to Llama run through the same lines. What differs is data of `ModelArgs`, and each
part decides when it is made what it does; `docs/19-llamas.md` compares them.

Attributes have the names of Meta's checkpoint keys, so that loading is a lookup:
`transformer.layers[3].attention.wq` is the tensor `layers.3.attention.wq.weight`. The letters of
the shape comments: T new tokens, S cached plus new tokens, D model dimension, H query heads,
K key/value heads, G = H/K, h head dimension, F feed-forward dimension, V vocabulary. `mark(8)` says
that stage 8 of the trace begins; it calculates nothing.

The residual stream, to which each part adds, is float32; between the ops of a part, activations
have the dtype that goes with the weights. With BF16 of GGUF files that is float32 too, and only
the inputs of the feed-forward's matrices are bfloat16.

Source: meta-llama/llama-models, models/llama3/model.py.
"""

import math
from collections.abc import Mapping, Sequence
from operator import attrgetter
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from .. import ml
from ..trace import mark
from .args import ModelArgs
from .context import BatchContext, InferenceContext
from .errors import ModelError, TokenIdError

Tokens: TypeAlias = ml.Tensor | Sequence[int] | npt.NDArray[np.integer]
Context: TypeAlias = InferenceContext | BatchContext
StartPos: TypeAlias = Any  # an int; with a BatchContext the `ml.Spans` of its sequences
# By checkpoint key: `ml.Tensor`, or for matrices `ml.QuantizedTensor` too.
Weights: TypeAlias = Mapping[str, Any]


def whole(x: ml.Tensor, _: str, /) -> ml.Tensor:
    """Return what one process computed: all columns. `ranks.py` joins those of several."""
    return x


class RMSNorm:
    """Scales each row to a root mean square of 1, then by a learned weight per column.

    x / sqrt(mean(x^2) + eps) * weight

    Source: Zhang and Sennrich, Root Mean Square Layer Normalization, 2019.
    """

    def __init__(
        self, args: ModelArgs, tensors: Weights, name: str, dtype: ml.DType | None = None
    ) -> None:
        self.eps = args.norm_eps
        self.dtype = args.dtype if dtype is None else dtype
        self.weight = tensors[f"{name}.weight"]  # [D]

    def forward(self, x: ml.Tensor) -> ml.Tensor:
        """Normalize the rows of x, mostly the residual stream [T, D], into activations."""
        return ml.rms_norm(x, self.weight, self.eps, self.dtype)


class LlamaAttention:
    """Lets each token read from itself and the tokens before it.

    softmax(q k^T / sqrt(h) + mask) v, for H query heads that share K key/value heads. Granite has
    another divisor than sqrt(h).

    Source: Vaswani et al., Attention Is All You Need, 2017; Ainslie et al., GQA, 2023.
    """

    def __init__(self, args: ModelArgs, tensors: Weights, layer: int) -> None:
        self.args, self.gather = args, whole
        self.layer = layer
        name = f"layers.{layer}.attention"
        self.wq = tensors[f"{name}.wq.weight"]  # [H*h, D]
        self.wk = tensors[f"{name}.wk.weight"]  # [K*h, D]
        self.wv = tensors[f"{name}.wv.weight"]  # [K*h, D]
        self.wo = tensors[f"{name}.wo.weight"]  # [D, H*h]
        # Meta's models have no biases; some of Hugging Face's do.
        self.wq_bias = tensors.get(f"{name}.wq.bias")  # [H*h]
        self.wk_bias = tensors.get(f"{name}.wk.bias")  # [K*h]
        self.wv_bias = tensors.get(f"{name}.wv.bias")  # [K*h]
        self.wo_bias = tensors.get(f"{name}.wo.bias")  # [D]
        norm = args.parts.query_key_norm  # of Qwen3 over each head, of OLMo 2 over all of them
        self.q_norm = RMSNorm(args, tensors, f"{name}.q_norm") if norm else None  # [h] or [H*h]
        self.k_norm = RMSNorm(args, tensors, f"{name}.k_norm") if norm else None  # [h] or [K*h]
        self.norms_all_heads = norm == "all"
        self.is_rotated = layer not in args.layers_without_rope  # SmolLM3 leaves out every fourth
        scale = args.attention_multiplier  # Granite's
        self.divisor = math.sqrt(args.head_dim) if scale is None else 1 / scale

    def forward(
        self,
        x: ml.Tensor,
        context: Context,
        start_pos: StartPos,
        frequencies: ml.Tensor,
        mask: ml.Tensor | None,
    ) -> ml.Tensor:
        """Return a weighted sum of the values of the positions that each token may see.

        Args:
            x: Normalized hidden state [T, D].
            context: KV cache; receives the keys and values of the T new positions.
            start_pos: Position of the first new token, or where those of several sequences belong.
            frequencies: Rotary table of the new positions, complex64 [T, h/2].
            mask: 0 where a token may look and -inf elsewhere, float32 [T, S]; None for one token,
                which may look everywhere, and for fused attention, which needs none.

        Returns:
            What to add to the residual stream: float32 [T, D].
        """
        mark(7)  # attention
        args, gather = self.args, self.gather
        T, H, K, h = x.shape[0], args.n_heads, args.n_kv_heads, args.head_dim

        mark(8)  # queries, keys and values
        xq, xk, xv = ml.linear_transformations(  # [T, D] -> [T, H*h], [T, K*h], [T, K*h]
            x, (self.wq, self.wk, self.wv), None, (self.wq_bias, self.wk_bias, self.wv_bias)
        )

        if self.q_norm and self.k_norm and self.norms_all_heads:
            xq, xk = self.q_norm.forward(xq), self.k_norm.forward(xk)  # [T, H*h], [T, K*h]

        mark(9)  # reshape to heads
        xq = xq.reshape(T, H, h)  # [T, H*h] -> [T, H, h]
        xk = xk.reshape(T, K, h)  # [T, K*h] -> [T, K, h]
        xv = xv.reshape(T, K, h)  # [T, K*h] -> [T, K, h]

        if self.q_norm and self.k_norm and not self.norms_all_heads:
            xq, xk = self.q_norm.forward(xq), self.k_norm.forward(xk)  # [T, H, h], [T, K, h]

        mark(10)  # rotary embedding: position becomes an angle
        if self.is_rotated:
            xq = ml.rotary_embedding(xq, frequencies, args.rope_pairs)
            xk = ml.rotary_embedding(xk, frequencies, args.rope_pairs)

        mark(11)  # KV cache update
        cache = context.caches[self.layer]
        ml.write_cache(cache, start_pos, xk, xv)

        if context.is_eager:
            output = self.eager(xq, cache, start_pos, mask)  # [T, H, h]
        else:
            output = ml.attention(xq, cache, start_pos, self.divisor)  # [T, H, h]
        output = gather(output.reshape(T, H * h), "Hh")  # [T, H, h] -> [T, H*h]
        output = ml.linear_transformation(output, self.wo, ml.float32, self.wo_bias)
        return gather(output, "D")  # [T, H*h] -> [T, D]

    def eager(
        self, xq: ml.Tensor, cache: ml.KeyValueCache, start_pos: int, mask: ml.Tensor | None
    ) -> ml.Tensor:
        """Do what `ml.attention` does, with one op per stage.

        The new keys and values have been written. Queries and result are [T, H, h].
        """
        keys, values = ml.read_cache(cache, 0, start_pos + xq.shape[0])  # [S, K, h]

        mark(12)  # repeat heads and transposes: every query head meets its key/value head
        keys = ml.repeat_heads(keys, self.args.group_size)  # [S, K, h] -> [S, H, h]
        values = ml.repeat_heads(values, self.args.group_size)  # [S, K, h] -> [S, H, h]
        xq = xq.transpose(0, 1)  # [T, H, h] -> [H, T, h]
        keys = keys.transpose(0, 1).transpose(1, 2)  # [S, H, h] -> [H, h, S]
        values = values.transpose(0, 1)  # [S, H, h] -> [H, S, h]

        mark(13)  # scores, mask, softmax: float32 until they are probabilities
        scores = ml.matmul(xq, keys, dtype=ml.float32)  # [H, T, h] x [H, h, S] -> [H, T, S]
        scores = ml.div(scores, self.divisor)
        if mask is not None:
            scores = ml.add(scores, mask)
        scores = ml.softmax(scores, dim=-1, dtype=xq.dtype)

        mark(14)  # attention output
        output = ml.matmul(scores, values)  # [H, T, S] x [H, S, h] -> [H, T, h]
        return output.transpose(0, 1)  # [H, T, h] -> [T, H, h]


class LlamaFeedForward:
    """Transforms each token by itself: w2(silu(w1(x)) * w3(x)).

    Source: Shazeer, GLU Variants Improve Transformer, 2020.
    """

    def __init__(self, args: ModelArgs, tensors: Weights, layer: int) -> None:
        self.gather = whole
        # The dtype of gate and up, where it is not that of x.
        self.dtype = args.dtype if args.feed_forward_dtype else None
        name = f"layers.{layer}.feed_forward"
        self.w1 = tensors[f"{name}.w1.weight"]  # [F, D]
        self.w2 = tensors[f"{name}.w2.weight"]  # [D, F]
        self.w3 = tensors[f"{name}.w3.weight"]  # [F, D]
        self.w1_bias = tensors.get(f"{name}.w1.bias")  # [F]
        self.w2_bias = tensors.get(f"{name}.w2.bias")  # [D]
        self.w3_bias = tensors.get(f"{name}.w3.bias")  # [F]

    def forward(self, x: ml.Tensor) -> ml.Tensor:
        """Transform x [T, D] into what to add to the residual stream: float32 [T, D]."""
        mark(17)  # feed-forward
        weights = self.w1, self.w3
        biases = self.w1_bias, self.w3_bias
        # Neither of the two keeps a name, so that both are freed before w2: the model's largest.
        hidden = ml.swiglu(  # [T, D] -> [T, F], [T, F] -> [T, F]
            *ml.linear_transformations(x, weights, self.dtype, biases)
        )
        if self.dtype is not None:
            hidden = hidden.to(x.dtype)
        hidden = self.gather(hidden, "F")
        output = ml.linear_transformation(hidden, self.w2, ml.float32, self.w2_bias)
        return self.gather(output, "D")  # [T, F] -> [T, D]


class LlamaTransformerBlock:
    """One layer: attention, then feed-forward, each normalized before and added to its input.

    In OLMo 2 their results are normalized, and not what goes into them.
    """

    def __init__(self, args: ModelArgs, tensors: Weights, layer: int) -> None:
        self.layer = layer
        self.dtype = args.dtype
        self.feed_forward_dtype = args.feed_forward_dtype or args.dtype
        self.norms_after = args.parts.norms_after
        self.residual_multiplier = args.residual_multiplier  # 1 but for Granite
        stream = ml.float32 if self.norms_after else None  # or the dtype of the part that follows
        self.attention_norm = RMSNorm(args, tensors, f"layers.{layer}.attention_norm", stream)
        self.attention = LlamaAttention(args, tensors, layer)
        dtype = stream or self.feed_forward_dtype
        self.ffn_norm = RMSNorm(args, tensors, f"layers.{layer}.ffn_norm", dtype)
        self.feed_forward = LlamaFeedForward(args, tensors, layer)

    def forward(
        self,
        x: ml.Tensor,
        context: Context,
        start_pos: StartPos,
        frequencies: ml.Tensor,
        mask: ml.Tensor | None,
    ) -> ml.Tensor:
        """Pass the residual stream x, float32 [T, D], through the layer.

        The other arguments are as in the attention.
        """
        mark(5, layer=self.layer)  # each transformer block
        mark(6)  # attention pre-norm
        normed = x.to(self.dtype) if self.norms_after else self.attention_norm.forward(x)
        attention = self.attention.forward(normed, context, start_pos, frequencies, mask)
        mark(15)  # attention residual
        if self.norms_after:
            attention = self.attention_norm.forward(attention)
        if self.residual_multiplier != 1:
            attention = ml.multiply(attention, self.residual_multiplier)
        x = ml.add(x, attention)
        mark(16)  # feed-forward pre-norm
        normed = x.to(self.feed_forward_dtype) if self.norms_after else self.ffn_norm.forward(x)
        feed_forward = self.feed_forward.forward(normed)
        mark(18)  # feed-forward residual
        if self.norms_after:
            feed_forward = self.ffn_norm.forward(feed_forward)
        if self.residual_multiplier != 1:
            feed_forward = ml.multiply(feed_forward, self.residual_multiplier)
        return ml.add(x, feed_forward)


class LlamaTransformer:
    """The network from token ids to logits.

    Args:
        args: The sizes.
        tensors: The weights by checkpoint key; `checkpoint/names.py` has their shapes. Matrices
            may be block-quantized. Without `output.weight` the embedding table serves as output
            (tied embeddings).
    """

    def __init__(self, args: ModelArgs, tensors: Weights) -> None:
        self.args, self.gather = args, whole
        self.tok_embeddings = tensors["tok_embeddings.weight"]  # [V, D]
        self.layers = tuple(
            LlamaTransformerBlock(args, tensors, layer) for layer in range(args.n_layers)
        )
        self.norm = RMSNorm(args, tensors, "norm")
        self.output = tensors.get("output.weight", self.tok_embeddings)  # [V, D]

    def __repr__(self) -> str:
        sizes = ", ".join(f"{letter}={size}" for letter, size in self.args.sizes.items())
        return f"LlamaTransformer({sizes}, {self.tok_embeddings.dtype})"

    def forward(
        self,
        context: Context,
        tokens: Tokens,
        start_pos: StartPos = 0,
        all_positions: bool = False,
    ) -> ml.Tensor:
        """Compute what may follow the tokens.

        The logits have the same bits however a sequence is cut into calls, and whichever other
        sequences share a call.

        Args:
            context: KV cache; the positions below start_pos are read, those from start_pos on are
                written, and what was beyond them is forgotten. A `BatchContext` holds several
                sequences, whose tokens follow each other.
            tokens: Ids of the new tokens: int32 [T], or any one-dimensional sequence of integers.
            start_pos: Position of the first new token, at most `context.length`; with several
                sequences, where the tokens of each belong.
            all_positions: Whether to return the logits after each token, not only the last.

        Returns:
            Logits float32 [1, V], or [T, V] with all_positions; of several sequences after the
            tokens that its context names [n, V].

        Raises:
            TokenIdError: No token, or an id that is not a row of the embedding table.
            PositionError: The positions leave a gap or do not fit into the context.
            ModelError: The context was made for a model of other sizes.
        """
        if context.args is not self.args and context.args != self.args:
            raise ModelError("[forward] context must be made for this model: its sizes differ")
        ids = token_tensor(tokens, self.args.vocab_size)
        T = ids.shape[0]

        mark(4, position=start_pos, T=T)  # input tensor (embedding), frequencies, mask
        x = self.gather(ml.get_rows(self.tok_embeddings, ids), "D").to(ml.float32)  # [T] -> [T, D]
        if self.args.embedding_multiplier != 1:  # Granite's
            x = ml.multiply(x, self.args.embedding_multiplier)
        frequencies = context.begin(start_pos, T)  # [T, h/2]
        mask = causal_mask(T, start_pos) if context.is_eager else None
        for layer in self.layers:
            try:
                x = layer.forward(x, context, start_pos, frequencies, mask)
            except (ml.ShapeError, ml.DTypeError) as error:
                raise type(error)(f"{wrong_weight(layer, self.args)}: {error}") from error
        context.end(start_pos, T)

        mark(19)  # output norm and logits
        if not all_positions:
            x = context.last_rows(x, T)  # [T, D] -> [1, D]
        x = self.norm.forward(x)
        # [T, D] -> [T, V]
        logits = self.gather(ml.linear_transformation(x, self.output, dtype=ml.float32), "V")
        scaling = self.args.logits_scaling  # Granite's
        return logits if scaling == 1 else ml.div(logits, scaling)


def wrong_weight(layer: LlamaTransformerBlock, args: ModelArgs) -> str:
    """Name a layer, and its first weight whose shape is not that of the model's sizes, if any."""
    for name, expected in args.tensor_shapes.items():
        path = name.removeprefix(f"layers.{layer.layer}.")
        if path == name or path.endswith(".bias"):
            continue
        path = path if "norm" in path else path.removesuffix(".weight")
        shape = attrgetter(path)(layer).shape
        if shape != expected:
            return f"layers.{layer.layer}.{path} must be {list(expected)}: {list(shape)}"
    return f"layers.{layer.layer}"


def causal_mask(T: int, start_pos: int) -> ml.Tensor | None:
    """Return 0 where a token may look, -inf at later positions: float32 [T, S].

    Row t is position start_pos + t; it sees all cached columns and the new ones up to its own.
    One token sees everything, and needs no mask.
    """
    if T == 1:
        return None
    ahead = ml.full((T, start_pos + T), -math.inf, dtype=ml.float32)
    return ml.triu(ahead, start_pos + 1)


def token_tensor(tokens: Tokens, vocab_size: int) -> ml.Tensor:
    """Return token ids as int32 [T] after checking each of them.

    Raises:
        TokenIdError: The ids are not one-dimensional, not whole numbers, none at all, or outside
            of 0 to vocab_size - 1.
    """
    numbers: Any = tokens
    if type(tokens) is not list or {*map(type, tokens)} != {int}:
        try:
            ids = np.asarray(tokens)
        except (ValueError, OverflowError) as error:
            raise TokenIdError("[forward] tokens must be a sequence of whole numbers") from error
        if ids.ndim != 1 or ids.size == 0 or ids.dtype.kind not in "iu":
            raise TokenIdError(
                "[forward] tokens must be whole numbers of shape [T], T >= 1: "
                f"got {ids.dtype} {list(ids.shape)}"
            )
        numbers = ids.tolist()
    if min(numbers) < 0 or max(numbers) >= vocab_size:
        at, bad = next((i, n) for i, n in enumerate(numbers) if not 0 <= n < vocab_size)
        raise TokenIdError(f"[forward] tokens[{at}] must be from 0 to {vocab_size - 1}: got {bad}")
    return ml.Tensor.from_integers(numbers, name="tokens")
