"""The network once more, in plain float32 NumPy: what every engine's logits are held
against.

Quantized weights are dequantized; what quantizing costs is not its business.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from src import ml
from src.model import Model, load_model
from src.model.rope import pair_frequencies

from .processes import Served

# Of the root mean square of the reference, for engines that round activations to
# bfloat16: they are off by about 0.01, unrelated logits by 1.4.
BOUND = 0.05
Case = tuple[list[int], list[int]]


def relative_error(logits: Any, reference: Any) -> float:
    """Give the root mean square of the difference over that of the reference."""
    difference = logits.astype(np.float64) - reference
    return float(
        np.sqrt((difference**2).mean() / (reference.astype(np.float64) ** 2).mean())
    )


def verified(
    name: str, served: Served, cases: Mapping[str, Case], exact: Any, bound: float = BOUND
) -> dict[str, float]:
    """Give the relative error of an engine's logits in each case; end the run if one is
    off.

    A case is a prompt and the steps after it; `exact` holds a row of logits for each.
    """
    errors = {
        case: relative_error(served.ask("logits", *ids), row)
        for (case, ids), row in zip(cases.items(), exact, strict=True)
    }
    if not all(error <= bound for error in errors.values()):
        raise SystemExit(f"{name} is wrong: {errors} > {bound}; nothing is timed")
    return errors


def reference_logits(directory: Path, ids: list[int], rows: list[int]) -> Any:
    """Compute the logits after the tokens at some positions, float32 [len(rows), V]."""
    model = load_model(directory)
    args = model.args
    angles = np.outer(
        np.arange(len(ids)),
        pair_frequencies(args.head_dim, args.rope_theta, args.rope_scaling).numpy(),
    )
    turns = np.exp(1j * angles).astype(np.complex64)[:, None, :]
    x = _wide(model, "tok_embeddings", ids)
    for layer in range(args.n_layers):
        name = f"layers.{layer}."
        x += _attention(model, name, _norm(model, f"{name}attention_norm", x), turns)
        normed = _norm(model, f"{name}ffn_norm", x)
        gate = normed @ _wide(model, f"{name}feed_forward.w1").T
        up = normed @ _wide(model, f"{name}feed_forward.w3").T
        x += (gate / (1 + np.exp(-gate)) * up) @ _wide(model, f"{name}feed_forward.w2").T
    output = "output" if "output.weight" in model.tensors else "tok_embeddings"
    return _norm(model, "norm", x[rows]) @ _wide(model, output).T


def _wide(model: Model, name: str, rows: Any = slice(None)) -> Any:
    weight = model.tensors[f"{name}.weight"]
    if isinstance(weight, ml.QuantizedTensor):
        return weight.dequantize().numpy()[rows]
    return weight.to(ml.float32).numpy()[rows]


def _norm(model: Model, name: str, x: Any) -> Any:
    scale = 1 / np.sqrt(
        (x**2).mean(axis=1, keepdims=True) + np.float32(model.args.norm_eps)
    )
    return x * scale * _wide(model, name)


def _interleaved(x: Any) -> Any:
    """Put element j of each head beside element j + h/2, which turns with it."""
    halves = x.reshape(*x.shape[:2], 2, -1)
    return np.ascontiguousarray(halves.swapaxes(2, 3)).reshape(x.shape)


def _attention(model: Model, name: str, x: Any, turns: Any) -> Any:
    """Attend head by head; every matrix of scores is [T, T]."""
    args = model.args
    T = x.shape[0]
    q, k, v = (
        (x @ _wide(model, f"{name}attention.{part}").T).reshape(T, -1, args.head_dim)
        for part in ("wq", "wk", "wv")
    )
    if args.rope_pairs == "halves":
        q, k = (_interleaved(part) for part in (q, k))
    q, k = ((part.view(np.complex64) * turns).view(np.float32) for part in (q, k))
    ahead = np.triu(np.full((T, T), -np.inf, np.float32), 1)
    out = np.empty_like(q)
    for head in range(args.n_heads):
        group = head // args.group_size
        scores = q[:, head] @ k[:, group].T / np.float32(np.sqrt(args.head_dim)) + ahead
        weights = np.exp(scores - scores.max(axis=1, keepdims=True))
        out[:, head] = weights / weights.sum(axis=1, keepdims=True) @ v[:, group]
    return out.reshape(T, -1) @ _wide(model, f"{name}attention.wo").T
