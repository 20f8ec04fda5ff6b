/* AVX2 + FMA + F16C vectors for tile.h: two vectors hold the 16 lanes of a sum. */
#ifndef LLAMA_BOLTS_DOT_AVX2_H
#define LLAMA_BOLTS_DOT_AVX2_H

#include <immintrin.h>
#include <stddef.h>

#include "scalar.h"

/*
 * Half the lanes of 2 x 6 accumulators, 2 weights, 1 activation and the mask: 16 registers. Four
 * streams read memory up to 1.3 times as fast as one on Intel's Cascade Lake.
 */
enum { VEC_LANES = 8, PASS_LANES = VEC_LANES, TILE_ROWS = 2, BF16_PHASES = 2, STREAM_ROWS = 4 };

/* Attention: 6 x 2 accumulators, 2 keys or values, 1 query or weight and the mask. */
enum { TILE_VECTORS = 2 };

typedef __m256 vec;

INLINE vec vec_zero(void)
{
    return _mm256_setzero_ps();
}

INLINE vec vec_load(const float *x)
{
    return _mm256_loadu_ps(x);
}

INLINE void vec_store(float *x, vec v)
{
    _mm256_storeu_ps(x, v);
}

INLINE vec vec_xor(vec a, vec b)
{
    return _mm256_xor_ps(a, b);
}

INLINE vec vec_all(const float *x)
{
    return _mm256_broadcast_ss(x);
}

INLINE vec vec_add(vec a, vec b)
{
    return _mm256_add_ps(a, b);
}

/* The larger one; b where either is a NaN. */
INLINE vec vec_maximum(vec a, vec b)
{
    return _mm256_max_ps(a, b);
}

typedef __m256i word_mask;

INLINE word_mask first_words(ptrdiff_t count)
{
    const __m256i lanes = _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7);
    return _mm256_cmpgt_epi32(_mm256_set1_epi32((int)count), lanes);
}

INLINE vec load_words(const float *x, word_mask mask)
{
    return _mm256_maskload_ps(x, mask);
}

/* Phase 0 gives the odd elements (upper halves), phase 1 the even ones. */
INLINE vec widen_words(vec words, int phase)
{
    const __m256i pairs = _mm256_castps_si256(words);
    const __m256i wide = phase == 0 ? _mm256_and_si256(pairs, _mm256_set1_epi32(-0x10000))
                                    : _mm256_slli_epi32(pairs, 16);
    return _mm256_castsi256_ps(wide);
}

/* Lanes folded down to four: l + (l + 8), then + 4. */
INLINE __m128 fold_to_four(const vec *v)
{
    const __m256 eight = _mm256_add_ps(v[0], v[1]);
    return _mm_add_ps(_mm256_castps256_ps128(eight), _mm256_extractf128_ps(eight, 1));
}

/* Phase 0 gives the odd elements (upper halves), phase 1 the even ones. */
INLINE vec load_bf16(const char *block, int phase, int part)
{
    const __m256i pairs = _mm256_loadu_si256((const __m256i *)(block + 32 * part));
    const __m256i wide = phase == 0 ? _mm256_and_si256(pairs, _mm256_set1_epi32(-0x10000))
                                    : _mm256_slli_epi32(pairs, 16);
    return _mm256_castsi256_ps(wide);
}

INLINE vec load_f32(const char *block, int phase, int part)
{
    (void)phase;
    return _mm256_loadu_ps((const float *)(block + 32 * part));
}

INLINE vec load_f16(const char *block, int phase, int part)
{
    (void)phase;
    return _mm256_cvtph_ps(_mm_loadu_si128((const __m128i *)(block + 16 * part)));
}

INLINE vec mac_f32(vec acc, vec x, vec w)
{
    return _mm256_fmadd_ps(x, w, acc);
}

INLINE vec mac_bf16(vec acc, vec x, vec w)
{
    return _mm256_fmadd_ps(x, w, acc);
}

#endif
