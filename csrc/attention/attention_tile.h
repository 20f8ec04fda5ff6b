/*
 * Register tiles of attention and matmul, shared by the sets with vector intrinsics. TILE_VECTORS
 * in vectors_*.h is the number of vectors per row of a tile.
 */
#pragma once
#include "attention/attention_rows.h"
#include "products/tile.h"

enum {
    /* Sums that hide the latency of a multiply-add: it takes 4 cycles, and 2 begin in each. */
    WAITING_SUMS = 8,
    MOST_SUMS = PANEL_TOKENS * TILE_VECTORS,
    MOST_VECTORS = TILE_VECTORS < WAITING_SUMS ? WAITING_SUMS : TILE_VECTORS,
    /* Bytes of values that all columns are summed over before the next ones, so that they stay in
     * the L1 cache. */
    VALUES_BYTES = 8 * 1024,
    /* The distance at which keys and values are prefetched. Lines are prefetched in the order of
     * their addresses, also if a tile reads several groups of keys side by side: a processor then
     * continues the stream by itself, and memory is read at twice the rate. */
    PREFETCH_BYTES = 4 * 1024
};

typedef vec (*vec_function)(vec a, vec b);

/* Vectors per row of a tile. A tile of few rows has more of them, so that there are enough
 * independent sums. */
INLINE int tile_vectors(const int rows)
{
    const int most = WAITING_SUMS / rows;
    return most <= TILE_VECTORS ? TILE_VECTORS : most / TILE_VECTORS * TILE_VECTORS;
}

/* Combines the vectors of whole lanes with the vectors of `lanes`. */
INLINE void combine_lanes(const float *scores, ptrdiff_t padded, float *lanes,
                          const vec_function combine)
{
    vec all[VEC_PARTS];
#pragma GCC unroll 4
    for (int part = 0; part < VEC_PARTS; part++)
        all[part] = vec_load(lanes + part * VEC_LANES);
    for (ptrdiff_t s = 0; s < padded; s += LANES)
#pragma GCC unroll 4
        for (int part = 0; part < VEC_PARTS; part++)
            all[part] = combine(vec_load(scores + s + part * VEC_LANES), all[part]);
#pragma GCC unroll 4
    for (int part = 0; part < VEC_PARTS; part++)
        vec_store(lanes + part * VEC_LANES, all[part]);
}

INLINE void raise_lanes(const float *scores, ptrdiff_t padded, float *largest)
{
    combine_lanes(scores, padded, largest, vec_maximum);
}

INLINE void add_lanes(const float *scores, ptrdiff_t padded, float *sums)
{
    combine_lanes(scores, padded, sums, vec_add);
}

static void raise_largest(float *scores, float *largest, ptrdiff_t count)
{
    raise_row(scores, largest, count, raise_lanes);
}

static void exponentiate(float *scores, float *sums, ptrdiff_t count, float scale, float maximum)
{
    exponentiate_row(scores, sums, count, scale, maximum, add_lanes);
}

static void pack_chains(float *panel, const char *x, ptrdiff_t words, int rows, ElementType type)
{
    pack_words(panel, x, words, rows, type == TYPE_BFLOAT16 ? PAIR_PHASES : 1);
}

/* Adds the products of one row and all vectors of a tile. With many rows, the vectors then stay in
 * registers. */
INLINE void add_row(vec *acc, vec of_row, const vec *lanes, const int vectors,
                    const mac_function mac)
{
#pragma GCC unroll 8
    for (int v = 0; v < vectors; v++)
        acc[v] = mac(acc[v], of_row, lanes[v]);
}

/* Adds the products of all rows and one vector. With few rows, the rows then stay in registers. */
INLINE void add_column(vec *acc, const vec *of_rows, vec lanes, const int rows, const int vectors,
                       const mac_function mac)
{
#pragma GCC unroll 6
    for (int r = 0; r < rows; r++)
        acc[r * vectors] = mac(acc[r * vectors], of_rows[r], lanes);
}

