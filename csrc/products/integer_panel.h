/*
 * A panel of bfloat16 x that is converted to integers, in plain C, compiled once for each
 * instruction set.
 *
 * A group of 32 elements becomes integers q times a float32 xs. With 16 bits, xs is the smallest
 * power of two >= 2^-126 for which all q = x / xs, rounded to nearest even, are within +-32767.
 * Elements of at least 2^-7 times the largest magnitude are exact. The error of smaller elements is
 * at most 2^-15 times the largest magnitude. With 8 bits, xs is the largest magnitude divided by n,
 * and q = x * (n / the largest magnitude), rounded to nearest even. n is 127, 126 or 125, whichever
 * has the smallest sum of squared errors of x. On average it is 12 % smaller than with 127 alone.
 * The error of an element is at most 1 / 250 of the largest magnitude. A group whose xs would be
 * subnormal becomes zeros.
 * A product is then computed group by group:
 *
 *     lane[g mod 16] = fma(float32(sum of code * q), scale * xs, lane[g mod 16])
 *
 * The lanes are reduced like all other lanes. If the halves of a group have separate scales, there
 * is one such step for each half. If weights have a minimum, a further step adds it:
 *
 *     lane[g mod 16] = fma(float32(sum of q), minimum * xs, lane[g mod 16])
 *
 * The sum of a group is below 2^31, so it is exact in int32 in any order. Only its conversion to
 * float32 (which is exact for codes of up to 6 bits, and for 8-bit integers of x) and the chain of
 * a lane are rounded. If x is not finite, xs and the results are NaN.
 *
 * The layout, padded with zeros to whole K blocks of 16 groups:
 *
 *   numbers  [pairs of groups][tokens][64]  int16 q
 *   scales   [tokens][groups]               float32 xs
 *   sums     [tokens][2][groups]            float32 sums of q: of the first half of each group, and
 *                                           of the second half
 *
 * The 64 numbers of a token for groups g and g + 1, g even, where q2 is the number of element 2:
 *
 *   0         16            32        48            63
 *   | q0 q2 .. q30 of g | q0 q2 .. q30 of g + 1 | q1 q3 .. q31 of g | q1 q3 .. q31 of g + 1 |
 *
 * For example, if the elements of a group are x = 1.5, -0.25, 0, 0, ..., the largest magnitude is
 * 1.5 = 1.5 * 2^0, so xs = 2^-14 and q = 24576, -4096, 0, .... Number 0 is 24576, number 32 is
 * -4096, and the sum of the first half is 20480. With 8 bits, -0.25 * (126 / 1.5) = -21 has no
 * error, so n = 126, xs = 1.5 / 126 and q = 126, -21, 0, ....
 *
 * 8-bit integers that are multiplied as bytes take half the space:
 *
 *   bytes    [pairs of groups][tokens][64]  int8 q, in the order of the elements
 *   starts   [tokens][2][groups]            int32: the initial values of the sums of unsigned codes
 *                                           (many_tokens.h), for groups or for their halves
 *
 * In a panel of few tokens for a format whose codes are transposed as bytes (for example q4_k),
 * whole units have another layout (transposed_bytes.h).
 */
#pragma once
#include "formats/format.h"
#include "products/product.h"

/* The kind of integers in a panel. Kernels for 16-bit words can also multiply 8-bit integers. */
typedef enum PanelKind {
    PANEL_INT16,         /* 16-bit integers */
    PANEL_INT8_AS_INT16, /* 8-bit integers, each in a 16-bit word */
    PANEL_INT8           /* 8-bit integers as bytes */
} PanelKind;

/* Bytes per integer. */
INLINE ptrdiff_t integer_bytes(const PanelKind kind) { return kind == PANEL_INT8 ? 1 : 2; }

/* The integers of group `index` of token 0. Bytes are in order. Odd 16-bit numbers are 32 places
 * after even numbers. The integers of the next token are 64 places after these. */
INLINE void *integers_at(const float *panel, const PanelKind kind, int tokens, ptrdiff_t index)
{
    return (char *)panel + index / 2 * 64 * tokens * integer_bytes(kind) + index % 2 * 32;
}

/* The 16-bit numbers of group `index` of token 0. */
INLINE int16_t *integer_numbers(const float *panel, int tokens, ptrdiff_t index)
{
    return integers_at(panel, PANEL_INT16, tokens, index);
}

INLINE float *integer_scales(const float *panel, ptrdiff_t in, int tokens, int token)
{
    float *scales = (float *)((int16_t *)panel + integer_padded(in) * tokens);
    return scales + token * (integer_padded(in) / X_GROUP);
}

INLINE float *integer_sums(const float *panel, ptrdiff_t in, int tokens, int token)
{
    /* The sums begin after the scales of the last token. */
    return integer_scales(panel, in, tokens, tokens + 2 * token);
}

INLINE int32_t *integer_starts(const float *panel, ptrdiff_t in, int tokens, int token)
{
    int32_t *starts = (int32_t *)((int8_t *)panel + integer_padded(in) * tokens);
    return starts + 2 * token * (integer_padded(in) / X_GROUP);
}

/* The factor that converts the elements of a group to integers, and xs. */
typedef struct GroupScale {
    float factor, scale;
} GroupScale;

/* Adding this number to a float32 within +-2^22 rounds to an integer, ties to even, which is left
 * in the low bits of the sum. */
#define ROUNDING 12582912.0f /* 1.5 * 2^23 */

/* The sum of the squared rounding errors of 32 bfloat16 elements, two to a word, that are
 * multiplied by a factor and rounded to integers. */
