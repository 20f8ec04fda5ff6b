"""Convert stage marks and observed ops to events with stages and tensor names."""

import itertools
import math
import re
import time
import unicodedata
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, field, replace
from typing import Any, Protocol

import numpy as np

from .code import calling_line
from .events import HOLDS, STAGES, Letters, fits
from .records import LAYER, MARK, Details, Event, RowChoice, TensorInfo, json_value
from .result_names import ResultNames

_BLOCK_STAGES = range(5, 19)
_END_VALUES = 3
_ROW_VALUES = 6
# The letters of the inputs to the embedding and to sampling, which no op creates.
_INPUT_LETTERS: Mapping[str, Letters] = {"tokens": ("T",), "logits": ("V",)}
_EXPERT_PRODUCTS = ("expert_hidden", "expert_outputs")
_PRODUCTS = ("matmul", "linear_transformation", "linear_transformations")
# Number of operations per result element. A matrix product has two per summand instead.
_OPERATIONS = {
    "add": 1,
    "div": 1,
    "multiply": 1,
    "rotary_embedding": 3,
    "rms_norm": 4,
    "softmax": 4,
    "swiglu": 4,
}
# Unicode categories of symbols, and of characters that join or modify them.
_SYMBOLS = ("So", "Sk", "Mn", "Me", "Cf")
_BYTE = re.compile(r"\\x[0-9a-f]{2}")

Wants = Callable[[int, int | None, int | None], bool]  # called with stage, layer and step
Infos = tuple[TensorInfo, ...]
Begins = tuple[float, str]  # start time, file and line
Work = tuple[float | None, int, int]  # seconds, bytes, operations


class TensorLike(Protocol):
    """A tensor from `ml`, or a NumPy array."""

    @property
    def shape(self) -> tuple[int, ...]:
        """The size of each dimension."""

    @property
    def dtype(self) -> Any:
        """The dtype, which must have a `name` attribute."""

    @property
    def nbytes(self) -> int:
        """The total size of all elements, in bytes."""


