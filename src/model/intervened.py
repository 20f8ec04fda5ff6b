"""The passes in which interventions change results.

`intervened` activates the interventions of a pass in one thread. It follows the marks of
the stages and changes the results of ops through `ml.op`, so the network runs as written.
"""

import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np

from .. import ml
from ..ml.op import subscribe_changer, unsubscribe_changer
from ..trace import follow, unfollow
from ..trace.events import Letters
from ..trace.result_names import ResultNames
from .args import ModelArgs
from .interventions import (
    AnyModel,
    Intervention,
    Interventions,
    OwnRanges,
    Rows,
    check_interventions,
    whole_args,
)
from .places import Place, letters_of_rows

_OUTPUT_STAGE = 19
# The op that is stages 12 to 14 at once.
_FUSED = "attention"
_BEFORE_ATTENTION_STAGE = 11
_ATTENTION_STAGE = 14
_READING = "read_cache"


@dataclass(frozen=True)
class PassPart:
    """The rows of one sequence in a pass.

    Attributes:
        position: The position of the first token.
        count: The number of tokens.
        wanted: The number of last tokens whose logits are wanted.
        interventions: The interventions of the sequence.
    """

    position: int
    count: int
    wanted: int
    interventions: Interventions


class _Pass:
    """The interventions of the passes that one thread runs.

    Args:
        own: The ranges that this process computes.
        parts: The sequences of the pass, in order, or None for passes over one sequence
            whose positions the marks contain.
        interventions: The interventions of the only sequence, if `parts` is None.
    """

    def __init__(
        self,
        own: OwnRanges,
        parts: Sequence[PassPart] | None,
        interventions: Interventions,
    ) -> None:
        self.given_parts = parts
        self._parts = parts or ()
        self.interventions = interventions
        self._own = own
        self._thread = threading.get_ident()
        self._layer: int | None = None
        self._sizes: dict[str, int] = dict(own.sizes)
        own_sizes = own.own_sizes()
        self._own_sizes = None if own_sizes is None else self._sizes | own_sizes
        self._names = ResultNames(self._sizes, self._own_sizes)
        self._by_place = dict[
            tuple[int, int | None], dict[tuple[str, Letters], list[Intervention]]
        ]()
        every = _every(parts, interventions)
        for intervention in dict.fromkeys(every):
            address = intervention.address
            stage = self._by_place.setdefault((address.place.stage, address.layer), {})
            stage.setdefault(address.place.key, []).append(intervention)
        self._pending = dict[tuple[str, Letters], list[Intervention]]()
        self._applied = set[Intervention]()
        self._is_running = False
        self._is_listening = False
        self.is_spelled_out = any(each.address.place.is_spelled_out for each in every)

    def mark(
        self, stage: int, layer: int | None, position: int | None, T: int | None
    ) -> None:
        """Follow a mark of the run."""
        if threading.get_ident() != self._thread:
            return
        if stage == 4:
            self._begin(position or 0, T or 0)
        if stage == 5:
            self._layer = layer
        if stage == _OUTPUT_STAGE:
            self._layer = None
            self._set_size("T", self._rows_of_output())
        self._enter(stage)

    def _begin(self, position: int, T: int) -> None:
        """Begin a pass."""
        self._layer = None
        self._set_size("T", T)
        self._set_size("S", position + T)
        self._applied.clear()
        self._is_running = True
        if self.given_parts is None:
            self._parts = [PassPart(position, T, T, self.interventions)]

    def _set_size(self, letter: str, size: int) -> None:
        self._sizes[letter] = size
        if self._own_sizes is not None:
            self._own_sizes[letter] = size

    def _rows_of_output(self) -> int:
        """Return the number of rows of the logits, if all wanted rows are computed."""
        return sum(part.wanted for part in self._parts)

    def _enter(self, stage: int) -> None:
        """Enter a stage."""
        if stage == _OUTPUT_STAGE:
            self._finish()
        self._pending = dict(self._by_place.get((stage, self._layer), {}))
        self._names.enter(stage)
        self._listen(
            bool(self._pending)
            or self.is_spelled_out
            or (
                stage == _BEFORE_ATTENTION_STAGE
                and (_ATTENTION_STAGE, self._layer) in self._by_place
            )
        )

    def _listen(self, is_needed: bool) -> None:
        """Receive the results of ops from now on, or no longer.

        Ops that nobody receives take no extra time, so only the stages with changes do.
        """
        if is_needed == self._is_listening:
            return
        self._is_listening = is_needed
        if is_needed:
            subscribe_changer(self.change)
        else:
            unsubscribe_changer(self.change)

    def end(self) -> None:
        """Follow no more passes."""
        self._listen(False)
        unfollow(self.mark)

    def change(self, op: str, result: Any) -> tuple[Any, tuple[str, ...]] | None:
        """Change the result of an op, if a place with interventions is in it."""
        if threading.get_ident() != self._thread:
            return None
        if op == _FUSED:
            self._enter(_ATTENTION_STAGE)
        if op == _READING:  # a layer with a window may read fewer positions
            self._set_size("W", result[0].shape[0])
        if not self._pending:
            return None
        texts: tuple[str, ...] = ()
        results = list(result) if isinstance(result, tuple) else [result]
        for number, tensor in enumerate(results):
            found = self._names.next(op, tensor.shape)
            if found is None:
                continue
            name, letters = found
            interventions = self._pending.pop((name, letters_of_rows(letters)), None)
            if interventions:
                results[number], applied = self._changed(tensor, interventions)
                texts += applied
        if not texts:
            return None
        return tuple(results) if isinstance(result, tuple) else results[0], texts

    def _changed(
        self, result: ml.Tensor, interventions: Sequence[Intervention]
    ) -> tuple[ml.Tensor, tuple[str, ...]]:
        """Return a changed copy of a result, and the texts of the changes."""
        place = interventions[0].address.place
        is_read = all(each.kind == "record" for each in interventions)
        values = result.numpy() if is_read else np.array(result.numpy(), order="K")
        texts = dict[str, None]()
        for part, rows in self._rows(place, values.shape[place.row_axis]):
            for intervention in part.interventions:
                if intervention in interventions and intervention.apply(
                    values, rows, self._own
                ):
                    self._applied.add(intervention)
                    if intervention.kind != "record":
                        texts[intervention.text] = None
        if not texts:
            return result, ()
        return ml.Tensor.from_numpy(values, result.name), tuple(texts)

    def _rows(self, place: Place, size: int) -> Iterator[tuple[PassPart, Rows]]:
        """Yield the rows of each sequence with interventions, of `size` rows."""
        parts = self._parts
        if "T" not in place.letters:  # the keys of all positions of one sequence
            end = parts[0].position + parts[0].count
            yield parts[0], Rows(0, end - size, size)
            return
        is_output = place.stage == _OUTPUT_STAGE
        last = len(parts) == 1 and size == 1
        start = 0
        for part in parts:
            count = part.count
            if is_output:
                count = 1 if last else part.wanted
            if part.interventions:
                yield part, Rows(start, part.position + part.count - count, count)
            start += count

    def _finish(self) -> None:
        """Check, after the layers, that the model has all places of the pass.

        In a pass over several sequences, only the request with a place that the model
        lacks must end, so its engine checks the interventions after the pass.

        Raises:
            InterventionError: If no op has produced a place of the only sequence.
        """
        if not self._is_running:
            return
        self._is_running = False
        for part in self._parts:
            for each in part.interventions:
                is_due = each.address.place.stage < _OUTPUT_STAGE and each.changes_in(
                    part.position, part.position + part.count
                )
                if is_due and each not in self._applied and not each.has_rows:
                    each.is_absent = True
                    if self.given_parts is None:
                        each.check_present()


