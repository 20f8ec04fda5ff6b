/* AVX-512 vectors for quantized_tile.h. */
#ifndef LLAMA_BOLTS_QUANTIZED_AVX512_H
#define LLAMA_BOLTS_QUANTIZED_AVX512_H

#include "nf4_avx512.h"

INLINE vec vec_all_of(float x)
{
    return _mm512_set1_ps(x);
}

INLINE vec vec_multiply(vec a, vec b)
{
    return _mm512_mul_ps(a, b);
}

INLINE vec vec_subtract(vec a, vec b)
{
    return _mm512_sub_ps(a, b);
}

/* c - a * b, rounded once. */
INLINE vec vec_negative_multiply_add(vec a, vec b, vec c)
{
    return _mm512_fnmadd_ps(a, b, c);
}

/* Words of two bfloat16: the odd one in the upper half. Both lower halves are zeros. */
INLINE vec join_pairs(vec odd, vec even)
{
    return _mm512_castsi512_ps(_mm512_or_si512(
        _mm512_castps_si512(odd), _mm512_srli_epi32(_mm512_castps_si512(even), 16)));
}

/* 32 codes, two to a word. */
INLINE vec int8_words(const uint8_t *codes, int part)
{
    (void)part;
    return _mm512_castsi512_ps(
        _mm512_cvtepi16_epi32(_mm256_loadu_si256((const __m256i *)codes)));
}

/* The odd ones times 2^8 (phase 0), or the even ones times 2^24. */
INLINE vec int8_values(vec words, int phase)
{
    const __m512i w = _mm512_castps_si512(words);
    return _mm512_cvtepi32_ps(phase == 0 ? _mm512_and_si512(w, _mm512_set1_epi32(-0x100))
                                         : _mm512_slli_epi32(w, 24));
}

#include "quantized_tile.h"

#endif
