/*
 * Tiles of dot products of plain weights, shared by the sets with vector intrinsics.
 *
 * The unit of an instruction set selects a header isa/vectors_*.h, which defines vec (VEC_LANES
 * float32) and its operations, TILE_ROWS, and for each form a mac (one step of a sum). The 16 lanes
 * of a sum are 16 / VEC_LANES vectors ("parts"). A tile keeps one part in registers, and reads the
 * K block again for the next part.
 *
 * A panel is [part][block][phase][token][VEC_LANES], padded with zeros. A block is 64 bytes of x.
 * This is the panel for AVX-512 (1 part) and 2 tokens of 70 bfloat16, x and y, where x2 is element
 * 2 of x. A 32-bit word is a pair. Its odd element is in the upper half, because the byte order is
 * little-endian.
 *
 *   avx512bf16, 1 phase:   block 0   x1:x0  x3:x2  ..  x31:x30  | y1:y0  ..  y31:y30
 *   pairs as they are      block 1   x33:x32 ..        x63:x62  | y33:y32 .. y63:y62
 *                          block 2   x65:x64 x67:x66 x69:x68 0 .. 0 | the same of y
 *   avx512, 2 phases:      block 0   x1 x3 .. x31 | y1 y3 .. y31 | x0 x2 .. x30 | y0 y2 .. y30
 *   odd, then even         block 1   x33 .. x63   | y33 .. y63   | x32 .. x62   | y32 .. y62
 *   elements as float32    block 2   x65 x67 x69 0 .. 0 | .. y   | x64 x66 x68 0 .. 0 | .. y
 *
 * A step uses one vector of each weight row and one vector of each token. Lane l of a sum becomes
 *
 *   lane[l] = fma(x[2l], w[2l], fma(x[2l+1], w[2l+1], lane[l]))       in each block of 32 elements
 *
 * with one instruction per phase. float32 has one phase and blocks of 16 elements. For example,
 * element 37 is in block 1, in the pair of lane 2: (37 - 32) / 2. A remainder of a row after the
 * whole blocks is copied to 64 bytes of zeros, so other lanes add 0 * 0. At the end of the row, the
 * lanes are reduced as l + (l + 8), then + 4, then + 2, then + 1 (reduce_rows).
 */
#pragma once
#include <string.h>
#include "floats.h"
#include "products/product.h"

#ifndef VECTORS
#define VECTORS "isa/vectors_avx2.h"
#endif
#include VECTORS

/* Hides the value of a pointer from the compiler, so that it loads the data again. */
#define forget_pointer(p) __asm__("" : "+r"(p))

/* The words of a vec. Operators apply to all of them. */
typedef uint32_t vec_words __attribute__((vector_size(4 * VEC_LANES)));

/* Loads lanes [part * VEC_LANES, ...) of one phase of a block, widened. */
typedef vec (*load_function)(const char *block, int phase, int part);
/* Returns acc + x * w for each lane. */
typedef vec (*mac_function)(vec acc, vec x, vec w);

/* How a tile multiplies weights of a type in a form. */
typedef struct TileProduct {
    load_function load;      /* of the weight */
    load_function load_x;    /* of x if it is not packed; its blocks have 64 bytes */
    mac_function mac;        /* one step of a sum */
    int phases;              /* steps per block */
    ptrdiff_t block_bytes;   /* of the weight */
    ptrdiff_t element_bytes; /* of the weight */
} TileProduct;

/* Widens one element of each pair: in phase 0 the odd elements (upper halves), in phase
 * 1 the even elements. */
INLINE vec widen_words(vec pairs, int phase)
{
    return phase == 0 ? (vec)((vec_words)pairs & 0xFFFF0000u) : (vec)((vec_words)pairs << 16);
}

INLINE vec load_float32(const char *block, int phase, int part)
{
    (void)phase;
    return vec_load((const float *)block + part * VEC_LANES);
}

/* Loads pairs, which are not widened if there is one phase. */
INLINE vec load_pairs_bfloat16(const char *block, int phase, int part)
{
    const vec pairs = load_float32(block, phase, part);
    return PAIR_PHASES == 1 ? pairs : widen_words(pairs, phase);
}

/* The result of loading pairs, given their widened elements, which bfloat16 represents exactly. */
INLINE vec join_pairs(vec odd, vec even, int phase)
{
    if (PAIR_PHASES == 1)
        return (vec)((vec_words)odd | (vec_words)even >> 16);
    return phase == 0 ? odd : even;
}