INLINE float squared_errors(const uint32_t pairs[X_GROUP / 2], float factor)
{
    float lanes[LANES];
    for (int l = 0; l < LANES; l++) {
        const float first = float_of(pairs[l] << 16) * factor;
        const float second = float_of(pairs[l] & 0xFFFF0000u) * factor;
        const float of_first = first - (first + ROUNDING - ROUNDING);
        const float of_second = second - (second + ROUNDING - ROUNDING);
        lanes[l] = of_first * of_first + of_second * of_second;
    }
    return reduce_lanes(lanes);
}
_Static_assert(LANES == X_GROUP / 2, "a lane adds the errors of two elements");

/* Computes the scale of a group whose largest magnitude is a bfloat16. */
INLINE GroupScale scale_group(const uint32_t pairs[X_GROUP / 2], uint16_t largest,
                              const PanelKind kind)
{
    const uint16_t infinity = 255 << 7, least_of_8_bits = 0x03FE; /* 127 * 2^-126 */
    if (largest >= infinity)
        return (GroupScale){0.0f, float_of(0x7FC00000u)};
    if (kind == PANEL_INT16) {
        /* The largest magnitude is m * 2^(exponent - 127) with m < 2, and m has 8 bits, so
         * m * 2^14 <= 32640. */
        const uint32_t exponent = largest < 15u << 7 ? 15u : largest >> 7;
        return (GroupScale){float_of((268 - exponent) << 23), float_of((exponent - 14) << 23)};
    }
    if (largest < least_of_8_bits)
        return (GroupScale){0.0f, 0.0f};
    const float absmax = bfloat16_to_float32(largest);
    /* An error of x is an error of q times absmax / n. */
    float n = 127.0f, least = squared_errors(pairs, n / absmax) / (n * n);
#pragma GCC unroll 2
    for (float other = 126.0f; other >= 125.0f; other--) {
        const float errors = squared_errors(pairs, other / absmax) / (other * other);
        n = errors < least ? other : n;
        least = errors < least ? errors : least;
    }
    return (GroupScale){n / absmax, absmax / n};
}

/* Computes the integers of one group of one token, their scale, and the sum of each half. */
INLINE void quantize_group(int16_t *restrict even, int16_t *restrict odd, float *scale, float *sums,
                           ptrdiff_t sums_apart, const char *x, const PanelKind kind)
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
    const GroupScale of_group = scale_group(pairs, largest, kind);
    *scale = of_group.scale;
    for (int i = 0; i < X_GROUP / 2; i++) {
        const float first = float_of(pairs[i] << 16), second = float_of(pairs[i] & 0xFFFF0000u);
        even[i] = (int16_t)bits_of(first * of_group.factor + ROUNDING);
        odd[i] = (int16_t)bits_of(second * of_group.factor + ROUNDING);
    }
    for (int half = 0; half < 2; half++) {
        int32_t sum = 0;
        for (int i = half * X_GROUP / 4; i < (half + 1) * X_GROUP / 4; i++)
            sum += even[i] + odd[i];
        sums[half * sums_apart] = (float)sum;
    }
}

/* A function that writes the integers of group `index` of a token to a panel in
 * the layout of a format. */
typedef void (*put_function)(float *panel, const int16_t *even, const int16_t *odd, ptrdiff_t index,
                             int tokens, int token, const ExpandedFormat f);

/* Joins even and odd 8-bit integers to bytes in order. */
INLINE void join_bytes(uint16_t bytes[X_GROUP / 2], const int16_t *even, const int16_t *odd)
{
    for (int i = 0; i < X_GROUP / 2; i++)
        bytes[i] = (uint16_t)((even[i] & 0xFF) | (uint16_t)odd[i] << 8);
}

/* Packs one panel from bfloat16 x. put_integers writes the first `put_groups` groups. */
INLINE void pack_groups(float *panel, const char *x, ptrdiff_t x_stride, int tokens, ptrdiff_t in,
                        ptrdiff_t put_groups, const put_function put_integers,
                        const ExpandedFormat f, const PanelKind kind)
{
    const ptrdiff_t groups = in / X_GROUP, padded = integer_padded(in) / X_GROUP;
    const ptrdiff_t rest = groups / LANES * LANES;
    memset(integers_at(panel, kind, tokens, rest), 0,
           (size_t)((padded - rest) * X_GROUP * tokens * integer_bytes(kind)));
    for (int t = 0; t < tokens; t++) {
        float *scales = integer_scales(panel, in, tokens, t);
        float *sums = integer_sums(panel, in, tokens, t);
        for (ptrdiff_t g = groups; g < padded; g++)
            scales[g] = sums[g] = sums[padded + g] = 0.0f;
        for (ptrdiff_t g = 0; g < groups; g++) {
            char *place =
                (char *)integers_at(panel, kind, tokens, g) + t * 64 * integer_bytes(kind);
            /* Odd numbers are 32 places after even numbers. Numbers 16 to 31 of
             * these 48 are not used. */
            int16_t numbers[48];
            int16_t *even = g < put_groups || kind == PANEL_INT8 ? numbers : (int16_t *)place;
            quantize_group(even, even + 32, scales + g, sums + g, padded,
                           x + t * x_stride + g * X_GROUP * 2, kind);
            if (g < put_groups)
                put_integers(panel, even, even + 32, g, tokens, t, f);
            else if (kind == PANEL_INT8)
                join_bytes((uint16_t *)place, even, even + 32);
            else
                arrange_numbers(even, kind == PANEL_INT8_AS_INT16);
        }
    }
}

/* Packs one panel whose groups all have the ordinary layout. */
INLINE void pack_numbers(float *panel, const char *x, ptrdiff_t x_stride, int tokens, ptrdiff_t in,
                         const PanelKind kind)
{
    pack_groups(panel, x, x_stride, tokens, in, 0, NULL, (ExpandedFormat){0}, kind);
}
