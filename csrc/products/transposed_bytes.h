/*
 * Products of codes of 4 to BYTE_BITS bits and few tokens, computed with bytes, with AVX2 and
 * AVX-512.
 *
 * These codes are 0 to 63, so they do not have to be widened to 16 bits. Each 16-bit number of x is
 * split into two bytes, 256 * upper + lower, where upper is signed and lower is unsigned. 8-bit
 * integers are signed bytes, so there is no second product. One or two instructions multiply four
 * codes by four bytes of x and add the products in a 32-bit lane. The codes are transposed first,
 * so that all codes in a lane belong to one group, and lanes need not be added to each other
 * afterwards.
 *
 * With AVX-512, two blocks of q4_k are one unit of 16 groups, whose codes are 256 bytes, or 8 runs
 * of 32 bytes. The lower half of byte i of run r is code i of group 2r, and the upper half is code
 * i of group 2r + 1. A word is 4 bytes; 2.5 denotes word 5 of run 2, which is codes 20 to 23 of
 * groups 4 and 5. The vectors are loaded as
 *
 *                 16 bytes 0          16 bytes 1          16 bytes 2          16 bytes 3
 *   codes[0]   0.0 0.1 0.2 0.3     0.4 0.5 0.6 0.7     1.0 1.1 1.2 1.3     1.4 1.5 1.6 1.7
 *   codes[1]   2.0 2.1 2.2 2.3     2.4 2.5 2.6 2.7     3.0 3.1 3.2 3.3     3.4 3.5 3.6 3.7
 *   codes[2]   4.0 4.1 4.2 4.3     4.4 4.5 4.6 4.7     5.0 5.1 5.2 5.3     5.4 5.5 5.6 5.7
 *   codes[3]   6.0 6.1 6.2 6.3     6.4 6.5 6.6 6.7     7.0 7.1 7.2 7.3     7.4 7.5 7.6 7.7
 *
 * and transposed within each 16 bytes:
 *
 *   codes[0]   0.0 2.0 4.0 6.0     0.4 2.4 4.4 6.4     1.0 3.0 5.0 7.0     1.4 3.4 5.4 7.4
 *   codes[1]   0.1 2.1 4.1 6.1     0.5 2.5 4.5 6.5     1.1 3.1 5.1 7.1     1.5 3.5 5.5 7.5
 *   codes[2]   0.2 2.2 4.2 6.2     0.6 2.6 4.6 6.6     1.2 3.2 5.2 7.2     1.6 3.6 5.6 7.6
 *   codes[3]   0.3 2.3 4.3 6.3     0.7 2.7 4.7 6.7     1.3 3.3 5.3 7.3     1.7 3.7 5.7 7.7
 *
 * So lane 5 of the four vectors contains words 4 to 7 of run 2: the second half of the codes of
 * group 4 (in the lower halves of bytes) and of group 5 (in the upper halves). The lower halves of
 * bytes stay in codes[0] to codes[3], and the upper halves are moved to codes[4] to codes[7]. For
 * example, if bytes 16 to 19 of run 2 are 0x93 0x02 0x00 0x00, lane 5 of codes[0] is 3, 2, 0, 0 for
 * group 4, and lane 5 of codes[4] is 9, 0, 0, 0 for group 5. If q = 300 = 256 * 1 + 44 for element
 * 16 of group 4, q = -1 = 256 * -1 + 255 for element 17, and all others are zeros, the sum of lane
 * 5 is
 *
 *   256 * (3 * 1 + 2 * -1) + (3 * 44 + 2 * 255) = 898 = 3 * 300 + 2 * -1
 *
 * x is packed in the same order (put_bytes), so lane 5 of its vectors contains elements 16 to 31 of
 * group 4, and in vectors 4 to 7, of group 5. Instead of numbers, the panel contains
 *
 *   bytes  [units][tokens][upper, lower][8 vectors][lanes][4]
 *   bytes  [units][tokens][8 vectors][lanes][4]                    with integers of 8 bits
 *
 * In formats with the layout HALVES (q4_0), a vector contains 16 bytes of each of 4 adjacent blocks
 * (2 with AVX2). Each block is one group, and the upper halves of bytes are further codes of the
 * same group.
 */
#pragma once

#ifndef CODES
#define CODES "isa/codes_avx2.h"
#endif
#include "products/integer_panel.h"

/* Whether whole units of a format are multiplied as bytes. */
INLINE int takes_bytes(const ExpandedFormat f)
{
    const Layout layout = f.fields[0].layout;
    const int is_byte_order = layout == HALVES || layout == SHARED;
    const int is_plain = f.table == NULL && f.levels == NULL && f.fields[1].layout != WORD;
    return is_byte_order && is_plain && f.fields[0].bits == 4 && 4 + f.fields[1].bits <= BYTE_BITS;
}

/* One of the 8 vectors of a unit, and one of its 32-bit lanes. */
typedef struct BytePlace {
    int vector, lane;
} BytePlace;

