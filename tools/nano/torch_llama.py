"""The Llama 3.1 network in PyTorch, for training: attribute names are Meta's checkpoint
keys.
"""

# mypy: allow-subclassing-any
# Where PyTorch is not installed, as in the lint run, its classes have no known type.

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
import torch.nn.functional as F  # noqa: N812 - the field's name for it
from torch import Tensor, nn


@dataclass(frozen=True)
class NanoConfig:
    """The sizes of the bundled model; the fields are the keys of Meta's `params.json`."""

    dim: int = 192
    n_layers: int = 4
    n_heads: int = 6
    n_kv_heads: int = 2
    vocab_size: int = 4096
    multiple_of: int = 32
    ffn_dim_multiplier: float = 1.0625
    norm_eps: float = 1e-5
    rope_theta: float = 500000.0
    use_scaled_rope: bool = True

    @property
    def head_dim(self) -> int:
        """h = D / H."""
        return self.dim // self.n_heads

    @property
    def ffn_dim(self) -> int:
        """F by Meta's formula: int(2 * 4 D / 3), times the multiplier, up to a
        `multiple_of`.
        """
        hidden = int(self.ffn_dim_multiplier * int(2 * 4 * self.dim / 3))
        return self.multiple_of * -(-hidden // self.multiple_of)


def rope_frequencies(config: NanoConfig) -> Tensor:
    """Return the angle per position of each pair, [h/2] float64, scaled as in Llama 3.1.

    Source: meta-llama/llama-models, models/llama3/model.py, `apply_scaling`.
    """
    factor = 8.0
    low_factor = 1.0
    high_factor = 4.0
    original = 8192.0
    exponent = torch.arange(0, config.head_dim, 2, dtype=torch.float64) / config.head_dim
    frequencies = config.rope_theta**-exponent
    turns = original * frequencies / (2 * math.pi)
    smooth = ((turns - low_factor) / (high_factor - low_factor)).clamp(0, 1)
    return (1 - smooth) * frequencies / factor + smooth * frequencies


class RMSNorm(nn.Module):
    """x / sqrt(mean(x^2) + eps) * weight."""

    def __init__(self, dim: int, eps: float) -> None:
        super().__init__()
        self.eps = eps
        self.weight = nn.Parameter(torch.ones(dim))

    def forward(self, x: Tensor) -> Tensor:
        """Norm the last dimension of x."""
        return x * torch.rsqrt(x.square().mean(-1, keepdim=True) + self.eps) * self.weight


def rotate(x: Tensor, angles: Tensor) -> Tensor:
    """Multiply adjacent pairs, seen as complex numbers x0 + i x1, by cos + i sin.

    Args:
        x: [B, T, heads, h].
        angles: cosines and sines, [2, B, T, 1, h/2].
    """
    real, imaginary = x.reshape(*x.shape[:-1], -1, 2).unbind(-1)
    cos, sin = angles.unbind(0)
    turned = torch.stack(
        (real * cos - imaginary * sin, real * sin + imaginary * cos), dim=-1
    )
    return turned.flatten(-2)


class Attention(nn.Module):
    """Grouped-query attention."""

    def __init__(self, config: NanoConfig) -> None:
        super().__init__()
        self.heads = config.n_heads
        self.kv_heads = config.n_kv_heads
        self.head_dim = config.head_dim
        self.wq = nn.Linear(config.dim, config.n_heads * config.head_dim, bias=False)
        self.wk = nn.Linear(config.dim, config.n_kv_heads * config.head_dim, bias=False)
        self.wv = nn.Linear(config.dim, config.n_kv_heads * config.head_dim, bias=False)
        self.wo = nn.Linear(config.n_heads * config.head_dim, config.dim, bias=False)

    def forward(self, x: Tensor, angles: Tensor, mask: Tensor | None) -> Tensor:
        """Return what each row gathers, [B, T, D] -> [B, T, D]."""
        batch, length, _ = x.shape
        group = self.heads // self.kv_heads
        xq = rotate(
            self.wq(x).view(batch, length, self.heads, self.head_dim), angles
        ).transpose(1, 2)
        xk = rotate(
            self.wk(x).view(batch, length, self.kv_heads, self.head_dim), angles
        ).transpose(1, 2)
        xv = self.wv(x).view(batch, length, self.kv_heads, self.head_dim).transpose(1, 2)
        xk = xk.repeat_interleave(group, dim=1)
        xv = xv.repeat_interleave(group, dim=1)
        if mask is None:  # long rows: scores of T * T numbers would not fit into a cache
            out = F.scaled_dot_product_attention(xq, xk, xv, is_causal=True)
        else:  # short rows: four times as fast as the fused gradient in bfloat16 on a CPU
            scores = xq @ xk.transpose(2, 3) / self.head_dim**0.5
            weights = scores.masked_fill(~mask, -torch.inf).softmax(dim=3)
            out = weights.to(xv.dtype) @ xv
        result: Tensor = self.wo(out.transpose(1, 2).reshape(batch, length, -1))
        return result


class FeedForward(nn.Module):
    """w2(silu(w1 x) * w3 x)."""

    def __init__(self, config: NanoConfig) -> None:
        super().__init__()
        self.w1 = nn.Linear(config.dim, config.ffn_dim, bias=False)
        self.w2 = nn.Linear(config.ffn_dim, config.dim, bias=False)
        self.w3 = nn.Linear(config.dim, config.ffn_dim, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        """Return the transformed rows, [B, T, D] -> [B, T, D]."""
        result: Tensor = self.w2(F.silu(self.w1(x)) * self.w3(x))
        return result


class Block(nn.Module):
    """Attention and feed-forward, each after a norm and added to its input."""

    def __init__(self, config: NanoConfig) -> None:
        super().__init__()
        self.attention = Attention(config)
        self.feed_forward = FeedForward(config)
        self.attention_norm = RMSNorm(config.dim, config.norm_eps)
        self.ffn_norm = RMSNorm(config.dim, config.norm_eps)

    def forward(self, x: Tensor, angles: Tensor, mask: Tensor | None) -> Tensor:
        """Return the stream after this block, [B, T, D] -> [B, T, D]."""
        x = x + self.attention(self.attention_norm(x), angles, mask)
        result: Tensor = x + self.feed_forward(self.ffn_norm(x))
        return result


class NanoLlama(nn.Module):
    """The whole network."""

    def __init__(self, config: NanoConfig) -> None:
        super().__init__()
        self.config = config
        self.tok_embeddings = nn.Embedding(config.vocab_size, config.dim)
        self.layers = nn.ModuleList(Block(config) for _ in range(config.n_layers))
        self.norm = RMSNorm(config.dim, config.norm_eps)
        self.output = nn.Linear(config.dim, config.vocab_size, bias=False)
        self._frequencies: Tensor
        self.register_buffer("_frequencies", rope_frequencies(config), persistent=False)
        for name, weight in self.named_parameters():
            if weight.ndim == 2:
                into_stream = name.endswith(("wo.weight", "w2.weight"))
                shrink = math.sqrt(2 * config.n_layers) if into_stream else 1.0
                nn.init.normal_(weight, std=0.02 / shrink)

    def forward(self, tokens: Tensor, positions: Tensor, mask: Tensor | None) -> Tensor:
        """Return the normed rows, [B, T] -> [B, T, D]; `output` turns the wanted ones
        into logits.

        Args:
            tokens: [B, T] int64.
            positions: [B, T] int64, counted from the start of each document.
            mask: [B, 1, T, T] bool, True where a query may look; None for plain causal
                attention.
        """
        turned = (positions[..., None] * self._frequencies)[:, :, None, :]
        angles = torch.stack((turned.cos(), turned.sin())).float()
        x = self.tok_embeddings(tokens)
        for layer in self.layers:
            x = layer(x, angles, mask)
        result: Tensor = self.norm(x)
        return result