def _every(
    parts: Sequence[PassPart] | None, interventions: Interventions
) -> Interventions:
    """Return the interventions of all sequences."""
    return sum((part.interventions for part in parts or ()), interventions)


class _Active(threading.local):
    """The interventions of the pass that runs in a thread, or None."""

    current: _Pass | None = None


_active = _Active()


def active_interventions() -> tuple[Sequence[PassPart] | None, Interventions]:
    """Return the arguments of the `intervened` of this thread, or (None, ())."""
    current = _active.current
    if current is None:
        return None, ()
    return current.given_parts, current.interventions


@contextmanager
def intervened(
    model_args: ModelArgs,
    parts: Sequence[PassPart] | None,
    interventions: Interventions = (),
    bounds: Mapping[str, tuple[int, int]] | None = None,
) -> Iterator[None]:
    """Return a context manager in which interventions change the passes of this thread.

    Args:
        model_args: The sizes of the whole model.
        parts: The sequences of the only pass, or None for passes over one sequence.
        interventions: The interventions of that sequence, if `parts` is None.
        bounds: The rows that this process computes, by row letter, or None for all rows.
    """
    if not _every(parts, interventions):
        yield
        return
    current = _Pass(OwnRanges(model_args, bounds), parts, interventions)
    before = _active.current
    _active.current = current
    follow(current.mark, current.is_spelled_out)
    try:
        yield
    finally:
        current.end()
        _active.current = before


@contextmanager
def intervene(model: AnyModel, *interventions: Intervention) -> Iterator[None]:
    """Return a context manager in which a model's passes of this thread are changed.

    Each pass inside the `with` block must continue the same sequence, as with one
    `InferenceContext`. A request to an engine has `Request.interventions` instead.

    Raises:
        InterventionError: If an intervention was made for another model.
    """
    check_interventions(model, interventions)
    args, bounds = own_rows(model)
    with intervened(args, None, interventions, bounds):
        yield


def own_rows(
    model: AnyModel,
) -> tuple[ModelArgs, Mapping[str, tuple[int, int]] | None]:
    """Return the sizes of a whole model, and the rows that this process computes."""
    own = getattr(model.transformer, "own", None)
    return whole_args(model), own_bounds(own)


def own_bounds(own: Any) -> Mapping[str, tuple[int, int]] | None:
    """Return the rows that this process computes, by row letter, or None for all.

    Args:
        own: The `OwnWeights` of the network of a rank, or None.
    """
    if own is None:
        return None
    return {
        letter: (bounds[own.ranks.rank], bounds[own.ranks.rank + 1])
        for letter, bounds in own.bounds.items()
    }
