/*
 * Register tiles of dot products, shared by the sets with vector intrinsics.
 *
 * A dot_*.h header defines before this one: vec (VEC_LANES float32), vec_zero, vec_load,
 * vec_store, fold_to_four, TILE_ROWS, STREAM_ROWS, and for each product a load (widens one vector)
 * and a mac (one step of the sum).
 * The 16 lanes of a sum take 16 / VEC_LANES vectors ("parts"). A tile keeps one of them in
 * registers and passes over the stretch again for the next one.
 */
#ifndef LLAMA_BOLTS_TILE_H
#define LLAMA_BOLTS_TILE_H

#include "row_kernels.h"

enum { VEC_PARTS = LANES / VEC_LANES, MAX_TILE = TILE_ROWS * PANEL_TOKENS * VEC_PARTS };

/* Lines that a tile asks for, for the next panel and for the next stretch of the weights. */
enum { AHEAD_X = 16, AHEAD_WEIGHTS = 6 };

/* Keeps the compiler from knowing what lies at a pointer, at no cost. */
#define forget_pointer(p) __asm__("" : "+r"(p))

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

static const Product product_bf16 = {load_bf16, load_bf16, mac_bf16, BF16_PHASES, 64, 2};
static const Product product_f32 = {load_f32, load_f32, mac_f32, 1, 64, 4};
static const Product product_f32_f16 = {load_f16, load_f32, mac_f32, 1, 32, 2};

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

/* Floats before the stretch in a panel, for one part. */
INLINE ptrdiff_t panel_at(const Product p, const Stretch *s, int part)
{
    const ptrdiff_t elements = p.block_bytes / p.element_bytes;
    const ptrdiff_t block = part * ceil_div(s->in, elements) + s->start / elements;
    return block * p.phases * s->tokens * VEC_LANES;
}