/* Computes the chains of `rows` rows of a panel with `groups` groups of 16 columns. */
INLINE void chain_tile(const TileProduct p, const int rows, const int groups, const float *panel,
                       const char *columns, ptrdiff_t words, ptrdiff_t group_bytes, float *sums)
{
    const int vectors = groups * VEC_PARTS;
    vec acc[MOST_SUMS];
#pragma GCC unroll 24
    for (int i = 0; i < rows * vectors; i++)
        acc[i] = vec_zero();
    const char *next = columns + groups * group_bytes + PREFETCH_BYTES;
    for (const char *end = columns + words * 64; columns != end; columns += 64) {
#pragma GCC unroll 4
        for (int group = 0; group < groups; group++, next += LINE)
            __builtin_prefetch(next);
#pragma GCC unroll 2
        for (int phase = 0; phase < p.phases; phase++, panel += rows) {
            vec lanes[MOST_VECTORS], of_rows[PANEL_TOKENS];
#pragma GCC unroll 6
            for (int r = 0; rows < vectors && r < rows; r++)
                of_rows[r] = vec_all(panel + r);
#pragma GCC unroll 8
            for (int v = 0; v < vectors; v++) {
                lanes[v] = p.load(columns + v / VEC_PARTS * group_bytes, phase, v % VEC_PARTS);
                if (rows < vectors)
                    add_column(acc + v, of_rows, lanes[v], rows, vectors, p.mac);
            }
#pragma GCC unroll 6
            for (int r = 0; rows >= vectors && r < rows; r++)
                add_row(acc + r * vectors, vec_all(panel + r), lanes, vectors, p.mac);
        }
    }
#pragma GCC unroll 24
    for (int i = 0; i < rows * vectors; i++)
        vec_store(sums + i / vectors * ATTENTION_BLOCK + i % vectors * VEC_LANES, acc[i]);
}

INLINE void chain_tiles(const int rows, const TileProduct p, const float *panel,
                        const char *columns, ptrdiff_t groups, ptrdiff_t words,
                        ptrdiff_t group_bytes, float *sums)
{
    const int together = tile_vectors(rows) / VEC_PARTS;
    ptrdiff_t group = 0;
    for (; group + together <= groups; group += together)
        chain_tile(p, rows, together, panel, columns + group * group_bytes, words, group_bytes,
                   sums + group * LANES);
    for (; group < groups; group++)
        chain_tile(p, rows, 1, panel, columns + group * group_bytes, words, group_bytes,
                   sums + group * LANES);
}

static void multiply_chains(float *sums, const float *panel, const char *columns, int rows,
                            ptrdiff_t groups, ptrdiff_t words, ptrdiff_t group_words,
                            ElementType type)
{
    const TileProduct pairs = pair_product(load_pairs_bfloat16, TYPE_BFLOAT16);
    const TileProduct singles = single_product(load_float32, TYPE_FLOAT32);
    const ptrdiff_t group_bytes = group_words * 64;
    if (type == TYPE_BFLOAT16) {
        WITH_CONSTANT(chain_tiles, rows, pairs, panel, columns, groups, words, group_bytes, sums);
    } else {
        WITH_CONSTANT(chain_tiles, rows, singles, panel, columns, groups, words, group_bytes, sums);
    }
}

/* Adds `vectors` vectors of words over some positions. The last vector may be short, and is then
 * masked. The first tile of a position prefetches all of its bytes. */
