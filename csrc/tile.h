/*
 * Register tiles of dot products, shared by the sets with vector intrinsics.
 *
 * A vectors_*.h header, which isa_*.c names, defines vec (VEC_LANES float32) with its operations
 * and TILE_ROWS, and for each form a mac (one step of a sum). The 16 lanes of a sum take
 * 16 / VEC_LANES vectors ("parts"). A tile keeps one of them in registers and passes over the K
 * block again for the next one.
 */
#pragma once
#include <string.h>

#ifndef VECTORS
#define VECTORS "vectors_avx2.h"
#endif
#include VECTORS

enum {
    VEC_PARTS = LANES / VEC_LANES,
    KEEPS_WIDENED = 1,
    /*
     * One token: places in memory that a thread reads from in turn, and the bytes from where each
     * is read to where it is prefetched. On Intel's Cascade Lake and Emerald Rapids two long
     * streams come as fast as a plain read of eight; rows side by side, which end after some
     * thousand bytes, reach 0.8 of that, and one stream without prefetching 0.7.
     */
    STREAMS = 2,
    PREFETCH_STREAM = 2048
};

/*
 * One token: the cache into which weights are prefetched. AMD's Zen 4 (family 19h) is 1.08 to 1.25
 * times as fast with L2, an Intel Xeon with AMX 1.04 times with L1. Zen 5 takes them into L1 as
 * data that is read once: the products are as fast as with L1, 1.04 to 1.06 times as fast as with
 * L2, and the weights do not drive the code that runs between two products out of L2.
 */
typedef enum PrefetchInto { INTO_L2, INTO_L1, INTO_L1_ONCE } PrefetchInto;

INLINE PrefetchInto prefetch_into(void)
{
#ifdef __x86_64__
    if (__builtin_cpu_is("amd") && !__builtin_cpu_is("amdfam17h"))
        return __builtin_cpu_is("amdfam19h") ? INTO_L2 : INTO_L1_ONCE;
    return INTO_L1;
#else
    return INTO_L2;
#endif
}

INLINE void prefetch_span(const void *weights, ptrdiff_t bytes, PrefetchInto into)
{
#pragma GCC unroll 16
    for (ptrdiff_t at = 0; at < bytes; at += LINE)
        switch (into) { /* the last argument has to be a constant */
        case INTO_L2: __builtin_prefetch((const char *)weights + at, 0, 2); break;
        case INTO_L1: __builtin_prefetch((const char *)weights + at, 0, 3); break;
        case INTO_L1_ONCE: __builtin_prefetch((const char *)weights + at, 0, 0); break;
        }
}

/* Calls a function with a number from 1 to PANEL_TOKENS as a constant, and other arguments. */
#define WITH_CONSTANT(function, number, ...)      \
    switch (number) {                             \
    case 1: function(1, __VA_ARGS__); break;      \
    case 2: function(2, __VA_ARGS__); break;      \
    case 3: function(3, __VA_ARGS__); break;      \
    case 4: function(4, __VA_ARGS__); break;      \
    case 5: function(5, __VA_ARGS__); break;      \
    default: function(PANEL_TOKENS, __VA_ARGS__); \
    }

/* Keeps the compiler from knowing what lies at a pointer, at no cost. */
#define forget_pointer(p) __asm__("" : "+r"(p))

/* Words of a vec; operators work on all of them. */
typedef uint32_t vec_words __attribute__((vector_size(4 * VEC_LANES)));

/* The vector of lanes [part * VEC_LANES, ...) of one weight block's phase, widened. */
typedef vec (*load_function)(const char *block, int phase, int part);
/* acc + x * w, lane by lane. */
typedef vec (*mac_function)(vec acc, vec x, vec w);

typedef struct Product {
    load_function load;   /* of the weight */
    load_function load_x; /* of x where it is not packed; its blocks have 64 bytes */
    mac_function mac;
    int phases;              /* steps per block */
    ptrdiff_t block_bytes;   /* of the weight */
    ptrdiff_t element_bytes; /* of the weight */
} Product;

