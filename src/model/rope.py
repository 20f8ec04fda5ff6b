"""Rotary position embedding (RoPE): a table of complex rotations by position."""

import math
from typing import Any

import numpy as np
import numpy.typing as npt

from .. import ml
from .args import (
    AnyRopeScaling,
    ComputedRopeScaling,
    LinearRopeScaling,
    ModelArgs,
    RopeFactors,
    RopeScaling,
)

_CHUNK = 512


def pair_frequencies(
    head_dim: int,
    theta: float,
    scaling: AnyRopeScaling | None = None,
    length: int = 0,
) -> ml.Tensor:
    """Return the angle by which each pair in a head rotates per position: float32 [h/2].

    frequency[i] = theta ** (-2 i / h), in radians. The frequencies are then scaled as in
    Llama 3.1, divided by one factor or by individual factors, or scaled by YaRN or by a
    model family for a context of `length` positions. They are computed in float64 and
    rounded once to float32. In bfloat16, adjacent positions beyond 256 would coincide.
    """
    frequencies = _plain_frequencies(head_dim, theta)
    if isinstance(scaling, LinearRopeScaling):
        frequencies /= scaling.factor
    elif isinstance(scaling, RopeFactors):
        frequencies /= np.array(scaling.factors)
    elif isinstance(scaling, ComputedRopeScaling):
        frequencies = scaling.scaled(frequencies, theta, length)
    elif scaling is not None:
        frequencies = _scale_as_llama3(frequencies, scaling)
    return ml.Tensor.from_numpy(frequencies.astype(np.float32), name="pair_frequencies")


def _plain_frequencies(head_dim: int, theta: float) -> npt.NDArray[np.float64]:
    return theta ** -(np.arange(0, head_dim, 2, dtype=np.float64) / head_dim)


def rope_factors(args: ModelArgs) -> ml.Tensor | None:
    """Return Llama 3.1's scaling as divisors, as GGUF files store it: float32 [h/2].

    Returns None if the frequencies are scaled in another way or not at all. For Llama 3.1
    8B, 3 of 64 frequencies differ in their last bit after the division.
    """
    scaling = args.rope_scaling
    if not isinstance(scaling, RopeScaling):
        return None
    plain = _plain_frequencies(args.head_dim, args.rope_theta)
    factors = plain / _scale_as_llama3(plain, scaling)
    return ml.Tensor.from_numpy(factors.astype(np.float32), name="rope_freqs.weight")


def _scale_as_llama3(
    frequencies: npt.NDArray[np.float64], scaling: RopeScaling
) -> npt.NDArray[np.float64]:
    """Scale down frequencies with long wavelengths and keep those with short ones.

    Source: meta-llama/llama-models, models/llama3/model.py, `apply_scaling`.
    """
    wavelengths = 2.0 * math.pi / frequencies
    low = scaling.low_freq_factor
    high = scaling.high_freq_factor
    smooth = ((scaling.original_context_length / wavelengths - low) / (high - low)).clip(
        0, 1
    )
    return (1.0 - smooth) * frequencies / scaling.factor + smooth * frequencies


def rotary_table(args: ModelArgs, length: int) -> ml.Tensor:
    """Build the table of e^(i * position * frequency): complex64 [length, r/2].

    If layers have different tables, the tables are joined along the second dimension.

    r is the number of rotated elements in a head, usually h. The row for a position does
    not depend on the table's length, unless a family uses different frequencies in longer
    contexts. The table is built in chunks, because the float64 intermediates need four
    times as much memory.

    Source: meta-llama/llama-models, models/llama3/model.py, `precompute_freqs_cis`.
    """
    tables = [
        _table_of(args.rotary_dim, theta, scaling, length)
        for theta, scaling in args.rope_tables
    ]
    table = tables[0] if len(tables) == 1 else ml.concatenate(tables, dim=1)
    return table.with_name("rotations")


def _table_of(rotary_dim: int, theta: float, scaling: Any, length: int) -> ml.Tensor:
    """Build the table of one theta and scaling: complex64 [length, r/2]."""
    frequencies = pair_frequencies(rotary_dim, theta, scaling, length)
    table = ml.zeros((length, rotary_dim // 2), dtype=ml.complex64)
    for start in range(0, length, _CHUNK):
        stop = min(start + _CHUNK, length)
        # This is exact, because float32 represents all integers up to 2^24.
        positions = ml.arange(start, stop, dtype=ml.float32)
        angles = ml.outer(positions, frequencies)  # [S], [h/2] -> [S, h/2]
        lengths = ml.ones_like(angles)
        if isinstance(scaling, ComputedRopeScaling):
            column = scaling.magnitudes(np.arange(start, stop, dtype=np.float64))
            lengths = ml.multiply(lengths, ml.tensor(column[:, None], dtype=ml.float32))
        table.set_slice(start, stop, ml.polar(lengths, angles))
    return table
