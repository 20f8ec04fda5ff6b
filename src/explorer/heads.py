"""Names for attention heads by what they attend to over a run.

A score is the mean, over rows of the attention weights, of the weight that a row assigns
to some earlier positions. A row is a token that attends. Row 0 has only itself to attend
to, so it does not count.

- previous token: the position before the row;
- first token: position 0;
- induction: the positions after earlier copies of the row's token. Only rows whose token
  has such a copy count, and a copy directly before the row does not;
- same token: the row itself and earlier copies of its token;
- uniform: the overlap with equal weights, sum over j of min(weights[j], 1 / (i + 1)).

Source: Olsson et al., In-context Learning and Induction Heads, 2022.
"""

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

KINDS = ("previous token", "first token", "induction", "same token", "uniform")
# The smallest score that gives a head its name. Weights with an exponential distribution
# overlap with equal weights by 1 - 1/e = 0.63, so `uniform` requires more.
LEAST = (0.4, 0.4, 0.4, 0.4, 0.7)
# With fewer rows, the score of `induction` is 0, because chance decides it.
_LEAST_ROWS = 3
_FIRST = KINDS.index("first token")
_INDUCTION = KINDS.index("induction")


class HeadScores:
    """The sums of a run's attention weights from which heads get their names.

    Args:
        layers: The number of layers.
        heads: The number of query heads in a layer.
    """

    def __init__(self, layers: int, heads: int) -> None:
        self._sums = np.zeros((layers, heads, len(KINDS)))
        self._rows = np.zeros((layers, 1, len(KINDS)))

    def add(
        self, layer: int, weights: npt.NDArray[np.float32], tokens: Sequence[int]
    ) -> None:
        """Add the rows of a forward pass in one layer.

        Args:
            layer: The layer.
            weights: The attention weights, float32 [H, T, S].
            tokens: The ids of all positions that the rows can see, of length S.
        """
        _, T, S = weights.shape
        ids = np.asarray(tokens[:S])
        rows = np.arange(S - T, S)[:, None]  # [T, 1]
        columns = np.arange(S)  # [S]
        is_same = (ids == ids[rows]) & (columns <= rows)  # [T, S]
        is_after_copy = np.zeros_like(is_same)
        is_after_copy[:, 1:] = is_same[:, :-1] & (columns[1:] < rows)
        masks = {
            "previous token": columns == rows - 1,
            "first token": np.broadcast_to(columns == 0, (T, S)),
            "induction": is_after_copy,
            "same token": is_same,
        }
        for kind, mask in masks.items():
            counts = mask.any(-1) & (rows[:, 0] > 0)  # [T]
            self._count(layer, kind, counts)
            sums = np.einsum("hts,ts->h", weights, mask & counts[:, None])
            self._sums[layer, :, KINDS.index(kind)] += sums
        counts = rows[:, 0] > 0
        self._count(layer, "uniform", counts)
        equal = (counts[:, None] / (rows + 1)).astype(np.float32)  # [T, 1]
        overlaps = np.minimum(weights, equal).sum((1, 2), dtype=np.float64)
        self._sums[layer, :, KINDS.index("uniform")] += overlaps

    def _count(self, layer: int, kind: str, counts: npt.NDArray[np.bool_]) -> None:
        self._rows[layer, 0, KINDS.index(kind)] += counts.sum()

    def means(self) -> npt.NDArray[np.float32]:
        """Return the scores, float32 [L, H, kinds]; a score without rows is 0."""
        means = self._sums / np.maximum(self._rows, 1)
        if self.repeated_rows < _LEAST_ROWS:
            means[..., _INDUCTION] = 0.0
        return means.astype(np.float32)

    @property
    def repeated_rows(self) -> int:
        """The number of rows whose token has an earlier copy, as `induction` counts."""
        return int(self._rows[0, 0, _INDUCTION])


def name_heads(scores: npt.NDArray[np.float32]) -> npt.NDArray[np.int8]:
    """Return the index in `KINDS` of each head's name, or -1 for a head without one.

    The name is the kind with the largest score of at least `LEAST`. An induction head
    attends to the first token in the rows without a copy, so `first token` does not name
    a head that `induction` can name.

    Args:
        scores: The scores, float32 [L, H, kinds].
    """
    enough = np.where(scores >= np.array(LEAST, np.float32), scores, -1.0)
    enough[enough[..., _INDUCTION] >= 0.0, _FIRST] = -1.0
    best = enough.argmax(-1)
    return np.where(enough.max(-1) >= 0.0, best, -1).astype(np.int8)
