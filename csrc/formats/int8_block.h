/*
 * int8_block, with the size of llama.cpp's Q8_0. An element is c * scale, with one scale for a
 * block of 32. The product is exact in float32, because scales are bfloat16.
 */
#pragma once
#include "formats/format.h"

INLINE void int8_block_factors(Factors *factors, int at, const uint8_t *codes, const void *scale)
{
    (void)codes;
    put_half(factors->scales, at, *(const uint16_t *)scale);
}

/*
 * scale = absmax / 127, rounded to the nearest bfloat16, or 0 if that is subnormal. c = x times the
 * reciprocal of scale, rounded to the nearest integer. The error of the rounded scale is at most
 * 2^-9, so c is at most 127.
 */
INLINE void int8_block_quantize(uint8_t *codes, void *scale, const float *x, ptrdiff_t count,
                                ptrdiff_t *refused)
{
    const float absmax = block_absmax(x, int8_block_elements, refused);
    const uint16_t nearest = float32_to_bfloat16(absmax / 127.0f);
    const uint16_t rounded = nearest < 0x0080 ? 0 : nearest;
    const float factor = rounded ? 1.0f / bfloat16_to_float32(rounded) : 0.0f;
    int32_t numbers[int8_block_elements];
    /* Adding 1.5 * 2^23 rounds to an integer, ties to even, which is left in the low bits. */
    for (int i = 0; i < int8_block_elements; i++)
        numbers[i] = (int32_t)(bits_of(x[i] * factor + 12582912.0f) - 0x4B400000u);
    for (ptrdiff_t i = 0; i < count; i++)
        codes[i] = (uint8_t)numbers[i];
    *(uint16_t *)scale = rounded;
}

static const ExpandedFormat int8_block_format = {
    .elements = int8_block_elements,
    .code_bytes = int8_block_code_bytes,
    .scale_bytes = int8_block_scale_bytes,
    .fields = {{SHARED, .bits = 8, .apart = 1}},
    .factors = int8_block_factors,
    .scale_type = TYPE_BFLOAT16,
    .parts = 1,
    .quantize = int8_block_quantize,
};
