"""Attention with windows, sinks or capped scores, for the families that have them.

A family sets `window`, `sinks` and `soft_cap` of its attention class. The result has the
same bits for any division of a sequence into calls, because the sums over positions keep
the blocks and lanes of absolute positions, wherever a window begins.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from .. import ml
from ..trace import mark
from .args import ModelArgs
from .context import InferenceContext
from .forecast import PREFILL_CHUNK
from .llama import LlamaAttention, Weights


@dataclass(frozen=True)
class WindowArgs(ModelArgs):
    """Llama's sizes and constants, and the windows of layers.

    Attributes:
        window: The number of positions that a token sees in a layer with a window.
        window_layers: The layers with a window.
    """

    window: int | None = None
    window_layers: tuple[int, ...] = ()

    @property
    def windows(self) -> Sequence[int | None]:
        """Return, for each layer, the number of positions that a token sees, or None."""
        layers = range(self.n_layers)
        return [self.window if n in self.window_layers else None for n in layers]


@dataclass(frozen=True)
class LocalRopeArgs(WindowArgs):
    """Llama's sizes and constants, and a rotary embedding for layers with a window.

    Attributes:
        local_rope_theta: The base of the rotary embedding in layers with a window.
    """

    local_rope_theta: float = 10_000.0

    @property
    def rope_tables(self) -> Sequence[tuple[float, Any]]:
        """Return theta and the scaling for layers without and with a window."""
        return [(self.rope_theta, self.rope_scaling), (self.local_rope_theta, None)]

    @property
    def rope_table_of_layer(self) -> Sequence[int]:
        """Return, for each layer, the index of its rotary table."""
        return [int(window is not None) for window in self.windows]


class WindowAttention(LlamaAttention):
    """Llama's attention over the last positions, with optional sinks and a soft cap.

    Attributes:
        window: The number of positions that a token sees, itself included, or None for
            all earlier positions.
        sinks: Scores [H] that take part in the softmax without a value, or None.
        soft_cap: The limit of the scores, or None.

    Source: Beltagy et al., Longformer, 2020; Xiao et al., Efficient Streaming Language
    Models with Attention Sinks, 2023; Gemma Team, Gemma 2, 2024.
    """

    window: int | None = None
    sinks: ml.Tensor | None = None
    soft_cap: float | None = None

    def __init__(self, args: ModelArgs, tensors: Weights, layer: int) -> None:
        super().__init__(args, tensors, layer)
        self.window = args.windows[layer]
        sinks = tensors.get(f"layers.{layer}.attention.sinks.weight")  # [H]
        self.sinks = None if sinks is None else sinks.to(ml.float32)
        pairs = args.rotary_dim // 2
        first = args.rope_table_of_layer[layer] * pairs
        has_several = len(args.rope_tables) > 1
        # The columns of the layer's rotary table among the tables of all layers.
        self.columns = slice(first, first + pairs) if has_several else None

    def forward(
        self,
        x: ml.Tensor,
        context: InferenceContext,
        positions: ml.Positions,
        rotations: ml.Tensor,
        mask: ml.Tensor | None,
    ) -> ml.Tensor:
        """Return, for each token, a weighted sum of the values that it may attend to.

        The arguments are the same as in `LlamaAttention.forward`.
        """
        mark(7)  # attention
        xq, xk, xv = self.heads(x)  # [T, D] -> [T, H, h], [T, K, h], [T, K, h]

        mark(10)  # rotary embedding: position becomes an angle
        xq, xk = self.rotate_both(xq, xk, rotations)

        T, H, h = xq.shape
        cache = context.caches[self.layer]
        if cache.ring_blocks is None or T <= PREFILL_CHUNK:
            output = self.attend(xq, xk, xv, context, positions, mask)  # [T, H, h]
        else:  # a ring does not contain more new positions than a chunk and its window
            assert isinstance(positions, int), "caches of several sequences are not rings"
            parts = []
            for row in range(0, T, PREFILL_CHUNK):
                end = min(T, row + PREFILL_CHUNK)
                part = self.attend(
                    xq.slice(row, end),
                    xk.slice(row, end),
                    xv.slice(row, end),
                    context,
                    positions + row,
                    None,
                )
                parts.append(part)
            output = ml.concatenate(parts)  # [T, H, h]
        return self.project(output.reshape(T, H * h))  # [T, H*h] -> [T, D]

    def attend(
        self,
        xq: ml.Tensor,
        xk: ml.Tensor,
        xv: ml.Tensor,
        context: InferenceContext,
        positions: ml.Positions,
        mask: ml.Tensor | None,
    ) -> ml.Tensor:
        """Write keys and values [T, K, h] to the cache, and attend to it: [T, H, h]."""
        mark(11)  # KV cache update
        cache = context.caches[self.layer]
        ml.write_cache(cache, positions, xk, xv)

        if context.is_eager and isinstance(positions, int):
            return self.eager(xq, cache, positions, mask)
        return ml.attention(
            xq, cache, positions, self.divisor, self.window, self.sinks, self.soft_cap
        )

    @property
    def limits(self) -> dict[str, Any]:
        """Return the limits of attention in this layer, for the trace."""
        return {
            "window": self.window,
            "sinks": self.sinks is not None,
            "soft_cap": self.soft_cap is not None,
        }

    def rotate_both(
        self, xq: ml.Tensor, xk: ml.Tensor, rotations: ml.Tensor
    ) -> tuple[ml.Tensor, ml.Tensor]:
        """Rotate queries [T, H, h] and keys [T, K, h] by the layer's rotary table."""
        if self.columns is not None:
            rotations = rotations[:, self.columns].contiguous()
        return self.rotate(xq, rotations), self.rotate(xk, rotations)

    def eager(
        self,
        xq: ml.Tensor,
        cache: ml.KeyValueCache,
        start_pos: int,
        mask: ml.Tensor | None,
    ) -> ml.Tensor:
        """Compute attention with one op per stage, with the same bits as `ml.attention`.

        The keys and values are read from the beginning of the first block of 256
        positions that the window reaches, so that sums have the same blocks as without a
        window.
        """
        T = xq.shape[0]
        window = self.window or start_pos + T
        first = max(0, start_pos + 1 - window) // ml.BLOCK_POSITIONS * ml.BLOCK_POSITIONS
        keys, values = ml.read_cache(cache, first, start_pos + T)  # [S, K, h]

        mark(12)  # repeat and transpose: pair each query head with its key/value head
        keys = ml.repeat_heads(keys, self.args.group_size)  # [S, K, h] -> [S, H, h]
        values = ml.repeat_heads(values, self.args.group_size)  # [S, K, h] -> [S, H, h]
        xq = xq.transpose(0, 1)  # [T, H, h] -> [H, T, h]
        keys = keys.transpose(0, 1).transpose(1, 2)  # [S, H, h] -> [H, h, S]
        values = values.transpose(0, 1)  # [S, H, h] -> [H, S, h]

        mark(13, details=self.limits)  # scores, mask, softmax, in float32
        # [H, T, h] x [H, h, S] -> [H, T, S]
        scores = ml.matmul(xq, keys, dtype=ml.float32)
        scores = ml.multiply(scores, 1 / self.divisor)
        if self.soft_cap is not None:
            scores = ml.soft_cap(scores, self.soft_cap)
        if start_pos + T > window or (mask is None and T > 1):
            mask = window_mask(T, start_pos, window, first)
        if mask is not None:
            scores = ml.add(scores, mask)
        weights = ml.softmax(scores, dim=-1, sinks=self.sinks)

        mark(14)  # attention output
        # [H, T, S] x [H, S, h] -> [H, T, h]
        output = ml.matmul(weights, values, xq.dtype)
        return output.transpose(0, 1)  # [H, T, h] -> [T, H, h]


def window_mask(T: int, start_pos: int, window: int, first: int = 0) -> ml.Tensor:
    """Return a mask with 0 for visible and -inf for other positions: float32 [T, S].

    Row t belongs to position start_pos + t, which sees itself and the `window` - 1
    positions before it. The columns are the positions from `first` on.
    """
    columns = start_pos + T - first
    hidden = ml.full((T, columns), -math.inf, dtype=ml.float32)
    later = ml.triu(hidden, start_pos - first + 1)
    earlier = ml.tril(hidden, start_pos - first - window)
    return ml.add(later, earlier)
