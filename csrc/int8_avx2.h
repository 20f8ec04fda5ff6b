/* AVX2 vectors for int8_tile.h: a vector of codes is one block. */
#ifndef LLAMA_BOLTS_INT8_AVX2_H
#define LLAMA_BOLTS_INT8_AVX2_H

#include "int8_rows.h"
#include "tile.h"

typedef __m256i ivec;

INLINE ivec ivec_load(const void *p)
{
    return _mm256_loadu_si256((const __m256i *)p);
}

INLINE void ivec_store(void *p, ivec v)
{
    _mm256_storeu_si256((__m256i *)p, v);
}

INLINE ivec ivec_all_of(const int16_t *pair)
{
    int32_t both;
    memcpy(&both, pair, sizeof both);
    return _mm256_set1_epi32(both);
}

INLINE ivec ivec_add(ivec a, ivec b)
{
    return _mm256_add_epi32(a, b);
}

/* a[2i] * b[2i] + a[2i+1] * b[2i+1] */
INLINE ivec multiply_pairs(ivec a, ivec b)
{
    return _mm256_madd_epi16(a, b);
}

/* sum + multiply_pairs(a, b); in one step only with AVX-512. */
INLINE ivec add_products(const int one_step, ivec sum, ivec a, ivec b)
{
    (void)one_step;
    return ivec_add(sum, multiply_pairs(a, b));
}

INLINE int adds_in_one_step(void)
{
    return 0;
}

/* Codes in the upper bytes of words, to words: odd codes. */
INLINE ivec upper_codes(ivec codes)
{
    return _mm256_srai_epi16(codes, 8);
}

/* Even codes, times 2^8. */
INLINE ivec lower_codes_times_256(ivec codes)
{
    return _mm256_slli_epi16(codes, 8);
}

INLINE ivec divide_by_256(ivec v)
{
    return _mm256_srai_epi32(v, 8);
}

/* Where x's numbers for the i-th vector of codes are; pairs of blocks lie `apart` from another. */
INLINE const int16_t *numbers_of(const int16_t *x, ptrdiff_t apart, int i)
{
    return x + i / 2 * apart + i % 2 * 16;
}

INLINE vec vec_multiply(vec a, vec b)
{
    return _mm256_mul_ps(a, b);
}

INLINE vec ivec_to_float(ivec v)
{
    return _mm256_cvtepi32_ps(v);
}

INLINE vec vec_load_bf16(const uint16_t *x)
{
    const __m256i words = _mm256_cvtepu16_epi32(_mm_loadu_si128((const __m128i *)x));
    return _mm256_castsi256_ps(_mm256_slli_epi32(words, 16));
}

/* Words of a and b in turn, from the lower or upper halves of each 16 bytes. */
INLINE ivec lower_words(ivec a, ivec b)
{
    return _mm256_unpacklo_epi32(a, b);
}

INLINE ivec upper_words(ivec a, ivec b)
{
    return _mm256_unpackhi_epi32(a, b);
}

/* The same with pairs of words. */
INLINE ivec lower_pairs(ivec a, ivec b)
{
    return _mm256_unpacklo_epi64(a, b);
}

INLINE ivec upper_pairs(ivec a, ivec b)
{
    return _mm256_unpackhi_epi64(a, b);
}

/* The lower 16 bytes of each of a and b, and the upper ones. */
INLINE ivec lower_quarters(ivec a, ivec b)
{
    return _mm256_permute2x128_si256(a, b, 0x20);
}

INLINE ivec upper_quarters(ivec a, ivec b)
{
    return _mm256_permute2x128_si256(a, b, 0x31);
}

/* Of two vectors that hold, in each 16 bytes, one partial sum of 4 vectors: the sums of blocks. */
INLINE ivec join_blocks(ivec a, ivec b)
{
    return ivec_add(lower_quarters(a, b), upper_quarters(a, b));
}

/* A block of codes of the i-th row. */
INLINE ivec load_rows(const uint8_t *const *rows, int i, ptrdiff_t at)
{
    return ivec_load(rows[i] + at);
}

#include "int8_tile.h"

#endif
