/*
 * bfloat16 x as integers, in plain C, compiled once for each instruction set.
 *
 * A block of 32 elements gets the least power of two xs >= 2^-126 with which all q = x / xs, rounded
 * to nearest even, lie within 16 bits. Those not below 2^-7 of the largest one are exact; the others
 * are off by at most 2^-15 of it. A product is then, block after block,
 *
 *     lane[b mod 16] = fma(float32(sum of code * q), scale * xs, lane[b mod 16])
 *
 * and the lanes are folded as all others are. The sum of a block is below 2^27, so int32 holds it in
 * any order: only the chain of a lane rounds. Where x is not finite xs is a NaN, and so are results.
 */
#ifndef LLAMA_BOLTS_INT8_ROWS_H
#define LLAMA_BOLTS_INT8_ROWS_H

#include "int8.h"
#include "row_kernels.h"

INLINE void int8_quantize_block(const char *x, int16_t *restrict even, int16_t *restrict odd,
                                float *scale)
{
    uint16_t elements[INT8_BLOCK];
    uint32_t pairs[INT8_BLOCK / 2];
    memcpy(elements, x, sizeof elements);
    memcpy(pairs, x, sizeof pairs);
    uint16_t largest = 0;
    for (int i = 0; i < INT8_BLOCK; i++) {
        const uint16_t magnitude = elements[i] & 0x7FFFu;
        largest = magnitude > largest ? magnitude : largest;
    }
    /* The largest is m * 2^(exponent - 127), m < 2, and 8 bits long: m * 2^14 <= 32640. */
    const uint32_t exponent = largest < 15u << 7 ? 15u : largest >> 7;
    const int is_finite = exponent < 255;
    const float factor = is_finite ? float_of((268 - exponent) << 23) : 0.0f;
    *scale = float_of(is_finite ? (exponent - 14) << 23 : 0x7FC00000u);
    /* Adding 1.5 * 2^23 rounds to an integer, ties to even, which is left in the low bits. */
    for (int i = 0; i < INT8_BLOCK / 2; i++) {
        even[i] = (int16_t)bits_of(float_of(pairs[i] << 16) * factor + 12582912.0f);
        odd[i] = (int16_t)bits_of(float_of(pairs[i] & 0xFFFF0000u) * factor + 12582912.0f);
    }
}

/* Lays one panel out (int8.h). */
static void quantize_panel(const char *x, ptrdiff_t x_stride, int tokens, ptrdiff_t in,
                           float *panel)
{
    const ptrdiff_t blocks = in / INT8_BLOCK, padded = int8_padded(in) / INT8_BLOCK;
    int16_t *rest = int8_numbers(panel, tokens, blocks / 2 * 2);
    memset(rest, 0, (size_t)((char *)int8_scales(panel, in, tokens, 0) - (char *)rest));
    for (int t = 0; t < tokens; t++) {
        float *scales = int8_scales(panel, in, tokens, t);
        memset(scales + blocks, 0, (size_t)(padded - blocks) * sizeof(float));
        for (ptrdiff_t b = 0; b < blocks; b++) {
            int16_t *even = int8_numbers(panel, tokens, b) + t * 64;
            int8_quantize_block(x + t * x_stride + b * INT8_BLOCK * 2, even, even + 32, scales + b);
        }
    }
}

#endif
