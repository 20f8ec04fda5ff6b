"""Interventions: changes of the tensors of a run, at the places that the trace names.

An intervention sets, scales, adds to or records a part of one tensor while the model
runs. It belongs to one sequence. In a pass over several sequences, it changes only the
rows of that sequence, so each sequence has the bits that it has alone. The weights do
not change. `intervened.py` applies interventions in a pass.
"""

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, TypeAlias

import numpy as np

from .. import ml
from ..trace.events import size_of
from .args import ModelArgs
from .errors import InterventionError
from .places import parse_address

Array: TypeAlias = np.ndarray[Any, Any]

_OPERATORS = {"replace": "=", "scale": "*=", "add": "+="}
_KINDS = {operator: kind for kind, operator in _OPERATORS.items()}
_TEXT = re.compile(
    r"(?P<address>[^=*+]*?)\s*(?P<operator>\*=|\+=|=)\s*(?P<value>[^=]+)", re.DOTALL
)
_MOST_SHOWN = 200


class AnyModel(Protocol):
    """A model, as `load_model` returns it."""

    @property
    def args(self) -> ModelArgs:
        """The sizes that this process computes."""

    @property
    def transformer(self) -> Any:
        """The network."""


@dataclass(frozen=True)
class Rows:
    """The rows of a tensor that belong to a sequence."""

    start: int
    position: int
    count: int


class OwnRanges:
    """The range of each dimension that this process computes.

    Args:
        args: The sizes of the whole model.
        bounds: The bounds of the rows of this process, by row letter, or None if there is
            only one process.
    """

    def __init__(
        self, args: ModelArgs, bounds: Mapping[str, tuple[int, int]] | None
    ) -> None:
        self.sizes = args.sizes
        self.ranges = dict[str, tuple[int, int]]()
        if bounds is None:
            return
        h = args.head_dim
        for letter, heads in (("H", "Hh"), ("K", "Kh")):
            first, end = bounds[heads]
            self.ranges[f"{letter}*h"] = first, end
            self.ranges[letter] = first // h, end // h
        for letter in "DFV":
            self.ranges[letter] = bounds[letter]

    def own_sizes(self) -> dict[str, int] | None:
        """Return the sizes of the results of this process, if they are smaller."""
        if not self.ranges:
            return None
        return {letter: end - first for letter, (first, end) in self.ranges.items()}

    def range_of(self, letter: str, size: int) -> tuple[int, int]:
        """Return the range of a dimension of a result."""
        whole = size_of(letter, self.sizes)
        if whole is None or size == whole:
            return 0, size
        return self.ranges[letter]


