/* Products in plain C, for every machine: one weight row at a time, 16 lanes per token. */
#ifndef LLAMA_BOLTS_DOT_PORTABLE_H
#define LLAMA_BOLTS_DOT_PORTABLE_H

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

/* The 16 lanes of one phase of a weight block, widened; elements past `count` are zeros. */
static inline void weight_lanes(int kind, const char *block, ptrdiff_t count, int phase,
                                float w[LANES])
{
    char padded[64] = {0};
    memcpy(padded, block, (size_t)(count * product_weight_bytes(kind)));
    const uint16_t *half = (const uint16_t *)(const void *)padded;
    if (kind == PRODUCT_BF16)
        for (int l = 0; l < LANES; l++)
            w[l] = bf16_to_f32(half[2 * l + 1 - phase]);
    else if (kind == PRODUCT_F32_F16)
        for (int l = 0; l < LANES; l++)
            w[l] = f16_to_f32(half[l]);
    else
        memcpy(w, padded, LANES * sizeof(float));
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

INLINE void row_times_panel(int kind, const float *x, int tokens, const char *w, ptrdiff_t in,
                            float *out)
{
    const int phases = kind == PRODUCT_BF16 ? 2 : 1;
    const ptrdiff_t block = product_block(kind);
    float acc[PANEL_TOKENS][LANES] = {{0}}, lanes[LANES];
    for (ptrdiff_t start = 0; start < in; start += block) {
        const char *at = w + start * product_weight_bytes(kind);
        for (int phase = 0; phase < phases; phase++) {
            weight_lanes(kind, at, min_size(block, in - start), phase, lanes);
            for (int t = 0; t < tokens; t++, x += LANES)
                add_products(kind, x, lanes, acc[t]);
        }
    }
    for (int t = 0; t < tokens; t++)
        out[t * CHUNK_ROWS] = fold_lanes(acc[t]);
}

static void tile_rows(int kind, const void *panel, int tokens, const char *weight,
                      ptrdiff_t weight_stride, ptrdiff_t rows, ptrdiff_t in, float *out)
{
    for (ptrdiff_t r = 0; r < rows; r++) {
        const char *w = weight + r * weight_stride;
        if (kind == PRODUCT_BF16)
            row_times_panel(PRODUCT_BF16, panel, tokens, w, in, out + r);
        else if (kind == PRODUCT_F32)
            row_times_panel(PRODUCT_F32, panel, tokens, w, in, out + r);
        else
            row_times_panel(PRODUCT_F32_F16, panel, tokens, w, in, out + r);
    }
}

#endif
