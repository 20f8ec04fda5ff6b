/* AVX2 vectors for the codes of block-quantized weights. */
#pragma once
#include "codes_avx_bytes.h"

/* Rows side by side: with their tables no more fit into the registers. */
enum { CODE_ROWS = 2 };

typedef struct Table {
    vec lower, upper; /* of codes 0 to 7, and 8 to 15 */
} Table;

/* The values of the 16 codes, times the scale of a block. */
INLINE Table table_times(const float values[16], float scale)
{
    const __m256 factor = _mm256_set1_ps(scale);
    return (Table){_mm256_mul_ps(_mm256_loadu_ps(values), factor),
                   _mm256_mul_ps(_mm256_loadu_ps(values + 8), factor)};
}

/*
 * Eight of the 16 elements of 8 bytes, in order: 4 bytes in every lane, shifted so that each begins
 * with its code. vpermps reads the lower three bits of it; the fourth, made the sign, chooses.
 */
INLINE vec table_values(const uint8_t *codes, Table table, int part)
{
    int32_t four;
    memcpy(&four, codes + 4 * part, sizeof four);
    const __m256i places = _mm256_setr_epi32(4, 0, 12, 8, 20, 16, 28, 24);
    const __m256i numbers = _mm256_srlv_epi32(_mm256_set1_epi32(four), places);
    return _mm256_blendv_ps(_mm256_permutevar8x32_ps(table.lower, numbers),
                            _mm256_permutevar8x32_ps(table.upper, numbers),
                            _mm256_castsi256_ps(_mm256_slli_epi32(numbers, 28)));
}

INLINE vec to_code_order(vec elements) { return elements; }
INLINE vec from_code_order(vec lanes) { return lanes; }

/* A vector of integers: here of one group of codes. */
typedef __m256i ivec;
enum { VECTOR_GROUPS = 1 };

INLINE ivec join_groups(const group *groups) { return groups[0]; }

/* a[2i] * b[2i] + a[2i+1] * b[2i+1] */
INLINE ivec multiply_pairs(ivec a, ivec b) { return _mm256_madd_epi16(a, b); }

/* sum + multiply_pairs(a, b); in one step only with AVX-512. */
INLINE ivec add_products(const int one_step, ivec sum, ivec a, ivec b)
{
    (void)one_step;
    return _mm256_add_epi32(sum, multiply_pairs(a, b));
}

INLINE int adds_in_one_step(void) { return 0; }

/* Words of a and b in turn, from the lower or upper halves of each 16 bytes. */
INLINE ivec lower_words(ivec a, ivec b) { return _mm256_unpacklo_epi32(a, b); }
INLINE ivec upper_words(ivec a, ivec b) { return _mm256_unpackhi_epi32(a, b); }

/* The same with pairs of words. */
INLINE ivec lower_pairs(ivec a, ivec b) { return _mm256_unpacklo_epi64(a, b); }
INLINE ivec upper_pairs(ivec a, ivec b) { return _mm256_unpackhi_epi64(a, b); }

/* The lower 16 bytes of each of a and b, and the upper ones. */
INLINE ivec lower_quarters(ivec a, ivec b) { return _mm256_permute2x128_si256(a, b, 0x20); }
INLINE ivec upper_quarters(ivec a, ivec b) { return _mm256_permute2x128_si256(a, b, 0x31); }

/* Of two vectors that hold, in each 16 bytes, one partial sum of 4 vectors: the sums of blocks, or
 * of one half of each. */
INLINE ivec join_blocks(ivec a, ivec b)
{
    return _mm256_add_epi32(lower_quarters(a, b), upper_quarters(a, b));
}

INLINE ivec join_halves(ivec a, ivec b, int half)
{
    return half ? upper_quarters(a, b) : lower_quarters(a, b);
}

/* Numbers of 16 bits for VEC_LANES groups. */
INLINE halves join_words(const uint64_t *words)
{
    return (halves)_mm_set_epi64x((int64_t)words[1], (int64_t)words[0]);
}

/* The steps of VEC_LANES groups (formats.h), of one part of each. */
INLINE vec widen_steps(const uint64_t *steps, int parts, int part)
{
    if (parts == 1)
        return _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(_mm_cvtsi64_si128((int64_t)steps[0])));
    const __m256i both = _mm256_cvtepi16_epi32((__m128i)join_words(steps));
    const __m256i first = _mm256_srai_epi32(_mm256_slli_epi32(both, 24), 24);
    return _mm256_cvtepi32_ps(part ? _mm256_srai_epi32(both, 8) : first);
}
