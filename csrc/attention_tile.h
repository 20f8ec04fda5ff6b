/*
 * Register tiles of attention, shared by the sets with vector intrinsics.
 *
 * Besides what tile.h needs, a dot_*.h header defines TILE_VECTORS (vectors beside the rows of a
 * tile), vec_all (one number in all lanes), vec_add, vec_maximum, word_mask, first_words and load_words (loads that touch
 * the first words only), and widen_words (one phase of a vector of bfloat16 pairs).
 */
#ifndef LLAMA_BOLTS_ATTENTION_TILE_H
#define LLAMA_BOLTS_ATTENTION_TILE_H

#include "attention.h"
#include "tile.h"

enum { TILE_GROUPS = TILE_VECTORS / VEC_PARTS, PREFETCH_POSITIONS = 16 };

/* ---- the lanes of one row ---- */

INLINE float fused(float a, float b, float c)
{
    return __builtin_fmaf(a, b, c);
}

INLINE void largest_lanes(const float *scores, ptrdiff_t padded, float *largest)
{
    vec most[VEC_PARTS];
#pragma GCC unroll 2
    for (int part = 0; part < VEC_PARTS; part++)
        most[part] = vec_all(&(float){-INFINITY});
    for (ptrdiff_t s = 0; s < padded; s += LANES)
#pragma GCC unroll 2
        for (int part = 0; part < VEC_PARTS; part++)
            most[part] = vec_maximum(vec_load(scores + s + part * VEC_LANES), most[part]);
#pragma GCC unroll 2
    for (int part = 0; part < VEC_PARTS; part++)
        vec_store(largest + part * VEC_LANES, most[part]);
}

INLINE void sum_lanes(const float *weights, ptrdiff_t padded, float *sums)
{
    vec sum[VEC_PARTS];
#pragma GCC unroll 2
    for (int part = 0; part < VEC_PARTS; part++)
        sum[part] = vec_zero();
    for (ptrdiff_t s = 0; s < padded; s += LANES)
#pragma GCC unroll 2
        for (int part = 0; part < VEC_PARTS; part++)
            sum[part] = vec_add(sum[part], vec_load(weights + s + part * VEC_LANES));
#pragma GCC unroll 2
    for (int part = 0; part < VEC_PARTS; part++)
        vec_store(sums + part * VEC_LANES, sum[part]);
}

#include "attention_rows.h"

/* ---- scores: lanes hold positions ---- */

/* The products of `rows` queries with `groups` groups of 16 positions. */
INLINE void score_tile(const Product p, const int rows, const int groups, const float *panel,
                       const char *keys, ptrdiff_t words, float *scores)
{
    enum { MOST = PANEL_TOKENS * TILE_VECTORS };
    const int vectors = groups * VEC_PARTS;
    vec acc[MOST];
#pragma GCC unroll 24
    for (int i = 0; i < rows * vectors; i++)
        acc[i] = vec_zero();
    for (const char *end = keys + words * 64; keys != end; keys += 64) {
#pragma GCC unroll 4
        for (int group = 0; group < groups; group++)
            __builtin_prefetch(keys + (group + groups) * words * 64);
#pragma GCC unroll 2
        for (int phase = 0; phase < p.phases; phase++, panel += rows) {
            vec lanes[TILE_VECTORS];
#pragma GCC unroll 4
            for (int v = 0; v < vectors; v++)
                lanes[v] = p.load(keys + v / VEC_PARTS * words * 64, phase, v % VEC_PARTS);
#pragma GCC unroll 6
            for (int r = 0; r < rows; r++) {
                const vec query = vec_all(panel + r);
#pragma GCC unroll 4
                for (int v = 0; v < vectors; v++)
                    acc[r * vectors + v] = p.mac(acc[r * vectors + v], query, lanes[v]);
            }
        }
    }
#pragma GCC unroll 24
    for (int i = 0; i < rows * vectors; i++)
        vec_store(scores + i / vectors * ATTENTION_BLOCK + i % vectors * VEC_LANES, acc[i]);
}

INLINE void score_rows(const Product p, const int rows, const float *panel, const char *keys,
                       ptrdiff_t groups, ptrdiff_t words, float *scores)
{
    ptrdiff_t group = 0;
    for (; group + TILE_GROUPS <= groups; group += TILE_GROUPS)
        score_tile(p, rows, TILE_GROUPS, panel, keys + group * words * 64, words,
                   scores + group * LANES);
    for (; group < groups; group++)
        score_tile(p, rows, 1, panel, keys + group * words * 64, words, scores + group * LANES);
}