class Intervention:
    """A change of a part of one tensor, in every pass of a sequence.

    Create one with `zero`, `scale`, `add`, `replace` or `record`. Each takes a model and
    an address, such as "layers.3.attention.heads[5]", "x[layer 6]" or
    "layers.8.feed_forward@12"; `src/model/places.py` lists the names. Without a position,
    all positions change. An intervention may be part of several requests, except one that
    records.

    Attributes:
        address: The part of the tensor.
        kind: "replace", "scale", "add" or "record".
        value: The new value, the factor or the summand: a number, or a float32 array of
            the rank of the tensor. None for "record".
        text: The intervention as one line.
        args: The sizes of the model, of all its ranks.
        rows: The number of rows that were changed or recorded so far.
        has_rows: Whether the value has a row for each position.
        is_absent: Whether a pass had no such tensor.
    """

    def __init__(
        self,
        model: AnyModel,
        address: str,
        kind: str,
        value: object = None,
        label: str | None = None,
    ) -> None:
        self.args = whole_args(model)
        self.address = parse_address(address, self.args.sizes)
        if kind == "record" and has_ranks(model):
            raise InterventionError(
                "[intervene] recording needs one process: several run the model"
            )
        self.kind = kind
        self.rows = 0
        self._recorded = dict[int, Array]()  # by position
        self.has_rows = False
        self.is_absent = False
        self.value = None if kind == "record" else self._checked(value)
        shown = label
        if shown is None:
            is_number = isinstance(self.value, float)
            shown = f"{self.value:g}" if is_number else f"{kind} {_shape_text(value)}"
        operator = _OPERATORS.get(kind)
        text = self.address.text
        self.text = f"record {text}" if operator is None else f"{text}{operator}{shown}"

    @classmethod
    def zero(cls, model: AnyModel, address: str) -> "Intervention":
        """Return an intervention that sets a part of a tensor to 0 (an ablation)."""
        return cls(model, address, "replace", 0.0)

    @classmethod
    def scale(cls, model: AnyModel, address: str, factor: float) -> "Intervention":
        """Return an intervention that multiplies a part of a tensor by a number."""
        return cls(model, address, "scale", factor)

    @classmethod
    def add(
        cls, model: AnyModel, address: str, value: object, label: str | None = None
    ) -> "Intervention":
        """Return an intervention that adds to a part of a tensor.

        An element to which 0 is added keeps its bits, also if it is -0.

        Args:
            model: The model.
            address: The part of the tensor.
            value: A number, or an array of the shape of the part. The array has no axis
                for the positions, and is added at each, or it has that axis, and its rows
                are added at the first positions of the address.
            label: The value in `text`, such as the name of a file.
        """
        return cls(model, address, "add", value, label)

    @classmethod
    def replace(
        cls, model: AnyModel, address: str, value: object, label: str | None = None
    ) -> "Intervention":
        """Return an intervention that replaces a part of a tensor.

        The arguments are those of `add`. With the value that another run has `recorded`,
        this is activation patching.
        """
        return cls(model, address, "replace", value, label)

    @classmethod
    def record(cls, model: AnyModel, address: str) -> "Intervention":
        """Return an intervention that keeps a part of a tensor, and changes nothing."""
        return cls(model, address, "record")

    def __repr__(self) -> str:
        return f"<Intervention {self.text}>"

    @property
    def recorded(self) -> Array:
        """The recorded part, with one row for each position from the first on.

        The axis of the positions is where the tensor has it. Rows with different numbers
        of keys are filled with 0.

        Raises:
            InterventionError: If nothing was recorded.
        """
        if not self._recorded:
            raise InterventionError(
                f"[intervene] {self.text} must have recorded a row: got none"
            )
        place = self.address.place
        positions = sorted(self._recorded)
        rows = [self._recorded[position] for position in positions]
        longest = tuple(
            max(sizes) for sizes in zip(*(x.shape for x in rows), strict=True)
        )
        padded = [
            np.pad(
                row,
                [(0, most - n) for n, most in zip(row.shape, longest, strict=True)],
            )
            for row in rows
        ]
        whole = np.stack(padded, axis=place.row_axis)
        return np.squeeze(whole, tuple(self.address.dropped))

    def _checked(self, value: object) -> float | Array:
        """Return the value as a number, or as an array of the rank of the tensor."""
        rule = f"[intervene] value of {self.address.text!r}"
        if isinstance(value, ml.Tensor):
            value = value.to(ml.float32).numpy()
        try:
            array = np.asarray(value, np.float32)
        except (TypeError, ValueError):
            kind = type(value).__name__
            raise InterventionError(
                f"{rule} must be a number or an array: {kind}"
            ) from None
        if not np.isfinite(array).all():
            bad = int(np.count_nonzero(~np.isfinite(array)))
            numbers = f"{bad} of {array.size} elements are not"
            raise InterventionError(f"{rule} must be finite: {numbers}")
        if array.ndim == 0:
            return float(array)
        place = self.address.place
        expected = self.address.shape(self.args.sizes)
        without = tuple(n for n in expected if n != "T")
        has_rows = array.ndim == len(expected)
        wanted = expected if has_rows else without
        is_right = array.ndim == len(wanted) and all(
            isinstance(size, str) or n == size
            for n, size in zip(array.shape, wanted, strict=True)
        )
        if self.kind == "scale" or not is_right:
            shapes = f"{_letters(without)} or {_letters(expected)}"
            expected_text = "a number" if self.kind == "scale" else shapes
            raise InterventionError(
                f"{rule} must be {expected_text}: got {list(array.shape)}"
            )
        self.has_rows = has_rows
        missing = set(self.address.dropped)
        if not has_rows:
            missing.add(place.row_axis)
        return np.expand_dims(array, tuple(missing))

    def check_positions(self, sequence_length: int) -> None:
        """Check that the first position exists in a context.

        Raises:
            InterventionError: If it does not.
        """
        if self.address.first >= sequence_length:
            raise InterventionError(
                f"[intervene] position of {self.address.text!r} must be below the "
                f"context length {sequence_length}: got {self.address.first}"
            )

    def check_present(self) -> None:
        """Check that the model has the place of the tensor.

        Raises:
            InterventionError: If no op of a pass has produced it.
        """
        if self.is_absent:
            raise InterventionError(
                f"[intervene] {self.address.text} must be a result of the pass: no op "
                "produced it in this model and form of attention"
            )

    def changes_in(self, first: int, end: int) -> bool:
        """Return whether some positions from `first` to before `end` are addressed."""
        last = end if self.address.end is None else min(end, self.address.end)
        return max(first, self.address.first) < last

    def apply(self, x: Array, rows: "Rows", own: "OwnRanges") -> bool:
        """Change or record the addressed part of the rows of a tensor, in place.

        Return whether some rows are addressed.
        """
        address = self.address
        axis = address.place.row_axis
        first = max(rows.position, address.first)
        end = rows.position + rows.count
        if address.end is not None:
            end = min(end, address.end)
        from_value = first - address.first
        if self.has_rows and isinstance(self.value, np.ndarray):
            end = min(end, address.first + self.value.shape[axis])
        if first >= end:
            return False
        index = list[slice]()
        of_value = list[slice]()
        unread = [0] * x.ndim  # the keys before a window, which are recorded as 0
        for at, letter in enumerate(address.place.letters):
            if at == axis:
                start = rows.start + first - rows.position
                index.append(slice(start, start + end - first))
                of_value.append(slice(from_value, from_value + end - first))
                continue
            size = x.shape[at]
            low, high = own.range_of(letter, size)
            if letter == "S":  # a layer with a window reads only the last positions
                high = rows.position + rows.count
                low = high - size
                unread[at] = 0 if at in address.parts else low
            begin, stop = address.parts.get(at, (0, high if letter == "S" else None))
            whole_stop = high if stop is None else stop
            left = max(begin, low)
            right = max(min(whole_stop, high), left)
            index.append(slice(left - low, right - low))
            of_value.append(slice(left - begin, right - begin))
        part = x[tuple(index)]
        self.rows += end - first
        if self.kind == "record":
            before = [(n, 0) for at, n in enumerate(unread) if at != axis]
            for number, position in enumerate(range(first, end)):
                row = np.take(part, number, axis=axis).astype(np.float32)
                self._recorded[position] = np.pad(row, before)
            return True
        if isinstance(self.value, np.ndarray):
            if not self.has_rows:
                of_value[axis] = slice(None)
            value: Any = _fitted(self.value[tuple(of_value)], part, axis)
        else:
            value = np.float32(self.value or 0.0)
        if self.kind == "replace":
            part[...] = value
        elif self.kind == "scale":
            part[...] = part.astype(np.float32) * value
        else:
            total = part.astype(np.float32)
            np.add(
                total, value, out=total, where=np.broadcast_to(value != 0, total.shape)
            )
            part[...] = total
        return True


