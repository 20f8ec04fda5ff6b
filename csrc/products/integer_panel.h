/*
 * A panel of bfloat16 x as integers, in plain C, compiled once for each instruction set.
 *
 * A group of 32 elements gets the least power of two xs >= 2^-126 with which all q = x / xs,
 * rounded to nearest even, lie within +-32767. Those not below 2^-7 of the largest one are exact;
 * the others are off by at most 2^-15 of it. A product is then, group after group,
 *
 *     lane[g mod 16] = fma(float32(sum of code * q), scale * xs, lane[g mod 16])
 *
 * and the lanes are reduced as all others are. Where the halves of a group have scales of their
 * own, one such step follows the other; where weights have a minimum, a step follows that adds it,
 *
 *     lane[g mod 16] = fma(float32(sum of q), minimum * xs, lane[g mod 16])
 *
 * The sum of a group is below 2^31, so int32 holds it in any order: only its conversion to float32
 * (exact for codes of up to 6 bits) and the chain of a lane round. Where x is not finite xs is a
 * NaN, and so are results.
 *
 * The layout, with zeros up to whole K blocks of 16 groups:
 *
 *   numbers  [pairs of groups][tokens][64]  int16 q
 *   scales   [tokens][groups]               float32 xs
 *   sums     [tokens][2][groups]            float32 sums of q: of the first half of each group, and
 *                                           of the second half
 *
 * The 64 numbers of a token for groups g and g + 1, g even, where q2 is that of element 2:
 *
 *   0         16            32        48            63
 *   | q0 q2 .. q30 of g | q0 q2 .. q30 of g + 1 | q1 q3 .. q31 of g | q1 q3 .. q31 of g + 1 |
 *
 * For example, x = 1.5, -0.25, 0, 0, ... in a group: the largest magnitude is 1.5 = 1.5 * 2^0, so
 * xs = 2^-14, and q = 24576, -4096, 0, ...: number 0 is 24576, number 32 is -4096, and the sum of
 * the first half is 20480.
 *
 * In a panel of few tokens, for a format whose codes are transposed as bytes (q4_k, for example),
 * the whole units of 16 groups are bytes in place of these numbers: transposed_bytes.h.
 */
#pragma once
#include "formats/format.h"
#include "products/product.h"

/* The numbers of group `index` of token 0: even ones, and odd ones 32 places further. Those of the
 * next token are 64 places further. */
INLINE int16_t *integer_numbers(const float *panel, int tokens, ptrdiff_t index)
{
    return (int16_t *)panel + index / 2 * 64 * tokens + index % 2 * 16;
}

INLINE float *integer_scales(const float *panel, ptrdiff_t in, int tokens, int token)
{
    float *scales = (float *)((int16_t *)panel + integer_padded(in) * tokens);
    return scales + token * (integer_padded(in) / X_GROUP);
}

INLINE float *integer_sums(const float *panel, ptrdiff_t in, int tokens, int token)
{
    /* They begin where the scales of one more token would. */
    return integer_scales(panel, in, tokens, tokens + 2 * token);
}

/* One group of one token: its numbers, its scale, and the sums of its halves. */
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

/* Puts the numbers of group `index` of a token into a panel, as a format wants them. */
typedef void (*put_function)(float *panel, const int16_t *even, const int16_t *odd, ptrdiff_t index,
                             int tokens, int token, const ExpandedFormat f);

/* Lays one panel out; x is bfloat16. The first `put_groups` groups go through put_numbers. */
INLINE void pack_groups(float *panel, const char *x, ptrdiff_t x_stride, int tokens, ptrdiff_t in,
                        ptrdiff_t put_groups, const put_function put_numbers,
                        const ExpandedFormat f)
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
            /* The odd ones follow 32 places further; of 48 numbers, 16 to 31 are not used. */
            even = g < put_groups ? numbers : even;
            quantize_group(even, even + 32, scales + g, sums + g, padded,
                           x + t * x_stride + g * X_GROUP * 2);
            if (g < put_groups)
                put_numbers(panel, even, even + 32, g, tokens, t, f);
            else
                arrange_numbers(even);
        }
    }
}

/* The same with all numbers where the layout has them. */
INLINE void pack_numbers(float *panel, const char *x, ptrdiff_t x_stride, int tokens, ptrdiff_t in)
{
    pack_groups(panel, x, x_stride, tokens, in, 0, NULL, (ExpandedFormat){0});
}
