"""What a notebook shows of a tensor: its shape, a table, a histogram and a heat map.

The page needs neither a network nor a library: the histogram is an SVG picture in the
text, and the heat map a PNG picture. Both are `img` elements, and each pixel of a heat
map has its size in the file, because notebooks that another computer has run are shown
without other SVG and without styles.
"""

import base64
import html
import math
import struct
import zlib
from typing import Any

import numpy as np

from .layout import letters_of_sizes

Array = np.ndarray[Any, Any]

_BINS = 24
_EDGE = 4  # rows and columns of a table at each end of a dimension
_MOST_PIXELS = 256  # rows and columns of a heat map
_LARGEST_PIXEL = 8  # pixels of the screen for an element of a small matrix
_MOST_VALUES = 100_000  # elements of a histogram
_BLUE = np.array([33, 102, 172], np.float64)
_WHITE = np.array([247, 247, 247], np.float64)
_RED = np.array([178, 24, 43], np.float64)
_MASKED = np.array([120, 120, 120], np.float64)  # infinities and NaN


def describe(array: Array, name: str, dtype: str) -> str:
    """Return HTML that shows the elements of a tensor.

    Args:
        array: The elements.
        name: The name of the tensor, which may be empty.
        dtype: The name of the dtype.
    """
    letters = ", ".join(letters_of_sizes.get(n, str(n)) for n in array.shape)
    sizes = ", ".join(map(str, array.shape))
    shape = f"[{letters}]" if letters == sizes else f"[{letters}] = [{sizes}]"
    title = " ".join(filter(None, (f"<b>{html.escape(name)}</b>", shape, dtype)))
    parts = [f"<div style='font-family:monospace'>{title}</div>"]
    if array.size > 1:
        values = _sampled(array)
        parts.append(f"<div style='font-family:monospace'>{_statistics(values)}</div>")
        matrix, place = _last_matrix(array)
        pictures = (_histogram(values), _heat_map(matrix) if matrix.size > 1 else "")
        parts.append(f"<div>{' &emsp; '.join(filter(None, pictures))}</div>")
        if place:
            parts.append(f"<div style='font-family:monospace'>{place}</div>")
        parts.append(_table(matrix))
    elif array.size:
        parts.append(f"<div style='font-family:monospace'>{_number(array.item())}</div>")
    return "".join(parts)


