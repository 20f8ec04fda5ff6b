"""Generate the C units in which the kernels of each instruction set are compiled.

    python csrc/write_units.py

This writes ``build/kernels/INSTRUCTION_SET/UNIT.c`` and prints the paths of all sources
of the extension. build_kernels.py does the same. A unit enables the instructions,
includes the headers that contain the code, and defines a function for each entry in a
table of kernels. So each function can be found by searching for its name, and a product
needs only the headers of one family of formats.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import NamedTuple

UNITS = Path("build/kernels")


class InstructionSet(NamedTuple):
    """The compilation settings of an instruction set.

    Args:
        name: The suffix of the names of its tables, as in `row_kernels_avx2`.
        processor: The compiler's macro for the processor architecture, or "" for all.
        targets: The instructions that the compiler may use, or "" for the baseline of
            the processor.
        defines: Macros that select a variant in the headers.
        vectors: The header for float vectors, or "" for plain C.
        codes: The header for operations on codes.
        lanes: The number of lanes in a vector. Vectors of four lanes have separate loops.
        emulated: The targets of a test build that emulates the set's bfloat16 products.
        extends: The set whose other tables it uses, if it adds only products in tile
            registers, or "".
    """

    name: str
    processor: str = ""
    targets: str = ""
    defines: tuple[str, ...] = ()
    vectors: str = ""
    codes: str = "isa/codes_portable.h"
    lanes: int = 0
    emulated: str = ""
    extends: str = ""

    @property
    def few_tokens(self) -> str:
        """Return the header for products of few tokens with codes."""
        if self.lanes > 4:
            return "products/few_tokens.h"
        return "products/codes_fours.h" if self.lanes else "products/codes_portable.h"

    @property
    def many_tokens(self) -> str:
        """Return the header for products of many tokens with codes."""
        return "products/many_tokens.h" if self.lanes > 4 else self.few_tokens


_AVX2 = "avx2,fma,f16c"
_AVX512 = _AVX2 + ",avx512f,avx512bw,avx512dq,avx512vl"
INSTRUCTION_SETS = (
    InstructionSet("portable"),
    InstructionSet(
        "avx2", "__x86_64__", _AVX2, (), "isa/vectors_avx2.h", "isa/codes_avx2.h", lanes=8
    ),
    InstructionSet(
        "avx512",
        "__x86_64__",
        _AVX512,
        (),
        "isa/vectors_avx512.h",
        "isa/codes_avx512.h",
        lanes=16,
    ),
    # Panels contain bfloat16 pairs, so there is one phase.
    InstructionSet(
        "avx512bf16",
        "__x86_64__",
        _AVX512 + ",avx512vnni,avx512bf16",
        ("AVX512BF16",),
        "isa/vectors_avx512.h",
        "isa/codes_avx512.h",
        lanes=16,
        emulated=_AVX512,
    ),
    # Tile registers for products of many tokens; all other kernels are of avx512bf16.
    InstructionSet(
        "avx512amx",
        "HAS_AMX",
        _AVX512 + ",avx512vnni,avx512bf16,amx-tile,amx-bf16",
        ("AVX512BF16",),
        "isa/vectors_avx512.h",
        "isa/codes_avx512.h",
        lanes=16,
        extends="avx512bf16",
    ),
    # All 64-bit Arm processors have NEON.
    InstructionSet(
        "neon",
        "__aarch64__",
        "+simd",
        (),
        "isa/vectors_neon.h",
        "isa/codes_neon.h",
        lanes=4,
    ),
    InstructionSet(
        "neondot",
        "__aarch64__",
        "arch=armv8.2-a+dotprod",
        ("NEON_DOT",),
        "isa/vectors_neon.h",
        "isa/codes_neon.h",
        lanes=4,
    ),
    InstructionSet(
        "neonbf16",
        "__aarch64__",
        "arch=armv8.2-a+bf16+dotprod+i8mm",
        ("NEON_BF16", "NEON_DOT", "NEON_I8MM"),
        "isa/vectors_neon.h",
        "isa/codes_neon.h",
        lanes=4,
    ),
)

_PACK = "float *panel, const char *x, ptrdiff_t x_stride, int tokens, ptrdiff_t in"
_ROWS = "const Weight *weight, ptrdiff_t row, ptrdiff_t rows, ptrdiff_t in"
_SPAN = "ptrdiff_t first, ptrdiff_t count"

PLAIN_KERNELS = """\
static void NAME_FORM_k_block(const KBlock *k)
{
    multiply_k_block(PRODUCT, KEEPS, k);
}