Interventions: TypeAlias = tuple[Intervention, ...]
"""The interventions of one sequence, in the order in which they are applied."""


def check_interventions(model: AnyModel, interventions: object) -> Interventions:
    """Return interventions as a tuple.

    Raises:
        InterventionError: If one of them is not an intervention in this model.
    """
    is_sequence = isinstance(interventions, list | tuple)
    checked = tuple(interventions) if isinstance(interventions, list | tuple) else ()
    args = whole_args(model)
    bad = [
        each
        for each in checked
        if not isinstance(each, Intervention) or each.args != args
    ]
    if bad or not is_sequence:
        rule = "[intervene] interventions must be Interventions in this model"
        shown = ascii(bad[0] if bad else interventions)[:_MOST_SHOWN]
        raise InterventionError(f"{rule}: got {shown}")
    return checked


def parse_intervention(
    model: AnyModel, text: str, read: Callable[[str], Array] | None = None
) -> Intervention:
    """Return the intervention that a text describes, such as "x[layer 6]*=0.5".

    Args:
        model: The model.
        text: `ADDRESS=VALUE` to replace, `ADDRESS*=NUMBER` to scale or `ADDRESS+=VALUE`
            to add.
        read: Returns the array that a VALUE names if it is not a number. None if there
            are only numbers.

    Raises:
        InterventionError: If the text is not valid.
    """
    match = _TEXT.fullmatch(text.strip())
    forms = "ADDRESS=VALUE, ADDRESS*=NUMBER or ADDRESS+=VALUE"
    if match is None:
        shown = ascii(text)[:_MOST_SHOWN]
        raise InterventionError(f"[intervene] text must be {forms}: got {shown}")
    kind = _KINDS[match["operator"]]
    value = match["value"]
    try:
        number = float(value)
    except ValueError:
        if read is None or ":" not in value:
            allowed = "a number" if read is None else "a number or FILE:KEY"
            shown = ascii(value)[:_MOST_SHOWN]
            rule = f"value of {match['address']!r} must be {allowed}"
            raise InterventionError(f"[intervene] {rule}: got {shown}") from None
        # The address is checked before the file is read.
        parse_address(match["address"], whole_args(model).sizes)
        return Intervention(model, match["address"], kind, read(value), value)
    return Intervention(model, match["address"], kind, number)


def whole_args(model: AnyModel) -> ModelArgs:
    """Return the sizes of a model, of which this process may compute a part."""
    own = getattr(model.transformer, "own", None)
    args: ModelArgs = model.args if own is None else own.args
    return args


def has_ranks(model: AnyModel) -> bool:
    """Return whether several processes run a model."""
    return whole_args(model) is not model.args


def _fitted(value: Array, part: Array, row_axis: int) -> Array:
    """Return a value with as many keys as a part: cut, or filled with 0."""
    widths = [
        (0, 0 if axis == row_axis or n == 1 else max(most - n, 0))
        for axis, (n, most) in enumerate(zip(value.shape, part.shape, strict=True))
    ]
    return np.pad(value, widths) if any(after for _, after in widths) else value


def _shape_text(value: object) -> str:
    return str(list(np.asarray(value).shape))


def _letters(shape: Sequence[int | str]) -> str:
    return f"[{', '.join(map(str, shape))}]"