@dataclass(eq=False)
class Tracer:
    """Follows a run and creates its events.

    A result has no letters if its stage lists no matching op.
    """

    sizes: Mapping[str, int]  # the model's sizes by letter; the run determines T, S and C
    write: Callable[[Event], None]  # receives the events in order
    _: KW_ONLY
    # The letters of the weights by name: `ModelArgs.tensor_letters`.
    weight_letters: Mapping[str, Letters] = field(default_factory=dict)
    wants: Wants = lambda *_where: True  # whether any consumer needs the events
    # Returns the text of a token on one line.
    text_of: Callable[[int], str] = lambda _token: ""
    statistics: bool = False  # whether to compute statistics of results
    row: RowChoice | None = None  # the row of each result to keep, if any
    values: Wants = lambda *_where: False  # whether to copy the elements of results
    close: Callable[[], None] = lambda: None  # called when the trace stops

    def __post_init__(self) -> None:
        self._sizes = dict(self.sizes)
        self._began = time.perf_counter()
        self._stage: int | None = None
        self._result_names = ResultNames(self._sizes)
        self._step: int | None = None
        self._position: int | None = None
        self._layer: int | None = None
        self._layer_begins = 0.0, ""
        self._layer_work = 0.0, 0, 0  # total seconds, bytes and operations of its ops
        self._last: TensorLike | None = None
        self._letters: dict[str, Letters] = {}
        self._numbers = itertools.count(1)
        self._ids: dict[Hashable, int] = {}
        # The buffers in the current layer's KV cache, by name.
        self._buffers: dict[str, TensorInfo] = {}

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
        start = time.perf_counter() - self._began
        if stage in (5, 19):
            self._end_layer()
        elif stage == 2:
            self._step = None
        elif stage == 3:
            self._step = 0 if self._step is None else self._step + 1
            # The tensors from the previous pass have been freed, so their addresses may
            # be reused. Only weights and caches are kept, which have string keys.
            self._ids = {k: id_ for k, id_ in self._ids.items() if isinstance(k, str)}
        if stage not in _BLOCK_STAGES:
            self._layer = None
        elif layer is not None:
            self._layer = layer
            self._layer_work = (0.0, 0, 0)
            self._layer_begins = start, calling_line()
        self._stage = stage
        self._result_names.enter(stage)
        if position is not None:
            self._position = position
        if T is not None:
            self._sizes["T"] = T
            self._sizes["S"] = (self._position or 0) + T
        if self.wants(stage, self._layer, self._step):
            details = json_value(details)
            details = {**details, **self._derived_details(stage, inputs, details)}
            begins = start, calling_line()
            read = tuple(self._describe_input(x, name) for name, x in inputs.items())
            results = tuple(
                self._with_row(MARK, self._describe_result(MARK, x, name), x)
                for name, x in outputs.items()
            )
            self._event(MARK, read, results, begins, (None, 0, 0), details)

    def op(
        self,
        op: str,
        inputs: Sequence[TensorLike],
        result: TensorLike,
        details: Mapping[str, Any],
        seconds: float | None,
    ) -> str:
        """Record one result of an op, and return its name.

        `seconds` is the duration of the op for its first result, and None for the others.
        """
        name: str = getattr(result, "name", "")
        if self._stage is None:
            return name
        start = time.perf_counter() - self._began - (seconds or 0.0)
        details = dict(details)
        if "C" in details:
            self._sizes["C"] = details.pop("C")
        if op == "read_cache":
            self._sizes.pop("W", None)
            if result.shape[0] != self._sizes.get("S"):
                self._sizes["W"] = result.shape[0]
        if op == "write_cache":  # xk is written to the first buffer, xv to the second
            inputs = inputs[1:] if seconds is None else inputs[:1]
            S = details["start_pos"] + result.shape[0]
            first = max(
                0, S - self._sizes["C"]
            )  # a ring contains only the last positions
            details |= {
                "written": f"{details['start_pos']}:{S}",
                "filled": f"{first}:{S}",
            }
        if op == "choose_experts":
            last: np.ndarray[Any, Any] = np.asarray(result)[-1]
            details["last_token"] = [round(each, 4) for each in last.tolist()]
        moved, operations = _work(op, inputs, result)
        total, all_moved, all_operations = self._layer_work
        self._layer_work = (
            total + (seconds or 0.0),
            all_moved + moved,
            all_operations + operations,
        )
        self._last = result
        place = self._stage, self._layer, self._step
        if not self.wants(*place):
            return self._describe_result(op, result, name).name
        read = tuple(self._describe_input(x, getattr(x, "name", "")) for x in inputs)
        info = replace(
            self._with_row(op, self._describe_result(op, result, name), result),
            statistics=statistics(result) if self.statistics else None,
            values=_elements(result) if self.values(*place) else None,
        )
        if op == "read_cache" and f"cache_{info.name[:1]}" in self._buffers:
            read = (self._buffers[f"cache_{info.name[:1]}"],)
        work = seconds, moved, operations
        self._event(op, read, (info,), (start, calling_line()), work, details)
        return info.name

    def _with_row(self, op: str, info: TensorInfo, x: TensorLike) -> TensorInfo:
        """Return a description with the chosen row, if the result contains that row."""
        if self.row is None or not info.letters:
            return info
        start = self._position or 0
        end = start + self._sizes.get("T", 1)
        index = row_index(info.letters, self.row, start, end, self._sizes)
        if index is None:
            return info
        places = [slice(None) if place is None else place for place in index]
        if op == "write_cache":  # its result contains only the new positions
            places[0] = (index[0] or 0) - start
        return replace(info, row=_row(index, np.asarray(x)[tuple(places)]))

    def _end_layer(self) -> None:
        """Write a summary of the transformer block that ends here, if it is complete.

        A block that was interrupted is not in stage 18.
        """
        if self._layer is None or self._stage != 18 or self._last is None:
            return
        if self.wants(5, self._layer, self._step):
            self._stage = 5
            results = (self._describe_input(self._last, "x"),)
            self._event(LAYER, (), results, self._layer_begins, self._layer_work, {})

    def _derived_details(
        self, stage: int, inputs: Mapping[str, TensorLike], details: Mapping[str, Any]
    ) -> dict[str, Any]:
        """Return the details that a stage itself omits, because they cost time."""
        if stage == 3:
            return {letter: self._sizes[letter] for letter in ("T", "S")}
        if stage == 13 and "W" in self._sizes:
            return {"W": self._sizes["W"]}
        if stage in HOLDS:
            return {"stages": HOLDS[stage]}
        if stage == 1:
            texts_of_prompt = [m["content"] for m in details.get("messages", ())] or [
                details.get("text", "")
            ]
            texts = [self.text_of(token) for token in details["ids"]]
            return {"texts": texts, "symbols": symbols("".join(texts_of_prompt))}
        if stage == 20:
            tokens = [
                candidate["token_id"] for candidate in details["choice"]["candidates"]
            ]
            logits: np.ndarray[Any, Any] = np.asarray(inputs["logits"])
            return {
                "logits": [float(logits[token]) for token in tokens],
                "texts": [self.text_of(token) for token in tokens],
            }
        if stage == 21:
            text = self.text_of(details["token"])
            printed = details["text"]
            # The token ends with part of a character, which later tokens complete.
            is_part = _BYTE.search(text) is not None
            return {
                "texts": [text],
                "symbols": symbols(printed),
                "waits": is_part and not printed,
            }
        return {}

    def _event(
        self,
        op: str,
        read: Infos,
        results: Infos,
        begins: Begins,
        work: Work,
        details: Details,
    ) -> None:
        """Write an event in the current stage."""
        assert self._stage is not None
        (start, code) = begins
        details = json_value(details)
        place = (
            self._stage,
            STAGES[self._stage].name,
            self._layer,
            self._step,
            self._position,
        )
        self.write(Event(op, *place, read, results, start, *work, details, code))

    def _describe_result(self, op: str, x: TensorLike, name: str) -> TensorInfo:
        """Describe a result, with the name and letters of the next matching op.

        The result of a cache write is described as the whole buffer.
        """
        assert self._stage is not None
        is_cache = op == "write_cache" and "C" in self._sizes
        shape = (self._sizes["C"], *x.shape[1:]) if is_cache else tuple(x.shape)
        letters: Letters = ()
        found = self._result_names.next(op, shape)
        if found is not None:
            name, letters = found
            self._letters[name] = letters
        if not is_cache:
            index = self._ids[_key(x, name)] = next(self._numbers)
            return TensorInfo(name, shape, letters, str(x.dtype.name), index)
        index = self._ids.setdefault(
            f"{name} of layer {self._layer}", next(self._numbers)
        )
        buffer = self._buffers[name] = TensorInfo(
            name, shape, letters, str(x.dtype.name), index
        )
        return buffer

    def _describe_input(self, x: TensorLike, name: str) -> TensorInfo:
        """Describe an input, with the letters of the result or weight of this name."""
        shape = tuple(x.shape)
        candidates = (
            self._letters.get(name),
            self.weight_letters.get(name),
            _INPUT_LETTERS.get(name),
        )
        letters = next((c for c in candidates if c and fits(c, shape, self._sizes)), ())
        id_ = self._ids.setdefault(_key(x, name), next(self._numbers))
        return TensorInfo(name, shape, letters, str(x.dtype.name), id_)


