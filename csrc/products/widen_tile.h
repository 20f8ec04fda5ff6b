/* K blocks of block-quantized rows, dequantized and stored in the layout of
 * widened weights in tile.h. */
#pragma once

#ifndef CODES
#define CODES "isa/codes_avx2.h"
#endif
#include "formats/conversions.h"
#include "products/tile.h"

/*
 * Writes widened rows in the order of tiles, parts, steps and rows. The last block is padded with
 * zeros. `type` is the type in which the product is computed.
 */
INLINE void widen_rows(float *widened, const Weight *weight, ptrdiff_t row, ptrdiff_t rows,
                       ptrdiff_t in, ptrdiff_t start, ptrdiff_t count, const TileProduct p,
                       ElementType type, const ExpandedFormat f,
                       const dequantize_function dequantize)
{
    const ptrdiff_t steps = ceil_div(count * p.element_bytes, p.block_bytes) * p.phases;
    char room[K_BLOCK * sizeof(float)] __attribute__((aligned(64)));
    memset(room, 0, sizeof room);
    for (ptrdiff_t r = 0; r < rows; r++) {
        const ptrdiff_t tile = r / TILE_ROWS * TILE_ROWS, first = (row + r) * in + start;
        const ptrdiff_t side = tile + TILE_ROWS <= rows ? TILE_ROWS : 1;
        const ptrdiff_t place = side == 1 ? 0 : r - tile;
        const ptrdiff_t bytes = count * f.code_bytes / f.elements;
        const char *next = (const char *)weight->data + first * f.code_bytes / f.elements + bytes;
        float *out = widened + (r - place) * steps * LANES + place * VEC_LANES;
        prefetch_span(next, bytes, INTO_L1);
        dequantize(room, weight, first, count, type);
        for (int part = 0; part < VEC_PARTS; part++)
            for (ptrdiff_t step = 0; step < steps; step++, out += side * VEC_LANES)
                vec_store(out, p.load(room + step / p.phases * p.block_bytes,
                                      (int)(step % p.phases), part));
    }
}

/* Widens blocks for a plain form, to pairs of bfloat16 or to float32. */
INLINE void widen_blocks(float *widened, const Weight *weight, ptrdiff_t row, ptrdiff_t rows,
                         ptrdiff_t in, ptrdiff_t start, ptrdiff_t count, Form form,
                         const ExpandedFormat f, const dequantize_function dequantize)
{
    if (form == FORM_BFLOAT16)
        widen_rows(widened, weight, row, rows, in, start, count,
                   pair_product(load_pairs_bfloat16, TYPE_BFLOAT16), TYPE_BFLOAT16, f, dequantize);
    else
        widen_rows(widened, weight, row, rows, in, start, count,
                   single_product(load_float32, TYPE_FLOAT32), TYPE_FLOAT32, f, dequantize);
}