/* The position of word `word` (0 to 7) of the unit's group g after transposing. */
INLINE BytePlace byte_place(int g, int word, const ExpandedFormat f)
{
    const int apart = f.fields[0].apart, half = word / 4;
    if (f.fields[0].layout == HALVES) /* a vector contains BYTE_LANES adjacent blocks */
        return (BytePlace){word, g % BYTE_LANES * 4 + g / BYTE_LANES};
    /* A vector contains runs of 32 bytes, and two groups share each run. */
    const int run = g / (2 * apart) * apart + g % apart, runs = BYTE_LANES / 2;
    return (BytePlace){g / apart % 2 * 4 + word % 4, (run % runs * 2 + half) * 4 + run / runs};
}

/* Bytes per unit of x: 8 vectors. */
enum { UNIT_BYTES = 8 * VEC_LANES * 4 };

/* Writes the 32 bytes of group `index` to the 8 vectors of its unit. */
INLINE void put_transposed(char *unit, const uint16_t bytes[X_GROUP / 2], ptrdiff_t index,
                           const ExpandedFormat f)
{
    for (int half = 0; half < 2; half++) {
        const BytePlace place = byte_place((int)(index % VEC_LANES), half * 4, f);
        char *out = unit + (place.vector * VEC_LANES + place.lane) * 4;
        for (int i = half * 8; i < half * 8 + 8; i += 2, out += VEC_LANES * 4)
            memcpy(out, bytes + i, 4);
    }
}

/* Splits the numbers of group `index` into bytes, and writes them to the panel. */
INLINE void put_upper_and_lower(float *panel, const int16_t *even, const int16_t *odd,
                                ptrdiff_t index, int tokens, int token, const ExpandedFormat f)
{
    char *unit = (char *)panel + (index / VEC_LANES * tokens + token) * 2 * UNIT_BYTES;
    uint16_t upper[X_GROUP / 2], lower[X_GROUP / 2]; /* bytes of an even and an odd number */
    for (int i = 0; i < X_GROUP / 2; i++)
        upper[i] = (uint16_t)((uint16_t)even[i] >> 8 | ((uint16_t)odd[i] & 0xFF00));
    join_bytes(lower, even, odd);
    put_transposed(unit, upper, index, f);
    put_transposed(unit + UNIT_BYTES, lower, index, f);
}

/* Writes the 8-bit integers of group `index` to the panel as bytes. */
INLINE void put_bytes(float *panel, const int16_t *even, const int16_t *odd, ptrdiff_t index,
                      int tokens, int token, const ExpandedFormat f)
{
    uint16_t bytes[X_GROUP / 2];
    join_bytes(bytes, even, odd);
    put_transposed((char *)panel + (index / VEC_LANES * tokens + token) * UNIT_BYTES, bytes, index,
                   f);
}

#if BYTE_BITS > 4
/*
 * Adds the bits of the second field. 8 or 4 adjacent groups share 32 bytes of this field. A vector
 * of codes contains 4 groups, so their bytes of the field are loaded and transposed like the codes.
 * Then each word is rotated, so that the bits of its group move to their position in a code.
 */
INLINE void add_upper_bits(ivec codes[8], const uint8_t *first, const ExpandedFormat f)
{
    const Field above = f.fields[1];
    int left[2][VEC_LANES];
    ivec bits[4];
#pragma GCC unroll 4
    for (int v = 0; v < 4; v++) {
        const int g = v * VEC_LANES / 4;
        bits[v] = load_for_all(field_bytes(first + g / 8 * f.code_bytes, g % 8, above));
    }
    transpose_in_lanes(bits);
#pragma GCC unroll 16
    for (int g = 0; g < VEC_LANES; g++)
#pragma GCC unroll 2
        for (int half = 0; half < 2; half++) {
            const BytePlace place = byte_place(g, half * 4, f);
            left[place.vector / 4][place.lane] = (above.to - field_from(g % 8, above)) & 31;
        }
#pragma GCC unroll 8
    for (int k = 0; k < 8; k++)
        codes[k] =
            or_rotated(codes[k], bits[k % 4], left[k / 4], ((1 << above.bits) - 1) << above.to);
}
#endif

/* Loads and transposes the codes of a unit. */
INLINE void load_byte_codes(ivec codes[8], const uint8_t *first, const ExpandedFormat f)
{
    const Field lowest = f.fields[0];
#pragma GCC unroll 4
    for (int v = 0; v < 4; v++) {
        const ptrdiff_t at = v * (ptrdiff_t)sizeof(ivec), in_block = f.elements / 2;
        codes[v] =
            lowest.layout == SHARED
                ? ivec_load(first + at / in_block * f.code_bytes + lowest.offset + at % in_block)
                : join_neighbours(first + v * BYTE_LANES * f.code_bytes, f.code_bytes,
                                  lowest.offset);
    }
    transpose_in_lanes(codes);
#pragma GCC unroll 4
    for (int k = 0; k < 4; k++) {
        codes[4 + k] = (ivec)((byte_lanes)((short_lanes)codes[k] >> 4) & 15);
        codes[k] = (ivec)((byte_lanes)codes[k] & 15);
    }
#if BYTE_BITS > 4
    if (f.fields[1].bits)
        add_upper_bits(codes, first, f);
#endif
}