INLINE void score_any(const Product p, int rows, const float *panel, const char *keys,
                      ptrdiff_t groups, ptrdiff_t words, float *scores)
{
    switch (rows) {
    case 1: score_rows(p, 1, panel, keys, groups, words, scores); break;
    case 2: score_rows(p, 2, panel, keys, groups, words, scores); break;
    case 3: score_rows(p, 3, panel, keys, groups, words, scores); break;
    case 4: score_rows(p, 4, panel, keys, groups, words, scores); break;
    case 5: score_rows(p, 5, panel, keys, groups, words, scores); break;
    default: score_rows(p, 6, panel, keys, groups, words, scores); break;
    }
}

static void attention_scores(int type, const float *panel, int rows, const char *keys,
                             ptrdiff_t groups, ptrdiff_t words, float *scores)
{
    if (type == TYPE_BF16)
        score_any(product_bf16, rows, panel, keys, groups, words, scores);
    else
        score_any(product_f32, rows, panel, keys, groups, words, scores);
}

/* ---- weighted values: lanes hold the words of a head ---- */

/* `vectors` vectors of words of all positions; the last one may be short, and is then masked. */
INLINE void mix_tile(const int phases, const int rows, const int vectors, const int masked,
                     word_mask mask, const float *weights, const char *values, ptrdiff_t count,
                     ptrdiff_t words, ptrdiff_t floats, float *mix)
{
    enum { MOST = PANEL_TOKENS * TILE_VECTORS };
    const ptrdiff_t phase_floats = ceil_div(words, LANES) * LANES;
    const int columns = phases * vectors;
    vec acc[MOST];
#pragma GCC unroll 24
    for (int i = 0; i < rows * columns; i++)
        acc[i] = vec_load(mix + i / columns * floats + i % columns / vectors * phase_floats
                          + i % vectors * VEC_LANES);
    for (ptrdiff_t s = 0; s < count; s++, values += words * 4) {
        vec lanes[TILE_VECTORS];
#pragma GCC unroll 4
        for (int v = 0; v < vectors; v++) {
            const float *at = (const float *)values + v * VEC_LANES;
            __builtin_prefetch(at + PREFETCH_POSITIONS * words);
            const vec pair = masked ? load_words(at, mask) : vec_load(at);
            lanes[v] = phases == 2 ? widen_words(pair, 0) : pair;
            if (phases == 2)
                lanes[vectors + v] = widen_words(pair, 1);
        }
#pragma GCC unroll 6
        for (int r = 0; r < rows; r++) {
            const vec weight = vec_all(weights + r * ATTENTION_BLOCK + s);
#pragma GCC unroll 4
            for (int i = 0; i < columns; i++)
                acc[r * columns + i] = mac_f32(acc[r * columns + i], weight, lanes[i]);
        }
    }
#pragma GCC unroll 24
    for (int i = 0; i < rows * columns; i++)
        vec_store(mix + i / columns * floats + i % columns / vectors * phase_floats
                      + i % vectors * VEC_LANES,
                  acc[i]);
}

INLINE void mix_rows(const int phases, const int rows, const float *weights, const char *values,
                     ptrdiff_t count, ptrdiff_t words, ptrdiff_t floats, float *mix)
{
    enum { WIDE_BF16 = TILE_VECTORS / 2, WIDE_F32 = TILE_VECTORS };
    const int wide = phases == 2 ? WIDE_BF16 : WIDE_F32;
    const word_mask all = first_words(VEC_LANES);
    ptrdiff_t w = 0;
    for (; w + wide * VEC_LANES <= words; w += wide * VEC_LANES)
        mix_tile(phases, rows, wide, 0, all, weights, values + w * 4, count, words, floats, mix + w);
    for (; w < words; w += VEC_LANES)
        mix_tile(phases, rows, 1, 1, first_words(min_size(VEC_LANES, words - w)), weights,
                 values + w * 4, count, words, floats, mix + w);
}

INLINE void mix_any(const int phases, int rows, const float *weights, const char *values,
                    ptrdiff_t count, ptrdiff_t words, ptrdiff_t floats, float *mix)
{
    switch (rows) {
    case 1: mix_rows(phases, 1, weights, values, count, words, floats, mix); break;
    case 2: mix_rows(phases, 2, weights, values, count, words, floats, mix); break;
    case 3: mix_rows(phases, 3, weights, values, count, words, floats, mix); break;
    case 4: mix_rows(phases, 4, weights, values, count, words, floats, mix); break;
    case 5: mix_rows(phases, 5, weights, values, count, words, floats, mix); break;
    default: mix_rows(phases, 6, weights, values, count, words, floats, mix); break;
    }
}

static void attention_mix(int type, const float *weights, int rows, const char *values,
                          ptrdiff_t count, ptrdiff_t words, ptrdiff_t floats, float *mix)
{
    if (type == TYPE_BF16)
        mix_any(2, rows, weights, values, count, words, floats, mix);
    else
        mix_any(1, rows, weights, values, count, words, floats, mix);
}

#endif
