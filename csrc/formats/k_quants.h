/*
 * The "K-quants" of ggml: blocks of 256 elements in 8 groups. The scale of a group is a float16 of
 * the block times a small integer s. If a format has minima, another float16 of the block times a
 * small integer n is subtracted.
 *
 *   q2_k  d * s * q - m * n  16 bytes of s and n, 4 bits each, for halves of groups; 64 bytes of q;
 *                            d; m
 *   q3_k  d * s * (q - 4)    32 bytes of upper bits of q; 64 bytes of the lower two bits; 12 bytes
 *                            of s + 32, 6 bits each, for halves of groups; d
 *   q4_k  d * s * q - m * n  d; m; 12 bytes of s and n, 6 bits each; 128 bytes of q
 *   q5_k  d * s * q - m * n  d; m; 12 bytes of s and n, 6 bits each; 32 bytes of fifth bits; 128
 *                            bytes of lower bits
 *   q6_k  d * s * (q - 32)   128 bytes of lower bits; 64 bytes of the upper two bits; 16 int8 s for
 *                            halves of groups; d
 *
 * The fields at the end of this file specify the positions of the bits of the codes; format.h draws
 * them.
 *
 * A block of q4_k, for example, 144 bytes, byte by byte:
 *
 *     0       2       4                16               48            80           112       143
 *     | d     | m     | s and n, 12 B  | groups 0, 1    | groups 2, 3 | groups 4, 5 | groups 6, 7 |
 *      float16 float16                   32 bytes each; byte i: code i of the first group in its
 *                                        lower half, code i of the second group in its upper half
 *
 * An element of group g is d * s[g] * q - m * n[g]. For example, in a block with d = 0.5, m = 0.25,
 * s[1] = 3, n[1] = 7 and 0x92 in byte 18, element 2 of group 0 has the code 2, and element 2 of
 * group 1 has the code 9. That is element 34 of the block, and its value is 0.5 * 3 * 9 - 0.25 * 7
 * = 11.75.
 */
#pragma once
#include "formats/format.h"

/* Stores the scale that the 8 groups of a block share. */
INLINE void share_scale(Factors *factors, int at, const uint8_t *d)
{
    put_half(factors->scales, at / STEPS_OF_SCALE, half_at(d));
}

/* Stores the shared scale, and the shared minimum, which is -m because m is subtracted. */
INLINE void share_factors(Factors *factors, int at, const uint8_t *d)
{
    share_scale(factors, at, d);
    put_half(factors->mins, at / STEPS_OF_SCALE, half_at(d + 2) ^ 0x8000u);
}

enum { Q2_CODES = 16, Q2_D = 80, Q3_CODES = 32, Q3_STEPS = 96, Q3_D = 108, Q5_CODES = 48 };
enum { Q6_UPPER = 128, Q6_STEPS = 192, Q6_D = 208, K_STEPS = 4, K_CODES = 16 };

INLINE void q2_k_factors(Factors *factors, int at, const uint8_t *block, const void *scale)
{
    (void)scale;
    share_factors(factors, at, block + Q2_D);
#pragma GCC unroll 2
    for (int i = 0; i < 2; i++) {
        uint64_t both;
        memcpy(&both, block + 8 * i, sizeof both);
        factors->scale_steps[at / 4 + i] = both & 0x0F0F0F0F0F0F0F0Fu;
        factors->min_steps[at / 4 + i] = both >> 4 & 0x0F0F0F0F0F0F0F0Fu;
    }
}

/*
 * The 12 bytes of 16 steps s + 32 with 6 bits each. The first 8 bytes contain the lower four bits:
 * step i is in the lower half of byte i, and step i + 8 in its upper half. The other 4 bytes
 * contain the upper two bits: byte i contains them for steps i, i + 4, i + 8 and i + 12, starting
 * from its lowest bits.
 */
INLINE void q3_k_factors(Factors *factors, int at, const uint8_t *block, const void *scale)
{
    (void)scale;
    uint64_t lower;
    uint32_t upper;
    memcpy(&lower, block + Q3_STEPS, sizeof lower);
    memcpy(&upper, block + Q3_STEPS + 8, sizeof upper);
    share_scale(factors, at, block + Q3_D);
#pragma GCC unroll 2
    for (int i = 0; i < 2; i++) {
        const uint64_t high = upper >> 4 * i & 0x03030303u;
        const uint64_t next = upper >> (4 * i + 2) & 0x03030303u;
        const uint64_t steps = (lower >> 4 * i & 0x0F0F0F0F0F0F0F0Fu) | high << 4 | next << 36;
        /* Subtract 32 from each byte. The upper bit of each byte is set meanwhile to prevent a
         * borrow from the next byte. */
        factors->scale_steps[at / 4 + i] =
            ((steps | 0x8080808080808080u) - 0x2020202020202020u) ^ 0x8080808080808080u;
    }
}

