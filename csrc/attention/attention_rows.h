/* The parts of attention and matmul in plain C, compiled once for each instruction set. */
#pragma once
#include "attention/attention.h"
#include "floats.h"

/*
 * Packs one row of words as row 0 of a panel [word][phase][row], so that a step of the chains finds
 * the elements of all rows next to each other. With one phase, a word of two bfloat16 is not
 * changed.
 */
INLINE void pack_words(float *panel, const char *x, ptrdiff_t words, int rows, const int phases)
{
    for (ptrdiff_t w = 0; w < words; w++, panel += phases * rows) {
        uint32_t word;
        memcpy(&word, x + 4 * w, 4);
        const uint32_t first = phases == 2 ? word & 0xFFFF0000u : word;
        const uint32_t second = word << 16;
        memcpy(panel, &first, 4);
        if (phases == 2)
            memcpy(panel + rows, &second, 4);
    }
}

/* A function on scores that are padded to whole lanes. Either it raises each lane to the maximum of
 * its scores, ignoring NaN, or it adds each score to its lane. */
typedef void (*lanes_function)(const float *restrict scores, ptrdiff_t padded,
                               float *restrict lanes);

/* Updates the lanes of the largest score. The padding becomes -Inf. */
INLINE void raise_row(float *restrict scores, float *restrict largest, ptrdiff_t count,
                      const lanes_function raise_lanes)
{
    const ptrdiff_t padded = ceil_div(count, LANES) * LANES;
    for (ptrdiff_t s = count; s < padded; s++)
        scores[s] = -INFINITY;
    raise_lanes(scores, padded, largest);
}

/* scores[s] = exp(scores[s] * scale - maximum). Also adds the results to the lanes of their sum.
 * The padding becomes 0. */
INLINE void exponentiate_row(float *restrict scores, float *restrict sums, ptrdiff_t count,
                             float scale, float maximum, const lanes_function add_lanes)
{
    const ptrdiff_t padded = ceil_div(count, LANES) * LANES;
    for (ptrdiff_t s = 0; s < padded; s++)
        scores[s] = exp_f32(scores[s] * scale - maximum);
    for (ptrdiff_t s = count; s < padded; s++)
        scores[s] = 0.0f;
    add_lanes(scores, padded, sums);
}

static void cap_scores(float *scores, ptrdiff_t count, float scale, float cap)
{
    for (ptrdiff_t s = 0; s < count; s++)
        scores[s] = soft_cap_f32(scores[s] * scale, cap);
}

static void normalize_row(float *weights, ptrdiff_t count, float factor)
{
    for (ptrdiff_t s = 0; s < count; s++)
        weights[s] = weights[s] * factor;
}

/* Widens a query to float32. */
static void widen_query(float *out, const char *query, ptrdiff_t h, ElementType type)
{
    const uint16_t *half = (const uint16_t *)(const void *)query;
    if (type == TYPE_FLOAT32)
        memcpy(out, query, (size_t)h * sizeof(float));
    else
        for (ptrdiff_t i = 0; i < h; i++)
            out[i] = bfloat16_to_float32(half[i]);
}

/* Rounds the weighted sum of a row of values of `type` to the type of the result. */
static void finish_row(void *out, const float *sums, ptrdiff_t h, ElementType type,
                       ElementType out_type)
{
    if (out_type == TYPE_FLOAT32) {
        memcpy(out, sums, (size_t)h * sizeof(float));
        return;
    }
    uint16_t *half = out;
    if (type == TYPE_FLOAT32) {
        for (ptrdiff_t i = 0; i < h; i++)
            half[i] = float32_to_bfloat16(sums[i]);
        return;
    }
    const float *even = sums + sum_phase(type, h);
    for (ptrdiff_t w = 0; w < h / 2; w++) {
        half[2 * w] = float32_to_bfloat16(even[w]);
        half[2 * w + 1] = float32_to_bfloat16(sums[w]);
    }
}