/* If no instruction adds four products of bytes in 32 bits, two products are
 * first added in 16 bits. */
#ifdef ADDS_BYTES
#define BYTES_IN_16_BITS 0
#else
#define BYTES_IN_16_BITS 1
INLINE ivec add_bytes(ivec sum, ivec is_unsigned, ivec is_signed)
{
    return (ivec)((short_lanes)sum + (short_lanes)multiply_bytes(is_unsigned, is_signed));
}
#endif

/* Multiplies sums of products of bytes by a factor, and returns them in 32 bits. */
INLINE ivec widen_byte_sums(ivec sums, const int16_t factor)
{
    if (BYTES_IN_16_BITS)
        return multiply_pairs(sums, (ivec)((short_lanes){0} + factor));
    return factor == 1 ? sums : (ivec)((int_lanes)sums * factor);
}

/*
 * Arranges the sums, which are in the lanes of the codes, in the order of the groups. If two groups
 * share bytes, lower_halves and upper_halves have moved the even groups to the first half of the
 * vector and the odd groups to the second half. With 16 groups, the order in pieces of 4 lanes is
 *
 *   groups 0 4 8 12 | 2 6 10 14 | 1 5 9 13 | 3 7 11 15
 */
INLINE ivec order_sums(ivec sums, const ExpandedFormat f)
{
    int places[VEC_LANES];
#pragma GCC unroll 16
    for (int g = 0; g < VEC_LANES; g++) {
        const BytePlace place = byte_place(g, 0, f);
        const int half = place.vector / 4 * (VEC_LANES / 2);
        places[g] =
            f.fields[0].layout == SHARED ? half + place.lane / 8 * 4 + place.lane % 4 : place.lane;
    }
    return order_words(sums, places);
}

/*
 * Computes the exact sums of the groups of a unit for several rows, which share the loads of x:
 * sums[r][0] of whole groups, or for two parts sums[r][0] of their first halves and sums[r][1] of
 * their second halves. With an instruction that adds products of bytes in 32 bits (ADDS_BYTES), the
 * four vectors of each nibble are added. Otherwise, a 16-bit sum can contain the products of 255
 * and four pairs of 4-bit codes, two pairs of 5-bit codes, or one pair of 6-bit codes. The products
 * with 8-bit integers, which are at most 127, leave room for codes with one more bit.
 */
INLINE void sum_byte_codes(ivec (*sums)[2], const ivec *const *codes, const ptrdiff_t rows,
                           const char *x, const ExpandedFormat f, const PanelKind kind)
{
    const int is_cut = kind == PANEL_INT16; /* split into upper and lower bytes */
    const int longer = is_cut ? f.fields[1].bits : f.fields[1].bits / 2;
    const int most = BYTES_IN_16_BITS ? 4 >> longer : 4;
    ivec all[STREAMS][2] = {{{0}}}, by_signed[STREAMS], by_lower[STREAMS];
#pragma GCC unroll 8
    for (int k = 0; k < 8; k++) {
        /* 8-bit integers, or the upper bytes. */
        ivec is_signed = ivec_load(x + k * (ptrdiff_t)sizeof(ivec));
        ivec lower = is_cut ? ivec_load(x + UNIT_BYTES + k * (ptrdiff_t)sizeof(ivec)) : is_signed;
        if (VEC_PARTS == 1) { /* there are enough registers; otherwise x is loaded for each row */
            forget_vector(is_signed);
            if (is_cut)
                forget_vector(lower);
        }
#pragma GCC unroll 2
        for (ptrdiff_t r = 0; r < rows; r++) {
            if (k % most == 0)
                by_signed[r] = by_lower[r] = (ivec){0};
            /* Codes are below 128, so they can be the signed or the unsigned operand. */
            by_signed[r] = add_bytes(by_signed[r], codes[r][k], is_signed);
            if (is_cut)
                by_lower[r] = add_bytes(by_lower[r], lower, codes[r][k]);
            if (k % most < most - 1)
                continue;
            ivec sum = widen_byte_sums(by_signed[r], is_cut ? 256 : 1);
            if (is_cut)
                sum = ivec_add(sum, widen_byte_sums(by_lower[r], 1));
            all[r][k / 4] = ivec_add(all[r][k / 4], sum);
        }
    }
#pragma GCC unroll 2
    for (ptrdiff_t r = 0; r < rows; r++) {
        const int shared = f.fields[0].layout == SHARED;
        const ivec first = shared ? lower_halves(all[r][0], all[r][1]) : all[r][0];
        const ivec second = shared ? upper_halves(all[r][0], all[r][1]) : all[r][1];
        sums[r][0] = order_sums(f.parts == 1 ? ivec_add(first, second) : first, f);
        sums[r][1] = order_sums(second, f);
    }
}