INLINE void sum_tile(const int phases, const int rows, const int vectors, const int masked,
                     word_mask mask, const int first, const float *weights, const char *values,
                     ptrdiff_t count, ptrdiff_t words, ptrdiff_t floats, float *sums)
{
    const ptrdiff_t phase_floats = ceil_div(words, LANES) * LANES;
    const int columns = phases * vectors;
    vec acc[MOST_SUMS];
#pragma GCC unroll 24
    for (int i = 0; i < rows * columns; i++)
        acc[i] = vec_load(sums + i / columns * floats + i % columns / vectors * phase_floats
                          + i % vectors * VEC_LANES);
    for (ptrdiff_t s = 0; s < count; s++, values += words * 4) {
        vec lanes[MOST_VECTORS], of_rows[PANEL_TOKENS];
        for (ptrdiff_t at = 0; first && at < words * 4; at += LINE)
            __builtin_prefetch(values + PREFETCH_BYTES + at);
#pragma GCC unroll 6
        for (int r = 0; rows < columns && r < rows; r++)
            of_rows[r] = vec_all(weights + r * ATTENTION_BLOCK + s);
#pragma GCC unroll 8
        for (int v = 0; v < vectors; v++) {
            const float *at = (const float *)values + v * VEC_LANES;
            const vec pair = masked ? load_words(at, mask) : vec_load(at);
            lanes[v] = phases == 2 ? widen_words(pair, 0) : pair;
            if (phases == 2)
                lanes[vectors + v] = widen_words(pair, 1);
            if (rows < columns) {
                add_column(acc + v, of_rows, lanes[v], rows, columns, mac_float32);
                if (phases == 2)
                    add_column(acc + vectors + v, of_rows, lanes[vectors + v], rows, columns,
                               mac_float32);
            }
        }
#pragma GCC unroll 6
        for (int r = 0; rows >= columns && r < rows; r++)
            add_row(acc + r * columns, vec_all(weights + r * ATTENTION_BLOCK + s), lanes, columns,
                    mac_float32);
    }
#pragma GCC unroll 24
    for (int i = 0; i < rows * columns; i++)
        vec_store(sums + i / columns * floats + i % columns / vectors * phase_floats
                      + i % vectors * VEC_LANES,
                  acc[i]);
}

/* Adds all words over some positions. */
INLINE void sum_columns(const int rows, const int phases, const float *weights, const char *values,
                        ptrdiff_t count, ptrdiff_t words, ptrdiff_t floats, float *sums)
{
    const int wide = tile_vectors(rows) / phases;
    const word_mask all = first_words(VEC_LANES);
    ptrdiff_t w = 0;
    if (wide * VEC_LANES <= words) {
        sum_tile(phases, rows, wide, 0, all, 1, weights, values, count, words, floats, sums);
        w = wide * VEC_LANES;
    }
    for (; w + wide * VEC_LANES <= words; w += wide * VEC_LANES)
        sum_tile(phases, rows, wide, 0, all, 0, weights, values + w * 4, count, words, floats,
                 sums + w);
    for (; w < words; w += VEC_LANES)
        sum_tile(phases, rows, 1, 1, first_words(min_size(VEC_LANES, words - w)), 0, weights,
                 values + w * 4, count, words, floats, sums + w);
}

INLINE void sum_rows(const int rows, const int phases, const float *weights, const char *values,
                     ptrdiff_t count, ptrdiff_t words, ptrdiff_t floats, float *sums)
{
    const ptrdiff_t step = ceil_div(VALUES_BYTES, words * 4);
    for (ptrdiff_t s = 0; s < count; s += step)
        sum_columns(rows, phases, weights + s, values + s * words * 4, min_size(step, count - s),
                    words, floats, sums);
}

static void sum_values(float *sums, const float *weights, const char *values, int rows,
                       ptrdiff_t count, ptrdiff_t words, ptrdiff_t floats, ElementType type)
{
    if (type == TYPE_BFLOAT16) {
        WITH_CONSTANT(sum_rows, rows, 2, weights, values, count, words, floats, sums);
    } else {
        WITH_CONSTANT(sum_rows, rows, 1, weights, values, count, words, floats, sums);
    }
}

/* The scales of VEC_LANES positions for one block of elements in q8_0. */
INLINE vec load_scales(const char *at)
{
    halves half;
    memcpy(&half, at, sizeof half);
    return widen_float16(half);
}

