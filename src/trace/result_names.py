"""The names of the results of ops, in the order of the ops of each stage."""

from collections.abc import Mapping

from .events import STAGES, Letters, fits, in_window

# The op that is stages 12 to 14 at once. Its result belongs to stage 14.
_FUSED = "attention"
_FUSED_STAGE = 14


class ResultNames:
    """Finds the entries of the stage registry for the results of a run.

    Args:
        sizes: The current sizes by letter, which the caller may change.
        own_sizes: Other sizes that a result may have instead, for example in a process
            that computes only some rows of each product.
    """

    def __init__(
        self, sizes: Mapping[str, int], own_sizes: Mapping[str, int] | None = None
    ) -> None:
        self._sizes = sizes
        self._own_sizes = own_sizes
        self._stage: int | None = None
        self._next_step = 0  # the index of the next op that may match in the stage

    def enter(self, stage: int) -> None:
        """Begin a stage."""
        self._stage = stage
        self._next_step = 0

    def next(self, op: str, shape: tuple[int, ...]) -> tuple[str, Letters] | None:
        """Return the name and letters of the next result, or None if it is not listed.

        Args:
            op: The name of the op.
            shape: The shape of the result.
        """
        if op == _FUSED and self._stage != _FUSED_STAGE:
            self.enter(_FUSED_STAGE)
        if self._stage is None:
            return None
        steps = STAGES[self._stage].steps
        for index, step in enumerate(steps[self._next_step :], self._next_step):
            if step.op != op:
                continue
            for letters in (step.letters, in_window(step.letters)):
                is_own = self._own_sizes is not None and fits(
                    letters, shape, self._own_sizes
                )
                if is_own or fits(letters, shape, self._sizes):
                    self._next_step = index + 1
                    return step.name, letters
        return None
