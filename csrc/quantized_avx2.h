/* AVX2 vectors for quantized_tile.h. */
#ifndef LLAMA_BOLTS_QUANTIZED_AVX2_H
#define LLAMA_BOLTS_QUANTIZED_AVX2_H

#include "nf4_avx2.h"

INLINE vec vec_all_of(float x)
{
    return _mm256_set1_ps(x);
}

INLINE vec vec_multiply(vec a, vec b)
{
    return _mm256_mul_ps(a, b);
}

INLINE vec vec_subtract(vec a, vec b)
{
    return _mm256_sub_ps(a, b);
}

/* c - a * b, rounded once. */
INLINE vec vec_negative_multiply_add(vec a, vec b, vec c)
{
    return _mm256_fnmadd_ps(a, b, c);
}

/* Words of two bfloat16: the odd one in the upper half. Both lower halves are zeros. */
INLINE vec join_pairs(vec odd, vec even)
{
    const __m256i lower = _mm256_srli_epi32(_mm256_castps_si256(even), 16);
    return _mm256_or_ps(odd, _mm256_castsi256_ps(lower));
}

/* 16 codes, two to a word. */
INLINE vec int8_words(const uint8_t *codes, int part)
{
    return _mm256_castsi256_ps(
        _mm256_cvtepi16_epi32(_mm_loadu_si128((const __m128i *)(codes + 16 * part))));
}

/* The odd ones times 2^8 (phase 0), or the even ones times 2^24. */
INLINE vec int8_values(vec words, int phase)
{
    const __m256i w = _mm256_castps_si256(words);
    return _mm256_cvtepi32_ps(phase == 0 ? _mm256_and_si256(w, _mm256_set1_epi32(-0x100))
                                         : _mm256_slli_epi32(w, 24));
}

#include "quantized_tile.h"

#endif