/* Products of a form with a type whose elements have some bytes. */
#define PAIR_PRODUCT(name, type, bytes) \
    (Product) { load_pairs_##name, load_pairs_bfloat16, mac_pairs, PAIR_PHASES, 32 * bytes, bytes }
#define SINGLE_PRODUCT(name, type, bytes) \
    (Product) { load_##name, load_float32, mac_float32, 1, LANES *bytes, bytes }

/* Of pairs, phase 0 gives the odd elements (upper halves), phase 1 the even ones. */
INLINE vec widen_words(vec pairs, int phase)
{
    return phase == 0 ? (vec)((vec_words)pairs & 0xFFFF0000u) : (vec)((vec_words)pairs << 16);
}

INLINE vec load_float32(const char *block, int phase, int part)
{
    (void)phase;
    return vec_load((const float *)block + part * VEC_LANES);
}

/* With one phase, the pairs as they are. */
INLINE vec load_pairs_bfloat16(const char *block, int phase, int part)
{
    const vec pairs = load_float32(block, phase, part);
    return PAIR_PHASES == 1 ? pairs : widen_words(pairs, phase);
}

/* What a load of pairs gives, of their widened elements, which bfloat16 holds. */
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

/*
 * A panel of a plain form: [part][block][phase][token][VEC_LANES], padded by zeros. A block is 64
 * bytes of the form's type. With two phases, first the odd elements of 32 bfloat16 and then the
 * even ones; a little-endian pair has the odd one in its upper half. float32 has one phase.
 */
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

/* One block of a row of x, of 16 words; or of 16 elements of 2 bytes, which become words. */
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

static void pack_bfloat16(float *panel, const char *x, ptrdiff_t x_stride, int tokens, ptrdiff_t in,
                          ElementType x_type)
{
    (void)x_type;
    for (int t = 0; t < tokens; t++)
        pack_row(panel + t * VEC_LANES, x + t * x_stride, PAIR_PHASES, 0, tokens, in * 2);
}

static void pack_float32(float *panel, const char *x, ptrdiff_t x_stride, int tokens, ptrdiff_t in,
                         ElementType x_type)
{
    for (int t = 0; t < tokens; t++)
        if (x_type == TYPE_FLOAT32)
            pack_row(panel + t * VEC_LANES, x + t * x_stride, 1, 0, tokens, in * 4);
        else
            pack_row(panel + t * VEC_LANES, x + t * x_stride, 1, 1, tokens, in * 2);
}

/* One step of rows x tokens sums acc[token][row]: one vector of each weight row and each token. */
INLINE void tile_step(const Product p, const int rows, const int tokens, const vec *weights,
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

/* All steps of one block of weights as they are stored; keeps them widened where asked to. */
INLINE void tile_block(const Product p, const int keep, const int rows, const int tokens, int part,
                       const char **w, float *widened, const float *x, vec *acc)
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
        /* Both phases load the block: kept in registers for the second one, it would be spilled. */
#pragma GCC unroll 4
        for (int r = 0; r < rows; r++)
            forget_pointer(w[r]);
    }
}

/* Floats before the K block in a panel, for one part. */
INLINE ptrdiff_t panel_at(const Product p, const KBlock *k, int part)
{
    const ptrdiff_t elements = p.block_bytes / p.element_bytes;
    const ptrdiff_t block = part * ceil_div(k->in, elements) + k->start / elements;
    return block * p.phases * k->tokens * VEC_LANES;
}

/* All blocks of a K block whose weights are in their rows, onto the accumulators' present value. */
INLINE void tile_stored(const Product p, const int keep, const int rows, const int tokens, int part,
                        const KBlock *k, ptrdiff_t row, float *widened, vec *acc)
{
    const ptrdiff_t bytes = k->count * p.element_bytes;
    const ptrdiff_t tail = bytes % p.block_bytes;
    const ptrdiff_t step = (ptrdiff_t)p.phases * tokens * VEC_LANES;
    const float *x = k->panel + panel_at(p, k, part);
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

/* The same where the weights were kept widened: rows side by side, step after step. */
INLINE void tile_widened(const Product p, const int rows, const int tokens, const float *widened,
                         const float *x, ptrdiff_t steps, vec *acc)
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

/* Rows [row, row + rows) of a K block; rows and tokens are constants where it is inlined. */
INLINE void tile(const Product p, const int source, const int rows, const int tokens,
                 const KBlock *k, ptrdiff_t row)
{
    const ptrdiff_t steps = ceil_div(k->count * p.element_bytes, p.block_bytes) * p.phases;
    vec sums[TILE_ROWS * PANEL_TOKENS * VEC_PARTS]; /* [token][row][part] */
#ifdef FLUSHES
    const unsigned mode = k->flushes ? begin_flushing() : 0;
#endif
    for (int part = 0; part < VEC_PARTS; part++) {
        /* Where accumulator (token, row) rests between two K blocks. */
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

/* A tile's share of the same K block of the panel that is read next; of its first part. */
INLINE void prefetch_panel(const Product p, const KBlock *k, ptrdiff_t row)
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

/* All weight rows of a K block for a panel of exactly `tokens` tokens. */
INLINE void tile_all_rows(const int tokens, const Product p, const int source, const KBlock *k)
{
    ptrdiff_t row = 0;
    for (; row + TILE_ROWS <= k->rows; row += TILE_ROWS) {
        prefetch_panel(p, k, row);
        tile(p, source, TILE_ROWS, tokens, k, row);
    }
    for (; row < k->rows; row++)
        tile(p, source, 1, tokens, k, row);
}

INLINE void tile_any(const Product p, const int source, const KBlock *k)
{
    WITH_CONSTANT(tile_all_rows, k->tokens, p, source, k);
}

INLINE void multiply_widened(const Product p, const KBlock *k) { tile_any(p, WEIGHTS_WIDENED, k); }

/* Weights are kept widened for groups of many panels, so the first one is full. */
INLINE void multiply_k_block(const Product p, const int keeps, const KBlock *k)
{
    if (keeps && k->source == WEIGHTS_KEPT_NOW)
        tile_all_rows(PANEL_TOKENS, p, WEIGHTS_KEPT_NOW, k);
    else
        tile_any(p, WEIGHTS_AS_STORED, k);
}

/* One token: `rows` weight rows, each of them `apart` rows behind the one before. */
INLINE void multiply_streams(float *out, const char *x, const char *weight, ptrdiff_t weight_stride,
                             ptrdiff_t apart, ptrdiff_t in, const Product p, const int rows)
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

/* One accumulator (all of its parts) for each row; x stays in the L1 cache. */
INLINE void multiply_rows(float *out, const char *x, const char *weight, ptrdiff_t weight_stride,
                          ptrdiff_t rows, ptrdiff_t in, const Product p)
{
    const ptrdiff_t apart = rows / STREAMS;
    for (ptrdiff_t r = 0; r < apart; r++)
        multiply_streams(out + r, x, weight + r * weight_stride, weight_stride, apart, in, p,
                         STREAMS);
    for (ptrdiff_t r = apart * STREAMS; r < rows; r++)
        multiply_streams(out + r, x, weight + r * weight_stride, weight_stride, 0, in, p, 1);
}