/* Computes the chains of `rows` rows of a panel with `groups` groups of 16 keys in q8_0. The
 * products of codes and scales are exact, so the chains have the bits of float32 keys. */
INLINE void code_tile(const int rows, const int groups, const float *panel, const char *codes,
                      const char *scales, ptrdiff_t elements, ptrdiff_t group_bytes, float *sums)
{
    const int vectors = groups * VEC_PARTS;
    vec acc[MOST_SUMS];
#pragma GCC unroll 24
    for (int i = 0; i < rows * vectors; i++)
        acc[i] = vec_zero();
    const char *next = codes + groups * group_bytes + PREFETCH_BYTES;
    for (; elements > 0; elements -= q8_0_elements, scales += LANES * 2) {
        vec of_block[MOST_VECTORS];
#pragma GCC unroll 8
        for (int v = 0; v < vectors; v++)
            of_block[v] =
                load_scales(scales + v / VEC_PARTS * group_bytes + v % VEC_PARTS * VEC_LANES * 2);
        for (int line = 0; line < q8_0_elements * LANES / LINE; line++) {
#pragma GCC unroll 4
            for (int group = 0; group < groups; group++, next += LINE)
                __builtin_prefetch(next);
#pragma GCC unroll 4
            for (int i = 0; i < LINE / LANES; i++, codes += LANES, panel += rows) {
                vec lanes[MOST_VECTORS], of_rows[PANEL_TOKENS];
#pragma GCC unroll 6
                for (int r = 0; rows < vectors && r < rows; r++)
                    of_rows[r] = vec_all(panel + r);
#pragma GCC unroll 8
                for (int v = 0; v < vectors; v++) {
                    const char *at =
                        codes + v / VEC_PARTS * group_bytes + v % VEC_PARTS * VEC_LANES;
                    lanes[v] = vec_multiply(vec_of_codes(at), of_block[v]);
                    if (rows < vectors)
                        add_column(acc + v, of_rows, lanes[v], rows, vectors, mac_float32);
                }
#pragma GCC unroll 6
                for (int r = 0; rows >= vectors && r < rows; r++)
                    add_row(acc + r * vectors, vec_all(panel + r), lanes, vectors, mac_float32);
            }
        }
    }
#pragma GCC unroll 24
    for (int i = 0; i < rows * vectors; i++)
        vec_store(sums + i / vectors * ATTENTION_BLOCK + i % vectors * VEC_LANES, acc[i]);
}

INLINE void code_tiles(const int rows, const float *panel, const char *keys, ptrdiff_t groups,
                       ptrdiff_t first, ptrdiff_t end, ptrdiff_t h, float *sums)
{
    const int together = tile_vectors(rows) / VEC_PARTS;
    const ptrdiff_t group_bytes = LANES * position_bytes(TYPE_Q8_0, h);
    const char *codes = keys + first * LANES;
    const char *scales = keys + LANES * h + first / q8_0_elements * LANES * 2;
    ptrdiff_t group = 0;
    for (; group + together <= groups; group += together)
        code_tile(rows, together, panel, codes + group * group_bytes, scales + group * group_bytes,
                  end - first, group_bytes, sums + group * LANES);
    for (; group < groups; group++)
        code_tile(rows, 1, panel, codes + group * group_bytes, scales + group * group_bytes,
                  end - first, group_bytes, sums + group * LANES);
}

static void multiply_codes(float *sums, const float *panel, const char *keys, int rows,
                           ptrdiff_t groups, ptrdiff_t first, ptrdiff_t end, ptrdiff_t h)
{
    WITH_CONSTANT(code_tiles, rows, panel, keys, groups, first, end, h, sums);
}

/* Adds `vectors` vectors of columns of values in q8_0, which are in whole blocks of elements or in
 * a part of one, over positions [first, end) of a block. */
