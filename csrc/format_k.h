/*
 * The "K-quants" of ggml: blocks of 256 elements in 8 groups, whose scale is a float16 of the block
 * times a small integer s, and whose minimum, where there is one, another float16 times n.
 *
 *   q2_k  d * s * q - m * n  16 bytes of s and n, 4 bits each, for halves of groups; 64 bytes of q;
 *                            d; m
 *   q3_k  d * s * (q - 4)    32 bytes of upper bits of q; 64 bytes of the two lower ones; 12 bytes
 *                            of s + 32, 6 bits each, for halves of groups; d
 *   q4_k  d * s * q - m * n  d; m; 12 bytes of s and n, 6 bits each; 128 bytes of q
 *   q5_k  d * s * q - m * n  d; m; 12 bytes of s and n, 6 bits each; 32 bytes of fifth bits; 128
 *                            bytes of lower bits
 *   q6_k  d * s * (q - 32)   128 bytes of lower bits; 64 bytes of the two upper ones; 16 int8 s for
 *                            halves of groups; d
 *
 * Codes of 4 bits: group g and g + 1 are the lower and upper halves of the same 32 bytes, in q6_k g
 * and g + 2. Codes of 2 bits: four groups share 32 bytes; of 1 bit: all eight.
 */
#pragma once
#include "formats.h"

/* One scale for the 8 groups of a block. */
INLINE void share_scale(Factors *factors, int at, const uint8_t *d)
{
    put_half(factors->scales, at / STEPS_OF_SCALE, half_at(d));
}

/* The same, and behind it m, which is taken off: the minimum is -m. */
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

/* Lower bits of 8 steps in the halves of 8 bytes, upper ones of 4 in each two bits of 4 bytes. */
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
        /* Each byte less 32: the upper bit, set meanwhile, keeps a borrow within it. */
        factors->scale_steps[at / 4 + i] =
            ((steps | 0x8080808080808080u) - 0x2020202020202020u) ^ 0x8080808080808080u;
    }
}

/* Four s, four n, and the lower bits of further four of both, whose upper ones are above those. */
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

/* The members that are common to all: fields take the place of `expand`. */
#define K_QUANT(name, factors) BLOCK_SIZES(name), NULL, factors, TYPE_FLOAT16, .has_steps = 1

static const ExpandedFormat q2_k_format = {
    K_QUANT(q2_k, q2_k_factors),
    .parts = 2,
    .has_mins = 2,
    .fields = {{Q2_CODES, .bits = 2, .apart = 1}},
};
static const ExpandedFormat q3_k_format = {
    K_QUANT(q3_k, q3_k_factors),
    .parts = 2,
    .fields = {{Q3_CODES, .bits = 2, .apart = 1}, {0, .bits = 1, .apart = 1, .to = 2}},
    .less = 4,
};
static const ExpandedFormat q4_k_format = {
    K_QUANT(q4_k, q4_k_factors),
    .parts = 1,
    .has_mins = 2,
    .fields = {{K_CODES, .bits = 4, .apart = 1}},
};
static const ExpandedFormat q5_k_format = {
    K_QUANT(q5_k, q4_k_factors),
    .parts = 1,
    .has_mins = 2,
    .fields = {{Q5_CODES, .bits = 4, .apart = 1}, {K_CODES, .bits = 1, .apart = 1, .to = 4}},
};
static const ExpandedFormat q6_k_format = {
    K_QUANT(q6_k, q6_k_factors),
    .parts = 2,
    .fields = {{0, .bits = 4, .apart = 2}, {Q6_UPPER, .bits = 2, .apart = 1, .to = 4}},
    .less = 32,
};