def _key(x: TensorLike, name: str) -> Hashable:
    """Return a key that identifies a tensor, which is its name if it is a weight."""
    is_weight = name.endswith((".weight", ".bias"))
    return name if is_weight else (_address(x), tuple(x.shape), name)


def _address(x: TensorLike) -> int:
    return int(
        x.ctypes.data if isinstance(x, np.ndarray) else getattr(x, "data_pointer", 0)
    )


def _work(op: str, inputs: Sequence[TensorLike], result: TensorLike) -> tuple[int, int]:
    """Return the number of bytes that an op moves, and its number of operations.

    Both are 0 if the result is a view.
    """
    size = math.prod(result.shape)
    address = _address(result)
    if any(_address(x) <= address < _address(x) + x.nbytes for x in inputs):
        return 0, 0
    if op == "get_rows":  # reads only T rows of the table, and T ids
        table = inputs[0]
        ids = inputs[-1]
        return result.nbytes + ids.nbytes + table.nbytes * ids.shape[0] // table.shape[
            0
        ], 0
    if op in _EXPERT_PRODUCTS:
        return _expert_work(inputs, result)
    moved = result.nbytes * (2 if op == "read_cache" else 1) + sum(
        x.nbytes for x in inputs
    )
    per_element = 2 * inputs[0].shape[-1] if op in _PRODUCTS else _OPERATIONS.get(op, 0)
    return moved, per_element * size


