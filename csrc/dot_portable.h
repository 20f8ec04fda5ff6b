/* Products in plain C, for every machine: one weight row at a time, 16 lanes per token. */
#ifndef LLAMA_BOLTS_DOT_PORTABLE_H
#define LLAMA_BOLTS_DOT_PORTABLE_H

enum { PASS_LANES = 16, BF16_PHASES = 2 };

#include "row_kernels.h"

/*
 * a * b + c rounded once. Where the processor has the instruction, fmaf is it. Elsewhere the sum
 * is made in double: the product is exact there, the sum is rounded to odd by means of its exact
 * error (S. Boldo, G. Melquiond, "Emulation of FMA and correctly rounded sums", 2008), and the
 * conversion then rounds as if there had been no first rounding.
 */
INLINE float fused_multiply_add(float a, float b, float c)
{
#ifdef __FP_FAST_FMAF
    return fmaf(a, b, c);
#else
    const double product = (double)a * (double)b, addend = (double)c;
    const double sum = product + addend;
    const double back = sum - product;
    const double error = (product - (sum - back)) + (addend - back);
    uint64_t u;
    memcpy(&u, &sum, sizeof u);
    const uint64_t inexact = (uint64_t)((error < 0.0) | (error > 0.0)) & ~u & 1u;
    const uint64_t away = (uint64_t)((error > 0.0) == (sum > 0.0));
    u += inexact * (2 * away - 1);
    double odd;
    memcpy(&odd, &u, sizeof odd);
    return (float)odd;
#endif
}

/* A product of two bfloat16 is exact in float32, so a multiplication and an addition are fused. */
INLINE float multiply_add_bf16(float a, float b, float c)
{
#ifdef __FP_FAST_FMAF
    return fmaf(a, b, c);
#else
    return a * b + c;
#endif
}

/* The 16 lanes of one phase of a block, widened; elements past `count` are zeros. */
INLINE void widen_block(int kind, const char *block, ptrdiff_t count, int phase,
                        float *restrict lanes)
{
    uint32_t words[LANES];
    uint16_t halves[LANES];
    if (kind == PRODUCT_F32_F16) {
        memset(halves, 0, sizeof halves);
        memcpy(halves, block, (size_t)count * 2);
        for (int l = 0; l < LANES; l++)
            lanes[l] = f16_to_f32(halves[l]);
        return;
    }
    memset(words, 0, sizeof words);
    memcpy(words, block, (size_t)(count * product_weight_bytes(kind)));
    for (int l = 0; l < LANES; l++)
        lanes[l] = float_of(kind == PRODUCT_F32 ? words[l]
                            : phase == 0        ? words[l] & 0xFFFF0000u
                                                : words[l] << 16);
}

static inline void add_products(int kind, const float *restrict x, const float *restrict w,
                                float *restrict acc)
{
    if (kind == PRODUCT_BF16)
        for (int l = 0; l < LANES; l++)
            acc[l] = multiply_add_bf16(x[l], w[l], acc[l]);
    else
        for (int l = 0; l < LANES; l++)
            acc[l] = fused_multiply_add(x[l], w[l], acc[l]);
}

INLINE void row_times_panel(int kind, const Stretch *s, ptrdiff_t row)
{
    const int phases = kind == PRODUCT_BF16 ? 2 : 1;
    const ptrdiff_t block = product_block(kind), bytes = product_weight_bytes(kind);
    const char *w = s->weight + row * s->weight_stride;
    const float *x = s->panel + s->start / block * phases * s->tokens * LANES;
    float *acc = s->lanes + row * PANEL_TOKENS * LANES, lanes[LANES];
    if (s->first)
        memset(acc, 0, sizeof(float) * (size_t)s->tokens * LANES);
    for (ptrdiff_t start = 0; start < s->count; start += block)
        for (int phase = 0; phase < phases; phase++) {
            widen_block(kind, w + start * bytes, min_size(block, s->count - start), phase, lanes);
            for (int t = 0; t < s->tokens; t++, x += LANES)
                add_products(kind, x, lanes, acc + t * LANES);
        }
    for (int t = 0; s->last && t < s->tokens; t++)
        s->out[t * CHUNK_ROWS + row] = fold_lanes(acc + t * LANES);
}

static void multiply_stretch(int kind, const Stretch *stretch)
{
    for (ptrdiff_t row = 0; row < stretch->rows; row++)
        if (kind == PRODUCT_BF16)
            row_times_panel(PRODUCT_BF16, stretch, row);
        else if (kind == PRODUCT_F32_F16)
            row_times_panel(PRODUCT_F32_F16, stretch, row);
        else
            row_times_panel(PRODUCT_F32, stretch, row);
}

/* The compiler's code for a row gains nothing from weights widened before. */
static int keeps_widened(int kind)
{
    (void)kind;
    return 0;
}

/* Adds the products of a row of weights to 16 lanes. */
INLINE void add_row(int kind, const char *x, const char *w, ptrdiff_t in, float *restrict acc)
{
    const int phases = kind == PRODUCT_BF16 ? 2 : 1;
    const int x_kind = kind == PRODUCT_BF16 ? PRODUCT_BF16 : PRODUCT_F32;
    const ptrdiff_t block = product_block(kind);
    float x_lanes[LANES], w_lanes[LANES];
    for (ptrdiff_t start = 0; start < in; start += block)
        for (int phase = 0; phase < phases; phase++) {
            const ptrdiff_t count = min_size(block, in - start);
            widen_block(x_kind, x + start * product_x_bytes(kind), count, phase, x_lanes);
            widen_block(kind, w + start * product_weight_bytes(kind), count, phase, w_lanes);
            add_products(kind, x_lanes, w_lanes, acc);
        }
}

INLINE float multiply_one_row(int kind, const char *x, const char *w, ptrdiff_t in)
{
    float acc[LANES] = {0};
    add_row(kind, x, w, in, acc);
    return fold_lanes(acc);
}

static void multiply_row(int kind, const char *x, const char *weight, ptrdiff_t weight_stride,
                         ptrdiff_t rows, ptrdiff_t in, float *out)
{
    for (ptrdiff_t r = 0; r < rows; r++, weight += weight_stride)
        out[r] = kind == PRODUCT_BF16  ? multiply_one_row(PRODUCT_BF16, x, weight, in)
                 : kind == PRODUCT_F32 ? multiply_one_row(PRODUCT_F32, x, weight, in)
                                       : multiply_one_row(PRODUCT_F32_F16, x, weight, in);
}

#endif
