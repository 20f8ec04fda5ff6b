/* AVX2 + FMA + F16C vectors for tile.h: two vectors contain the 16 lanes of a sum. */
#pragma once
#include <immintrin.h>
#include "kernels.h"

/*
 * A tile uses 16 registers, each with half of the 16 lanes: 2 x 6 accumulators, 2 weights, 1
 * activation and the mask. So does attention: 6 x 2 accumulators, 2 keys or values, 1 query or
 * weight and the mask.
 */
enum {
    VEC_LANES = 8,
    VEC_PARTS = LANES / VEC_LANES,
    TILE_ROWS = 2,
    TILE_VECTORS = 2,
    PAIR_PHASES = 2
};

typedef __m256 vec;

INLINE vec vec_zero(void) { return _mm256_setzero_ps(); }
INLINE vec vec_load(const float *x) { return _mm256_loadu_ps(x); }
INLINE vec vec_all(const float *x) { return _mm256_broadcast_ss(x); }
INLINE void vec_store(float *x, vec v) { _mm256_storeu_ps(x, v); }
INLINE vec vec_add(vec a, vec b) { return _mm256_add_ps(a, b); }
INLINE vec vec_multiply(vec a, vec b) { return _mm256_mul_ps(a, b); }
INLINE vec mac_float32(vec acc, vec x, vec w) { return _mm256_fmadd_ps(x, w, acc); }
INLINE vec mac_pairs(vec acc, vec x, vec w) { return mac_float32(acc, x, w); }
/* The maximum, or b if either is a NaN. */
INLINE vec vec_maximum(vec a, vec b) { return _mm256_max_ps(a, b); }

/* VEC_LANES 16-bit numbers. Operators apply to all of them. */
typedef uint16_t halves __attribute__((vector_size(16)));
INLINE vec widen_float16(halves x) { return _mm256_cvtph_ps((__m128i)x); }
INLINE vec widen_bfloat16(halves x)
{
    return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32((__m128i)x), 16));
}
INLINE halves halves_of_bytes(const char *x)
{
    return (halves)_mm_cvtepu8_epi16(_mm_loadl_epi64((const __m128i *)x));
}

/* VEC_LANES int8 codes, widened exactly. */
INLINE vec vec_of_codes(const char *x)
{
    return _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(_mm_loadl_epi64((const __m128i *)x)));
}

/* Loads that only access the first words. */
typedef __m256i word_mask;
INLINE word_mask first_words(ptrdiff_t count)
{
    const __m256i lanes = _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7);
    return _mm256_cmpgt_epi32(_mm256_set1_epi32((int)count), lanes);
}
INLINE vec load_words(const float *x, word_mask mask) { return _mm256_maskload_ps(x, mask); }

/* Reduces lanes to four: l + (l + 8), then + 4. */
INLINE __m128 reduce_to_four(const vec *v)
{
    const __m256 eight = _mm256_add_ps(v[0], v[1]);
    return _mm_add_ps(_mm256_castps256_ps128(eight), _mm256_extractf128_ps(eight, 1));
}

/* Reduces all lanes to one; the last two additions are + 2, then + 1. */
INLINE float reduce_vectors(const vec *v)
{
    const __m128 four = reduce_to_four(v);
    const __m128 two = _mm_add_ps(four, _mm_movehl_ps(four, four));
    return _mm_cvtss_f32(_mm_add_ss(two, _mm_movehdup_ps(two)));
}

/* Reduces the lanes of adjacent rows, each of which has two vectors. */
INLINE void reduce_rows(float *out, const vec *v, const int rows)
{
#pragma GCC unroll 2
    for (int r = 0; r < rows; r++)
        out[r] = reduce_vectors(v + 2 * r);
}