INLINE halves load_halves(const char *block, int part)
{
    halves x;
    memcpy(&x, block + part * (ptrdiff_t)sizeof x, sizeof x);
    return x;
}

INLINE vec load_float16(const char *block, int phase, int part)
{
    (void)phase;
    return widen_float16(load_halves(block, part));
}

INLINE vec load_bfloat16(const char *block, int phase, int part)
{
    (void)phase;
    return widen_bfloat16(load_halves(block, part));
}

/* 8-bit floats are widened through float16 (floats.h). */
INLINE vec load_float8_e4m3fn(const char *block, int phase, int part)
{
    (void)phase;
    const halves bytes = halves_of_bytes(block + VEC_LANES * part) << 8;
    const vec factor = vec_all(&(float){FLOAT8_E4M3FN_FACTOR});
    return vec_multiply(widen_float16(FLOAT8_E4M3FN_HALF(bytes)), factor);
}

INLINE vec load_float8_e5m2(const char *block, int phase, int part)
{
    (void)phase;
    return widen_float16(halves_of_bytes(block + VEC_LANES * part) << 8);
}

/* A pair of 8-bit floats has 16 bits. Its upper half is the odd element. */
INLINE vec load_pairs_float8_e4m3fn(const char *block, int phase, int part)
{
    const halves pairs = load_halves(block, part);
    const halves odd = pairs & 0xFF00, even = pairs << 8;
    const vec factor = vec_all(&(float){FLOAT8_E4M3FN_FACTOR});
    return join_pairs(vec_multiply(widen_float16(FLOAT8_E4M3FN_HALF(odd)), factor),
                      vec_multiply(widen_float16(FLOAT8_E4M3FN_HALF(even)), factor), phase);
}

INLINE vec load_pairs_float8_e5m2(const char *block, int phase, int part)
{
    const halves pairs = load_halves(block, part);
    return join_pairs(widen_float16(pairs & 0xFF00), widen_float16(pairs << 8), phase);
}

/* A product in bfloat16, with blocks of 32 elements. `load` loads pairs. */
INLINE TileProduct pair_product(const load_function load, ElementType type)
{
    const ptrdiff_t bytes = type_bytes(type);
    return (TileProduct){load, load_pairs_bfloat16, mac_pairs, PAIR_PHASES, 32 * bytes, bytes};
}

/* A product in float32, with blocks of 16 elements. */
INLINE TileProduct single_product(const load_function load, ElementType type)
{
    const ptrdiff_t bytes = type_bytes(type);
    return (TileProduct){load, load_float32, mac_float32, 1, LANES * bytes, bytes};
}

/* Writes one block of one row of x to a panel, whose layout is drawn above. */
INLINE void pack_block(float *out, const uint32_t *block, const int phases, int tokens,
                       ptrdiff_t part_floats)
{
    for (int part = 0; part < VEC_PARTS; part++, block += VEC_LANES, out += part_floats) {
        uint32_t first[VEC_LANES], second[VEC_LANES];
        for (int l = 0; l < VEC_LANES; l++)
            first[l] = phases == 2 ? block[l] & 0xFFFF0000u : block[l];
        for (int l = 0; l < VEC_LANES; l++)
            second[l] = block[l] << 16;
        memcpy(out, first, sizeof first);
        if (phases == 2)
            memcpy(out + tokens * VEC_LANES, second, sizeof second);
    }
}

/* Packs one block of a row of x: 16 words, or 16 elements of 2 bytes, which
 * are widened to words. */
INLINE void pack_words_of(float *out, const char *block, const int phases, const int widens,
                          int tokens, ptrdiff_t part_floats)
{
    uint32_t words[LANES];
    uint16_t narrow[LANES];
    memcpy(narrow, block, sizeof narrow);
    memcpy(words, block, widens ? sizeof narrow : sizeof words);
    for (int l = 0; widens && l < LANES; l++)
        words[l] = (uint32_t)narrow[l] << 16;
    pack_block(out, words, phases, tokens, part_floats);
}

