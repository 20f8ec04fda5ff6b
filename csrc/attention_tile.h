/*
 * Register tiles of attention, shared by the sets with vector intrinsics; vectors_*.h says how many
 * vectors stand beside the rows of a tile (TILE_VECTORS).
 */
#pragma once
#include "attention_rows.h"
#include "tile.h"

enum { TILE_GROUPS = TILE_VECTORS / VEC_PARTS, PREFETCH_POSITIONS = 16 };

typedef vec (*vec_function)(vec a, vec b);

/* Combines all vectors of whole lanes, beginning with `start` in each lane. */
INLINE void combine_lanes(const float *x, ptrdiff_t padded, float *lanes, float start,
                          const vec_function combine)
{
    vec all[VEC_PARTS];
#pragma GCC unroll 4
    for (int part = 0; part < VEC_PARTS; part++)
        all[part] = vec_all(&start);
    for (ptrdiff_t s = 0; s < padded; s += LANES)
#pragma GCC unroll 4
        for (int part = 0; part < VEC_PARTS; part++)
            all[part] = combine(vec_load(x + s + part * VEC_LANES), all[part]);
#pragma GCC unroll 4
    for (int part = 0; part < VEC_PARTS; part++)
        vec_store(lanes + part * VEC_LANES, all[part]);
}

INLINE void largest_lanes(const float *scores, ptrdiff_t padded, float *largest)
{
    combine_lanes(scores, padded, largest, -INFINITY, vec_maximum);
}

INLINE void sum_lanes(const float *weights, ptrdiff_t padded, float *sums)
{
    combine_lanes(weights, padded, sums, 0.0f, vec_add);
}

static void attention_weights(float *scores, float *state, ptrdiff_t count, float scale)
{
    weigh_scores(scores, state, count, scale, largest_lanes, sum_lanes);
}

static void pack_query(float *panel, const char *x, ptrdiff_t words, int rows, ElementType type)
{
    pack_words(panel, x, words, rows, type == TYPE_BFLOAT16 ? PAIR_PHASES : 1);
}

/* The products of `rows` queries with `groups` groups of 16 positions. */
INLINE void score_tile(const Product p, const int rows, const int groups, const float *panel,
                       const char *keys, ptrdiff_t words, float *scores)
{
    const int vectors = groups * VEC_PARTS;
    vec acc[PANEL_TOKENS * TILE_VECTORS];
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

INLINE void score_rows(const int rows, const Product p, const float *panel, const char *keys,
                       ptrdiff_t groups, ptrdiff_t words, float *scores)
{
    ptrdiff_t group = 0;
    for (; group + TILE_GROUPS <= groups; group += TILE_GROUPS)
        score_tile(p, rows, TILE_GROUPS, panel, keys + group * words * 64, words,
                   scores + group * LANES);
    for (; group < groups; group++)
        score_tile(p, rows, 1, panel, keys + group * words * 64, words, scores + group * LANES);
}

static void attention_scores(float *scores, const float *panel, const char *keys, int rows,
                             ptrdiff_t groups, ptrdiff_t words, ElementType type)
{
    const Product pairs = PAIR_PRODUCT(bfloat16, TYPE_BFLOAT16, 2);
    const Product singles = SINGLE_PRODUCT(float32, TYPE_FLOAT32, 4);
    if (type == TYPE_BFLOAT16) {
        WITH_CONSTANT(score_rows, rows, pairs, panel, keys, groups, words, scores);
    } else {
        WITH_CONSTANT(score_rows, rows, singles, panel, keys, groups, words, scores);
    }
}

/* `vectors` vectors of words of all positions; the last one may be short, and is then masked. */
INLINE void sum_tile(const int phases, const int rows, const int vectors, const int masked,
                     word_mask mask, const float *weights, const char *values, ptrdiff_t count,
                     ptrdiff_t words, ptrdiff_t floats, float *sums)
{
    const ptrdiff_t phase_floats = ceil_div(words, LANES) * LANES;
    const int columns = phases * vectors;
    vec acc[PANEL_TOKENS * TILE_VECTORS];
#pragma GCC unroll 24
    for (int i = 0; i < rows * columns; i++)
        acc[i] = vec_load(sums + i / columns * floats + i % columns / vectors * phase_floats
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
                acc[r * columns + i] = mac_float32(acc[r * columns + i], weight, lanes[i]);
        }
    }
#pragma GCC unroll 24
    for (int i = 0; i < rows * columns; i++)
        vec_store(sums + i / columns * floats + i % columns / vectors * phase_floats
                      + i % vectors * VEC_LANES,
                  acc[i]);
}

INLINE void sum_rows(const int rows, const int phases, const float *weights, const char *values,
                     ptrdiff_t count, ptrdiff_t words, ptrdiff_t floats, float *sums)
{
    const int wide = TILE_VECTORS / phases;
    const word_mask all = first_words(VEC_LANES);
    ptrdiff_t w = 0;
    for (; w + wide * VEC_LANES <= words; w += wide * VEC_LANES)
        sum_tile(phases, rows, wide, 0, all, weights, values + w * 4, count, words, floats,
                 sums + w);
    for (; w < words; w += VEC_LANES)
        sum_tile(phases, rows, 1, 1, first_words(min_size(VEC_LANES, words - w)), weights,
                 values + w * 4, count, words, floats, sums + w);
}

static void attention_sum(float *sums, const float *weights, const char *values, int rows,
                          ptrdiff_t count, ptrdiff_t words, ptrdiff_t floats, ElementType type)
{
    if (type == TYPE_BFLOAT16) {
        WITH_CONSTANT(sum_rows, rows, 2, weights, values, count, words, floats, sums);
    } else {
        WITH_CONSTANT(sum_rows, rows, 1, weights, values, count, words, floats, sums);
    }
}