static void NAME_FORM_row(float *out, const char *x, const char *weight,
                          ptrdiff_t weight_stride, ptrdiff_t rows, ptrdiff_t in)
{
    multiply_rows(out, x, weight, weight_stride, rows, in,
                  PRODUCT);
}
"""
WIDENED_KERNELS = """\
static void multiply_widened_pairs(const KBlock *k)
{
    multiply_widened(PAIRS, k);
}

static void multiply_widened_singles(const KBlock *k)
{
    multiply_widened(SINGLES, k);
}
"""
PRODUCT_TABLE = """\
extern const widen_function format_widen_SET[TYPE_COUNT];
EXTERNS

const ProductKernels product_kernels_SET = {
    .pack = {pack_bfloat16, pack_float32},
    .plain = {
        {
PAIRS
        },
        {
SINGLES
        },
    },
    .multiply_widened = {multiply_widened_pairs, multiply_widened_singles},
    .widen = format_widen_SET,
    .few = {
        {
FEW_INT16
        },
        {
FEW_INT8
        },
    },
    .many = {
        {
MANY_INT16
        },
        {
MANY_INT8
        },
    },
};
"""
FEW_KERNELS = f"""\
static void NAME_pack_few_BITS({_PACK},
                          ElementType x_type)
{{
    (void)x_type;
    pack_few(panel, x, x_stride, tokens, in, NAME_format, ACTIVATIONS);
}}

static void NAME_multiply_few_BITS(float *out, const float *panel,
                              {_ROWS},
                              int tokens)
{{
    multiply_few_rows(out, panel, weight, row, rows, in, tokens, NAME_format,
                      ACTIVATIONS);
}}

const FewTokens NAME_few_BITS_SET = {{NAME_pack_few_BITS, NAME_multiply_few_BITS}};
"""
MANY_KERNELS = f"""\
static void NAME_pack_many_BITS({_PACK},
                      ElementType x_type)
{{
    (void)x_type;
    pack_many(panel, x, x_stride, tokens, in, NAME_format, ACTIVATIONS);
}}

static void NAME_widen_many_BITS(const IntegerKBlock *k)
{{
    widen_rows_of_codes(k, NAME_format, ACTIVATIONS);
}}

static void NAME_multiply_many_BITS(const IntegerKBlock *k)
{{
    multiply_many_rows(k, NAME_format, ACTIVATIONS);
}}

const ManyTokens NAME_many_BITS_SET = {{
    NAME_pack_many_BITS, NAME_widen_many_BITS, NAME_multiply_many_BITS
}};
"""
TILES_OF_CODES = """\
void multiply_groups_SET(const IntegerKBlock *k, int has_mins)
{
    multiply_parts(k, has_mins, 1, PANEL_INT16);
}

void multiply_halves_SET(const IntegerKBlock *k, int has_mins)
{
    multiply_parts(k, has_mins, 2, PANEL_INT16);
}

void multiply_byte_groups_SET(const IntegerKBlock *k, int has_mins)
{
    multiply_parts(k, has_mins, 1, PANEL_INT8);
}

void multiply_byte_halves_SET(const IntegerKBlock *k, int has_mins)
{
    multiply_parts(k, has_mins, 2, PANEL_INT8);
}
"""
# Integers of bfloat16 x, and their number in C.
ACTIVATIONS = {"int16": "ACTIVATIONS_INT16", "int8": "ACTIVATIONS_INT8"}
MATRIX_KERNELS = f"""\
static void NAME_pack_tiles({_PACK},
                                 ElementType x_type)
{{
    (void)x_type;
    pack_tiles(panel, x, x_stride, tokens, in, NAME_format);
}}

static ptrdiff_t NAME_fewest(void)
{{
    return fewest_tokens(NAME_format);
}}

static ptrdiff_t NAME_most_rows(ptrdiff_t in)
{{
    return rows_in_cache(in, NAME_format);
}}

static void NAME_put_rows(const MatrixBlock *k)
{{
    put_rows_into_tiles(k, NAME_format);
}}

static void NAME_multiply_tiles(const MatrixBlock *k)
{{
    multiply_tiles(k, matrix_kind(NAME_format));
}}

const MatrixProduct NAME_matrix_SET = {{
    NAME_pack_tiles, NAME_fewest, NAME_most_rows, NAME_put_rows,
    NAME_multiply_tiles
}};
"""
MATRIX_TILES = """\
void multiply_tiles(const MatrixBlock *k, MatrixKind kind)
{
    multiply_any_kind(k, kind);
}
"""
MATRIX_TABLE = """\
EXTERNS