def _expert_work(inputs: Sequence[TensorLike], result: TensorLike) -> tuple[int, int]:
    """Return the bytes and operations of an op on experts, which reads only used ones."""
    chosen: np.ndarray[Any, Any] = np.asarray(inputs[1])  # [T, A]
    stacks = [x for x in inputs if len(x.shape) == 3]  # [E, out, in]
    moved = result.nbytes + sum(x.nbytes for x in inputs if len(x.shape) < 3)
    for stack in stacks:
        moved += stack.nbytes * len(np.unique(chosen)) // stack.shape[0]
    per_pair = sum(2 * math.prod(stack.shape[1:]) for stack in stacks)
    return moved, per_pair * chosen.size


def _elements(x: TensorLike) -> np.ndarray[Any, Any]:
    """Return a copy of all elements, as complex64 or float32."""
    values = np.asarray(x)
    return values.astype(np.complex64 if values.dtype.kind == "c" else np.float32)


def statistics(x: TensorLike) -> dict[str, Any] | None:
    """Compute statistics in float64, or return None if the tensor has no elements.

    A complex element counts as two values.
    """
    array: np.ndarray[Any, Any] = np.asarray(x)
    if array.dtype.kind == "c":
        array = np.stack((array.real, array.imag), axis=-1)
    flat = array.astype(np.float64).ravel()
    if flat.size == 0:
        return None
    with np.errstate(all="ignore"):  # the attention mask contains -inf
        mean = float(flat.mean())
        rms = float(np.sqrt(np.square(flat).mean()))
    result: dict[str, Any] = json_value(
        {
            "min": float(flat.min()),
            "max": float(flat.max()),
            "mean": mean,
            "rms": rms,
            "first": flat[:_END_VALUES].tolist(),
            "last": flat[-_END_VALUES:].tolist(),
        }
    )
    return result


def row_index(
    letters: Letters, choice: RowChoice, start: int, end: int, sizes: Mapping[str, int]
) -> tuple[int | None, ...] | None:
    """Return the index of a row in a result of the pass over positions start to end.

    Args:
        letters: The letters of the result.
        choice: The position and the query head of the row.
        start: The position of the first new token.
        end: The position after the last new token.
        sizes: The sizes by letter, of which G and W are used.

    Returns:
        An integer for each dimension, and None for the dimension along the row. None if
        the result has no row of this position.
    """
    last = end - 1
    position = last if choice.position is None else choice.position
    rows = {
        "T": position - start,  # one row per new token
        "S": position,  # one row per position, cached or new
        "W": position - end + sizes.get("W", 0),  # one row per position that is read
        "C": position,  # a pass writes only the new positions
        "1": position - last,  # the row of the last token
        "H": choice.head,
        "K": choice.head // sizes.get("G", 1),
    }
    inside = {
        "T": (0, end - start),
        "S": (0, end),
        "W": (0, sizes.get("W", 0)),
        "C": (start, end),
        "1": (0, 1),
    }
    along = letters[-1]
    if letters[-2:] in (("h", "S"), ("h", "W")):  # transposed keys
        along = "h"
    index = tuple(None if letter == along else rows.get(letter, 0) for letter in letters)
    for letter, place in zip(letters, index, strict=True):
        if place is not None and letter in inside:
            first, stop = inside[letter]
            if not first <= place < stop:
                return None
    return index


def _row(index: tuple[int | None, ...], row: np.ndarray[Any, Any]) -> dict[str, Any]:
    """Return a row in its JSON form, with its first elements."""
    shown = _ROW_VALUES
    if row.dtype.kind == "c":
        shown //= 2
        first: list[Any] = [[float(n.real), float(n.imag)] for n in row[:shown]]
    elif row.dtype.kind in "iu":
        first = [int(n) for n in row[:shown]]
    else:
        first = [float(n) for n in row[:shown]]
    result: dict[str, Any] = json_value(
        {"index": index, "length": row.shape[0], "first": first}
    )
    return result


def symbols(text: str) -> list[str]:
    """Return the code point and name of each distinct symbol, such as an emoji."""
    characters = (
        c for c in text if ord(c) > 0x2000 and unicodedata.category(c) in _SYMBOLS
    )
    return [
        f"U+{ord(c):04X} {unicodedata.name(c, 'without a name')}"
        for c in dict.fromkeys(characters)
    ]
