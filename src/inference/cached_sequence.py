"""A key/value cache, and which tokens it holds."""

from collections.abc import Sequence

from ..model import InferenceContext, Model
from ..trace import mark
from .sampling import Logits


class CachedSequence:
    """Runs tokens with a model after those that are cached.

    Args:
        model: The model.
        sequence_length: Positions of the cache.

    Attributes:
        model: The model.
        context: The cache.
        ids: The tokens whose keys and values are at positions 0, 1, ... of the cache. They are
            noted when the cache holds them: wherever an interrupt falls, what is noted is true.
    """

    def __init__(self, model: Model, sequence_length: int) -> None:
        self.model = model
        self.context = InferenceContext(model.args, sequence_length)
        self.ids: list[int] = []

    def clear(self) -> None:
        """Forget all tokens."""
        self.ids = []
        self.context.clear()

    def reusable(self, ids: Sequence[int]) -> int:
        """Return how many tokens of a text are cached; its last one always has to be run."""
        most = min(len(ids) - 1, len(self.ids))
        for position in range(most):
            if ids[position] != self.ids[position]:
                return position
        return most

    def run(self, ids: list[int], drafted: Sequence[int] = ()) -> Logits:
        """Run tokens after the cached ones, and what may follow the last of them.

        Drafted tokens need a single id before them, and do not become cached.

        Returns:
            The logits after the last id and after each of the n drafted tokens [1 + n, V].
        """
        start_pos = len(self.ids)
        mark(3, position=start_pos, T=len(ids))
        result = self.model.transformer.forward(
            self.context, [*ids, *drafted], start_pos, all_positions=bool(drafted)
        )
        if drafted:
            self.context.length = start_pos + len(ids)
        self.ids.extend(ids)
        rows: Logits = result.numpy()
        return rows

    def confirm(self, token: int) -> None:
        """Count a drafted token as cached, the next one of the last run."""
        self.context.length += 1
        self.ids.append(token)