const MatrixKernels matrix_kernels_SET = {
    .products = {
PRODUCTS
    },
};
"""
CONVERSIONS = f"""\
_Static_assert(MOST_BLOCK % NAME_elements == 0 && NAME_elements % GROUP == 0, "NAME");

static void NAME_block(float *out, const uint8_t *block, const Weight *weight, ptrdiff_t index)
{{
    dequantize_block(out, block, weight, index, NAME_format);
}}

static void NAME_dequantize(void *out, const Weight *weight, {_SPAN},
                            ElementType out_type)
{{
    dequantize_blocks(out, weight, first, count, out_type, NAME_format, NAME_block);
}}

static ptrdiff_t NAME_quantize_span(void *codes, void *scales, const void *x,
                                    {_SPAN}, ElementType x_type)
{{
    return quantize_blocks(codes, scales, x, first, count, x_type, NAME_format);
}}

static void NAME_widen(float *widened, {_ROWS},
                       ptrdiff_t start, ptrdiff_t count, Form form)
{{
    widen_blocks(widened, weight, row, rows, in, start, count, form, NAME_format,
                 NAME_dequantize);
}}
"""  # noqa: E501 (these are the lines of a C file)
CONVERSION_TABLES = """\
const FormatConversions format_conversions_SET[TYPE_COUNT] = {
CONVERSIONS
};

const widen_function format_widen_SET[TYPE_COUNT] = {
WIDEN
};
"""
ROW_TABLE = """\
extern const FormatConversions format_conversions_SET[TYPE_COUNT];

const RowKernels row_kernels_SET = {
    .softmax_row = softmax_row,
    .rms_norm_row = rms_norm_row,
    .rotary_row = rotary_row,
    .elementwise_span = elementwise_span,
    .soft_cap_span = soft_cap_span,
    .argmax_row = argmax_row,
    .convert_span = convert_span,
    .low_rank_products = low_rank_products_span,
    .add_low_rank_changes = low_rank_changes_span,
    .formats = format_conversions_SET,
};
"""
ATTENTION_TABLE = """\
const AttentionKernels attention_kernels_SET = {
    .pack_chains = pack_chains,
    .multiply_chains = multiply_chains,
    .raise_largest = raise_largest,
    .exponentiate = exponentiate,
    .cap_scores = cap_scores,
    .normalize_row = normalize_row,
    .sum_values = sum_values,
    .multiply_codes = multiply_codes,
    .sum_codes = sum_codes,
    .widen_query = widen_query,
    .finish_row = finish_row,
};
"""
PROBE_TABLE = """\
const ProbeKernels probe_kernels_SET = {
    .read_span = read_span,
    .multiply_add_chains = multiply_add_chains,
};
"""


def rows_of(table: str, header: str) -> list[str]:
    """Return the names in a table of dtypes.h."""
    rows = header.partition(f"#define {table}(ROW)")[2].partition("\n\n")[0]
    return re.findall(r"ROW\((\w+),", rows)


def entries(names: list[str], text: str, indent: int) -> str:
    """Return one table entry for each type, replacing NAME with the type's name."""
    lines = (f"[TYPE_{name.upper()}] = {text.replace('NAME', name)}," for name in names)
    return "\n".join(" " * indent + line for line in lines)


def write_unit(
    target: InstructionSet, title: str, headers: list[str], *parts: str
) -> str:
    """Return the text of a unit."""
    name = target.name
    text = [f"/* {name}: {title}. Written by csrc/write_units.py. */"]
    if target.processor == "HAS_AMX":
        text.append('#include "kernels.h"')
    if target.processor:
        text.append(f"#ifdef {target.processor}")
    text += [f"#define {define}" for define in target.defines]
    if target.vectors:
        text.append(f'#define VECTORS "{target.vectors}"')
    if target.vectors and any(path.startswith("formats/") for path in headers):
        text.append(f'#define CODES "{target.codes}"')
    if "products/many_tokens.h" in headers:
        text.append(f"#define MULTIPLY_GROUPS multiply_groups_{name}")
        text.append(f"#define MULTIPLY_HALVES multiply_halves_{name}")
        text.append(f"#define MULTIPLY_BYTE_GROUPS multiply_byte_groups_{name}")
        text.append(f"#define MULTIPLY_BYTE_HALVES multiply_byte_halves_{name}")
    text += target_pragmas(target)
    text += ["", *(f'#include "{header}"' for header in headers), ""]
    text += [part.replace("SET", name) for part in parts]
    if target.targets:
        text += ["#ifdef __clang__", "#pragma clang attribute pop", "#endif"]
    if target.processor:
        text.append("#endif")
    return "\n".join(text) + "\n"


