/*
 * AVX-512 vectors for tile.h: one vector contains the 16 lanes of a sum. With AVX512BF16, which the
 * units of avx512bf16 define, one instruction multiplies pairs of bfloat16. Otherwise, pairs are
 * widened with a mask or a shift and multiplied by two fused multiply-adds.
 */
#pragma once
#include <immintrin.h>
#include "kernels.h"

/* 4 x 6 accumulators, 4 weights, 1 activation and the mask: 30 of 32 registers. */
enum { VEC_LANES = 16, VEC_PARTS = LANES / VEC_LANES, TILE_ROWS = 4, TILE_VECTORS = 4 };

#ifdef AVX512BF16
enum { PAIR_PHASES = 1 };
#else
enum { PAIR_PHASES = 2 };

/* From now on, subnormal numbers count as zeros and results are rounded to nearest even, as in
 * vdpbf16ps (KBlock.flushes). Returns the previous mode, which must be restored. */
#define FLUSHES
INLINE void load_mode(unsigned mode) { __asm__ volatile("ldmxcsr %0" : : "m"(mode) : "memory"); }
INLINE unsigned begin_flushing(void)
{
    const unsigned mode = _mm_getcsr();
    load_mode((mode & ~(unsigned)_MM_ROUND_MASK) | _MM_FLUSH_ZERO_ON | _MM_DENORMALS_ZERO_ON);
    return mode;
}
#endif

typedef __m512 vec;

INLINE vec vec_zero(void) { return _mm512_setzero_ps(); }
INLINE vec vec_load(const float *x) { return _mm512_loadu_ps(x); }
INLINE vec vec_all(const float *x) { return _mm512_set1_ps(*x); }
INLINE void vec_store(float *x, vec v) { _mm512_storeu_ps(x, v); }
INLINE vec vec_add(vec a, vec b) { return _mm512_add_ps(a, b); }
INLINE vec vec_multiply(vec a, vec b) { return _mm512_mul_ps(a, b); }
INLINE vec mac_float32(vec acc, vec x, vec w) { return _mm512_fmadd_ps(x, w, acc); }
/* The maximum, or b if either is a NaN. */
INLINE vec vec_maximum(vec a, vec b) { return _mm512_max_ps(a, b); }

/* VEC_LANES 16-bit numbers. Operators apply to all of them. */
typedef uint16_t halves __attribute__((vector_size(32)));
INLINE vec widen_float16(halves x) { return _mm512_cvtph_ps((__m256i)x); }
INLINE vec widen_bfloat16(halves x)
{
    return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32((__m256i)x), 16));
}
INLINE halves halves_of_bytes(const char *x)
{
    return (halves)_mm256_cvtepu8_epi16(_mm_loadu_si128((const __m128i *)x));
}

/* VEC_LANES int8 codes, widened exactly. */
INLINE vec vec_of_codes(const char *x)
{
    return _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(_mm_loadu_si128((const __m128i *)x)));
}

/* For attention: loads that only access the first words. */
typedef __mmask16 word_mask;
INLINE word_mask first_words(ptrdiff_t count) { return (word_mask)((1u << count) - 1u); }
INLINE vec load_words(const float *x, word_mask mask) { return _mm512_maskz_loadu_ps(mask, x); }

/* Reduces lanes to four: l + (l + 8), then + 4. */
INLINE __m128 reduce_to_four(const vec *v)
{
    const __m256 upper = _mm256_castpd_ps(_mm512_extractf64x4_pd(_mm512_castps_pd(*v), 1));
    const __m256 eight = _mm256_add_ps(_mm512_castps512_ps256(*v), upper);
    return _mm_add_ps(_mm256_castps256_ps128(eight), _mm256_extractf128_ps(eight, 1));
}

/* Reduces all lanes to one; the last two additions are + 2, then + 1. */
INLINE float reduce_vectors(const vec *v)
{
    const __m128 four = reduce_to_four(v);
    const __m128 two = _mm_add_ps(four, _mm_movehl_ps(four, four));
    return _mm_cvtss_f32(_mm_add_ss(two, _mm_movehdup_ps(two)));
}

/* Reduces the lanes of adjacent rows. Four rows are reduced at once, by transposing
 * their remaining lanes. */
INLINE void reduce_rows(float *out, const vec *v, const int rows)
{
    if (rows == 4) {
        __m128 a = reduce_to_four(v), b = reduce_to_four(v + 1);
        __m128 c = reduce_to_four(v + 2), d = reduce_to_four(v + 3);
        _MM_TRANSPOSE4_PS(a, b, c, d);
        _mm_storeu_ps(out, _mm_add_ps(_mm_add_ps(a, c), _mm_add_ps(b, d)));
        return;
    }
    for (int r = 0; r < rows; r++)
        out[r] = reduce_vectors(v + r);
}

#if defined(AVX512BF16) && defined(LLAMA_BOLTS_EMULATE_BF16)

/* Replaces subnormal numbers with zeros of the same sign. */
INLINE vec flush_subnormals(vec v)
{
    const __m512i bits = _mm512_castps_si512(v);
    const __mmask16 tiny = _mm512_testn_epi32_mask(bits, _mm512_set1_epi32(0x7F800000));
    const __m512i sign = _mm512_and_si512(bits, _mm512_set1_epi32((int)0x80000000u));
    return _mm512_castsi512_ps(_mm512_mask_mov_epi32(bits, tiny, sign));
}

INLINE vec mac_flushed(vec acc, __m512i x, __m512i w)
{
    return flush_subnormals(_mm512_fmadd_ps(flush_subnormals(_mm512_castsi512_ps(x)),
                                            flush_subnormals(_mm512_castsi512_ps(w)), acc));
}

/*
 * vdpbf16ps as described in Intel's manual, for test builds on processors without it: fused
 * multiply-adds of the odd elements and then of the even elements, with subnormal inputs and
 * results replaced by 0.
 */
INLINE vec mac_pairs(vec acc, vec x, vec w)
{
    const __m512i xi = _mm512_castps_si512(x), wi = _mm512_castps_si512(w);
    const __m512i upper = _mm512_set1_epi32(-0x10000);
    const vec odd = mac_flushed(flush_subnormals(acc), _mm512_and_si512(xi, upper),
                                _mm512_and_si512(wi, upper));
    return mac_flushed(odd, _mm512_slli_epi32(xi, 16), _mm512_slli_epi32(wi, 16));
}
#elif defined(AVX512BF16)
INLINE vec mac_pairs(vec acc, vec x, vec w)
{
    return _mm512_dpbf16_ps(acc, (__m512bh)x, (__m512bh)w);
}
#else
INLINE vec mac_pairs(vec acc, vec x, vec w) { return mac_float32(acc, x, w); }
#endif
