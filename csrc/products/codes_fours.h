/*
 * Products with codes for vectors of four lanes. Codes are read directly from the weight's rows.
 * Four groups of a row stay in registers while all tokens are multiplied by them, and their sums
 * are four lanes.
 */
#pragma once

#ifndef CODES
#define CODES "isa/codes_neon.h"
#endif
#include "products/integer_panel.h"

/* Number of codes that add one group to each lane. */
enum { UNIT_CODES = LANES * GROUP };

/* The numbers, scales and sums of x for the first token, starting at a group
 * that is added to lane 0. */
typedef struct FoursOfX {
    const int16_t *numbers;
    ptrdiff_t numbers_apart, groups; /* distance between pairs of groups; between tokens' scales */
    const float *scales, *sums;
} FoursOfX;

/* The factors of four groups, multiplied by their steps if they have any. */
INLINE vec widen_factors(const uint64_t *factors, const uint64_t *steps, int has_steps, int four,
                         int part, const ExpandedFormat f)
{
    halves all;
    float two[2];
    memcpy(&all, factors + four, sizeof all);
    if (has_steps)
        all = (halves){0} + (uint16_t)(*factors >> four * 4 / STEPS_OF_SCALE * 16);
    memcpy(two, factors + four, sizeof two);
    if (f.scale_type == TYPE_FLOAT32)
        return load_twice(two);
    const vec wide = f.scale_type == TYPE_FLOAT16 ? widen_float16(all) : widen_bfloat16(all);
    return has_steps ? vec_multiply(wide, widen_steps(steps, four, f.parts, part)) : wide;
}

/* Multiplies four groups by the numbers of one token, and adds the products to the four
 * lanes of the groups. */
INLINE vec add_four(vec sum, const Halves *codes, const Factors *factors, int four, FoursOfX x,
                    const ExpandedFormat f, const Activations activations)
{
    const vec x_scales = vec_load(x.scales + four * 4);
    ivec sums[2][4];
#pragma GCC unroll 2
    for (int part = 0; part < f.parts; part++)
#pragma GCC unroll 4
        for (int g = 0; g < 4; g++) {
            const int16_t *numbers = x.numbers + (four * 4 + g) / 2 * x.numbers_apart + g % 2 * 16;
            sums[part][g] = sum_of_halves(codes + g, numbers, part, 3 - f.parts + part,
                                          f.levels != NULL, activations == ACTIVATIONS_INT8);
        }
#pragma GCC unroll 2
    for (int part = 0; part < f.parts; part++)
        sum = mac_float32(sum, sums_of_four(sums[part]),
                          vec_multiply(widen_factors(factors->scales, factors->scale_steps,
                                                     f.has_steps, four, part, f),
                                       x_scales));
    if (!f.has_mins)
        return sum;
#pragma GCC unroll 2
    for (int part = 0; part < f.parts; part++) {
        const float *x_sums = x.sums + part * x.groups + four * 4;
        const vec all = f.parts == 1 ? vec_add(vec_load(x_sums), vec_load(x_sums + x.groups))
                                     : vec_load(x_sums);
        sum = mac_float32(sum, all,
                          vec_multiply(widen_factors(factors->mins, factors->min_steps,
                                                     f.has_mins == 2, four, part, f),
                                       x_scales));
    }
    return sum;
}

/* Adds one group to each lane of some tokens. At the end of a row there may be fewer groups: lanes
 * without a group get a scale of 0, and no bytes after the row are read. */
INLINE void add_unit(float *lanes, const uint8_t *codes, const char *scales, ptrdiff_t groups,
                     const FoursOfX x, const int tokens, const ExpandedFormat f,
                     const Activations activations)
{
    Factors factors = {0};
#pragma GCC unroll 16
    for (int b = 0; b < UNIT_CODES / f.elements; b++) {
        if (b * f.elements / GROUP >= groups)
            break;
        block_factors(&factors, (int)(b * f.elements / GROUP), codes + b * f.code_bytes,
                      scales + b * scales_apart(f), f);
    }
#pragma GCC unroll 4
    for (int four = 0; four < LANES / 4; four++) {
        Halves halves_of[4];
        if (four * 4 >= groups)
            break;
#pragma GCC unroll 4
        for (int g = 0; g < 4; g++)
            if (four * 4 + g >= groups)
                halves_of[g] = halves_of[0];
            else if (f.levels)
                look_up_halves(halves_of + g, codes + (four * 4 + g) * GROUP / 2, f.levels->steps);
            else
                widen_codes(halves_of + g, expand_at(codes, four * 4 + g, f));
        for (int t = 0; t < tokens; t++) {
            float *at = lanes + t * LANES + four * 4;
            const FoursOfX of_token = {x.numbers + t * 64, x.numbers_apart, x.groups,
                                       x.scales + t * x.groups, x.sums + 2 * t * x.groups};
            vec_store(at,
                      add_four(vec_load(at), halves_of, &factors, four, of_token, f, activations));
        }
    }
}

INLINE void multiply_tokens(const IntegerKBlock *k, const int tokens, const ExpandedFormat f,
                            const Activations activations)
{
    const ptrdiff_t end = (k->start + k->count) / GROUP;
    float room[LANES];
    for (ptrdiff_t r = 0; r < k->rows; r++) {
        ptrdiff_t block = ((k->row + r) * k->in + k->start) / f.elements, blocks;
        float *lanes = k->lanes + r * PANEL_TOKENS * LANES;
        if (k->start == 0)
            memset(lanes, 0, (size_t)tokens * LANES * sizeof(float));
        for (ptrdiff_t first = k->start / GROUP; first < end; first += LANES, block += blocks) {
            const ptrdiff_t groups = min_size(LANES, end - first);
            blocks = groups * GROUP / f.elements;
            const uint8_t *codes = (const uint8_t *)k->weight->data + block * f.code_bytes;
            const char *scales = scales_at(room, k->weight, block, blocks, f);
            const FoursOfX x = {integer_numbers(k->panel, tokens, first), tokens * 64,
                                integer_padded(k->in) / GROUP,
                                integer_scales(k->panel, k->in, tokens, 0) + first,
                                integer_sums(k->panel, k->in, tokens, 0) + first};
            __builtin_prefetch(codes + PREFETCH_STREAM);
            if (groups == LANES)
                add_unit(lanes, codes, scales, LANES, x, tokens, f, activations);
            else
                add_unit(lanes, codes, scales, groups, x, tokens, f, activations);
        }
        for (int t = 0; t < tokens && k->start + k->count == k->in; t++) {
            vec sum[4];
            memcpy(sum, lanes + t * LANES, sizeof sum);
            k->out[t * CHUNK_ROWS + r] = reduce_vectors(sum);
        }
    }
}

/* The loops over one token and over a full panel are compiled with a constant length. */
INLINE void multiply_many_rows(const IntegerKBlock *k, const ExpandedFormat f,
                               const Activations activations)
{
    if (k->tokens == 1)
        multiply_tokens(k, 1, f, activations);
    else if (k->tokens == PANEL_TOKENS)
        multiply_tokens(k, PANEL_TOKENS, f, activations);
    else
        multiply_tokens(k, k->tokens, f, activations);
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

/* Does nothing, because multiply_many_rows reads codes directly from the weight's rows. */
INLINE void widen_rows_of_codes(const IntegerKBlock *k, const ExpandedFormat f,
                                const Activations activations)
{
    (void)k;
    (void)f;
    (void)activations;
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