INLINE void pack_row(float *out, const char *row, const int phases, const int widens, int tokens,
                     ptrdiff_t bytes)
{
    const int block_bytes = widens ? 32 : 64;
    const ptrdiff_t step = (ptrdiff_t)phases * tokens * VEC_LANES;
    const ptrdiff_t part_floats = ceil_div(bytes, block_bytes) * step;
    ptrdiff_t at = 0;
    for (; at + block_bytes <= bytes; at += block_bytes, out += step)
        pack_words_of(out, row + at, phases, widens, tokens, part_floats);
    if (at < bytes) {
        char padded[64] = {0};
        memcpy(padded, row + at, (size_t)(bytes - at));
        pack_words_of(out, padded, phases, widens, tokens, part_floats);
    }
}

static inline void pack_bfloat16(float *panel, const char *x, ptrdiff_t x_stride, int tokens,
                                 ptrdiff_t in, ElementType x_type)
{
    (void)x_type;
    for (int t = 0; t < tokens; t++)
        pack_row(panel + t * VEC_LANES, x + t * x_stride, PAIR_PHASES, 0, tokens, in * 2);
}

static inline void pack_float32(float *panel, const char *x, ptrdiff_t x_stride, int tokens,
                                ptrdiff_t in, ElementType x_type)
{
    for (int t = 0; t < tokens; t++)
        if (x_type == TYPE_FLOAT32)
            pack_row(panel + t * VEC_LANES, x + t * x_stride, 1, 0, tokens, in * 4);
        else
            pack_row(panel + t * VEC_LANES, x + t * x_stride, 1, 1, tokens, in * 2);
}

/* One step of the rows x tokens sums acc[token][row]. */
INLINE void tile_step(const TileProduct p, const int rows, const int tokens, const vec *weights,
                      const float *x, vec *acc)
{
#pragma GCC unroll 6
    for (int t = 0; t < tokens; t++) {
        const vec lanes = vec_load(x + t * VEC_LANES);
#pragma GCC unroll 4
        for (int r = 0; r < rows; r++)
            acc[t * rows + r] = p.mac(acc[t * rows + r], lanes, weights[r]);
    }
}

/* All steps of one block of weights as stored. If `keep` is set, also stores
 * the widened weights. */
INLINE void tile_block(const TileProduct p, const int keep, const int rows, const int tokens,
                       int part, const char **w, float *widened, const float *x, vec *acc)
{
#pragma GCC unroll 2
    for (int phase = 0; phase < p.phases; phase++, x += tokens * VEC_LANES) {
        vec weights[TILE_ROWS];
#pragma GCC unroll 4
        for (int r = 0; r < rows; r++) {
            weights[r] = p.load(w[r], phase, part);
            if (keep)
                vec_store(widened + (phase * rows + r) * VEC_LANES, weights[r]);
        }
        tile_step(p, rows, tokens, weights, x, acc);
        /* Both phases load the block, because a block kept in registers for the second
         * phase would be spilled. */
#pragma GCC unroll 4
        for (int r = 0; r < rows; r++)
            forget_pointer(w[r]);
    }
}

/* The offset of the K block in a panel for one part, in floats. */
INLINE ptrdiff_t panel_at(const TileProduct p, const KBlock *k, int part)
{
    const ptrdiff_t elements = p.block_bytes / p.element_bytes;
    const ptrdiff_t block = part * ceil_div(k->in, elements) + k->start / elements;
    return block * p.phases * k->tokens * VEC_LANES;
}

/* Adds the products of a whole K block to the accumulators. The weights are read from their rows.
 */
INLINE void tile_stored(const TileProduct p, const int keep, const int rows, const int tokens,
                        int part, const KBlock *k, ptrdiff_t row, float *widened, vec *acc)
{
    const ptrdiff_t bytes = k->count * p.element_bytes;
    const ptrdiff_t tail = bytes % p.block_bytes;
    const ptrdiff_t step = (ptrdiff_t)p.phases * tokens * VEC_LANES;
    const float *x = k->panel + panel_at(p, k, part);
    /* The step of the prefetched address per block, minus the step of `w`. It is 0 or negative. */
    const ptrdiff_t pace = p.block_bytes * k->tokens / k->prefetch_tokens - p.block_bytes;
    ptrdiff_t prefetch = k->prefetch;
    const char *w[TILE_ROWS];
#pragma GCC unroll 4
    for (int r = 0; r < rows; r++)
        w[r] = k->weight + (row + r) * k->weight_stride;
    for (const float *const end = x + bytes / p.block_bytes * step; x != end; x += step) {
#pragma GCC unroll 4
        for (int r = 0; r < rows; r++)
            __builtin_prefetch(w[r] + prefetch, 0, 2);
        prefetch += pace;
        tile_block(p, keep, rows, tokens, part, w, widened, x, acc);
#pragma GCC unroll 4
        for (int r = 0; r < rows; r++)
            w[r] += p.block_bytes;
        if (keep)
            widened += p.phases * rows * VEC_LANES;
    }
    if (tail) {
        char padded[TILE_ROWS][64] = {{0}};
#pragma GCC unroll 4
        for (int r = 0; r < rows; r++) {
            memcpy(padded[r], w[r], (size_t)tail);
            w[r] = padded[r];
        }
        tile_block(p, keep, rows, tokens, part, w, widened, x, acc);
    }
}

