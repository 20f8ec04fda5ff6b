"""The places in the network whose tensors have names, and the addresses of parts of them.

An address names a result of the trace, and optionally the layer, the head and the
positions: `layers.3.attention.heads[5]`, `x[layer 6]`, `layers.8.feed_forward@12`. Two
forms are accepted: the path of a module, and the name of a result as the trace shows it.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass

from ..trace.events import STAGES, Letters, size_of
from .errors import InterventionError

# (path, stage, name of the result in the trace, letters)
_PATHS = """
embedding | 4 | x | T, D
layers.L.attention_norm | 6 | normed | T, D
layers.L.attention.xq | 10 | xq | T, H, h
layers.L.attention.xk | 10 | xk | T, K, h
layers.L.attention.xv | 9 | xv | T, K, h
layers.L.attention.scores | 13 | scores | H, T, S
layers.L.attention.weights | 13 | weights | H, T, S
layers.L.attention.heads | 14 | output | T, H, h
layers.L.attention | 14 | attention | T, D
layers.L.ffn_norm | 16 | normed | T, D
layers.L.feed_forward.gate | 17 | gate | T, F
layers.L.feed_forward.up | 17 | up | T, F
layers.L.feed_forward.hidden | 17 | hidden | T, F
layers.L.feed_forward | 17 | feed_forward | T, D
layers.L.x | 18 | x | T, D
norm | 19 | x | T, D
logits | 19 | logits | T, V
"""
# Ops whose results are not tensors of the network, do not depend on the text, or are
# written in place, and views.
_LEFT_OUT = ("mark", "write_cache", "full", "triu", "tril", "slice")
_BLOCK_STAGES = range(5, 19)
# The letters of a place for those of a result: the row of the last token is a row of
# tokens, and the positions that a layer with a window reads are cached positions.
_SAME_ROWS = {"1": "T", "W": "S"}
_ADDRESS = re.compile(
    r"(?P<name>[A-Za-z_][\w.]*?)\s*"
    r"(?:\[(?P<items>[^\]]*)\])?\s*"
    r"(?:@\s*(?P<first>\d+)?(?P<colon>:)?(?P<end>\d+)?)?",
    re.ASCII,
)
_ITEM = re.compile(
    r"(?P<key>layer|stage|head|key)?\s*(?P<first>\d+)?(?P<colon>:)?(?P<end>\d+)?",
    re.ASCII,
)


@dataclass(frozen=True)
class Place:
    """A result of a stage, as the trace names it.

    Attributes:
        path: The path of the module that computes it, with L for the layer, or "".
        stage: The number of the stage.
        result: The name of the result in the trace.
        letters: The letters of its shape. The row of a token is at the letter T, or at S
            if the result has a row per position of the cache.
    """

    path: str
    stage: int
    result: str
    letters: Letters

    @property
    def is_in_layer(self) -> bool:
        """Whether each layer has this place."""
        return self.stage in _BLOCK_STAGES

    @property
    def row_axis(self) -> int:
        """The axis of the positions."""
        return self.letters.index("T" if "T" in self.letters else "S")

    @property
    def is_spelled_out(self) -> bool:
        """Whether the place exists only while attention runs as one op per stage."""
        return "S" in self.letters or self.letters[0] == "H"

    @property
    def key(self) -> tuple[str, Letters]:
        """The name of the result and its letters, which identify it in its stage."""
        return self.result, self.letters


def letters_of_rows(letters: Letters) -> Letters:
    """Return letters with T for the row of the last token, and S for a window."""
    return tuple(_SAME_ROWS.get(letter, letter) for letter in letters)


def _places() -> tuple[Place, ...]:
    """Return the places with a path, followed by all other results of the trace."""
    places = []
    for line in _PATHS.strip().split("\n"):
        path, number, result, shape = line.split(" | ")
        places.append(Place(path, int(number), result, tuple(shape.split(", "))))
    known = {(place.stage, place.result) for place in places}
    for stage in STAGES.values():
        for step in stage.steps:
            letters = letters_of_rows(step.letters)
            is_row = "T" in letters or "S" in letters
            if step.op in _LEFT_OUT or step.name == "mask" or not is_row:
                continue
            if (stage.number, step.name) not in known:
                known.add((stage.number, step.name))
                places.append(Place("", stage.number, step.name, letters))
    return tuple(places)


PLACES = _places()


@dataclass(frozen=True)
class Address:
    """A part of a place in a model.

    Attributes:
        place: The place.
        layer: The layer, or None outside of the layers.
        parts: The selected elements as ranges (first, end), by the axis of the place.
        dropped: The axes of which a single element is selected.
        first: The first position.
        end: The position after the last one, or None for all later positions.
        text: The address as it was written.
    """

    place: Place
    layer: int | None
    parts: Mapping[int, tuple[int, int]]
    dropped: frozenset[int]
    first: int
    end: int | None
    text: str

    def shape(self, sizes: Mapping[str, int]) -> tuple[int | str, ...]:
        """Return the shape of the selected part, with letters for T and S."""
        shape = list[int | str]()
        for axis, letter in enumerate(self.place.letters):
            if axis == self.place.row_axis:
                shape.append("T")
            elif axis not in self.dropped:
                size = size_of(letter, sizes)
                if axis in self.parts:
                    first, end = self.parts[axis]
                    size = end - first
                shape.append(letter if size is None else size)
        return tuple(shape)


def residual_address(layer: int) -> str:
    """Return the address of the residual stream after a layer."""
    return f"layers.{layer}.x"


def head_address(layer: int, head: int) -> str:
    """Return the address of a head's output."""
    return f"layers.{layer}.attention.heads[{head}]"


