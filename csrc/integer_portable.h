/* Formats that are expanded, in plain C: rows are read where they are, whatever the tokens. */
#pragma once
#include "formats.h"
#include "integer_rows.h"

/* The codes of a block's group. */
INLINE void expand_group(int16_t *codes, const uint8_t *block, int g, const ExpandedFormat f)
{
    if (f.levels) {
        const WidePair pair = look_up_wide(block, f.levels->steps);
        memcpy(codes, pair.code + g * GROUP, GROUP * sizeof *codes);
        return;
    }
    const group expanded = f.expand(block, g);
    for (int i = 0; i < GROUP; i++)
        codes[i] = expanded.code[i];
}

/* Of the pairs [first, end) of a group. */
INLINE int32_t sum_of_pairs(const int16_t *codes, const int16_t *numbers, int first, int end)
{
    int32_t sum = 0;
    for (int i = first; i < end; i++)
        sum += codes[2 * i] * numbers[i] + codes[2 * i + 1] * numbers[32 + i];
    return sum;
}

/* Adds a block of weights, whose first group is `first` along `in`, times one token to the lanes.
 */
INLINE void add_block(float *lanes, const uint8_t *codes, const Factors *factors,
                      const IntegerKBlock *k, int t, ptrdiff_t first, const ExpandedFormat f)
{
    const float *x_scales = integer_scales(k->panel, k->in, k->tokens, t) + first;
    const float *x_sums = integer_sums(k->panel, k->in, k->tokens, t) + first;
    const ptrdiff_t sums_apart = integer_padded(k->in) / GROUP;
    for (int g = 0; g < f.elements / GROUP; g++) {
        const int16_t *numbers = integer_numbers(k->panel, k->tokens, first + g) + t * 64;
        int16_t expanded[GROUP];
        expand_group(expanded, codes, g, f);
        float *lane = lanes + (first + g) % LANES;
        for (int part = 0, pairs = GROUP / 2 / f.parts; part < f.parts; part++)
            *lane = fused_multiply_add(
                (float)sum_of_pairs(expanded, numbers, part * pairs, (part + 1) * pairs),
                scale_of(factors, g, part, f) * x_scales[g], *lane);
        for (int part = 0; f.has_mins && part < f.parts; part++) {
            const float sum = x_sums[part * sums_apart + g];
            *lane = fused_multiply_add(f.parts == 1 ? sum + x_sums[sums_apart + g] : sum,
                                       minimum_of(factors, g, part, f) * x_scales[g], *lane);
        }
    }
}

INLINE void multiply_expanded_k_block(const IntegerKBlock *k, const ExpandedFormat f)
{
    for (ptrdiff_t r = 0; r < k->rows; r++) {
        const ptrdiff_t block = (k->row + r) * k->in / f.elements;
        const uint8_t *codes = (const uint8_t *)k->weight->data + block * f.code_bytes;
        float *lanes = k->lanes + r * PANEL_TOKENS * LANES;
        if (k->start == 0)
            memset(lanes, 0, PANEL_TOKENS * LANES * sizeof(float));
        for (ptrdiff_t b = k->start / f.elements; b < (k->start + k->count) / f.elements; b++) {
            Factors factors = {0};
            float room;
            f.factors(&factors, 0, codes + b * f.code_bytes,
                      scales_at(&room, k->weight, block + b, 1, f));
            for (int t = 0; t < k->tokens; t++)
                add_block(lanes + t * LANES, codes + b * f.code_bytes, &factors, k, t,
                          b * f.elements / GROUP, f);
        }
        for (int t = 0; t < k->tokens && k->start + k->count == k->in; t++)
            k->out[t * CHUNK_ROWS + r] = reduce_lanes(lanes + t * LANES);
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
