/* int8 weights by integers in plain C: rows are read where they lie, whatever the tokens. */
#ifndef LLAMA_BOLTS_INT8_PORTABLE_H
#define LLAMA_BOLTS_INT8_PORTABLE_H

#include "dot_portable.h"
#include "int8_rows.h"

static int32_t int8_block_sum(const uint8_t *codes, const int16_t *numbers)
{
    int32_t sum = 0;
    for (int i = 0; i < INT8_BLOCK / 2; i++)
        sum += (int8_t)codes[2 * i] * numbers[i] + (int8_t)codes[2 * i + 1] * numbers[32 + i];
    return sum;
}

/* The blocks of a stretch of one row and one of a panel's tokens. */
static void int8_add_row(const QuantizedWeight *w, ptrdiff_t row, ptrdiff_t in, ptrdiff_t start,
                         ptrdiff_t count, const float *panel, int tokens, int token,
                         float lanes[LANES])
{
    const uint8_t *codes = w->codes + row * in;
    const uint16_t *scales = (const uint16_t *)w->scales + row * in / INT8_BLOCK;
    for (ptrdiff_t b = start / INT8_BLOCK; b < (start + count) / INT8_BLOCK; b++) {
        const int16_t *numbers = int8_numbers(panel, tokens, b) + token * 64;
        const float scale = bf16_to_f32(scales[b]) * int8_scales(panel, in, tokens, token)[b];
        const int32_t sum = int8_block_sum(codes + b * INT8_BLOCK, numbers);
        lanes[b % LANES] = fused_multiply_add((float)sum, scale, lanes[b % LANES]);
    }
}

static void multiply_int8_rows(const QuantizedWeight *w, ptrdiff_t row, ptrdiff_t rows,
                               ptrdiff_t in, const float *panel, int tokens, float *out)
{
    for (ptrdiff_t r = 0; r < rows; r++)
        for (int t = 0; t < tokens; t++) {
            float lanes[LANES] = {0};
            int8_add_row(w, row + r, in, 0, in, panel, tokens, t, lanes);
            out[t * CHUNK_ROWS + r] = fold_lanes(lanes);
        }
}

/* Nothing is kept widened here. */
static void widen_int8_stretch(const Int8Stretch *s)
{
    (void)s;
}

static void multiply_int8_stretch(const Int8Stretch *s)
{
    for (ptrdiff_t r = 0; r < s->rows; r++)
        for (int t = 0; t < s->tokens; t++) {
            float *lanes = s->lanes + (r * PANEL_TOKENS + t) * LANES;
            if (s->start == 0)
                memset(lanes, 0, LANES * sizeof(float));
            int8_add_row(s->weight, s->row + r, s->in, s->start, s->count, s->panel, s->tokens, t,
                         lanes);
            if (s->start + s->count == s->in)
                s->out[t * CHUNK_ROWS + r] = fold_lanes(lanes);
        }
}

#endif
