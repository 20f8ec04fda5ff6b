/*
 * Formats that are expanded, for vectors of four lanes: rows are read where they are. Four groups
 * of a row are widened to 16 bits, and all tokens pass over them; their sums are four lanes.
 */
#pragma once

#ifndef CODES
#define CODES "codes_neon.h"
#endif
#include "formats.h"
#include "integer_rows.h"

/* Blocks of a row of which each lane meets one group, or fewer at its end. */
typedef struct Unit {
    const uint8_t *codes;
    const char *scales;
    ptrdiff_t first, groups; /* along `in` */
} Unit;

/* Factors of four groups, times their steps where they have any. */
INLINE vec widen_factors(const uint64_t *factors, const uint64_t *steps, int has_steps, int four,
                         int part, const ExpandedFormat f)
{
    halves all;
    memcpy(&all, factors + four, sizeof all);
    const vec wide = f.scale_type == TYPE_FLOAT16 ? widen_float16(all) : widen_bfloat16(all);
    return has_steps ? vec_multiply(wide, widen_steps(steps, four, f.parts, part)) : wide;
}

/* Adds four groups times the numbers of one token to their four lanes. */
INLINE vec add_four(vec sum, const Halves (*codes)[2], const Factors *factors, int four,
                    const IntegerKBlock *k, int t, ptrdiff_t index, const ExpandedFormat f)
{
    const vec x_scales = vec_load(integer_scales(k->panel, k->in, k->tokens, t) + index);
    ivec sums[2][4];
#pragma GCC unroll 4
    for (int g = 0; g < 4; g++) {
        const int16_t *x = integer_numbers(k->panel, k->tokens, index + g) + t * 64;
        const ivec first = add_half((ivec){0}, codes[g][0], x);
        sums[0][g] = f.parts == 1 ? add_half(first, codes[g][1], x + 8) : first;
        sums[1][g] = f.parts == 1 ? first : add_half((ivec){0}, codes[g][1], x + 8);
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
        const ptrdiff_t apart = integer_padded(k->in) / GROUP;
        const float *x_sums = integer_sums(k->panel, k->in, k->tokens, t) + part * apart + index;
        const vec all =
            f.parts == 1 ? vec_add(vec_load(x_sums), vec_load(x_sums + apart)) : vec_load(x_sums);
        sum = mac_float32(sum, all,
                          vec_multiply(widen_factors(factors->mins, factors->min_steps,
                                                     f.has_mins == 2, four, part, f),
                                       x_scales));
    }
    return sum;
}

INLINE void add_unit(float *lanes, const Unit *u, const IntegerKBlock *k, const ExpandedFormat f)
{
    Factors factors = {0};
    for (ptrdiff_t b = 0; b < u->groups * GROUP / f.elements; b++)
        f.factors(&factors, (int)(b * f.elements / GROUP), u->codes + b * f.code_bytes,
                  u->scales + b * f.scale_bytes);
    for (int four = 0; four * 4 < u->groups; four++) {
        Halves codes[4][2];
#pragma GCC unroll 4
        for (int g = 0; g < 4; g++) { /* past the end, where factors are 0, the last group again */
            const group one = expand_at(u->codes, min_size(four * 4 + g, u->groups - 1), f);
            codes[g][0] = widen_half(one, 0);
            codes[g][1] = widen_half(one, 1);
        }
        for (int t = 0; t < k->tokens; t++) {
            float *at = lanes + t * LANES + four * 4;
            vec_store(at,
                      add_four(vec_load(at), codes, &factors, four, k, t, u->first + four * 4, f));
        }
    }
}

INLINE void multiply_expanded_k_block(const IntegerKBlock *k, const ExpandedFormat f)
{
    for (ptrdiff_t r = 0; r < k->rows; r++) {
        const ptrdiff_t block = ((k->row + r) * k->in + k->start) / f.elements;
        float *lanes = k->lanes + r * PANEL_TOKENS * LANES;
        Unit u = {(const uint8_t *)k->weight->data + block * f.code_bytes,
                  (const char *)k->weight->scales + block * f.scale_bytes, k->start / GROUP, 0};
        if (k->start == 0)
            memset(lanes, 0, PANEL_TOKENS * LANES * sizeof(float));
        for (const ptrdiff_t end = (k->start + k->count) / GROUP; u.first < end;) {
            u.groups = min_size(LANES, end - u.first);
            __builtin_prefetch(u.codes + PREFETCH_STREAM);
            add_unit(lanes, &u, k, f);
            u.first += u.groups;
            u.codes += u.groups * GROUP / f.elements * f.code_bytes;
            u.scales += u.groups * GROUP / f.elements * f.scale_bytes;
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

/* Rows are not widened. */
INLINE void widen_expanded(const IntegerKBlock *k, const ExpandedFormat f) { (void)k, (void)f; }
