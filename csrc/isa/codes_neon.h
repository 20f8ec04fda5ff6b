/* NEON vectors for the codes of block-quantized weights. */
#pragma once
#include <string.h>

#ifndef VECTORS
#define VECTORS "isa/vectors_neon.h"
#endif
#include VECTORS

typedef uint8x16x4_t Table;

/* The values of the 16 codes times the scale of a block. */
INLINE Table table_times(const float values[16], float scale)
{
    Table table;
#pragma GCC unroll 4
    for (int i = 0; i < 4; i++)
        table.val[i] = vreinterpretq_u8_f32(vmulq_n_f32(vld1q_f32(values + 4 * i), scale));
    return table;
}

/* Four of the 16 elements in 8 bytes, in order. A code times 4 is the index of the first byte of
 * its value. The first code of a byte is in its upper half. */
INLINE vec table_values(const uint8_t *codes, Table table, int part)
{
    static const uint8_t bytes[4][16] = {
        {0, 0, 0, 0, 1, 1, 1, 1, 2, 2, 2, 2, 3, 3, 3, 3},
        {4, 4, 4, 4, 5, 5, 5, 5, 6, 6, 6, 6, 7, 7, 7, 7},
        {8, 8, 8, 8, 9, 9, 9, 9, 10, 10, 10, 10, 11, 11, 11, 11},
        {12, 12, 12, 12, 13, 13, 13, 13, 14, 14, 14, 14, 15, 15, 15, 15},
    };
    const uint8x8_t both = vld1_u8(codes);
    const uint8x8x2_t numbers = vzip_u8(vshr_n_u8(both, 4), vand_u8(both, vdup_n_u8(15)));
    const uint8x16_t places = vshlq_n_u8(vcombine_u8(numbers.val[0], numbers.val[1]), 2);
    const uint8x16_t of_part = vqtbl1q_u8(places, vld1q_u8(bytes[part]));
    const uint8x16_t of_byte = vreinterpretq_u8_u32(vdupq_n_u32(0x03020100));
    return vreinterpretq_f32_u8(vqtbl4q_u8(table, vorrq_u8(of_part, of_byte)));
}

/* The codes of one group as int8, the result of expand_group (formats/format.h). */
typedef struct NeonGroup {
    uint8x16_t half[2];
} group;

/* Extracts some bits of each byte, starting at bit `from`, and moves them to bit `to`. */
INLINE group bit_field(group bytes, int from, int bits, int to)
{
    const uint8x16_t mask = vdupq_n_u8((uint8_t)(((1 << bits) - 1) << to));
    const int8x16_t left = vdupq_n_s8((int8_t)(to - from));
    for (int h = 0; h < 2; h++)
        bytes.half[h] = vandq_u8(vshlq_u8(bytes.half[h], left), mask);
    return bytes;
}

/* The lower halves of 16 bytes, followed by the upper halves. */
INLINE group nibbles(const uint8_t *bytes)
{
    const uint8x16_t both = vld1q_u8(bytes);
    return (group){{vandq_u8(both, vdupq_n_u8(15)), vshrq_n_u8(both, 4)}};
}

/* Sets the bytes whose bit is set to `value`, and all others to 0. */
INLINE group spread_bits(uint32_t bits, int value)
{
    const uint8x16_t places = vreinterpretq_u8_u64(vdupq_n_u64(0x8040201008040201u));
    const uint8x16_t values = vdupq_n_u8((uint8_t)value);
    group codes;
    for (int h = 0; h < 2; h++) {
        const uint8x16_t bytes = vcombine_u8(vdup_n_u8((uint8_t)(bits >> 16 * h)),
                                             vdup_n_u8((uint8_t)(bits >> (16 * h + 8))));
        codes.half[h] = vandq_u8(vtstq_u8(bytes, places), values);
    }
    return codes;
}

/* Combines the bits of both, and subtracts an offset. */
INLINE group merge_codes(group lower, group upper, int offset)
{
    for (int h = 0; h < 2; h++)
        lower.half[h] =
            vsubq_u8(vorrq_u8(lower.half[h], upper.half[h]), vdupq_n_u8((uint8_t)offset));
    return lower;
}

/* The table entries of codes below 16. */
INLINE group look_up(group codes, const int8_t table[16])
{
    const uint8x16_t entries = vreinterpretq_u8_s8(vld1q_s8(table));
    for (int h = 0; h < 2; h++)
        codes.half[h] = vqtbl1q_u8(entries, codes.half[h]);
    return codes;
}

