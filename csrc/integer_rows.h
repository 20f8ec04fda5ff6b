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
#include "formats.h"
#include "integers.h"

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
 * Lanes of 16 bytes in a vector, and bits of the longest codes that are multiplied as bytes; 0
 * where none are. A set with integer_tile.h defines both; and ADDS_BYTES and add_bytes where one
 * instruction multiplies bytes and adds them to 32 bits.
 */
#ifndef BYTE_LANES
#define BYTE_LANES 0
#define BYTE_BITS 0
#endif

/* Whether a panel of few tokens has bytes for the whole units of a format. */
INLINE int takes_bytes(const ExpandedFormat f)
{
    return f.fields[0].bits == 4 && 4 + f.fields[1].bits <= BYTE_BITS;
}

#if BYTE_LANES
/* One of the 8 vectors of bytes for a unit (integers.h), and one of its words of 32 bits. */
typedef struct BytePlace {
    int vector, word;
} BytePlace;

/* Where the bytes of four numbers are, which are word `word` of the 8 of the unit's group g: at the
 * place that their codes get when vectors of codes are transposed (load_byte_codes). */
INLINE BytePlace byte_place(int g, int word, const ExpandedFormat f)
{
    const int apart = f.fields[0].apart, half = word / 4;
    if (apart == 0) /* a vector is BYTE_LANES neighbouring blocks */
        return (BytePlace){word, g % BYTE_LANES * 4 + g / BYTE_LANES};
    /* A vector is runs of 32 bytes, each of which two groups share. */
    const int run = g / (2 * apart) * apart + g % apart, runs = BYTE_LANES / 2;
    return (BytePlace){g / apart % 2 * 4 + word % 4, (run % runs * 2 + half) * 4 + run / runs};
}

/* Cuts the numbers of group `index` into bytes. */
INLINE void put_bytes(float *panel, const int16_t *even, const int16_t *odd, ptrdiff_t index,
                      int tokens, int token, const ExpandedFormat f)
{
    const int lanes = 4 * BYTE_LANES; /* words of a vector, and groups of a unit */
    char *unit = (char *)panel + (index / lanes * tokens + token) * 16 * lanes * 4;
    uint16_t upper[X_GROUP / 2], lower[X_GROUP / 2]; /* of an even and an odd number */
    for (int i = 0; i < X_GROUP / 2; i++) {
        upper[i] = (uint16_t)((uint16_t)even[i] >> 8 | ((uint16_t)odd[i] & 0xFF00));
        lower[i] = (uint16_t)((even[i] & 0xFF) | (uint16_t)odd[i] << 8);
    }
    for (int half = 0; half < 2; half++) {
        const BytePlace place = byte_place((int)(index % lanes), half * 4, f);
        char *out = unit + (place.vector * lanes + place.word) * 4;
        for (int i = half * 8; i < half * 8 + 8; i += 2, out += lanes * 4) {
            memcpy(out, upper + i, 4);
            memcpy(out + 8 * lanes * 4, lower + i, 4);
        }
    }
}
#endif

/* Lays one panel out (integers.h); x is bfloat16. `few`: the format that a panel of few tokens is
 * for, else NULL. */
INLINE void pack_numbers(float *panel, const char *x, ptrdiff_t x_stride, int tokens, ptrdiff_t in,
                         const ExpandedFormat *few)
{
    const ptrdiff_t groups = in / X_GROUP, padded = integer_padded(in) / X_GROUP;
    ptrdiff_t in_bytes = 0; /* groups */
#if BYTE_LANES
    if (few && takes_bytes(*few))
        in_bytes = groups / (4 * BYTE_LANES) * (4 * BYTE_LANES);
#else
    (void)few;
#endif
    int16_t *rest = integer_numbers(panel, tokens, groups / LANES * LANES);
    memset(rest, 0, (size_t)((char *)integer_scales(panel, in, tokens, 0) - (char *)rest));
    for (int t = 0; t < tokens; t++) {
        float *scales = integer_scales(panel, in, tokens, t);
        float *sums = integer_sums(panel, in, tokens, t);
        for (ptrdiff_t g = groups; g < padded; g++)
            scales[g] = sums[g] = sums[padded + g] = 0.0f;
        for (ptrdiff_t g = 0; g < groups; g++) {
            int16_t numbers[48], *even = integer_numbers(panel, tokens, g) + t * 64;
            even = g < in_bytes ? numbers : even; /* odd ones 32 places behind them */
            quantize_group(even, even + 32, scales + g, sums + g, padded,
                           x + t * x_stride + g * X_GROUP * 2);
#if BYTE_LANES
            if (g < in_bytes)
                put_bytes(panel, even, even + 32, g, tokens, t, *few);
#elif defined(ARRANGE_NUMBERS)
            ARRANGE_NUMBERS(even);
#endif
        }
    }
}

static void pack_integers(float *panel, const char *x, ptrdiff_t x_stride, int tokens, ptrdiff_t in,
                          ElementType x_type)
{
    (void)x_type;
    pack_numbers(panel, x, x_stride, tokens, in, NULL);
}