def target_pragmas(target: InstructionSet) -> list[str]:
    """Return the lines that enable the set's instructions, for clang and for gcc."""
    if not target.targets:
        return []

    def pragmas(targets: str) -> list[str]:
        x86 = target.processor != "__aarch64__"
        gcc = f'"{targets}", "prefer-vector-width=512"' if x86 else f'"{targets}"'
        attribute = f'__attribute__((target("{targets}")))'
        return [
            "#ifdef __clang__",
            f"#pragma clang attribute push({attribute}, apply_to = function)",
            "#else",
            f"#pragma GCC target({gcc})",
            "#endif",
        ]

    if not target.emulated:
        return pragmas(target.targets)
    return [
        "#ifdef LLAMA_BOLTS_EMULATE_BF16",
        *pragmas(target.emulated),
        "#else",
        *pragmas(target.targets),
        "#endif",
    ]


def plain_products(target: InstructionSet, header: str) -> list[str]:
    """Return the functions for products with plain weights, and the product table."""
    singles = rows_of("PLAIN_TYPES", header)
    pairs = rows_of("PAIR_TYPES", header)
    blocks = rows_of("BLOCK_TYPES", header)
    vector = bool(target.vectors)
    pair = (
        "pair_product(load_pairs_NAME, TYPE_KIND)"
        if vector
        else "pair_product(TYPE_KIND)"
    )
    single = (
        "single_product(load_NAME, TYPE_KIND)" if vector else "single_product(TYPE_KIND)"
    )

    def keeps(name: str, form: str) -> str:
        if not vector:
            return "0"
        if form == "pairs" and name == "bfloat16":
            return "PAIR_PHASES == 2"
        return "0" if (form, name) == ("singles", "float32") else "1"

    def named(text: str, name: str) -> str:
        return text.replace("NAME", name).replace("KIND", name.upper())

    parts = []
    tables = {}
    for form, names, product in (("pairs", pairs, pair), ("singles", singles, single)):
        lines = []
        for name in names:
            text = PLAIN_KERNELS.replace("PRODUCT", product).replace("FORM", form)
            parts.append(named(text.replace("KEEPS", keeps(name, form)), name))
            entry = f"{{{name}_{form}_k_block, {name}_{form}_row, {keeps(name, form)}}}"
            lines.append(entries([name], entry, 12))
        tables[form] = "\n".join(lines)
    widened = WIDENED_KERNELS.replace("PAIRS", named(pair, "bfloat16"))
    parts.append(widened.replace("SINGLES", named(single, "float32")))
    externs = []
    table = PRODUCT_TABLE
    for bits in ACTIVATIONS:
        for tokens, kind in (("few", "FewTokens"), ("many", "ManyTokens")):
            of_blocks = f"NAME_{tokens}_{bits}_SET"
            externs += [
                f"extern const {kind} {of_blocks.replace('NAME', name)};"
                for name in blocks
            ]
            mark = f"{tokens}_{bits}".upper()
            table = table.replace(mark, entries(blocks, f"&{of_blocks}", 12))
    table = table.replace("EXTERNS", "\n".join(externs))
    table = table.replace("PAIRS", tables["pairs"])
    parts.append(table.replace("SINGLES", tables["singles"]))
    return parts


def kernels_of_codes(text: str, names: list[str]) -> list[str]:
    """Return the functions and tables of some formats, for all integers of x."""
    return [
        text.replace("NAME", name).replace("BITS", bits).replace("ACTIVATIONS", number)
        for name in names
        for bits, number in ACTIVATIONS.items()
    ]


def block_units(target: InstructionSet, family: str, names: list[str]) -> dict[str, str]:
    """Return the units for products with the formats of a family, by name."""
    header = f"formats/{family}.h"
    listed = ", ".join(names)
    few = kernels_of_codes(FEW_KERNELS, names)
    many = kernels_of_codes(MANY_KERNELS, names)
    return {
        f"{family}_few": write_unit(
            target, f"few tokens times {listed}", [target.few_tokens, header], *few
        ),
        f"{family}_many": write_unit(
            target,
            f"many tokens times {listed}",
            [target.many_tokens, header],
            *many,
        ),
    }


