/*
 * The parts of attention that are plain C, compiled once for each instruction set.
 *
 * A row is one query head of one token. Its state (attention.h) is what a run of positions makes of
 * it: the largest score, the sum of the weights 2^(score - largest), and the values summed by these
 * weights. The two elements of a bfloat16 word are separate in it, odd ones first.
 */
#pragma once
#include "attention.h"
#include "row_kernels.h"

/*
 * Lays one query out as row 0 of a panel [word][phase][row], so that the step of a score finds the
 * numbers of all rows side by side. With one phase, a word of two bfloat16 stays as it is.
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

/*
 * 2^x for x up to about 0, as a weight: 0 below -125, so that none is subnormal; a NaN stays one.
 * 2^x = 2^n * 2^r, n = round(x), and 2^r by a polynomial (coefficients of the Cephes library's
 * exp2f, S. L. Moshier; error about 2 units in the last place). Adding 1.5 * 2^23 rounds to an
 * integer held in the low bits.
 */
INLINE float weight_of(float x)
{
    const float shifted = x + 12582912.0f;
    const float r = x - (shifted - 12582912.0f);
    float p = 1.535336188319500e-4f;
    p = fused_multiply_add(p, r, 1.339887440266574e-3f);
    p = fused_multiply_add(p, r, 9.618437357674640e-3f);
    p = fused_multiply_add(p, r, 5.550332471162809e-2f);
    p = fused_multiply_add(p, r, 2.402264791363012e-1f);
    p = fused_multiply_add(p, r, 6.931472028550421e-1f);
    p = fused_multiply_add(p, r, 1.0f);
    const float weight = p * float_of((bits_of(shifted) << 23) + 0x3F800000u);
    return x < -125.0f ? 0.0f : weight;
}

/* Of whole lanes: the maximum of each lane, NaNs passed over, or its sum. */
typedef void (*lanes_function)(const float *restrict x, ptrdiff_t padded, float *restrict lanes);

/*
 * Turns the first `count` products of one row and block into weights, and begins their state:
 * maximum = scale * (max over s of scores[s]), scores[s] = 2^(scale * scores[s] - maximum).
 * What lies beyond, up to whole lanes, becomes 0. A NaN is passed over by the maximum and comes
 * back as a weight; a row of -Inf only gets weights of 0.
 */
INLINE void weigh_scores(float *restrict scores, float *restrict state, ptrdiff_t count,
                         float scale, const lanes_function largest_lanes,
                         const lanes_function sum_lanes)
{
    const ptrdiff_t padded = ceil_div(count, LANES) * LANES;
    float largest[LANES], sums[LANES];
    for (ptrdiff_t s = count; s < padded; s++)
        scores[s] = -INFINITY;
    largest_lanes(scores, padded, largest);
    float maximum = -INFINITY;
    for (int l = 0; l < LANES; l++)
        maximum = largest[l] > maximum ? largest[l] : maximum;
    maximum = maximum * scale;
    const float base = maximum == -INFINITY ? 0.0f : maximum;
    for (ptrdiff_t s = 0; s < padded; s++)
        scores[s] = weight_of(fused_multiply_add(scores[s], scale, -base));
    sum_lanes(scores, padded, sums);
    state[STATE_MAXIMUM] = maximum;
    state[STATE_SUM] = reduce_lanes(sums);
}

/* The state of no position at all. */
static void attention_begin(float *state, ptrdiff_t floats)
{
    memset(state, 0, (size_t)floats * sizeof(float));
    state[STATE_MAXIMUM] = -INFINITY;
}

/* Adds the state of a block to that of the blocks before it. */
static void attention_merge(float *restrict state, const float *restrict block, ptrdiff_t floats)
{
    const float before = state[STATE_MAXIMUM], added = block[STATE_MAXIMUM];
    const float maximum = added > before ? added : before;
    const float base = maximum == -INFINITY ? 0.0f : maximum;
    const float old = weight_of(before - base), fresh = weight_of(added - base);
    for (ptrdiff_t i = STATE_SUM; i < floats; i++)
        state[i] = state[i] * old + block[i] * fresh;
    state[STATE_MAXIMUM] = maximum;
}

/* out = the weighted sum of values over the sum of the weights, each rounded once. */
static void attention_finish(void *out, const float *state, ptrdiff_t h, ElementType type)
{
    const float *sums = state + STATE_VALUES, sum = state[STATE_SUM];
    if (type == TYPE_FLOAT32) {
        float *wide = out;
        for (ptrdiff_t d = 0; d < h; d++)
            wide[d] = sums[d] / sum;
        return;
    }
    const float *even = sums + sum_phase(type, h);
    uint16_t *half = out;
    for (ptrdiff_t w = 0; w < h / 2; w++) {
        half[2 * w] = float32_to_bfloat16(even[w] / sum);
        half[2 * w + 1] = float32_to_bfloat16(sums[w] / sum);
    }
}
