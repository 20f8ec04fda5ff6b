"""Strings that record which of their characters do not come from a chat template.

A prompt consists of text written by the template and of outside text: messages, names,
tools and documents. The name of a special token represents this token only in text that
the template has written. Templates trim, split, replace and join both kinds of text, so a
mark on each character is needed to distinguish them.
"""

import re
from collections.abc import Callable, Iterable, Iterator
from typing import Any

_TEMPLATE = b"\0"
_OUTSIDE = b"\1"
# These patterns are compiled on first use, because few templates format strings.
_PLACEHOLDER = (
    r"%(?:%|(?:\((?P<key>[^()]*)\))?(?P<flags>[#0 +-]*)(?P<width>[0-9]*)"
    r"(?:\.(?P<precision>[0-9]*))?[hlL]?(?P<kind>[diouxXeEfFgGcrs]))"
)
_MOST_FORMAT_WIDTH = 1000
_FIELD = r"\{\{|\}\}|\{(\w*)(?::([^{}]*))?\}"
_SPECIFICATION = r"[<>^]?[+-]?0?(\d*),?(?:\.(\d+))?[defgs%]?"


class MarkedText(str):
    """A string with a mark on each character that does not come from the template.

    It compares equal to the plain string and has the same hash. Slicing, concatenation,
    repetition, `str(text)` and the functions in this module preserve the marks, but the
    methods of `str` do not.
    """

    __slots__ = ("_marks",)
    _marks: bytes  # for each character: 0 if from the template, 1 if from outside

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
    """Return a string with these marks, one byte for each character."""
    marked = MarkedText(text)
    marked._marks = marks
    return marked


def mark_outside(text: str) -> MarkedText:
    """Return a string with a mark on every character."""
    return with_marks(text, _OUTSIDE * len(text))


def marks_of(text: str) -> bytes:
    """Return the marks of a string: 1 for each outside character, and 0 otherwise."""
    return text._marks if isinstance(text, MarkedText) else _TEMPLATE * len(text)


def has_marks(value: object) -> bool:
    """Return whether a value contains a marked string, including in elements and keys."""
    if isinstance(value, MarkedText):
        return b"\1" in value._marks
    if isinstance(value, dict):
        return any(has_marks(key) or has_marks(item) for key, item in value.items())
    if isinstance(value, list | tuple):
        return any(map(has_marks, value))
    return False