INLINE void sum_code_tile(const int rows, const int vectors, const float *weights,
                          const char *values, ptrdiff_t column, ptrdiff_t first, ptrdiff_t end,
                          ptrdiff_t h, ptrdiff_t floats, float *sums)
{
    enum { MOST_BLOCKS = (MOST_VECTORS * VEC_LANES + q8_0_elements - 1) / q8_0_elements };
    const int blocks = (vectors * VEC_LANES + q8_0_elements - 1) / q8_0_elements;
    vec acc[MOST_SUMS];
#pragma GCC unroll 24
    for (int i = 0; i < rows * vectors; i++)
        acc[i] = vec_load(sums + i / vectors * floats + i % vectors * VEC_LANES);
    for (ptrdiff_t s = first, stop; s < end; s = stop) {
        const char *group = values + s / LANES * LANES * position_bytes(TYPE_Q8_0, h);
        const char *halves_at = group + LANES * h + column / q8_0_elements * LANES * 2;
        float scales[MOST_BLOCKS * LANES];
#pragma GCC unroll 16
        for (int i = 0; i < blocks * VEC_PARTS; i++)
            vec_store(scales + i * VEC_LANES, load_scales(halves_at + i * VEC_LANES * 2));
        stop = min_size(end, (s / LANES + 1) * LANES);
        for (ptrdiff_t p = s; p < stop; p++) {
            const char *codes = group + p % LANES * h + column;
            vec lanes[MOST_VECTORS], of_rows[PANEL_TOKENS];
            for (ptrdiff_t at = 0; column == 0 && at < h; at += LINE)
                __builtin_prefetch(codes + PREFETCH_BYTES + at);
#pragma GCC unroll 6
            for (int r = 0; rows < vectors && r < rows; r++)
                of_rows[r] = vec_all(weights + r * ATTENTION_BLOCK + p);
#pragma GCC unroll 8
            for (int v = 0; v < vectors; v++) {
                const float *scale = scales + v * VEC_LANES / q8_0_elements * LANES + p % LANES;
                lanes[v] = vec_multiply(vec_of_codes(codes + v * VEC_LANES), vec_all(scale));
                if (rows < vectors)
                    add_column(acc + v, of_rows, lanes[v], rows, vectors, mac_float32);
            }
#pragma GCC unroll 6
            for (int r = 0; rows >= vectors && r < rows; r++)
                add_row(acc + r * vectors, vec_all(weights + r * ATTENTION_BLOCK + p), lanes,
                        vectors, mac_float32);
        }
    }
#pragma GCC unroll 24
    for (int i = 0; i < rows * vectors; i++)
        vec_store(sums + i / vectors * floats + i % vectors * VEC_LANES, acc[i]);
}

/* Adds all columns over some positions. */
INLINE void sum_code_columns(const int rows, const float *weights, const char *values,
                             ptrdiff_t first, ptrdiff_t end, ptrdiff_t h, ptrdiff_t floats,
                             float *sums)
{
    const int wide = tile_vectors(rows);
    ptrdiff_t column = 0;
    for (; column + wide * VEC_LANES <= h; column += wide * VEC_LANES)
        sum_code_tile(rows, wide, weights, values, column, first, end, h, floats, sums + column);
    for (; column < h; column += VEC_LANES)
        sum_code_tile(rows, 1, weights, values, column, first, end, h, floats, sums + column);
}

INLINE void sum_code_rows(const int rows, const float *weights, const char *values, ptrdiff_t first,
                          ptrdiff_t end, ptrdiff_t h, ptrdiff_t floats, float *sums)
{
    const ptrdiff_t step = ceil_div(VALUES_BYTES, h);
    for (ptrdiff_t s = first; s < end; s += step)
        sum_code_columns(rows, weights, values, s, min_size(s + step, end), h, floats, sums);
}

static void sum_codes(float *sums, const float *weights, const char *values, int rows,
                      ptrdiff_t first, ptrdiff_t end, ptrdiff_t h, ptrdiff_t floats)
{
    WITH_CONSTANT(sum_code_rows, rows, weights, values, first, end, h, floats, sums);
}
