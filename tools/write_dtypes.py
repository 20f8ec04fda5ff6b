"""Generate `csrc/dtypes.h` from the table of dtypes in `src/ml/dtype.py`.

    python -m tools.write_dtypes

Run this after adding or changing a row. A test compares the file with the table.
"""

from collections.abc import Mapping
from pathlib import Path

from src.ml.dtype import BLOCK_DTYPES, DTYPES, GGML_DTYPES

HEADER = Path(__file__).parents[1] / "csrc" / "dtypes.h"

_TEMPLATE = """\
/* Element types and weight formats. Written by `python -m tools.write_dtypes` from the table in
 * src/ml/dtype.py: change that table, not this file. */
#pragma once

/* cffi: begin */

/* Element types and formats of block-quantized weights, numbered together. */
typedef enum ElementType {{
{numbers}
}} ElementType;

enum {{ TYPE_COUNT = {count} }};

/* cffi: end */

/* clang-format off */

/* Plain types: ROW(name, type, bytes per element). */
{plain}

/* Plain types whose values bfloat16 represents exactly: their products with
 * bfloat16 run in bfloat16. */
{pairs}

/* Block formats: ROW(name, type, elements, code bytes and scale bytes per block). The scale bytes
 * are 0 if the code bytes include the scale. Products of these formats with bfloat16 run on
 * integers. */
{blocks}

/* clang-format on */

/* The sizes of the block formats as constants. */
{sizes}
"""  # noqa: E501 (these are the lines of a C file)


def write_header() -> str:
    """Return the text of `csrc/dtypes.h`."""
    floats = [row for row in DTYPES if row.kind == "float"]  # also those not built yet
    plain = {row.name: [row.itemsize] for row in floats}
    pairs = {
        row.name: plain[row.name] for row in floats if row.product_type == "bfloat16"
    }
    blocks = {}
    for row in (*BLOCK_DTYPES, *GGML_DTYPES.values()):
        codes = row.code_bytes
        blocks[row.name] = [row.block_size, codes, row.block_bytes - codes]
        if row.double_scales is not None:
            blocks[f"{row.name}_double"] = [
                row.block_size,
                codes,
                row.double_scales.itemsize,
            ]
    names = [*plain, *blocks]
    return _TEMPLATE.format(
        numbers=",\n".join(
            f"    TYPE_{name.upper()} = {i}" for i, name in enumerate(names)
        ),
        count=len(names),
        plain=_macro("PLAIN_TYPES", plain),
        pairs=_macro("PAIR_TYPES", pairs),
        blocks=_macro("BLOCK_TYPES", blocks),
        sizes="\n".join(_constants(name, *sizes) for name, sizes in blocks.items()),
    )


def _macro(name: str, rows: Mapping[str, list[int]]) -> str:
    """Return a macro that applies ROW to each row of the table."""
    arguments = (
        ", ".join([row, f"TYPE_{row.upper()}", *map(str, rows[row])]) for row in rows
    )
    return " \\\n".join(
        [f"#define {name}(ROW)", *(f"    ROW({each})" for each in arguments)]
    )


def _constants(name: str, elements: int, codes: int, scale: int) -> str:
    """Return the sizes of a block format as C constants."""
    sizes = {"elements": elements, "code_bytes": codes, "scale_bytes": scale}
    values = ", ".join(f"{name}_{size} = {value}" for size, value in sizes.items())
    return f"enum {{ {values} }};"


if __name__ == "__main__":
    HEADER.write_text(write_header(), encoding="utf-8")
