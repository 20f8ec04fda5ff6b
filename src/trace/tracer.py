"""From stage marks and op reports to events: where the run is, and what its tensors are called."""

import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

import numpy as np

from .code import calling_line
from .events import HOLDS, STAGES, fits, read_letters
from .records import LAYER, MARK, Event, Letters, Statistics, TensorInfo, json_value

_BLOCK_STAGES = range(5, 19)
_END_VALUES = 3
_MOST_LIKELY = 5


class DTypeLike(Protocol):
    """A dtype with a name, of this project or of NumPy."""

    @property
    def name(self) -> str:
        """Its name."""


class TensorLike(Protocol):
    """A tensor of this project, or an array of NumPy."""

    @property
    def shape(self) -> tuple[int, ...]:
        """Its sizes."""

    @property
    def dtype(self) -> Any:
        """Its dtype, a `DTypeLike`."""


class Tracer:
    """Follows a run and makes its events.

    Results get the names and letters that the registry lists for the steps of their stage. A result
    that fits no step keeps the name that it has and shows no letters.

    Args:
        sizes: the model's sizes by the letters of the legend; T and S come from the marks.
        write: takes the events, in order.
        wants: tells whether anybody reads the events of a stage, a layer and a step.
        text_of: gives the text of a token as it can be shown on a line.
        statistics: whether results carry statistics.
    """

    def __init__(
        self,
        sizes: Mapping[str, int],
        write: Callable[[Event], None],
        *,
        wants: Callable[[int, int | None, int | None], bool] = lambda *_where: True,
        text_of: Callable[[int], str] = lambda _token: "",
        statistics: bool = False,
    ) -> None:
        self._sizes = dict(sizes)
        self._write = write
        self._wants = wants
        self._text_of = text_of
        self._began = time.perf_counter()
        self._step: int | None = None
        self._statistics = statistics
        self._stage: int | None = None
        self._next_step = 0
        self._layer: int | None = None
        self._layer_seconds = 0.0
        self._layer_code = ""
        self._position: int | None = None
        self._last: TensorLike | None = None
        self._letters: dict[str, Letters] = {}

    def mark(
        self,
        stage: int,
        layer: int | None,
        position: int | None,
        T: int | None,
        inputs: Mapping[str, TensorLike],
        outputs: Mapping[str, TensorLike],
        details: Mapping[str, Any],
    ) -> None:
        """Enter a stage; the arguments are those of `trace.mark`."""
        if stage == 5 or stage == 19:
            self._end_layer()
        elif stage == 2:
            self._step = None
        elif stage == 3:
            self._step = 0 if self._step is None else self._step + 1
        if stage not in _BLOCK_STAGES:
            self._layer = None
        elif layer is not None:
            self._layer, self._layer_seconds = layer, 0.0
            self._layer_code = calling_line()
        self._stage, self._next_step = stage, 0
        if position is not None:
            self._position = position
        if T is not None:
            self._sizes["T"] = T
            self._sizes["S"] = (self._position or 0) + T
        if not self._wants(stage, self._layer, self._step):
            return
        details = {name: json_value(value) for name, value in details.items()}
        details |= self._known(stage, inputs, details)
        read = tuple(self._read(x, name) for name, x in inputs.items())
        made = tuple(self._made(MARK, x, name) for name, x in outputs.items())
        self._event(MARK, read, made, None, details, calling_line())

    def op(
        self,
        op: str,
        inputs: Sequence[TensorLike],
        result: TensorLike,
        details: Mapping[str, Any],
        seconds: float | None,
    ) -> str:
        """Take the report of an op.

        Args:
            op: its name.
            inputs: the tensors that it read.
            result: the tensor that it made or changed.
            details: its arguments that are no tensors.
            seconds: what it took; None for a further result of the same call.

        Returns:
            The name that the result is to have.
        """
        name = _name(result)
        if self._stage is None:
            return name
        self._layer_seconds += seconds or 0.0
        self._last = result
        is_wanted = self._wants(self._stage, self._layer, self._step)
        read = tuple(self._read(x, _name(x)) for x in inputs) if is_wanted else ()
        made = self._made(op, result, name, with_statistics=is_wanted and self._statistics)
        if is_wanted:
            self._event(op, read, (made,), seconds, details, calling_line())
        return made.name

    def _end_layer(self) -> None:
        """Sums up the transformer block that ends here; a broken-off one has left its stage."""
        if self._layer is None or self._stage != 18 or self._last is None:
            return
        if self._wants(5, self._layer, self._step):
            self._stage = 5
            made = self._read(self._last, "x")
            self._event(LAYER, (), (made,), self._layer_seconds, {}, self._layer_code)

    def _known(
        self, stage: int, inputs: Mapping[str, TensorLike], details: Mapping[str, Any]
    ) -> dict[str, Any]:
        """Return what a stage need not say about itself: too much work while no trace is on."""
        if stage == 3:
            return {letter: self._sizes[letter] for letter in ("T", "S")}
        if stage in HOLDS:
            return {"stages": HOLDS[stage]}
        if stage == 1:
            return {"texts": [self._text_of(token) for token in details["ids"]]}
        if stage == 20:
            tokens = [candidate["token_id"] for candidate in details["choice"]["candidates"]]
            return {
                "largest": largest(inputs["logits"]),
                "texts": [self._text_of(token) for token in tokens],
            }
        if stage == 21:
            return {"texts": [self._text_of(details["token"])]}
        return {}

    def _event(
        self,
        op: str,
        inputs: tuple[TensorInfo, ...],
        outputs: tuple[TensorInfo, ...],
        seconds: float | None,
        details: Mapping[str, Any],
        code: str,
    ) -> None:
        assert self._stage is not None
        name = STAGES[self._stage].name
        known = {key: json_value(value) for key, value in details.items()}
        where = (self._stage, name, self._layer, self._step, self._position)
        now = time.perf_counter() - self._began
        self._write(Event(op, *where, inputs, outputs, now, seconds, known, code))

    def _made(
        self, op: str, x: TensorLike, name: str, *, with_statistics: bool = False
    ) -> TensorInfo:
        """Describe a result by the next step of the stage that it fits."""
        assert self._stage is not None
        steps = STAGES[self._stage].steps
        letters: Letters = ()
        for number in range(self._next_step, len(steps)):
            step = steps[number]
            if step.op == op and fits(step.letters, tuple(x.shape), self._sizes):
                self._next_step = number + 1
                name, letters = step.name, step.letters
                self._letters[name] = letters
                break
        values = statistics(x) if with_statistics else None
        return TensorInfo(name, tuple(x.shape), letters, _dtype_name(x), values)

    def _read(self, x: TensorLike, name: str) -> TensorInfo:
        """Describe an input by what it was when it was made, or as a weight."""
        shape = tuple(x.shape)
        candidates = (self._letters.get(name), read_letters(name))
        letters = next((c for c in candidates if c and fits(c, shape, self._sizes)), ())
        return TensorInfo(name, shape, letters, _dtype_name(x))


