/*
 * Register tiles of dot products, shared by the sets with vector intrinsics.
 *
 * A dot_*.h header defines before this one: vec (VEC_LANES float32), vec_zero, vec_load,
 * fold_vectors, fold_four_rows, TILE_ROWS, and for each product a load (widens one weight vector)
 * and a mac (one step of the sum).
 * The 16 lanes of a sum take 16 / VEC_LANES vectors ("parts"). A tile keeps `parts` of them in
 * registers and passes over the row again for the rest, which is then in the first cache.
 */
#ifndef LLAMA_BOLTS_TILE_H
#define LLAMA_BOLTS_TILE_H

#include "row_kernels.h"

enum { VEC_PARTS = LANES / VEC_LANES, MAX_TILE = TILE_ROWS * PANEL_TOKENS * VEC_PARTS };

/* The vector of lanes [part * VEC_LANES, ...) of one weight block's phase, widened. */
typedef vec (*load_function)(const char *block, int phase, int part);
/* acc + x * w, lane by lane. */
typedef vec (*mac_function)(vec acc, vec x, vec w);

typedef struct Product {
    load_function load;
    mac_function mac;
    int phases;              /* steps per block */
    ptrdiff_t block_bytes;   /* of the weight */
    ptrdiff_t element_bytes; /* of the weight */
} Product;

/* One block of the sum for rows x tokens accumulators acc[token][row][part]. */
INLINE void tile_block(const Product p, const int rows, const int tokens, const int parts,
                       int first_part, const char *const *w, const float *x, vec *acc)
{
#pragma GCC unroll 2
    for (int phase = 0; phase < p.phases; phase++) {
        vec weights[TILE_ROWS * VEC_PARTS];
#pragma GCC unroll 4
        for (int r = 0; r < rows; r++)
#pragma GCC unroll 2
            for (int part = 0; part < parts; part++)
                weights[r * parts + part] = p.load(w[r], phase, first_part + part);
#pragma GCC unroll 6
        for (int t = 0; t < tokens; t++)
#pragma GCC unroll 2
            for (int part = 0; part < parts; part++) {
                const vec lanes = vec_load(x + (phase * tokens + t) * LANES
                                           + (first_part + part) * VEC_LANES);
#pragma GCC unroll 4
                for (int r = 0; r < rows; r++) {
                    vec *sum = acc + (t * rows + r) * parts + part;
                    *sum = p.mac(*sum, lanes, weights[r * parts + part]);
                }
            }
    }
}

/* out[t * CHUNK_ROWS + r] = panel row t . weight row r; rows, tokens and parts are constants. */
INLINE void tile(const Product p, const int rows, const int tokens, const int parts,
                 const float *panel, const char *weight, ptrdiff_t weight_stride, ptrdiff_t in,
                 float *out)
{
    const ptrdiff_t whole = in * p.element_bytes / p.block_bytes;
    const ptrdiff_t tail = in * p.element_bytes % p.block_bytes;
    const ptrdiff_t panel_step = (ptrdiff_t)p.phases * tokens * LANES;
    vec sums[MAX_TILE];
    for (int first = 0; first < VEC_PARTS; first += parts) {
        const char *w[TILE_ROWS];
        const float *x = panel;
        vec acc[MAX_TILE];
#pragma GCC unroll 24
        for (int i = 0; i < rows * tokens * parts; i++)
            acc[i] = vec_zero();
#pragma GCC unroll 4
        for (int r = 0; r < rows; r++)
            w[r] = weight + r * weight_stride;
        for (ptrdiff_t block = 0; block < whole; block++) {
            tile_block(p, rows, tokens, parts, first, w, x, acc);
#pragma GCC unroll 4
            for (int r = 0; r < rows; r++)
                w[r] += p.block_bytes;
            x += panel_step;
        }
        if (tail) {
            char padded[TILE_ROWS][64] = {{0}};
#pragma GCC unroll 4
            for (int r = 0; r < rows; r++) {
                memcpy(padded[r], w[r], (size_t)tail);
                w[r] = padded[r];
            }
            tile_block(p, rows, tokens, parts, first, w, x, acc);
        }
#pragma GCC unroll 24
        for (int i = 0; i < rows * tokens; i++)
#pragma GCC unroll 2
            for (int part = 0; part < parts; part++)
                sums[i * VEC_PARTS + first + part] = acc[i * parts + part];
    }
#pragma GCC unroll 6
    for (int t = 0; t < tokens; t++) {
        const vec *row_sums = sums + t * rows * VEC_PARTS;
        if (rows == 4)
            fold_four_rows(row_sums, out + t * CHUNK_ROWS);
        else
            for (int r = 0; r < rows; r++)
                out[t * CHUNK_ROWS + r] = fold_vectors(row_sums + r * VEC_PARTS);
    }
}

/* All weight rows for a panel of exactly `tokens` tokens. */
INLINE void tile_all_rows(const Product p, const int tokens, const float *panel, const char *weight,
                          ptrdiff_t weight_stride, ptrdiff_t rows, ptrdiff_t in, float *out)
{
    ptrdiff_t r = 0;
    if (tokens > 1)
        for (; r + TILE_ROWS <= rows; r += TILE_ROWS)
            tile(p, TILE_ROWS, tokens, 1, panel, weight + r * weight_stride, weight_stride, in,
                 out + r);
    for (; r < rows; r++)
        tile(p, 1, tokens, tokens == 1 ? VEC_PARTS : 1, panel, weight + r * weight_stride,
             weight_stride, in, out + r);
}

INLINE void tile_any(const Product p, const float *panel, int tokens, const char *weight,
                     ptrdiff_t weight_stride, ptrdiff_t rows, ptrdiff_t in, float *out)
{
    switch (tokens) {
    case 1: tile_all_rows(p, 1, panel, weight, weight_stride, rows, in, out); break;
    case 2: tile_all_rows(p, 2, panel, weight, weight_stride, rows, in, out); break;
    case 3: tile_all_rows(p, 3, panel, weight, weight_stride, rows, in, out); break;
    case 4: tile_all_rows(p, 4, panel, weight, weight_stride, rows, in, out); break;
    case 5: tile_all_rows(p, 5, panel, weight, weight_stride, rows, in, out); break;
    default: tile_all_rows(p, 6, panel, weight, weight_stride, rows, in, out); break;
    }
}

static void tile_rows(int kind, const void *panel, int tokens, const char *weight,
                      ptrdiff_t weight_stride, ptrdiff_t rows, ptrdiff_t in, float *out)
{
    const Product bf16 = {load_bf16, mac_bf16, BF16_PHASES, 64, 2};
    const Product f32 = {load_f32, mac_f32, 1, 64, 4};
    const Product f16 = {load_f16, mac_f32, 1, 32, 2};
    if (kind == PRODUCT_BF16)
        tile_any(bf16, panel, tokens, weight, weight_stride, rows, in, out);
    else if (kind == PRODUCT_F32)
        tile_any(f32, panel, tokens, weight, weight_stride, rows, in, out);
    else
        tile_any(f16, panel, tokens, weight, weight_stride, rows, in, out);
}

#endif
