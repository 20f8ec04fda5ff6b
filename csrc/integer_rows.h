/*
 * bfloat16 x as integers, in plain C, compiled once for each instruction set.
 *
 * A group of 32 elements gets the least power of two xs >= 2^-126 with which all q = x / xs,
 * rounded to nearest even, lie within 16 bits. Those not below 2^-7 of the largest one are exact;
 * the others are off by at most 2^-15 of it. A product is then, group after group,
 *
 *     lane[g mod 16] = fma(float32(sum of code * q), scale * xs, lane[g mod 16])
 *
 * and the lanes are reduced as all others are. Where the halves of a group have scales of their
 * own, one such step follows the other; where weights have a minimum, a step follows that adds it,
 *
 *     lane[g mod 16] = fma(float32(sum of q), minimum * xs, lane[g mod 16])
 *
 * The sum of a group is below 2^31, so int32 holds it in any order: only the chain of a lane
 * rounds. Where x is not finite xs is a NaN, and so are results.
 */
#pragma once
#include "integers.h"
#include "row_kernels.h"

INLINE void quantize_group(int16_t *restrict even, int16_t *restrict odd, float *scale, float *sums,
                           ptrdiff_t sums_apart, const char *x)
{
    uint16_t elements[X_GROUP];
    uint32_t pairs[X_GROUP / 2];
    memcpy(elements, x, sizeof elements);
    memcpy(pairs, x, sizeof pairs);
    uint16_t largest = 0;
    for (int i = 0; i < X_GROUP; i++) {
        const uint16_t magnitude = elements[i] & 0x7FFFu;
        largest = magnitude > largest ? magnitude : largest;
    }
    /* The largest is m * 2^(exponent - 127), m < 2, and 8 bits long: m * 2^14 <= 32640. */
    const uint32_t exponent = largest < 15u << 7 ? 15u : largest >> 7;
    const int is_finite = exponent < 255;
    const float factor = is_finite ? float_of((268 - exponent) << 23) : 0.0f;
    *scale = float_of(is_finite ? (exponent - 14) << 23 : 0x7FC00000u);
    /* Adding 1.5 * 2^23 rounds to an integer, ties to even, which is left in the low bits. */
    for (int i = 0; i < X_GROUP / 2; i++) {
        even[i] = (int16_t)bits_of(float_of(pairs[i] << 16) * factor + 12582912.0f);
        odd[i] = (int16_t)bits_of(float_of(pairs[i] & 0xFFFF0000u) * factor + 12582912.0f);
    }
    for (int half = 0; half < 2; half++) {
        int32_t sum = 0;
        for (int i = half * X_GROUP / 4; i < (half + 1) * X_GROUP / 4; i++)
            sum += even[i] + odd[i];
        sums[half * sums_apart] = (float)sum;
    }
}

/*
 * Lanes of 16 bytes in a vector, where codes of 4 bits are multiplied as bytes; else 0. A set with
 * integer_tile.h defines it, join_lanes and multiply_bytes; and ADDS_BYTES and add_bytes where one
 * instruction multiplies bytes and adds them to 32 bits. With ADJACENT_LANES a set loads blocks of
 * one group by join_neighbours, one block for each lane (integers.h).
 */
#ifndef BYTE_LANES
#define BYTE_LANES 0
#define ADJACENT_LANES 0
#endif

/* Where the two bytes of the numbers of a group go, in lanes of 16 bytes (integers.h). */
INLINE void put_bytes(float *panel, const int16_t *even, const int16_t *odd, ptrdiff_t index,
                      const int lanes, const int adjacent, int tokens, int token)
{
    const ptrdiff_t unit = index / (4 * lanes) * tokens + token;
    const ptrdiff_t vector = adjacent ? index / lanes % 4 : index % 4;
    const ptrdiff_t lane = adjacent ? index % lanes : index / 4 % lanes;
    char *out = (char *)panel + ((unit * 16 + vector * 4) * lanes + lane) * 16;
    for (int half = 0; half < 2; half++, out += lanes * 16)
        for (int i = 0; i < 16; i++) {
            const int number = (i % 2 ? odd : even)[half * 8 + i / 2];
            out[i] = (char)(number >> 8);
            out[2 * lanes * 16 + i] = (char)number;
        }
}

/* Lays one panel out (integers.h); x is bfloat16. With lanes, numbers are cut into bytes. */
INLINE void pack_numbers(float *panel, const char *x, ptrdiff_t x_stride, int tokens, ptrdiff_t in,
                         const int lanes, const int adjacent)
{
    const ptrdiff_t groups = in / X_GROUP, padded = integer_padded(in) / X_GROUP;
    int16_t *rest = integer_numbers(panel, tokens, groups / LANES * LANES);
    memset(rest, 0, (size_t)((char *)integer_scales(panel, in, tokens, 0) - (char *)rest));
    for (int t = 0; t < tokens; t++) {
        float *scales = integer_scales(panel, in, tokens, t);
        float *sums = integer_sums(panel, in, tokens, t);
        for (ptrdiff_t g = groups; g < padded; g++)
            scales[g] = sums[g] = sums[padded + g] = 0.0f;
        for (ptrdiff_t g = 0; g < groups; g++) {
            int16_t numbers[48], *even = integer_numbers(panel, tokens, g) + t * 64;
            even = lanes ? numbers : even; /* odd ones 32 places behind them */
            quantize_group(even, even + 32, scales + g, sums + g, padded,
                           x + t * x_stride + g * X_GROUP * 2);
            if (lanes) {
                put_bytes(panel, even, even + 32, g, lanes, adjacent, tokens, t);
                continue;
            }
#ifdef ARRANGE_NUMBERS
            ARRANGE_NUMBERS(even);
#endif
        }
    }
}

static void pack_integers(float *panel, const char *x, ptrdiff_t x_stride, int tokens, ptrdiff_t in,
                          ElementType x_type)
{
    (void)x_type;
    pack_numbers(panel, x, x_stride, tokens, in, 0, 0);
}
