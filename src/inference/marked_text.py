"""Texts that record which of their characters come from outside of a chat template.

A prompt consists of text that the template writes and of text from outside: messages,
names, tools and documents. The name of a special token means the token only in the text
of the template. After a template has trimmed, cut, replaced and joined both kinds, only a
mark on each character distinguishes them.
"""

import re
from collections.abc import Callable, Iterable, Iterator
from typing import Any

_TEMPLATE = b"\0"
_OUTSIDE = b"\1"
# These patterns are compiled when a template first formats a text; few templates do.
_PLACEHOLDER = (
    r"%(?:%|(?:\((?P<key>[^()]*)\))?(?P<flags>[#0 +-]*)(?P<width>[0-9]*)"
    r"(?:\.(?P<precision>[0-9]*))?[hlL]?(?P<kind>[diouxXeEfFgGcrs]))"
)
_MOST_FORMAT_WIDTH = 1000
_FIELD = r"\{\{|\}\}|\{(\w*)(?::([^{}]*))?\}"
_SPECIFICATION = r"[<>^]?[+-]?0?(\d*),?(?:\.(\d+))?[defgs%]?"


class MarkedText(str):
    """A text with a mark on each character that comes from outside of the template.

    It is equal to the plain text, and has its hash. Slices, sums, `str(text)` and the
    functions of this module keep the marks. The methods of `str` drop them.
    """

    __slots__ = ("_marks",)
    _marks: bytes  # for each character: 0 from the template, 1 from outside

    def __str__(self) -> str:
        return self

    def __getitem__(self, index: Any) -> str:
        part = str.__getitem__(self, index)
        if isinstance(index, slice):
            return with_marks(part, self._marks[index])
        return with_marks(part, self._marks[index : index + 1 or None])

    def __iter__(self) -> Iterator[str]:
        for index, character in enumerate(str.__iter__(self)):
            yield with_marks(character, self._marks[index : index + 1])

    def __add__(self, other: str) -> str:
        return join([self, other]) if isinstance(other, str) else NotImplemented

    def __radd__(self, other: str) -> str:
        return join([other, self]) if isinstance(other, str) else NotImplemented

    def __mul__(self, count: Any) -> str:
        return with_marks(str.__mul__(self, count), self._marks * count)

    __rmul__ = __mul__


def with_marks(text: str, marks: bytes) -> MarkedText:
    """Return a text with the given marks, one for each character."""
    marked = MarkedText(text)
    marked._marks = marks
    return marked


def mark_outside(text: str) -> MarkedText:
    """Return a text with a mark on each of its characters."""
    return with_marks(text, _OUTSIDE * len(text))


def marks_of(text: str) -> bytes:
    """Return the marks: 1 for each character from outside, 0 for each other one."""
    return text._marks if isinstance(text, MarkedText) else _TEMPLATE * len(text)


def has_marks(value: object) -> bool:
    """Return whether a value has text with marks, also in its elements or keys."""
    if isinstance(value, MarkedText):
        return b"\1" in value._marks
    if isinstance(value, dict):
        return any(has_marks(key) or has_marks(item) for key, item in value.items())
    if isinstance(value, list | tuple):
        return any(map(has_marks, value))
    return False


