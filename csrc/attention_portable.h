/* The sums of attention in plain C, for every machine: 16 lanes of one row at a time. */
#pragma once
#include "attention_rows.h"
#include "dot_portable.h"

static inline void largest_lanes(const float *restrict scores, ptrdiff_t padded,
                                 float *restrict largest)
{
    for (int l = 0; l < LANES; l++)
        largest[l] = -INFINITY;
    for (ptrdiff_t s = 0; s < padded; s += LANES)
        for (int l = 0; l < LANES; l++)
            largest[l] = scores[s + l] > largest[l] ? scores[s + l] : largest[l];
}

static inline void sum_lanes(const float *restrict weights, ptrdiff_t padded, float *restrict sums)
{
    for (int l = 0; l < LANES; l++)
        sums[l] = 0.0f;
    for (ptrdiff_t s = 0; s < padded; s += LANES)
        for (int l = 0; l < LANES; l++)
            sums[l] += weights[s + l];
}

static void attention_weights(float *scores, float *state, ptrdiff_t count, float scale)
{
    weigh_scores(scores, state, count, scale, largest_lanes, sum_lanes);
}

static void pack_query(float *panel, const char *x, ptrdiff_t words, int rows, ElementType type)
{
    pack_words(panel, x, words, rows, type == TYPE_BFLOAT16 ? 2 : 1);
}

INLINE Product product_of(ElementType type)
{
    return (Product){type == TYPE_BFLOAT16 ? FORM_BFLOAT16 : FORM_FLOAT32, type};
}

/* One group of 16 positions for all rows; the lanes of a word are widened once. */
INLINE void score_group(float *restrict scores, const float *panel, const char *keys, int rows,
                        ptrdiff_t words, ElementType type)
{
    const Product p = product_of(type);
    float acc[PANEL_TOKENS][LANES] = {{0}}, lanes[LANES];
    for (ptrdiff_t w = 0; w < words; w++, keys += 64)
        for (int phase = 0; phase < phases_of(p); phase++, panel += rows) {
            widen_block(lanes, keys, elements_of(p), phase, p);
            for (int r = 0; r < rows; r++) {
                float query[LANES];
                for (int l = 0; l < LANES; l++)
                    query[l] = panel[r];
                add_products(acc[r], query, lanes, p.form);
            }
        }
    for (int r = 0; r < rows; r++)
        memcpy(scores + r * ATTENTION_BLOCK, acc[r], sizeof acc[r]);
}

static void attention_scores(float *scores, const float *panel, const char *keys, int rows,
                             ptrdiff_t groups, ptrdiff_t words, ElementType type)
{
    for (ptrdiff_t group = 0; group < groups; group++, keys += words * 64, scores += LANES)
        if (type == TYPE_BFLOAT16)
            score_group(scores, panel, keys, rows, words, TYPE_BFLOAT16);
        else
            score_group(scores, panel, keys, rows, words, TYPE_FLOAT32);
}

static void attention_sum(float *sums, const float *weights, const char *values, int rows,
                          ptrdiff_t count, ptrdiff_t words, ptrdiff_t floats, ElementType type)
{
    const Product p = product_of(type);
    const ptrdiff_t phase_floats = ceil_div(words, LANES) * LANES;
    float lanes[LANES];
    for (ptrdiff_t s = 0; s < count; s++, values += words * 4)
        for (ptrdiff_t w = 0; w < words; w += LANES)
            for (int phase = 0; phase < phases_of(p); phase++) {
                const ptrdiff_t elements = min_size(LANES, words - w) * phases_of(p);
                widen_block(lanes, values + w * 4, elements, phase, p);
                for (int r = 0; r < rows; r++) {
                    const float weight = weights[r * ATTENTION_BLOCK + s];
                    float *acc = sums + r * floats + phase * phase_floats + w;
                    for (int l = 0; l < LANES; l++)
                        acc[l] = fused_multiply_add(weight, lanes[l], acc[l]);
                }
            }
}
