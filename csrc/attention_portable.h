/* The sums of attention in plain C, for every machine: 16 lanes of one row at a time. */
#ifndef LLAMA_BOLTS_ATTENTION_PORTABLE_H
#define LLAMA_BOLTS_ATTENTION_PORTABLE_H

#include "dot_portable.h"

/* ---- the lanes of one row ---- */

INLINE float fused(float a, float b, float c)
{
    return fused_multiply_add(a, b, c);
}

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

#include "attention_rows.h"

/* ---- scores and weighted values ---- */

INLINE int product_of(int type)
{
    return type == TYPE_BF16 ? PRODUCT_BF16 : PRODUCT_F32;
}

/* One group of 16 positions for all rows; the lanes of a word are widened once. */
INLINE void score_group(int kind, const float *panel, int rows, const char *keys, ptrdiff_t words,
                        float *restrict scores)
{
    const int phases = kind == PRODUCT_BF16 ? 2 : 1;
    float acc[PANEL_TOKENS][LANES] = {{0}}, lanes[LANES];
    for (ptrdiff_t w = 0; w < words; w++, keys += 64)
        for (int phase = 0; phase < phases; phase++, panel += rows) {
            widen_block(kind, keys, product_block(kind), phase, lanes);
            for (int r = 0; r < rows; r++) {
                float query[LANES];
                for (int l = 0; l < LANES; l++)
                    query[l] = panel[r];
                add_products(kind, query, lanes, acc[r]);
            }
        }
    for (int r = 0; r < rows; r++)
        memcpy(scores + r * ATTENTION_BLOCK, acc[r], sizeof acc[r]);
}

static void attention_scores(int type, const float *panel, int rows, const char *keys,
                             ptrdiff_t groups, ptrdiff_t words, float *scores)
{
    for (ptrdiff_t group = 0; group < groups; group++, keys += words * 64, scores += LANES)
        if (type == TYPE_BF16)
            score_group(PRODUCT_BF16, panel, rows, keys, words, scores);
        else
            score_group(PRODUCT_F32, panel, rows, keys, words, scores);
}

static void attention_mix(int type, const float *weights, int rows, const char *values,
                          ptrdiff_t count, ptrdiff_t words, ptrdiff_t floats, float *mix)
{
    const int kind = product_of(type), phases = type == TYPE_BF16 ? 2 : 1;
    const ptrdiff_t phase_floats = ceil_div(words, LANES) * LANES;
    float lanes[LANES];
    for (ptrdiff_t s = 0; s < count; s++, values += words * 4)
        for (ptrdiff_t w = 0; w < words; w += LANES)
            for (int phase = 0; phase < phases; phase++) {
                const ptrdiff_t elements = min_size(LANES, words - w) * phases;
                widen_block(kind, values + w * 4, elements, phase, lanes);
                for (int r = 0; r < rows; r++) {
                    const float weight = weights[r * ATTENTION_BLOCK + s];
                    float *acc = mix + r * floats + phase * phase_floats + w;
                    for (int l = 0; l < LANES; l++)
                        acc[l] = fused_multiply_add(weight, lanes[l], acc[l]);
                }
            }
}

#endif