/* A vector of integers. */
typedef int32x4_t ivec;

#ifdef NEON_DOT
/*
 * Dot products of int8 are exact. A number of x is 256 * high + low with low >= 0, and is stored as
 * two bytes: a half contains 16 low bytes and, 32 numbers later, 16 high bytes. Without
 * instructions for products with unsigned bytes (i8mm), low - 128 is stored instead of low, and
 * -128 times the codes is subtracted from the sums. An 8-bit number is only its low byte, which is
 * then signed.
 */
INLINE void arrange_numbers(int16_t *numbers, const int have_8_bits)
{
    (void)have_8_bits;
    for (int16_t *end = numbers + 16; numbers < end; numbers += 8) {
        const uint8x16_t even = vreinterpretq_u8_s16(vld1q_s16(numbers));
        const uint8x16_t odd = vreinterpretq_u8_s16(vld1q_s16(numbers + 32));
        uint8x16_t low = vtrn1q_u8(even, odd);
#ifndef NEON_I8MM
        if (!have_8_bits)
            low = veorq_u8(low, vdupq_n_u8(128));
#endif
        vst1q_s16(numbers, vreinterpretq_s16_u8(low));
        vst1q_s16(numbers + 32, vreinterpretq_s16_u8(vtrn2q_u8(even, odd)));
    }
}

typedef struct HalfBytes {
    int8x16_t codes;
    ivec less; /* -128 times the codes, in four sums */
} HalfBytes;

/* The halves of a group. 16-bit codes are 256 * upper + lower. */
typedef struct Halves {
    HalfBytes lower[2], upper[2];
} Halves;

INLINE HalfBytes half_bytes(uint8x16_t half)
{
    const int8x16_t codes = vreinterpretq_s8_u8(half);
#ifdef NEON_I8MM
    return (HalfBytes){codes, vdupq_n_s32(0)};
#else
    return (HalfBytes){codes, vdotq_s32(vdupq_n_s32(0), codes, vdupq_n_s8(-128))};
#endif
}

INLINE void widen_half(Halves *pair, int half, uint8x16_t codes)
{
    pair->lower[half] = half_bytes(codes);
}

/* Both bytes are signed, so the upper byte is increased by 1 if the lower byte is negative. */
INLINE void join_half(Halves *pair, int half, uint8x16_t lower, uint8x16_t upper)
{
    pair->lower[half] = half_bytes(lower);
    pair->upper[half] = half_bytes(vsubq_u8(upper, vcltzq_s8(vreinterpretq_s8_u8(lower))));
}

INLINE ivec sum_of_bytes(const HalfBytes *bytes, const int16_t *x, int first, int end,
                         const int have_8_bits)
{
    ivec sum = vdupq_n_s32(0);
#pragma GCC unroll 2
    for (int h = first; have_8_bits && h < end; h++)
        sum = vdotq_s32(sum, vreinterpretq_s8_s16(vld1q_s16(x + 8 * h)), bytes[h].codes);
    if (have_8_bits)
        return sum;
#pragma GCC unroll 2
    for (int h = first; h < end; h++)
        sum = vdotq_s32(sum, vreinterpretq_s8_s16(vld1q_s16(x + 32 + 8 * h)), bytes[h].codes);
    sum = vshlq_n_s32(sum, 8);
    for (int h = first; h < end; h++)
        sum = vsubq_s32(sum, bytes[h].less);
#pragma GCC unroll 2
    for (int h = first; h < end; h++) {
        const int8x16_t low = vreinterpretq_s8_s16(vld1q_s16(x + 8 * h));
#ifdef NEON_I8MM
        sum = vusdotq_s32(sum, vreinterpretq_u8_s8(low), bytes[h].codes);
#else
        sum = vdotq_s32(sum, low, bytes[h].codes);
#endif
    }
    return sum;
}

/* Four partial sums of the products of the codes in halves [first, end) of a group
 * and the numbers of x. */
INLINE ivec sum_of_halves(const Halves *pair, const int16_t *x, int first, int end, int wide,
                          const int have_8_bits)
{
    const ivec lower = sum_of_bytes(pair->lower, x, first, end, have_8_bits);
    if (!wide)
        return lower;
    const ivec upper = sum_of_bytes(pair->upper, x, first, end, have_8_bits);
    return vaddq_s32(lower, vshlq_n_s32(upper, 8));
}
#else
/* Arranges the numbers of x: a half contains its first 8 numbers in order and, 32
 * numbers later, the other 8. */