def conversions(target: InstructionSet, families: list[str], names: list[str]) -> str:
    """Return the unit that converts blocks of all formats to plain elements."""
    kind = "tile" if target.vectors else "portable"
    headers = [
        f"products/widen_{kind}.h",
        *(f"formats/{family}.h" for family in families),
    ]
    table = entries(names, "{NAME_quantize_span, NAME_dequantize}", 4)
    tables = CONVERSION_TABLES.replace("CONVERSIONS", table)
    tables = tables.replace("WIDEN", entries(names, "NAME_widen", 4))
    functions = [CONVERSIONS.replace("NAME", name) for name in names]
    return write_unit(target, "blocks as plain elements", headers, *functions, tables)


def families_of_formats(csrc: Path) -> dict[str, list[str]]:
    """Return the names of the formats of each family, which is a header."""
    families = {}
    for path in sorted((csrc / "formats").glob("*.h")):
        text = path.read_text(encoding="utf-8")
        names = re.findall(r"^static const ExpandedFormat (\w+)_format =", text, re.M)
        if names:
            families[path.stem] = names
    return families


def matrix_units(target: InstructionSet, csrc: Path) -> dict[str, str]:
    """Return the units of products in tile registers, by their names.

    Formats with levels, whose integers are longer than a byte, have none.
    """
    header = "products/matrix_tiles.h"
    units = {}
    taken = []
    for family, names in families_of_formats(csrc).items():
        path = csrc / "formats" / f"{family}.h"
        if ".levels = " in path.read_text(encoding="utf-8"):
            continue
        taken += names
        functions = [MATRIX_KERNELS.replace("NAME", name) for name in names]
        units[f"{family}_matrix"] = write_unit(
            target,
            f"many tokens times {', '.join(names)} in tile registers",
            [header, f"formats/{family}.h"],
            *functions,
        )
    externs = [f"extern const MatrixProduct {name}_matrix_SET;" for name in taken]
    table = MATRIX_TABLE.replace("EXTERNS", "\n".join(externs))
    table = table.replace("PRODUCTS", entries(taken, "&NAME_matrix_SET", 8))
    headers = ["formats/format.h", header]
    units["tiles_of_codes"] = write_unit(
        target, "products in tile registers", headers, MATRIX_TILES, table
    )
    return units


def units_of(target: InstructionSet, csrc: Path) -> dict[str, str]:
    """Return the texts of the units of an instruction set, by their names."""
    if target.extends:
        return matrix_units(target, csrc)
    header = (csrc / "dtypes.h").read_text(encoding="utf-8")
    tile = "products/tile.h" if target.vectors else "products/tile_portable.h"
    attention = "tile" if target.vectors else "portable"
    probe = "vector" if target.vectors else "portable"
    families = families_of_formats(csrc)
    units = {
        "rows": write_unit(target, "rows and spans", ["rows/row_kernels.h"], ROW_TABLE),
        "attention": write_unit(
            target,
            "attention and matmul",
            [f"attention/attention_{attention}.h"],
            ATTENTION_TABLE,
        ),
        "probe": write_unit(
            target, "the limits of a machine", [f"probe/probe_{probe}.h"], PROBE_TABLE
        ),
        "products": write_unit(
            target, "plain products", [tile], *plain_products(target, header)
        ),
        "conversions": conversions(target, [*families], rows_of("BLOCK_TYPES", header)),
    }
    for family, names in families.items():
        units |= block_units(target, family, names)
    if target.lanes > 4:
        headers = ["formats/format.h", target.many_tokens]
        units["tiles_of_codes"] = write_unit(
            target, "tiles of codes", headers, TILES_OF_CODES
        )
    return units


def write_units(csrc: Path, directory: Path) -> list[Path]:
    """Write the units that differ from their files, and return the paths of all units."""
    texts = {
        directory / target.name / f"{name}.c": text
        for target in INSTRUCTION_SETS
        for name, text in units_of(target, csrc).items()
    }
    for path, text in texts.items():
        if path.is_file() and path.read_text(encoding="utf-8") == text:
            continue
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
    return [*texts]


def find_sources(root: Path = Path()) -> list[str]:
    """Write the units, and return all C files of the extension."""
    written = sorted((root / "csrc").rglob("*.c"))
    return [
        path.as_posix() for path in (*written, *write_units(root / "csrc", root / UNITS))
    ]


if __name__ == "__main__":
    print("\n".join(find_sources()))
