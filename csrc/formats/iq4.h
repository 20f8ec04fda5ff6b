/*
 * Formats of ggml whose 4-bit codes are indices into a table t of 16 int8:
 *
 *   iq4_nl  d * t[q]            32 elements: float16 d; 16 bytes
 *   iq4_xs  d * (s - 32) * t[q] 256 elements: float16 d; s of 8 groups: the upper two bits of all s
 *                               as one number, the lower bits in 4 bytes; 128 bytes
 *   mxfp4   2^(e - 128) * t[q]  32 elements: e in a byte; 16 bytes. OCP Microscaling, t doubled
 *
 * The lower half of byte j of a group's 16 bytes is code j, and the upper half is code j + 16.
 */
#pragma once
#include "formats/format.h"

static const int8_t iq4_table[16] = {
    -127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113,
};
static const int8_t mxfp4_table[16] = {0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12};

INLINE void iq4_xs_factors(Factors *factors, int at, const uint8_t *block, const void *scale)
{
    (void)scale;
    uint64_t steps = 0;
#pragma GCC unroll 8
    for (int g = 0; g < 8; g++) {
        const int lower = block[4 + g / 2] >> g % 2 * 4 & 15;
        const int upper = half_at(block + 2) >> 2 * g & 3;
        steps |= (uint64_t)(uint8_t)((lower | upper << 4) - 32) << 8 * g;
    }
    put_half(factors->scales, at / STEPS_OF_SCALE, half_at(block));
    factors->scale_steps[at / 8] = steps;
}

/* The scale as bfloat16. The two smallest scales are subnormal. */
INLINE void mxfp4_factors(Factors *factors, int at, const uint8_t *block, const void *scale)
{
    (void)scale;
    const int e = block[0];
    put_half(factors->scales, at, (uint16_t)(e < 2 ? 0x20 << e : (e - 1) << 7));
}

static const ExpandedFormat iq4_nl_format = {
    .elements = iq4_nl_elements,
    .code_bytes = iq4_nl_code_bytes,
    .fields = {{HALVES, .offset = 2, .bits = 4}},
    .table = iq4_table,
    .scale_type = TYPE_FLOAT16,
    .parts = 1,
};
static const ExpandedFormat iq4_xs_format = {
    .elements = iq4_xs_elements,
    .code_bytes = iq4_xs_code_bytes,
    .fields = {{HALVES, .offset = 8, .bits = 4}},
    .table = iq4_table,
    .factors = iq4_xs_factors,
    .scale_type = TYPE_FLOAT16,
    .parts = 1,
    .has_steps = 1,
};
static const ExpandedFormat mxfp4_format = {
    .elements = mxfp4_elements,
    .code_bytes = mxfp4_code_bytes,
    .fields = {{HALVES, .offset = 1, .bits = 4}},
    .table = mxfp4_table,
    .factors = mxfp4_factors,
    .scale_type = TYPE_BFLOAT16,
    .parts = 1,
};