INLINE void arrange_numbers(int16_t *numbers, const int have_8_bits)
{
    (void)have_8_bits;
    for (int16_t *end = numbers + 16; numbers < end; numbers += 8) {
        const int16x8_t even = vld1q_s16(numbers), odd = vld1q_s16(numbers + 32);
        vst1q_s16(numbers, vzip1q_s16(even, odd));
        vst1q_s16(numbers + 32, vzip2q_s16(even, odd));
    }
}

/* The halves of a group as 16-bit codes. */
typedef struct Halves {
    int16x8_t low[2], high[2];
} Halves;

INLINE void widen_half(Halves *pair, int half, uint8x16_t codes)
{
    pair->low[half] = vmovl_s8(vget_low_s8(vreinterpretq_s8_u8(codes)));
    pair->high[half] = vmovl_high_s8(vreinterpretq_s8_u8(codes));
}

INLINE void join_half(Halves *pair, int half, uint8x16_t lower, uint8x16_t upper)
{
    pair->low[half] = vreinterpretq_s16_u8(vzip1q_u8(lower, upper));
    pair->high[half] = vreinterpretq_s16_u8(vzip2q_u8(lower, upper));
}

/* Four partial sums of the products of the codes in halves [first, end) of a group
 * and the numbers of x. */
INLINE ivec sum_of_halves(const Halves *pair, const int16_t *x, int first, int end, int wide,
                          const int have_8_bits)
{
    (void)wide;
    (void)have_8_bits;
    ivec sum = vdupq_n_s32(0);
#pragma GCC unroll 2
    for (int h = first; h < end; h++) {
        const int16x8_t low = vld1q_s16(x + 8 * h), high = vld1q_s16(x + 32 + 8 * h);
        sum = vmlal_s16(sum, vget_low_s16(pair->low[h]), vget_low_s16(low));
        sum = vmlal_high_s16(sum, pair->low[h], low);
        sum = vmlal_s16(sum, vget_low_s16(pair->high[h]), vget_low_s16(high));
        sum = vmlal_high_s16(sum, pair->high[h], high);
    }
    return sum;
}
#endif

INLINE void widen_codes(Halves *pair, group codes)
{
    for (int h = 0; h < 2; h++)
        widen_half(pair, h, codes.half[h]);
}

/* The table entries of the codes in 16 bytes. The first code of a byte is in its upper half. */
INLINE void look_up_halves(Halves *pair, const uint8_t *bytes, const int16_t table[16])
{
    const uint8x16_t both = vld1q_u8(bytes);
    const uint8x16_t first = vshrq_n_u8(both, 4), second = vandq_u8(both, vdupq_n_u8(15));
    const group codes = {{vzip1q_u8(first, second), vzip2q_u8(first, second)}};
    const uint8x16x2_t entries = vld2q_u8((const uint8_t *)table);
    for (int h = 0; h < 2; h++)
        join_half(pair, h, vqtbl1q_u8(entries.val[0], codes.half[h]),
                  vqtbl1q_u8(entries.val[1], codes.half[h]));
}

/* Loads two numbers and repeats each of them. */
INLINE vec load_twice(const float *x)
{
    const vec both = vcombine_f32(vld1_f32(x), vld1_f32(x));
    return vzip1q_f32(both, both);
}

/* The sum of each of four vectors, as floats. */
INLINE vec sums_of_four(const ivec *v)
{
    return vcvtq_f32_s32(vpaddq_s32(vpaddq_s32(v[0], v[1]), vpaddq_s32(v[2], v[3])));
}

/* The steps of four groups, starting at group 4 * four (formats/format.h), for
 * one part of each group. */
INLINE vec widen_steps(const uint64_t *steps, int four, int parts, int part)
{
    const uint64_t word = steps[four * parts / 2] >> (parts == 1 ? four % 2 * 32 : part * 8);
    const int16x8_t wide = vmovl_s8(vcreate_s8(word));
    const int16x4_t of_part = vuzp1_s16(vget_low_s16(wide), vget_high_s16(wide));
    return vcvtq_f32_s32(vmovl_s16(parts == 1 ? vget_low_s16(wide) : of_part));
}
