/* AVX-512 vectors for tile.h: one vector holds the 16 lanes of a sum. */
#ifndef LLAMA_BOLTS_DOT_AVX512_H
#define LLAMA_BOLTS_DOT_AVX512_H

#include <immintrin.h>
#include <stddef.h>

#include "scalar.h"

/* 4 x 6 accumulators, 4 weights, 1 activation and the mask: 30 of 32 registers. */
enum { VEC_LANES = 16, PASS_LANES = VEC_LANES, TILE_ROWS = 4, TILE_VECTORS = 4 };

typedef __m512 vec;

INLINE vec vec_zero(void)
{
    return _mm512_setzero_ps();
}

INLINE vec vec_load(const float *x)
{
    return _mm512_loadu_ps(x);
}

INLINE void vec_store(float *x, vec v)
{
    _mm512_storeu_ps(x, v);
}

INLINE vec vec_xor(vec a, vec b)
{
    return _mm512_xor_ps(a, b);
}

INLINE vec vec_all(const float *x)
{
    return _mm512_set1_ps(*x);
}

INLINE vec vec_add(vec a, vec b)
{
    return _mm512_add_ps(a, b);
}

/* The larger one; b where either is a NaN. */
INLINE vec vec_maximum(vec a, vec b)
{
    return _mm512_max_ps(a, b);
}

typedef __mmask16 word_mask;

INLINE word_mask first_words(ptrdiff_t count)
{
    return (word_mask)((1u << count) - 1u);
}

INLINE vec load_words(const float *x, word_mask mask)
{
    return _mm512_maskz_loadu_ps(mask, x);
}

/* Phase 0 gives the odd elements (upper halves), phase 1 the even ones. */
INLINE vec widen_words(vec words, int phase)
{
    const __m512i pairs = _mm512_castps_si512(words);
    const __m512i wide = phase == 0 ? _mm512_and_si512(pairs, _mm512_set1_epi32(-0x10000))
                                    : _mm512_slli_epi32(pairs, 16);
    return _mm512_castsi512_ps(wide);
}

/* Lanes folded down to four: l + (l + 8), then + 4. */
INLINE __m128 fold_to_four(const vec *v)
{
    const __m256 upper = _mm256_castpd_ps(_mm512_extractf64x4_pd(_mm512_castps_pd(*v), 1));
    const __m256 eight = _mm256_add_ps(_mm512_castps512_ps256(*v), upper);
    return _mm_add_ps(_mm256_castps256_ps128(eight), _mm256_extractf128_ps(eight, 1));
}

INLINE vec load_f32(const char *block, int phase, int part)
{
    (void)phase, (void)part;
    return _mm512_loadu_ps(block);
}

INLINE vec load_f16(const char *block, int phase, int part)
{
    (void)phase, (void)part;
    return _mm512_cvtph_ps(_mm256_loadu_si256((const __m256i *)block));
}

INLINE vec mac_f32(vec acc, vec x, vec w)
{
    return _mm512_fmadd_ps(x, w, acc);
}

#endif