def mark_values(value: Any) -> Any:
    """Return a copy of a JSON value in which all strings and keys are marked."""
    if isinstance(value, str):
        return mark_outside(value)
    if isinstance(value, dict):
        return {mark_values(key): mark_values(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [mark_values(item) for item in value]
    return value


def join(texts: Iterable[str], separator: str = "") -> str:
    """Return `separator.join(texts)`, with marks."""
    parts = list(texts)
    whole = str.join(separator, parts)
    if not any(isinstance(part, MarkedText) for part in (*parts, separator)):
        return whole
    return with_marks(whole, marks_of(separator).join(map(marks_of, parts)))


def strip(text: str, characters: str | None = None, /) -> str:
    """Return `text.strip(characters)`, with marks."""
    return strip_left(strip_right(text, characters), characters)


def strip_left(text: str, characters: str | None = None, /) -> str:
    """Return `text.lstrip(characters)`, with marks."""
    return text[len(text) - len(str.lstrip(text, characters)) :]


def strip_right(text: str, characters: str | None = None, /) -> str:
    """Return `text.rstrip(characters)`, with marks."""
    return text[: len(str.rstrip(text, characters))]


def remove_prefix(text: str, prefix: str, /) -> str:
    """Return `text.removeprefix(prefix)`, with marks."""
    return text[len(text) - len(str.removeprefix(text, prefix)) :]


def remove_suffix(text: str, suffix: str, /) -> str:
    """Return `text.removesuffix(suffix)`, with marks."""
    return text[: len(str.removesuffix(text, suffix))]


def _slices_of(text: str, pieces: Iterable[str]) -> list[str]:
    """Return the slices of a marked string that equal these consecutive pieces."""
    slices: list[str] = []
    at = 0
    for piece in pieces:
        start = str.index(text, piece, at)
        at = start + len(piece)
        slices.append(text[start:at])
    return slices


def _slices_between(text: str, pieces: list[str], separator: str | None) -> list[str]:
    """Return the slices of a marked string that equal the pieces between separators."""
    if separator is None:
        return _slices_of(text, pieces)
    slices: list[str] = []
    at = 0
    for piece in pieces:
        slices.append(text[at : at + len(piece)])
        at += len(piece) + len(separator)
    return slices


def split(text: str, /, sep: str | None = None, maxsplit: int = -1) -> list[str]:
    """Return `text.split(sep, maxsplit)`, with marks."""
    return _slices_between(text, str.split(text, sep, maxsplit), sep)


def split_from_right(
    text: str, /, sep: str | None = None, maxsplit: int = -1
) -> list[str]:
    """Return `text.rsplit(sep, maxsplit)`, with marks."""
    return _slices_between(text, str.rsplit(text, sep, maxsplit), sep)


def split_lines(text: str, /, keepends: bool = False) -> list[str]:
    """Return `text.splitlines(keepends)`, with marks."""
    lines = _slices_of(text, str.splitlines(text, True))
    if keepends:
        return lines
    bare = str.splitlines(text)
    return [line[: len(short)] for line, short in zip(lines, bare, strict=True)]


def partition(text: str, separator: str, /) -> tuple[str, ...]:
    """Return `text.partition(separator)`, with marks."""
    return tuple(_slices_of(text, str.partition(text, separator)))


def partition_from_right(text: str, separator: str, /) -> tuple[str, ...]:
    """Return `text.rpartition(separator)`, with marks."""
    return tuple(_slices_of(text, str.rpartition(text, separator)))


def replace(text: str, old: str, new: str, count: int = -1, /) -> str:
    """Return `text.replace(old, new, count)`, with marks."""
    if old == "":
        return as_outside(str.replace(text, old, new, count), text, new)
    pieces = _slices_between(text, str.split(text, old, count), old)
    return join(pieces, new)


def as_outside(result: str, *sources: object) -> str:
    """Mark a whole string if one of the values from which it was made is marked."""
    if isinstance(result, MarkedText) or not any(map(has_marks, sources)):
        return result
    return mark_outside(result)


def _same_length(result: str, text: str) -> str:
    """Return the result of a character-wise conversion, with the marks of its source.

    If the conversion has changed the length, mark the whole result.
    """
    if len(result) == len(text) and isinstance(text, MarkedText):
        return with_marks(result, text._marks)
    return as_outside(result, text)


def justify(text: str, width: int, side: str, fill: str = " ") -> str:
    """Pad a string like the method `side` (`center`, `ljust` or `rjust`), with marks."""
    missing = max(width - len(text), 0)
    left = {"ljust": 0, "rjust": missing}.get(side)
    if left is None:
        # If the padding is odd, Python puts the extra character on the left for an odd
        # width, and on the right for an even width.
        left = missing // 2 + (missing & width & 1)
    if len(fill) != 1:
        raise TypeError("the fill character must be exactly one character long")
    return join([fill * left, text, fill * (missing - left)])


def format_percent(text: str, arguments: object, text_of: Callable[[Any], str]) -> str:
    """Return `text % arguments`, with marks.

    Args:
        text: The format string.
        arguments: A tuple of values, a dict of named values, or a single value.
        text_of: A function that converts a value to a string.

    Raises:
        ValueError: If a placeholder is unknown or its width is too large.
        TypeError: If the values do not match the placeholders.
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
    """Return the string for one `%` placeholder."""
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
        # Numbers have no quotation marks, so the character does not begin a string.
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
    """Return `text.format(*arguments, **named)`, with marks.

    Fields must be empty, a number or a name.

    Raises:
        ValueError: If a field accesses an attribute or an element, or if its format
            specification is not supported or its width is too large.
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
    """Return the string for one `{}` field."""
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


# The string methods that preserve marks. If any other method returns a string, the whole
# result is marked if the original string or an argument is marked.
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