/* Adds all steps of a K block whose weights were stored widened, in the order of
 * steps and then rows. */
INLINE void tile_widened(const TileProduct p, const int rows, const int tokens,
                         const float *widened, const float *x, ptrdiff_t steps, vec *acc)
{
#pragma GCC unroll 2
    for (const float *const end = x + steps * tokens * VEC_LANES; x != end;
         x += tokens * VEC_LANES, widened += rows * VEC_LANES) {
        vec weights[TILE_ROWS];
#pragma GCC unroll 4
        for (int r = 0; r < rows; r++)
            weights[r] = vec_load(widened + r * VEC_LANES);
        tile_step(p, rows, tokens, weights, x, acc);
    }
}

/* Multiplies rows [row, row + rows) of a K block. `rows` and `tokens` are
 * constants after inlining. */
INLINE void tile(const TileProduct p, const int source, const int rows, const int tokens,
                 const KBlock *k, ptrdiff_t row)
{
    const ptrdiff_t steps = ceil_div(k->count * p.element_bytes, p.block_bytes) * p.phases;
    vec sums[TILE_ROWS * PANEL_TOKENS * VEC_PARTS]; /* [token][row][part] */
#ifdef FLUSHES
    const unsigned mode = k->flushes ? begin_flushing() : 0;
#endif
    for (int part = 0; part < VEC_PARTS; part++) {
        /* The location of accumulator (token, row) between two K blocks. */
        float *rest = k->lanes + row * PANEL_TOKENS * LANES + part * VEC_LANES;
        vec acc[TILE_ROWS * PANEL_TOKENS];
#pragma GCC unroll 24
        for (int i = 0; i < rows * tokens; i++)
            acc[i] = vec_zero();
        if (!k->first) {
#pragma GCC unroll 24
            for (int i = 0; i < rows * tokens; i++)
                acc[i] = vec_load(rest + (i % rows * PANEL_TOKENS + i / rows) * LANES);
        }
        float *widened = k->widened;
        if (source != WEIGHTS_AS_STORED)
            widened += row * steps * LANES + part * steps * rows * VEC_LANES;
        if (source == WEIGHTS_WIDENED)
            tile_widened(p, rows, tokens, widened, k->panel + panel_at(p, k, part), steps, acc);
        else
            tile_stored(p, source == WEIGHTS_KEPT_NOW, rows, tokens, part, k, row, widened, acc);
        if (!k->last) {
#pragma GCC unroll 24
            for (int i = 0; i < rows * tokens; i++)
                vec_store(rest + (i % rows * PANEL_TOKENS + i / rows) * LANES, acc[i]);
        }
#pragma GCC unroll 24
        for (int i = 0; i < rows * tokens; i++)
            sums[i * VEC_PARTS + part] = acc[i];
    }
#ifdef FLUSHES
    if (k->flushes)
        load_mode(mode);
#endif
    if (k->last) {
#pragma GCC unroll 6
        for (int t = 0; t < tokens; t++)
            reduce_rows(k->out + row + t * CHUNK_ROWS, sums + t * rows * VEC_PARTS, rows);
    }
}

/* Prefetches a tile's share of the same K block in the next panel, for its first part. */
INLINE void prefetch_panel(const TileProduct p, const KBlock *k, ptrdiff_t row)
{
    if (k->next_panel == NULL)
        return;
    const char *next = (const char *)(k->next_panel + panel_at(p, k, 0));
    const ptrdiff_t blocks = ceil_div(k->count * p.element_bytes, p.block_bytes);
    const ptrdiff_t lines = blocks * p.phases * k->tokens * VEC_LANES * 4 / LINE;
    const ptrdiff_t end = lines * (row + TILE_ROWS) / k->rows;
    for (ptrdiff_t line = lines * row / k->rows; line < end; line++)
        __builtin_prefetch(next + line * LINE, 0, 2);
}