def statistics(x: TensorLike) -> Statistics | None:
    """Compute the statistics of a tensor; None where it has no elements."""
    array: np.ndarray[Any, Any] = np.asarray(x)
    if array.dtype.kind == "c":
        array = np.stack((array.real, array.imag), axis=-1)
    flat = array.astype(np.float64).ravel()
    if flat.size == 0:
        return None
    with np.errstate(all="ignore"):  # the mask holds -inf
        mean, rms = float(flat.mean()), float(np.sqrt(np.square(flat).mean()))
    return Statistics(
        minimum=float(flat.min()),
        maximum=float(flat.max()),
        mean=mean,
        rms=rms,
        first=tuple(map(float, flat[:_END_VALUES])),
        last=tuple(map(float, flat[-_END_VALUES:])),
    )


def largest(logits: TensorLike) -> list[tuple[int, float]]:
    """Return the ids with the largest logits and these, from the largest on."""
    values: np.ndarray[Any, Any] = np.asarray(logits)
    first = np.argsort(-values, kind="stable")[:_MOST_LIKELY]
    return [(int(token), round(float(values[token]), 3)) for token in first]


def _name(x: TensorLike) -> str:
    return str(getattr(x, "name", ""))


def _dtype_name(x: TensorLike) -> str:
    return str(x.dtype.name)
