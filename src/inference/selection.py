"""Choosing among very many weights without sorting them all.

A vocabulary has up to some hundred thousand tokens, of which nearly always a few hundred matter. So
they are first dealt into groups or counted into bins, which shows where about the limit lies, and
only what lies there is sorted. Weights are floats from 0 to 1; they need not add up to 1, and their
sums are float64.
"""

from typing import Any

import numpy as np
import numpy.typing as npt

Ids = npt.NDArray[np.int64]
Weights = npt.NDArray[np.floating[Any]]

# More weights than this are counted into bins before a part of them is sorted.
MANY = 4096
# The kth largest is looked for among the maxima of this many groups for each of the k.
_GROUPS_PER_RANK = 8
_LEAST_GROUP = 4
_BIN_BITS = 12
# One of this many counts as few: then indices are shorter than an array with a 0 for all others.
_FEW = 4
# Counted in groups of this size: what is computed for them on the way stays in the cache.
_PART = 16384
# Sums of this many weights at a time: the order of the summation in `draw`.
_ROW = 256


def at_least_kth_largest(values: Weights, k: int) -> Ids:
    """Return the indices, ascending, of all values not below the kth largest.

    Args:
        values: [n], no NaN.
        k: from 1 to n.
    """
    groups = k * _GROUPS_PER_RANK
    length = values.size // groups
    if length < _LEAST_GROUP:
        return np.flatnonzero(values >= np.partition(values, values.size - k)[values.size - k])
    # k of the groups have a maximum that is not below the kth largest maximum, so k values at least
    # are not. (The few values that fill no group can only raise the kth largest value.)
    maxima = values[: length * groups].reshape(length, groups).max(axis=0)
    near = np.flatnonzero(values >= np.partition(maxima, groups - k)[groups - k])
    kept = values[near]
    chosen: Ids = near[kept >= np.partition(kept, kept.size - k)[kept.size - k]]
    return chosen


def leave_out(weights: Weights, smallest: float, count: int) -> tuple[Ids | None, Weights]:
    """Leave out weights below a limit, and of those that equal it all but the first ones.

    Args:
        weights: [n]; may be changed.
        smallest: the limit.
        count: how many of the weights that equal the limit stay.

    Returns:
        If few stay, their indices, ascending, and the weights of these. Otherwise None and all
        weights, with 0 for those that are left out.
    """
    kept, indices = weights >= smallest, None
    if np.count_nonzero(kept) <= weights.size // _FEW:
        indices = np.flatnonzero(kept)
        weights = weights[indices]
    else:
        np.multiply(weights, kept, out=weights)
    weights[np.flatnonzero(weights == smallest)[count:]] = 0.0
    return indices, weights


def smallest_of_top_p(weights: Weights, top_p: float) -> tuple[float, int]:
    """Find the fewest weights, the largest first, that add up to at least top_p of the whole.

    Args:
        weights: [n]; float32 if n is above 4096.
        top_p: from 0 to 1.

    Returns:
        The smallest of them, and how many of its size are among them.
    """
    if weights.size <= MANY:
        return _crossing(weights, 0.0, top_p * float(weights.sum(dtype=np.float64)))
    # The bits of floats that are not negative, read as integers, have the order of the floats; so
    # their upper ones are the number of a bin.
    bits = weights.view(np.int32)
    lowest = int(bits.min())
    span = int(bits.max()) - lowest
    shift = max(span.bit_length() - _BIN_BITS, 0)
    sums = np.zeros((span >> shift) + 1)
    for start in range(0, bits.size, _PART):
        bins = (bits[start : start + _PART] - np.int32(lowest)) >> np.int32(shift)
        sums += np.bincount(bins, weights[start : start + _PART], sums.size)
    sums = sums[::-1]  # the largest weights first
    cumulative = np.cumsum(sums)
    target = top_p * float(cumulative[-1])
    reached = int(np.searchsorted(cumulative, target))
    before = float(cumulative[reached] - sums[reached])
    first = lowest + ((sums.size - 1 - reached) << shift)
    return _crossing(weights[(bits >= first) & (bits < first + (1 << shift))], before, target)


def _crossing(weights: Weights, before: float, target: float) -> tuple[float, int]:
    """Find where a sum, to which weights are added, the largest first, reaches a target.

    Returns:
        The weight that reaches it, and how many of its size it takes. If rounding leaves the whole
        sum just below the target, it takes all.
    """
    ascending = np.sort(weights)
    cumulative = before + np.cumsum(ascending[::-1], dtype=np.float64)
    reached = min(int(np.searchsorted(cumulative, target)), weights.size - 1)
    smallest = ascending[weights.size - 1 - reached]
    larger = weights.size - int(np.searchsorted(ascending, smallest, side="right"))
    return float(smallest), reached - larger + 1


def draw(weights: Weights, share: float) -> int:
    """Draw an index with the probability that its weight has in the sum of all.

    Many weights are added up in rows of 256, and then the sums of the rows.

    Args:
        weights: [n], at least one above 0.
        share: a random number, 0 <= share < 1.
    """
    if weights.size <= MANY:
        return _place(weights, share)[0]
    starts = np.arange(0, weights.size, _ROW)
    row, share = _place(np.add.reduceat(weights, starts, dtype=np.float64), share)
    return row * _ROW + _place(weights[row * _ROW : (row + 1) * _ROW], share)[0]


def _place(weights: Weights, share: float) -> tuple[int, float]:
    """Return the index at which a share of the sum falls, and the share of its own weight."""
    cumulative = np.cumsum(weights, dtype=np.float64)
    target = share * float(cumulative[-1])
    place = int(np.searchsorted(cumulative, target, side="right"))
    if place == weights.size:  # rounded up to the whole
        return int(np.flatnonzero(weights)[-1]), 1.0
    before = float(cumulative[place - 1]) if place else 0.0
    return place, min((target - before) / float(weights[place]), 1.0)
