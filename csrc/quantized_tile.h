/*
 * Block-quantised weights on vectors: spans dequantised, and stretches of rows widened for tiles.
 * How codes are multiplied as they are: nf4_tile.h and int8_tile.h.
 */
#ifndef LLAMA_BOLTS_QUANTIZED_TILE_H
#define LLAMA_BOLTS_QUANTIZED_TILE_H

/* out[i] = element first + i, rounded once to the type; any first, any count. */
static void dequantize_span(const QuantizedWeight *w, ptrdiff_t first, ptrdiff_t count, void *out,
                            int out_type)
{
    if (w->format == QUANTIZED_INT8)
        dequantize_any(w, first, count, out, out_type);
    else
        dequantize_nf4(w, first, count, out, out_type);
}

/*
 * A stretch of some rows of bfloat16 as tile.h keeps weights widened: tile after tile, and in one
 * part after part, step after step, row after row; the last block is padded by zeros.
 */
static void widen_codes_stretch(const QuantizedWeight *w, ptrdiff_t row, ptrdiff_t rows,
                                ptrdiff_t in, ptrdiff_t start, ptrdiff_t count, float *widened)
{
    if (w->format != QUANTIZED_INT8) {
        widen_nf4_stretch(w, row, rows, in, start, count, widened);
        return;
    }
    const ptrdiff_t blocks = ceil_div(count, 32), steps = blocks * BF16_PHASES;
    uint16_t weight[QUANTIZED_STRETCH] = {0};
    for (ptrdiff_t r = 0; r < rows; r++) {
        const ptrdiff_t tile = r / TILE_ROWS * TILE_ROWS;
        const ptrdiff_t side = tile + TILE_ROWS <= rows ? TILE_ROWS : 1;
        const ptrdiff_t place = side == 1 ? 0 : r - tile;
        float *out = widened + (r - place) * steps * LANES + place * VEC_LANES;
        dequantize_any(w, (row + r) * in + start, count, weight, TYPE_BF16);
        for (int part = 0; part < VEC_PARTS; part++)
            for (ptrdiff_t step = 0; step < steps; step++, out += side * VEC_LANES) {
                const char *block = (const char *)(weight + step / BF16_PHASES * 32);
                vec_store(out, load_bf16(block, (int)(step % BF16_PHASES), part));
            }
    }
}

#endif
