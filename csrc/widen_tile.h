/* K blocks of block-quantized rows, dequantized and laid out as tile.h keeps weights widened. */
#pragma once
#include "tile.h"

typedef void (*dequantize_function)(void *out, const Weight *weight, ptrdiff_t first,
                                    ptrdiff_t count, ElementType out_type);

/*
 * Tile after tile, and in one part after part, step after step, row after row; the last block is
 * padded by zeros. `type` is that of the product; `elements` and `code_bytes` are of a block.
 */
INLINE void widen_rows(float *widened, const Weight *weight, ptrdiff_t row, ptrdiff_t rows,
                       ptrdiff_t in, ptrdiff_t start, ptrdiff_t count, const Product p,
                       ElementType type, const ptrdiff_t elements, const ptrdiff_t code_bytes,
                       const dequantize_function widen_span)
{
    const ptrdiff_t steps = ceil_div(count * p.element_bytes, p.block_bytes) * p.phases;
    char room[K_BLOCK * sizeof(float)] __attribute__((aligned(64)));
    memset(room, 0, sizeof room);
    for (ptrdiff_t r = 0; r < rows; r++) {
        const ptrdiff_t tile = r / TILE_ROWS * TILE_ROWS, first = (row + r) * in + start;
        const ptrdiff_t side = tile + TILE_ROWS <= rows ? TILE_ROWS : 1;
        const ptrdiff_t place = side == 1 ? 0 : r - tile;
        const ptrdiff_t bytes = count * code_bytes / elements;
        const char *next = (const char *)weight->data + first * code_bytes / elements + bytes;
        float *out = widened + (r - place) * steps * LANES + place * VEC_LANES;
        prefetch_span(next, bytes, INTO_L1);
        widen_span(room, weight, first, count, type);
        for (int part = 0; part < VEC_PARTS; part++)
            for (ptrdiff_t step = 0; step < steps; step++, out += side * VEC_LANES)
                vec_store(out, p.load(room + step / p.phases * p.block_bytes,
                                      (int)(step % p.phases), part));
    }
}