/* Multiplies all weight rows of a K block by a panel of exactly `tokens` tokens. */
INLINE void tile_all_rows(const int tokens, const TileProduct p, const int source, const KBlock *k)
{
    ptrdiff_t row = 0;
    for (; row + TILE_ROWS <= k->rows; row += TILE_ROWS) {
        prefetch_panel(p, k, row);
        tile(p, source, TILE_ROWS, tokens, k, row);
    }
    for (; row < k->rows; row++)
        tile(p, source, 1, tokens, k, row);
}

INLINE void tile_any(const TileProduct p, const int source, const KBlock *k)
{
    WITH_CONSTANT(tile_all_rows, k->tokens, p, source, k);
}

INLINE void multiply_widened(const TileProduct p, const KBlock *k)
{
    tile_any(p, WEIGHTS_WIDENED, k);
}

/* Multiplies a K block. Widened weights are only stored for groups of many panels, so the first
 * panel is full. */
INLINE void multiply_k_block(const TileProduct p, const int keeps, const KBlock *k)
{
    if (keeps && k->source == WEIGHTS_KEPT_NOW)
        tile_all_rows(PANEL_TOKENS, p, WEIGHTS_KEPT_NOW, k);
    else
        tile_any(p, WEIGHTS_AS_STORED, k);
}

/* Multiplies one token by `rows` weight rows at a distance of `apart` rows. */
INLINE void multiply_streams(float *out, const char *x, const char *weight, ptrdiff_t weight_stride,
                             ptrdiff_t apart, ptrdiff_t in, const TileProduct p, const int rows)
{
    const ptrdiff_t whole = in * p.element_bytes / p.block_bytes * p.block_bytes;
    const ptrdiff_t tail = in * p.element_bytes - whole, next = apart * weight_stride;
    const PrefetchInto into = prefetch_into();
    vec acc[STREAMS * VEC_PARTS];
#pragma GCC unroll 8
    for (int i = 0; i < rows * VEC_PARTS; i++)
        acc[i] = vec_zero();
    for (ptrdiff_t at = 0; at < whole; at += p.block_bytes, x += 64) {
#pragma GCC unroll 2
        for (int r = 0; r < rows; r++)
            prefetch_span(weight + r * next + at + PREFETCH_STREAM, LINE, into);
#pragma GCC unroll 2
        for (int phase = 0; phase < p.phases; phase++)
#pragma GCC unroll 4
            for (int part = 0; part < VEC_PARTS; part++) {
                const vec lanes = p.load_x(x, phase, part);
#pragma GCC unroll 2
                for (int r = 0; r < rows; r++) {
                    const char *block = weight + r * next + at;
                    vec *sum = acc + r * VEC_PARTS + part;
                    *sum = p.mac(*sum, lanes, p.load(block, phase, part));
                }
            }
    }
    char padded_x[64] = {0};
    memcpy(padded_x, x, (size_t)(tail * 64 / p.block_bytes));
    for (int r = 0; r < rows; r++) {
        char padded_w[64] = {0};
        memcpy(padded_w, weight + r * next + whole, (size_t)tail);
        for (int phase = 0; tail && phase < p.phases; phase++)
            for (int part = 0; part < VEC_PARTS; part++)
                acc[r * VEC_PARTS + part] =
                    p.mac(acc[r * VEC_PARTS + part], p.load_x(padded_x, phase, part),
                          p.load(padded_w, phase, part));
        out[r * apart] = reduce_vectors(acc + r * VEC_PARTS);
    }
}

/* Multiplies one token by all rows. Each row has one accumulator (all of its parts), and x stays in
 * the L1 cache. */
INLINE void multiply_rows(float *out, const char *x, const char *weight, ptrdiff_t weight_stride,
                          ptrdiff_t rows, ptrdiff_t in, const TileProduct p)
{
    const ptrdiff_t apart = rows / STREAMS;
    for (ptrdiff_t r = 0; r < apart; r++)
        multiply_streams(out + r, x, weight + r * weight_stride, weight_stride, apart, in, p,
                         STREAMS);
    for (ptrdiff_t r = apart * STREAMS; r < rows; r++)
        multiply_streams(out + r, x, weight + r * weight_stride, weight_stride, 0, in, p, 1);
}
