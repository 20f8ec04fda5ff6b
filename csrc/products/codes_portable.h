/* Products with codes in plain C. For any number of tokens, codes are read directly from the
 * weight's rows. */
#pragma once
#include "products/integer_panel.h"

/* Widens the codes of group g of a block. */
INLINE void widen_codes(int16_t *codes, const uint8_t *block, int g, const ExpandedFormat f)
{
    if (f.levels) {
        look_up_wide(codes, block + g * GROUP / 2, f.levels->steps);
        return;
    }
    const group expanded = expand_group(block, g, f);
    for (int i = 0; i < GROUP; i++)
        codes[i] = expanded.code[i];
}

/* The sum of products of the pairs [first, end) of a group. */
INLINE int32_t sum_of_pairs(const int16_t *codes, const int16_t *numbers, int first, int end)
{
    int32_t sum = 0;
    for (int i = first; i < end; i++)
        sum += codes[2 * i] * numbers[i] + codes[2 * i + 1] * numbers[32 + i];
    return sum;
}

/* Multiplies group g of a block (group `index` along `in`) by one token, and adds the product to
 * the lane of the group. */
INLINE void add_group(float *lanes, const int16_t *codes, const Factors *factors, int g,
                      const IntegerKBlock *k, int t, ptrdiff_t index, const ExpandedFormat f)
{
    const int16_t *numbers = integer_numbers(k->panel, k->tokens, index) + t * 64;
    const float x_scale = integer_scales(k->panel, k->in, k->tokens, t)[index];
    const float *x_sums = integer_sums(k->panel, k->in, k->tokens, t) + index;
    const ptrdiff_t sums_apart = integer_padded(k->in) / GROUP;
    float *lane = lanes + index % LANES;
    for (int part = 0, pairs = GROUP / 2 / f.parts; part < f.parts; part++)
        *lane = fused_multiply_add(
            (float)sum_of_pairs(codes, numbers, part * pairs, (part + 1) * pairs),
            scale_of(factors, g, part, f) * x_scale, *lane);
    for (int part = 0; f.has_mins && part < f.parts; part++) {
        const float sum = x_sums[part * sums_apart];
        *lane = fused_multiply_add(f.parts == 1 ? sum + x_sums[sums_apart] : sum,
                                   minimum_of(factors, g, part, f) * x_scale, *lane);
    }
}

INLINE void multiply_many_rows(const IntegerKBlock *k, const ExpandedFormat f,
                               const Activations activations)
{
    (void)activations;
    for (ptrdiff_t r = 0; r < k->rows; r++) {
        const ptrdiff_t block = (k->row + r) * k->in / f.elements;
        const uint8_t *codes = (const uint8_t *)k->weight->data + block * f.code_bytes;
        float *lanes = k->lanes + r * PANEL_TOKENS * LANES;
        if (k->start == 0)
            memset(lanes, 0, PANEL_TOKENS * LANES * sizeof(float));
        for (ptrdiff_t b = k->start / f.elements; b < (k->start + k->count) / f.elements; b++) {
            Factors factors = {0};
            float room;
            block_factors(&factors, 0, codes + b * f.code_bytes,
                          scales_at(&room, k->weight, block + b, 1, f), f);
            for (int g = 0; g < f.elements / GROUP; g++) {
                int16_t expanded[GROUP];
                widen_codes(expanded, codes + b * f.code_bytes, g, f);
                for (int t = 0; t < k->tokens; t++)
                    add_group(lanes + t * LANES, expanded, &factors, g, k, t,
                              b * f.elements / GROUP + g, f);
            }
        }
        for (int t = 0; t < k->tokens && k->start + k->count == k->in; t++)
            k->out[t * CHUNK_ROWS + r] = reduce_lanes(lanes + t * LANES);
    }
}

/* Multiplies a few tokens. Each row is a single K block. */
INLINE void multiply_few_rows(float *out, const float *panel, const Weight *weight, ptrdiff_t row,
                              ptrdiff_t rows, ptrdiff_t in, int tokens, const ExpandedFormat f,
                              const Activations activations)
{
    float lanes[PANEL_TOKENS * LANES];
    IntegerKBlock k = {out, lanes, NULL, panel, weight, row, 1, in, 0, in, tokens};
    for (; k.row < row + rows; k.row++, k.out++)
        multiply_many_rows(&k, f, activations);
}

/* 8-bit integers are stored in 16-bit words, and a panel of few tokens is an ordinary panel. */
INLINE void pack_few(float *panel, const char *x, ptrdiff_t x_stride, int tokens, ptrdiff_t in,
                     const ExpandedFormat f, const Activations activations)
{
    (void)f;
    pack_numbers(panel, x, x_stride, tokens, in,
                 activations == ACTIVATIONS_INT16 ? PANEL_INT16 : PANEL_INT8_AS_INT16);
}

INLINE void pack_many(float *panel, const char *x, ptrdiff_t x_stride, int tokens, ptrdiff_t in,
                      const ExpandedFormat f, const Activations activations)
{
    pack_few(panel, x, x_stride, tokens, in, f, activations);
}

/* Does nothing, because multiply_many_rows reads codes directly from the weight's rows. */
INLINE void widen_rows_of_codes(const IntegerKBlock *k, const ExpandedFormat f,
                                const Activations activations)
{
    (void)k;
    (void)f;
    (void)activations;
}