/*
 * The 12 bytes of s and n, 6 bits each; a digit is the group, bits from the highest to the lowest:
 *
 *   bytes 0 - 3    s4 s4 s0 s0 s0 s0 s0 s0     and so on to  s7 s7 s3 s3 s3 s3 s3 s3
 *   bytes 4 - 7    n4 n4 n0 n0 n0 n0 n0 n0                   n7 n7 n3 n3 n3 n3 n3 n3
 *   bytes 8 - 11   n4 n4 n4 n4 s4 s4 s4 s4                   n7 n7 n7 n7 s7 s7 s7 s7
 *
 * The upper two bits of groups 4 to 7 are in bytes 0 - 7, and their lower four bits are in bytes 8
 * - 11.
 */
INLINE void q4_k_factors(Factors *factors, int at, const uint8_t *block, const void *scale)
{
    (void)scale;
    uint64_t both;
    uint32_t lower;
    memcpy(&both, block + K_STEPS, sizeof both);
    memcpy(&lower, block + K_STEPS + 8, sizeof lower);
    const uint64_t first = both & 0x3F3F3F3F3F3F3F3Fu;
    const uint64_t next =
        ((lower | (uint64_t)lower << 28) & 0x0F0F0F0F0F0F0F0Fu) | (both >> 2 & 0x3030303030303030u);
    share_factors(factors, at, block);
    factors->scale_steps[at / 8] = (uint32_t)first | next << 32;
    factors->min_steps[at / 8] = first >> 32 | (next & 0xFFFFFFFF00000000u);
}

INLINE void q6_k_factors(Factors *factors, int at, const uint8_t *block, const void *scale)
{
    (void)scale;
    share_scale(factors, at, block + Q6_D);
    memcpy(factors->scale_steps + at / 4, block + Q6_STEPS, 16);
}

static const ExpandedFormat q2_k_format = {
    .elements = q2_k_elements,
    .code_bytes = q2_k_code_bytes,
    .fields = {{SHARED, .offset = Q2_CODES, .bits = 2, .apart = 1}},
    .factors = q2_k_factors,
    .scale_type = TYPE_FLOAT16,
    .parts = 2,
    .has_steps = 1,
    .has_mins = 2,
};
static const ExpandedFormat q3_k_format = {
    .elements = q3_k_elements,
    .code_bytes = q3_k_code_bytes,
    .fields = {{SHARED, .offset = Q3_CODES, .bits = 2, .apart = 1},
               {SHARED, .bits = 1, .apart = 1, .to = 2}},
    .less = 4,
    .factors = q3_k_factors,
    .scale_type = TYPE_FLOAT16,
    .parts = 2,
    .has_steps = 1,
};
static const ExpandedFormat q4_k_format = {
    .elements = q4_k_elements,
    .code_bytes = q4_k_code_bytes,
    .fields = {{SHARED, .offset = K_CODES, .bits = 4, .apart = 1}},
    .factors = q4_k_factors,
    .scale_type = TYPE_FLOAT16,
    .parts = 1,
    .has_steps = 1,
    .has_mins = 2,
};
static const ExpandedFormat q5_k_format = {
    .elements = q5_k_elements,
    .code_bytes = q5_k_code_bytes,
    .fields = {{SHARED, .offset = Q5_CODES, .bits = 4, .apart = 1},
               {SHARED, .offset = K_CODES, .bits = 1, .apart = 1, .to = 4}},
    .factors = q4_k_factors,
    .scale_type = TYPE_FLOAT16,
    .parts = 1,
    .has_steps = 1,
    .has_mins = 2,
};
static const ExpandedFormat q6_k_format = {
    .elements = q6_k_elements,
    .code_bytes = q6_k_code_bytes,
    .fields = {{SHARED, .bits = 4, .apart = 2},
               {SHARED, .offset = Q6_UPPER, .bits = 2, .apart = 1, .to = 4}},
    .less = 32,
    .factors = q6_k_factors,
    .scale_type = TYPE_FLOAT16,
    .parts = 2,
    .has_steps = 1,
};
