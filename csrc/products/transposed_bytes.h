/*
 * Codes of 4 to BYTE_BITS bits times few tokens, as bytes: with AVX2 and AVX-512.
 *
 * Codes are 0 to 63 here, so they need not become 16 bits. The numbers of x are cut into bytes: a
 * number is 256 * upper + lower, where upper is signed and lower is not. Integers of 8 bits are
 * signed bytes already, and there is no second product. Four codes times four
 * bytes of x are added up in a lane of 32 bits by one or two instructions. The codes are transposed
 * first, so that a lane meets codes of one group only, and no lanes have to be added to one another
 * after.
 *
 * Two blocks of q4_k with AVX-512 are one unit: 16 groups, whose codes are 256 bytes, 8 runs of 32.
 * In byte i of run r, the lower half is code i of group 2r, the upper half code i of group 2r + 1.
 * A word is 4 bytes; 2.5 is word 5 of run 2, codes 20 to 23 of groups 4 and 5. Vectors as loaded:
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
 * So lane 5 of all four vectors is run 2, words 4 to 7: the second half of the codes of group 4 (in
 * the lower halves of bytes) and of group 5 (in the upper halves). The lower halves of bytes stay
 * in codes[0] to codes[3], the upper halves go to codes[4] to codes[7]. If bytes 16 to 19 of run 2
 * are 0x93 0x02 0x00 0x00, then lane 5 of codes[0] is 3, 2, 0, 0 for group 4, and that of codes[4]
 * is 9, 0, 0, 0 for group 5. With q = 300 = 256 * 1 + 44 for element 16 of group 4, q = -1 = 256 *
 * -1 + 255 for element 17, and zeros else, the sum of lane 5 is
 *
 *   256 * (3 * 1 + 2 * -1) + (3 * 44 + 2 * 255) = 898 = 3 * 300 + 2 * -1
 *
 * x is packed in the same order (put_bytes), so lane 5 of its vectors has elements 16 to 31 of
 * group 4, and of group 5 in vectors 4 to 7. The panel has for each unit, instead of numbers:
 *
 *   bytes  [units][tokens][upper, lower][8 vectors][lanes][4]
 *   bytes  [units][tokens][8 vectors][lanes][4]                    with integers of 8 bits
 *
 * In a block of HALVES (q4_0) a vector has 16 bytes of each of 4 neighbouring blocks, one group
 * each (2 with AVX2), and the upper halves of bytes are further codes of the same group.
 */
#pragma once

#ifndef CODES
#define CODES "isa/codes_avx2.h"
#endif
#include "products/integer_panel.h"

/* Whether whole units of a format take this way. */
INLINE int takes_bytes(const ExpandedFormat f)
{
    const Layout layout = f.fields[0].layout;
    const int is_byte_order = layout == HALVES || layout == SHARED;
    const int is_plain = f.table == NULL && f.levels == NULL && f.fields[1].layout != WORD;
    return is_byte_order && is_plain && f.fields[0].bits == 4 && 4 + f.fields[1].bits <= BYTE_BITS;
}

/* One of the 8 vectors of a unit, and one of its lanes of 32 bits. */
typedef struct BytePlace {
    int vector, lane;
} BytePlace;

/* Where word `word` of the 8 of the unit's group g is after transposing. */
INLINE BytePlace byte_place(int g, int word, const ExpandedFormat f)
{
    const int apart = f.fields[0].apart, half = word / 4;
    if (f.fields[0].layout == HALVES) /* a vector is BYTE_LANES neighbouring blocks */
        return (BytePlace){word, g % BYTE_LANES * 4 + g / BYTE_LANES};
    /* A vector is runs of 32 bytes, each of which two groups share. */
    const int run = g / (2 * apart) * apart + g % apart, runs = BYTE_LANES / 2;
    return (BytePlace){g / apart % 2 * 4 + word % 4, (run % runs * 2 + half) * 4 + run / runs};
}

/* Bytes of x for a unit: 8 vectors. */
enum { UNIT_BYTES = 8 * VEC_LANES * 4 };

/* Puts the 32 bytes of group `index` into the 8 vectors of its unit. */
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

