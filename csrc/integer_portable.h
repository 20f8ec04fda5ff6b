/* Formats that are expanded, in plain C: rows are read where they are, whatever the tokens. */
#pragma once
#include "formats.h"
#include "integer_rows.h"

static int32_t sum_of_group(group codes, const int16_t *numbers)
{
    int32_t sum = 0;
    for (int i = 0; i < GROUP / 2; i++)
        sum += codes.code[2 * i] * numbers[i] + codes.code[2 * i + 1] * numbers[32 + i];
    return sum;
}

INLINE void multiply_expanded_k_block(const IntegerKBlock *k, const ExpandedFormat f)
{
    for (ptrdiff_t r = 0; r < k->rows; r++) {
        const ptrdiff_t block = (k->row + r) * k->in / f.elements;
        const uint8_t *codes = (const uint8_t *)k->weight->data + block * f.code_bytes;
        const char *scales = (const char *)k->weight->scales + block * f.scale_bytes;
        for (int t = 0; t < k->tokens; t++) {
            const float *x_scales = integer_scales(k->panel, k->in, k->tokens, t);
            float *lanes = k->lanes + (r * PANEL_TOKENS + t) * LANES;
            if (k->start == 0)
                memset(lanes, 0, LANES * sizeof(float));
            for (ptrdiff_t g = k->start / GROUP; g < (k->start + k->count) / GROUP; g++) {
                const int16_t *numbers = integer_numbers(k->panel, k->tokens, g) + t * 64;
                const float sum = (float)sum_of_group(expand_at(codes, g, f), numbers);
                const float scale = scale_at(codes, scales, g, f) * x_scales[g];
                lanes[g % LANES] = fused_multiply_add(sum, scale, lanes[g % LANES]);
            }
            if (k->start + k->count == k->in)
                k->out[t * CHUNK_ROWS + r] = reduce_lanes(lanes);
        }
    }
}

/* All of `in` is one K block of each row here. */
INLINE void multiply_expanded_rows(float *out, const float *panel, const Weight *weight,
                                   ptrdiff_t row, ptrdiff_t rows, ptrdiff_t in, int tokens,
                                   const ExpandedFormat f)
{
    float lanes[PANEL_TOKENS * LANES];
    IntegerKBlock k = {out, lanes, NULL, panel, weight, row, 1, in, 0, in, tokens};
    for (; k.row < row + rows; k.row++, k.out++)
        multiply_expanded_k_block(&k, f);
}