def _sampled(array: Array) -> Array:
    """Return evenly spaced elements as float64, at most about `_MOST_VALUES` of them."""
    flat = array.reshape(-1)[:: max(1, array.size // _MOST_VALUES)]
    return _real(flat)


def _real(array: Array) -> Array:
    return (np.abs(array) if np.iscomplexobj(array) else array).astype(np.float64)


def _statistics(values: Array) -> str:
    finite = values[np.isfinite(values)]
    if not finite.size:
        return "no finite elements"
    texts = (
        f"{label} {_number(float(value))}"
        for label, value in (
            ("min", finite.min()),
            ("mean", finite.mean()),
            ("max", finite.max()),
            ("std", finite.std()),
        )
    )
    others = values.size - finite.size
    return ", ".join([*texts, *([f"not finite {others}"] if others else [])])


def _histogram(values: Array) -> str:
    """Return bars with the number of finite elements in equal ranges, as SVG."""
    finite = values[np.isfinite(values)]
    if not finite.size:
        return ""
    low = float(finite.min())
    high = float(finite.max())
    counts = [finite.size]
    if high > low and math.isfinite(high - low):
        # NumPy's histogram raises an error if the range has fewer numbers than bins.
        bins = ((finite - low) / (high - low) * _BINS).astype(np.int64)
        counts = np.bincount(bins.clip(0, _BINS - 1), minlength=_BINS).tolist()
    most = max(counts)
    width = 240 / len(counts)
    bars = "".join(
        f"<rect x='{i * width:.1f}' y='{60 - 60 * n / most:.1f}' width='{width:.1f}' "
        f"height='{60 * n / most:.1f}' fill='#2166ac'/>"
        for i, n in enumerate(counts)
    )
    style = "font-size='11' font-family='sans-serif' fill='#808080'"  # in light and dark
    picture = (
        "<svg xmlns='http://www.w3.org/2000/svg' width='240' height='78'>"
        f"{bars}<text x='0' y='74' {style}>{_number(low)}</text>"
        f"<text x='240' y='74' text-anchor='end' {style}>{_number(high)}</text></svg>"
    )
    data = base64.b64encode(picture.encode()).decode()
    return f"<img alt='histogram' src='data:image/svg+xml;base64,{data}'>"


def _last_matrix(array: Array) -> tuple[Array, str]:
    """Return the matrix to show, and where it is in a tensor of more dimensions."""
    if array.ndim < 2:
        return array.reshape(1, -1), ""
    first = (0,) * (array.ndim - 2)
    place = f"x[{', '.join(map(str, first))}]:" if first else ""
    return array[first] if first else array, place


def _heat_map(matrix: Array) -> str:
    """Return a matrix as a picture: blue below zero, red above, gray if not finite."""
    steps = [-(-n // _MOST_PIXELS) for n in matrix.shape]
    values = _real(matrix[:: steps[0], :: steps[1]])
    is_finite = np.isfinite(values)
    most = float(np.abs(values[is_finite]).max(initial=0.0)) or 1.0
    share = np.where(is_finite, values, 0.0)[..., None] / most
    colors = np.where(
        share < 0,
        _WHITE + (_BLUE - _WHITE) * -share,
        _WHITE + (_RED - _WHITE) * share,
    )
    colors = np.where(is_finite[..., None], colors, _MASKED)
    scale = max(1, min(_LARGEST_PIXEL, _MOST_PIXELS * 2 // max(values.shape)))
    pixels = colors.round().astype(np.uint8).repeat(scale, axis=0).repeat(scale, axis=1)
    if pixels.shape[0] < _LARGEST_PIXEL:  # a vector
        pixels = pixels.repeat(_LARGEST_PIXEL, axis=0)
    data = base64.b64encode(_png(pixels)).decode()
    return f"<img alt='heat map' src='data:image/png;base64,{data}'>"


def _png(pixels: Array) -> bytes:
    """Return a PNG file of pixels, uint8 [rows, columns, 3]."""
    rows, columns, _ = pixels.shape
    lines = np.concatenate(
        [np.zeros((rows, 1), np.uint8), pixels.reshape(rows, columns * 3)], axis=1
    )
    header = struct.pack(">IIBBBBB", columns, rows, 8, 2, 0, 0, 0)
    parts = ((b"IHDR", header), (b"IDAT", zlib.compress(lines.tobytes())), (b"IEND", b""))
    chunks = [
        struct.pack(">I", len(data))
        + kind
        + data
        + struct.pack(">I", zlib.crc32(kind + data))
        for kind, data in parts
    ]
    return b"\x89PNG\r\n\x1a\n" + b"".join(chunks)


def _table(matrix: Array) -> str:
    """Return the edges of a matrix as a table with the indices of rows and columns."""
    row_ids, column_ids = (_edges(n) for n in matrix.shape)
    head = "".join(f"<th>{'…' if i is None else i}</th>" for i in column_ids)
    lines = [f"<tr><th></th>{head}</tr>"]
    for row in row_ids:
        cells = "".join(
            f"<td>{'…' if None in (row, i) else _number(matrix[row, i].item())}</td>"
            for i in column_ids
        )
        lines.append(f"<tr><th>{'…' if row is None else row}</th>{cells}</tr>")
    return f"<table>{''.join(lines)}</table>"


def _edges(size: int) -> list[int | None]:
    """Return the indices to show, with None for those that are left out."""
    if size <= 2 * _EDGE + 1:
        return [*range(size)]
    return [*range(_EDGE), None, *range(size - _EDGE, size)]


def _number(value: Any) -> str:
    if isinstance(value, bool | int):
        return str(value)
    if isinstance(value, complex):
        return f"{value.real:.4g}{value.imag:+.4g}i"
    return f"{float(value):.4g}"