def mark_values(value: Any) -> Any:
    """Return a copy of a JSON value in which all texts and keys are marked."""
    if isinstance(value, str):
        return mark_outside(value)
    if isinstance(value, dict):
        return {mark_values(key): mark_values(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [mark_values(item) for item in value]
    return value


def join(texts: Iterable[str], separator: str = "") -> str:
    """Join texts as `separator.join(texts)` does, and keep their marks."""
    parts = list(texts)
    whole = str.join(separator, parts)
    if not any(isinstance(part, MarkedText) for part in (*parts, separator)):
        return whole
    return with_marks(whole, marks_of(separator).join(map(marks_of, parts)))


def strip(text: str, characters: str | None = None, /) -> str:
    """Remove white space, or the given characters, at both ends."""
    return strip_left(strip_right(text, characters), characters)


def strip_left(text: str, characters: str | None = None, /) -> str:
    """Remove white space, or the given characters, at the beginning."""
    return text[len(text) - len(str.lstrip(text, characters)) :]


def strip_right(text: str, characters: str | None = None, /) -> str:
    """Remove white space, or the given characters, at the end."""
    return text[: len(str.rstrip(text, characters))]


def remove_prefix(text: str, prefix: str, /) -> str:
    """Remove a prefix, if the text has it."""
    return text[len(text) - len(str.removeprefix(text, prefix)) :]


def remove_suffix(text: str, suffix: str, /) -> str:
    """Remove a suffix, if the text has it."""
    return text[: len(str.removesuffix(text, suffix))]


def _slices_of(text: str, pieces: Iterable[str]) -> list[str]:
    """Return the slices of a text that equal consecutive pieces of it."""
    slices: list[str] = []
    at = 0
    for piece in pieces:
        start = str.index(text, piece, at)
        at = start + len(piece)
        slices.append(text[start:at])
    return slices


def _slices_between(text: str, pieces: list[str], separator: str | None) -> list[str]:
    """Return the slices of a text between its separators."""
    if separator is None:
        return _slices_of(text, pieces)
    slices: list[str] = []
    at = 0
    for piece in pieces:
        slices.append(text[at : at + len(piece)])
        at += len(piece) + len(separator)
    return slices


def split(text: str, /, sep: str | None = None, maxsplit: int = -1) -> list[str]:
    """Cut a text at white space or at a separator."""
    return _slices_between(text, str.split(text, sep, maxsplit), sep)


def split_from_right(
    text: str, /, sep: str | None = None, maxsplit: int = -1
) -> list[str]:
    """Cut a text at white space or at a separator, from the right."""
    return _slices_between(text, str.rsplit(text, sep, maxsplit), sep)


def split_lines(text: str, /, keepends: bool = False) -> list[str]:
    """Cut a text at the ends of its lines."""
    lines = _slices_of(text, str.splitlines(text, True))
    if keepends:
        return lines
    bare = str.splitlines(text)
    return [line[: len(short)] for line, short in zip(lines, bare, strict=True)]


def partition(text: str, separator: str, /) -> tuple[str, ...]:
    """Cut a text in three at the first separator."""
    return tuple(_slices_of(text, str.partition(text, separator)))


def partition_from_right(text: str, separator: str, /) -> tuple[str, ...]:
    """Cut a text in three at the last separator."""
    return tuple(_slices_of(text, str.rpartition(text, separator)))


def replace(text: str, old: str, new: str, count: int = -1, /) -> str:
    """Replace a part of a text everywhere, or at the first places."""
    if old == "":
        return as_outside(str.replace(text, old, new, count), text, new)
    pieces = _slices_between(text, str.split(text, old, count), old)
    return join(pieces, new)


def as_outside(result: str, *sources: object) -> str:
    """Mark a text that was made from others, if one of them is marked."""
    if isinstance(result, MarkedText) or not any(map(has_marks, sources)):
        return result
    return mark_outside(result)


def _same_length(result: str, text: str) -> str:
    """Return a text that was made character by character, with its source's marks."""
    if len(result) == len(text) and isinstance(text, MarkedText):
        return with_marks(result, text._marks)
    return as_outside(result, text)


def justify(text: str, width: int, side: str, fill: str = " ") -> str:
    """Pad a text to a width like `center`, `ljust` or `rjust`, with its marks."""
    missing = max(width - len(text), 0)
    left = {"ljust": 0, "rjust": missing}.get(side)
    if left is None:
        # For an odd number of places, Python puts the last one left if the width is also
        # odd.
        left = missing // 2 + (missing & width & 1)
    if len(fill) != 1:
        raise TypeError("the fill character must be exactly one character long")
    return join([fill * left, text, fill * (missing - left)])


def format_percent(text: str, arguments: object, text_of: Callable[[Any], str]) -> str:
    """Return `text % arguments`.

    Args:
        text: The format.
        arguments: A tuple of values, an object with named values, or one value.
        text_of: Converts a value to text.

    Raises:
        ValueError: A placeholder is unknown or too wide.
        TypeError: The values do not match the placeholders.
    """
    values = iter(arguments if isinstance(arguments, tuple) else (arguments,))
    parts: list[str] = []
    done = 0
    start = str.find(text, "%")
    while start >= 0:
        match = re.compile(_PLACEHOLDER).match(text, start)
        if match is None:
            raise ValueError("a format has an unknown placeholder")
        parts.append(text[done:start])
        key = match["key"]
        if match["kind"] is None:
            parts.append(text[start : start + 1])
        elif key is not None:
            if not isinstance(arguments, dict):
                raise TypeError("a format with names requires an object")
            parts.append(_percent_field(match, arguments[key], text_of))
        else:
            try:
                value = next(values)
            except StopIteration:
                raise TypeError("not enough values for a format") from None
            parts.append(_percent_field(match, value, text_of))
        done = match.end()
        start = str.find(text, "%", done)
    is_single = isinstance(arguments, tuple | str | int | float | None)
    if is_single and any(True for _ in values):
        raise TypeError("not all values are in the format")
    return join([*parts, text[done:]])


def _percent_field(
    match: re.Match[str], value: Any, text_of: Callable[[Any], str]
) -> str:
    """Return one field of a format with `%`."""
    kind = match["kind"]
    width = int(match["width"] or 0)
    precision = match["precision"]
    if max(width, int(precision or 0)) > _MOST_FORMAT_WIDTH:
        raise ValueError(f"the width of a format must be at most {_MOST_FORMAT_WIDTH}")
    if kind in "diouxXeEfFgG":
        if not isinstance(value, int | float):
            raise TypeError(f"a number is required for %{kind}")
        digits = "" if precision is None else f".{precision}"
        return text_of(f"%{match['flags']}{match['width']}{digits}{kind}" % value)
    if kind == "c":
        # The code of a character is unmarked, so the character counts as outside.
        text = mark_outside(chr(value)) if isinstance(value, int) else value
        if not isinstance(text, str) or len(text) != 1:
            raise TypeError("%c requires a character")
    elif kind == "r" and isinstance(value, str):
        text = as_outside(repr(value), value)
    else:
        text = text_of(value)
    if precision is not None:
        text = text[: int(precision or 0)]
    return text_of(justify(text, width, "ljust" if "-" in match["flags"] else "rjust"))


def format_braces(
    text: str,
    arguments: tuple[Any, ...],
    named: dict[str, Any],
    text_of: Callable[[Any], str],
) -> str:
    """Return `text.format(...)` for fields that are a number, a name or empty.

    Raises:
        ValueError: A field reads an attribute or an element, or its specification is too
            wide.
    """
    pieces: list[str] = []
    at = 0
    next_field = 0
    for match in re.finditer(_FIELD, text):
        between = text[at : match.start()]
        if "{" in between or "}" in between:
            break
        pieces.append(between)
        at = match.end()
        if match[0] in ("{{", "}}"):
            pieces.append(match[0][0])
            continue
        name = match[1]
        if name == "":
            value = arguments[next_field]
            next_field += 1
        else:
            value = arguments[int(name)] if name.isdecimal() else named[name]
        pieces.append(_brace_field(value, match[2] or "", text_of))
    rest = text[at:]
    if "{" in rest or "}" in rest:
        raise ValueError("the fields of a format must be {}, {number} or {name}")
    return join([*pieces, rest])


def _brace_field(value: Any, specification: str, text_of: Callable[[Any], str]) -> str:
    """Return one field of a format with `{}`."""
    if not specification:
        return text_of(value)
    match = re.fullmatch(_SPECIFICATION, specification)
    widths = [int(width) for width in match.groups() if width] if match else []
    is_plain = isinstance(value, int | float | str)
    if (
        match is None
        or not is_plain
        or any(width > _MOST_FORMAT_WIDTH for width in widths)
    ):
        raise ValueError(f"a format has an unknown specification: {specification[:40]}")
    if isinstance(value, str):
        return text_of(as_outside(str.__format__(value, specification), value))
    return text_of(format(value, specification))


# The methods of texts that keep marks. Any other method drops them. Its result, if it is
# a text, is marked as a whole if the text or an argument is marked.
METHODS: dict[str, Any] = {
    "capitalize": lambda text: _same_length(str.capitalize(text), text),
    "casefold": lambda text: _same_length(str.casefold(text), text),
    "center": lambda text, width, fill=" ", /: justify(text, width, "center", fill),
    "join": lambda text, texts, /: join(texts, text),
    "ljust": lambda text, width, fill=" ", /: justify(text, width, "ljust", fill),
    "lower": lambda text: _same_length(str.lower(text), text),
    "lstrip": strip_left,
    "partition": partition,
    "removeprefix": remove_prefix,
    "removesuffix": remove_suffix,
    "replace": replace,
    "rjust": lambda text, width, fill=" ", /: justify(text, width, "rjust", fill),
    "rpartition": partition_from_right,
    "rsplit": split_from_right,
    "rstrip": strip_right,
    "split": split,
    "splitlines": split_lines,
    "strip": strip,
    "swapcase": lambda text: _same_length(str.swapcase(text), text),
    "title": lambda text: _same_length(str.title(text), text),
    "upper": lambda text: _same_length(str.upper(text), text),
}