def feed_forward_address(layer: int) -> str:
    """Return the address of a feed-forward's output."""
    return f"layers.{layer}.feed_forward"


def valid_names(layers: int) -> str:
    """Return a list of the names that addresses may have, for messages."""
    paths = ", ".join(place.path for place in PLACES if place.path)
    others = dict.fromkeys(place.result for place in PLACES)
    text = f"{paths} (L from 0 to {layers - 1}), or as in the trace, with [layer L]"
    return f"{text} and perhaps [stage N]: {', '.join(others)}"


def parse_address(text: str, sizes: Mapping[str, int]) -> Address:
    """Parse an address.

    Args:
        text: The name of a place, optionally followed by `[...]` and `@...`. The brackets
            contain `layer N`, `stage N`, `head N`, `key N`, or an index without a word
            for the dimension after the positions. An index is N or FIRST:END. `@N` is a
            position, and `@FIRST:END` are several.
        sizes: The sizes of the model, by letter.

    Raises:
        InterventionError: If there is no such place, or an index is out of range.
    """
    layers = sizes["L"]
    match = _ADDRESS.fullmatch(text.strip())
    if match is None:
        form = "NAME, NAME[INDEX] or NAME[INDEX]@POSITION"
        raise InterventionError(
            f"[intervene] address must be {form}: got {ascii(text)[:120]}"
        )
    items = _items(match["items"], text)
    place, layer = _find_place(match["name"], items, text, layers)
    parts = dict[int, tuple[int, int]]()
    dropped = set[int]()
    for key, (first, end, is_single) in items.items():
        axis = _axis(place, key, text)
        letter = place.letters[axis]
        size = size_of(letter, sizes)
        end = end if size is None or end is not None else size
        if end is None or first >= end or (size is not None and end > size):
            most = "" if size is None else f" from 0 to {size - 1}"
            name = key or letter
            raise InterventionError(
                f"[intervene] {name} of {text!r} must be{most}: got {first}:{end}"
            )
        parts[axis] = first, end
        if is_single:
            dropped.add(axis)
    has_position = "@" in text
    first_position = int(match["first"] or 0)
    last: int | None = None
    if has_position:
        last = int(match["end"]) if match["end"] else None
        if not match["colon"]:
            last = first_position + 1
        is_empty = not match["first"] and not match["colon"]
        if is_empty or (last is not None and last <= first_position):
            raise InterventionError(
                f"[intervene] position of {text!r} must be N or FIRST:END"
            )
    return Address(
        place, layer, parts, frozenset(dropped), first_position, last, text.strip()
    )


def _items(text: str | None, address: str) -> dict[str, tuple[int, int | None, bool]]:
    """Return the indexes in brackets as (first, end, is single), by their words."""
    items = dict[str, tuple[int, int | None, bool]]()
    for item in text.split(",") if text is not None else ():
        match = _ITEM.fullmatch(item.strip())
        if match is None or not (match["first"] or match["colon"]):
            words = "layer N, stage N, head N, key N, N or FIRST:END"
            raise InterventionError(
                f"[intervene] index of {address!r} must be {words}: got {item!r}"
            )
        key = match["key"] or ""
        if key in items:
            raise InterventionError(
                f"[intervene] index of {address!r} must occur once: {key or 'N'}"
            )
        first = int(match["first"] or 0)
        is_single = not match["colon"]
        end = first + 1 if is_single else None
        if match["end"]:
            end = int(match["end"])
        items[key] = first, end, is_single
    return items


def _find_place(
    name: str,
    items: dict[str, tuple[int, int | None, bool]],
    text: str,
    layers: int,
) -> tuple[Place, int | None]:
    """Return the place and the layer that an address names, and remove their items."""
    layer = items.pop("layer")[0] if "layer" in items else None
    stage = items.pop("stage")[0] if "stage" in items else None
    path = name
    in_path = re.match(r"layers\.(\d+)\.", name)
    if in_path:
        layer = int(in_path[1])
        path = f"layers.L.{name[in_path.end() :]}"
    found = [place for place in PLACES if place.path == path] or [
        place for place in PLACES if place.result == name
    ]
    if stage is not None:
        found = [place for place in found if place.stage == stage]
    elif len(found) > 1:
        # In a layer, the last named place is its result: x is the output of the layer.
        in_layer = [place for place in found if place.is_in_layer == (layer is not None)]
        with_path = [place for place in in_layer if place.path]
        found = (with_path or in_layer)[-1:]
    if not found:
        names = valid_names(layers)
        raise InterventionError(
            f"[intervene] name must be one of {names}: got {ascii(text)[:120]}"
        )
    place = found[0]
    if place.is_in_layer != (layer is not None):
        needed = "needs [layer L]" if place.is_in_layer else "has no layer"
        raise InterventionError(
            f"[intervene] {name} {needed}, with L from 0 to {layers - 1}: got {text!r}"
        )
    if layer is not None and layer >= layers:
        raise InterventionError(
            f"[intervene] layer must be from 0 to {layers - 1}: got {text!r}"
        )
    return place, layer


def _axis(place: Place, key: str, text: str) -> int:
    """Return the axis of a place that an index with a word selects."""
    others = [axis for axis in range(len(place.letters)) if axis != place.row_axis]
    if not key:
        return others[0]
    letters = {"head": ("H", "K"), "key": ("S",)}[key]
    for axis in others:
        if place.letters[axis] in letters:
            return axis
    shape = ", ".join(place.letters)
    raise InterventionError(
        f"[intervene] {place.result} [{shape}] has no {key}: got {text!r}"
    )