/* All blocks of a stretch whose weights lie in their rows, onto the accumulators' present value. */
INLINE void tile_stored(const Product p, const int keep, const int rows, const int tokens,
                        int part, const Stretch *s, ptrdiff_t row, float *widened, vec *acc)
{
    const ptrdiff_t bytes = s->count * p.element_bytes;
    const ptrdiff_t tail = bytes % p.block_bytes;
    const ptrdiff_t step = (ptrdiff_t)p.phases * tokens * VEC_LANES;
    const float *x = s->panel + panel_at(p, s, part);
    const char *w[TILE_ROWS];
#pragma GCC unroll 4
    for (int r = 0; r < rows; r++)
        w[r] = s->weight + (row + r) * s->weight_stride;
    for (const float *const end = x + bytes / p.block_bytes * step; x != end; x += step) {
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

/* Folds a tile's sums[token][row][part] into out. */
INLINE void tile_fold(const int rows, const int tokens, const vec *sums, float *out)
{
#pragma GCC unroll 6
    for (int t = 0; t < tokens; t++, sums += rows * VEC_PARTS, out += CHUNK_ROWS)
        if (rows == 4)
            fold_four_rows(sums, out);
        else
#pragma GCC unroll 2
            for (int r = 0; r < rows; r++)
                out[r] = fold_vectors(sums + r * VEC_PARTS);
}

/* Rows [row, row + rows) of a stretch; rows and tokens are constants where it is inlined. */
INLINE void tile(const Product p, const int source, const int rows, const int tokens,
                 const Stretch *s, ptrdiff_t row)
{
    const ptrdiff_t steps = ceil_div(s->count * p.element_bytes, p.block_bytes) * p.phases;
    vec sums[MAX_TILE];
    for (int part = 0; part < VEC_PARTS; part++) {
        /* Where accumulator (token, row) rests between two stretches. */
        float *rest = s->lanes + row * PANEL_TOKENS * LANES + part * VEC_LANES;
        vec acc[TILE_ROWS * PANEL_TOKENS];
#pragma GCC unroll 24
        for (int i = 0; i < rows * tokens; i++)
            acc[i] = vec_zero();
        if (!s->first) {
#pragma GCC unroll 24
            for (int i = 0; i < rows * tokens; i++)
                acc[i] = vec_load(rest + (i % rows * PANEL_TOKENS + i / rows) * LANES);
        }
        float *widened = s->widened;
        if (source != WEIGHTS_AS_STORED)
            widened += row * steps * LANES + part * steps * rows * VEC_LANES;
        if (source == WEIGHTS_WIDENED)
            tile_widened(p, rows, tokens, widened, s->panel + panel_at(p, s, part), steps, acc);
        else
            tile_stored(p, source == WEIGHTS_KEPT_NOW, rows, tokens, part, s, row, widened, acc);
        if (!s->last) {
#pragma GCC unroll 24
            for (int i = 0; i < rows * tokens; i++)
                vec_store(rest + (i % rows * PANEL_TOKENS + i / rows) * LANES, acc[i]);
        }
#pragma GCC unroll 24
        for (int i = 0; i < rows * tokens; i++)
            sums[i * VEC_PARTS + part] = acc[i];
    }
    if (s->last)
        tile_fold(rows, tokens, sums, s->out + row);
}

/* Asks for the next `lines` lines of what will be read soon. */
INLINE void prefetch_lines(Ahead *ahead, int lines)
{
    for (; lines > 0 && ahead->rows > 0; lines--) {
        __builtin_prefetch(ahead->at + ahead->done, 0, 2);
        ahead->done += LINE;
        if (ahead->done >= ahead->bytes) {
            ahead->done = 0;
            ahead->at += ahead->stride;
            ahead->rows--;
        }
    }
}

/* The same stretch of the panel that is read next; its first part, where there are several. */
INLINE Ahead panel_ahead(const Product p, const Stretch *s)
{
    if (s->next_panel == NULL)
        return (Ahead){0};
    const ptrdiff_t blocks = ceil_div(s->count * p.element_bytes, p.block_bytes);
    return (Ahead){
        .at = (const char *)(s->next_panel + panel_at(p, s, 0)),
        .rows = 1,
        .bytes = blocks * p.phases * s->tokens * VEC_LANES * (ptrdiff_t)sizeof(float),
    };
}

/* All weight rows of a stretch for a panel of exactly `tokens` tokens. */
INLINE void tile_all_rows(const Product p, const int source, const int tokens, const Stretch *s)
{
    ptrdiff_t row = 0;
    Ahead x = panel_ahead(p, s), weights = s->ahead;
    for (; row + TILE_ROWS <= s->rows; row += TILE_ROWS) {
        prefetch_lines(&x, AHEAD_X);
        prefetch_lines(&weights, AHEAD_WEIGHTS);
        tile(p, source, TILE_ROWS, tokens, s, row);
    }
    for (; row < s->rows; row++)
        tile(p, source, 1, tokens, s, row);
}

INLINE void tile_any(const Product p, const int source, const Stretch *s)
{
    switch (s->tokens) {
    case 1: tile_all_rows(p, source, 1, s); break;
    case 2: tile_all_rows(p, source, 2, s); break;
    case 3: tile_all_rows(p, source, 3, s); break;
    case 4: tile_all_rows(p, source, 4, s); break;
    case 5: tile_all_rows(p, source, 5, s); break;
    default: tile_all_rows(p, source, 6, s); break;
    }
}

INLINE void tile_any_source(const Product p, const Stretch *s)
{
    if (s->source == WEIGHTS_AS_STORED)
        tile_any(p, WEIGHTS_AS_STORED, s);
    else if (s->source == WEIGHTS_KEPT_NOW)
        tile_any(p, WEIGHTS_KEPT_NOW, s);
    else
        tile_any(p, WEIGHTS_WIDENED, s);
}

/*
 * float32 is as it must be, and so are pairs of bfloat16 where one instruction takes them. nf4,
 * which is nowhere stored as float32, is laid out so as well.
 */
static int keeps_widened(int kind)
{
    return kind == PRODUCT_F32_F16 || kind == PRODUCT_BF16_F32
           || (kind == PRODUCT_BF16 && BF16_PHASES == 2);
}

static void multiply_stretch(int kind, const Stretch *stretch)
{
    if (kind == PRODUCT_BF16_F32 && stretch->source == WEIGHTS_WIDENED)
        tile_any(product_f32, WEIGHTS_WIDENED, stretch);
    else if (kind == PRODUCT_F32 || kind == PRODUCT_BF16_F32)
        tile_any(product_f32, WEIGHTS_AS_STORED, stretch);
    else if (kind == PRODUCT_F32_F16)
        tile_any_source(product_f32_f16, stretch);
    else if (BF16_PHASES == 2)
        tile_any_source(product_bf16, stretch);
    else
        tile_any(product_bf16, WEIGHTS_AS_STORED, stretch);
}

/*
 * One token: STREAM_ROWS weight rows side by side, one accumulator (all of its parts) for each, both
 * operands widened as they come; x stays in the first cache. How many rows keep most reads from
 * memory in flight differs between processors, so each dot_*.h says it. It changes no bit.
 */
INLINE void multiply_some_rows(const Product p, const int rows, const char *x, const char *weight,
                               ptrdiff_t weight_stride, ptrdiff_t in, float *out)
{
    const ptrdiff_t whole = in * p.element_bytes / p.block_bytes * p.block_bytes;
    const ptrdiff_t tail = in * p.element_bytes - whole;
    vec acc[STREAM_ROWS * VEC_PARTS];
#pragma GCC unroll 8
    for (int i = 0; i < rows * VEC_PARTS; i++)
        acc[i] = vec_zero();
    for (ptrdiff_t at = 0; at < whole; at += p.block_bytes, x += 64)
#pragma GCC unroll 2
        for (int phase = 0; phase < p.phases; phase++)
#pragma GCC unroll 2
            for (int part = 0; part < VEC_PARTS; part++) {
                const vec lanes = p.load_x(x, phase, part);
#pragma GCC unroll 8
                for (int r = 0; r < rows; r++) {
                    const char *block = weight + r * weight_stride + at;
                    vec *sum = acc + r * VEC_PARTS + part;
                    *sum = p.mac(*sum, lanes, p.load(block, phase, part));
                }
            }
    char padded_x[64] = {0};
    memcpy(padded_x, x, (size_t)(tail * 64 / p.block_bytes));
    for (int r = 0; r < rows; r++) {
        char padded_w[64] = {0};
        memcpy(padded_w, weight + r * weight_stride + whole, (size_t)tail);
        for (int phase = 0; tail && phase < p.phases; phase++)
            for (int part = 0; part < VEC_PARTS; part++)
                acc[r * VEC_PARTS + part] =
                    p.mac(acc[r * VEC_PARTS + part], p.load_x(padded_x, phase, part),
                          p.load(padded_w, phase, part));
        out[r] = fold_vectors(acc + r * VEC_PARTS);
    }
}

INLINE void multiply_rows(const Product p, const char *x, const char *weight,
                          ptrdiff_t weight_stride, ptrdiff_t rows, ptrdiff_t in, float *out)
{
    ptrdiff_t r = 0;
    for (; r + STREAM_ROWS <= rows; r += STREAM_ROWS)
        multiply_some_rows(p, STREAM_ROWS, x, weight + r * weight_stride, weight_stride, in,
                           out + r);
    for (; r < rows; r++)
        multiply_some_rows(p, 1, x, weight + r * weight_stride, weight_stride, in, out + r);
}

static void multiply_row(int kind, const char *x, const char *weight, ptrdiff_t weight_stride,
                         ptrdiff_t rows, ptrdiff_t in, float *out)
{
    if (kind == PRODUCT_BF16)
        multiply_rows(product_bf16, x, weight, weight_stride, rows, in, out);
    else if (kind == PRODUCT_F32)
        multiply_rows(product_f32, x, weight, weight_stride, rows, in, out);
    else
        multiply_rows(product_f32_f16, x, weight, weight_stride, rows, in, out);
}

#endif