/* Cuts the numbers of group `index` into bytes, and puts these into the panel. */
INLINE void put_upper_and_lower(float *panel, const int16_t *even, const int16_t *odd,
                                ptrdiff_t index, int tokens, int token, const ExpandedFormat f)
{
    char *unit = (char *)panel + (index / VEC_LANES * tokens + token) * 2 * UNIT_BYTES;
    uint16_t upper[X_GROUP / 2], lower[X_GROUP / 2]; /* of an even and an odd number */
    for (int i = 0; i < X_GROUP / 2; i++)
        upper[i] = (uint16_t)((uint16_t)even[i] >> 8 | ((uint16_t)odd[i] & 0xFF00));
    join_bytes(lower, even, odd);
    put_transposed(unit, upper, index, f);
    put_transposed(unit + UNIT_BYTES, lower, index, f);
}

/* The same of integers of 8 bits. */
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
 * Adds the bits of the second field, whose 32 bytes 8 or 4 groups share; its groups are neighbours.
 * A vector of codes is of 4 groups, and takes the bytes of these, transposed as the codes are. Each
 * word is then rotated, so that the bits of its group get to their place in a code.
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

/* Where no instruction adds four products of bytes to 32 bits, two are added to 16 bits first. */
#ifdef ADDS_BYTES
#define BYTES_IN_16_BITS 0
#else
#define BYTES_IN_16_BITS 1
INLINE ivec add_bytes(ivec sum, ivec is_unsigned, ivec is_signed)
{
    return (ivec)((short_lanes)sum + (short_lanes)multiply_bytes(is_unsigned, is_signed));
}
#endif

/* Sums of products of bytes as 32 bits, times a factor. */
INLINE ivec widen_byte_sums(ivec sums, const int16_t factor)
{
    if (BYTES_IN_16_BITS)
        return multiply_pairs(sums, (ivec)((short_lanes){0} + factor));
    return factor == 1 ? sums : (ivec)((int_lanes)sums * factor);
}

/*
 * Sums that are in the lanes of words of codes, in the order of the groups. Where two groups share
 * bytes, lower_halves and upper_halves have brought the even groups into the first half of the
 * vector and the odd groups into the second one; with 16 groups in pieces of 4 lanes:
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
 * The exact sums of the groups of a unit, of several rows, which read x once: sums[r][0] of whole
 * groups, or with two parts sums[r][0] of their first halves and sums[r][1] of the second ones.
 * With an instruction that adds products of bytes to 32 bits (ADDS_BYTES), four vectors at a time
 * are added, those of one nibble. A sum of 16 bits holds that of four pairs of codes of 4 bits
 * times 255; two of 5 bits, or one of 6. Times the 127 of integers of 8 bits, it holds as many
 * pairs of codes that are one bit longer.
 */
INLINE void sum_byte_codes(ivec (*sums)[2], const ivec *const *codes, const ptrdiff_t rows,
                           const char *x, const ExpandedFormat f, const PanelKind kind)
{
    const int is_cut = kind == PANEL_INT16; /* into upper and lower bytes */
    const int longer = is_cut ? f.fields[1].bits : f.fields[1].bits / 2;
    const int most = BYTES_IN_16_BITS ? 4 >> longer : 4;
    ivec all[STREAMS][2] = {{{0}}}, by_signed[STREAMS], by_lower[STREAMS];
#pragma GCC unroll 8
    for (int k = 0; k < 8; k++) {
        /* Integers of 8 bits, or the upper bytes. */
        ivec is_signed = ivec_load(x + k * (ptrdiff_t)sizeof(ivec));
        ivec lower = is_cut ? ivec_load(x + UNIT_BYTES + k * (ptrdiff_t)sizeof(ivec)) : is_signed;
        if (VEC_PARTS == 1) { /* there are registers for it: else they are loaded for each row */
            forget_vector(is_signed);
            if (is_cut)
                forget_vector(lower);
        }
#pragma GCC unroll 2
        for (ptrdiff_t r = 0; r < rows; r++) {
            if (k % most == 0)
                by_signed[r] = by_lower[r] = (ivec){0};
            /* Codes are below 128, so they are a signed or an unsigned operand alike. */
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
