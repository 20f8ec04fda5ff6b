/* The bfloat16 step for AVX512-BF16: vdpbf16ps does both elements of a pair, the odd one first. */
#ifndef LLAMA_BOLTS_DOT_AVX512BF16_H
#define LLAMA_BOLTS_DOT_AVX512BF16_H

#include "dot_avx512.h"

/* AMD's Zen 4 reads fastest in one stream. */
enum { BF16_PHASES = 1, STREAM_ROWS = 1 };

INLINE vec load_bf16(const char *block, int phase, int part)
{
    (void)phase, (void)part;
    return _mm512_loadu_ps(block);
}

#ifdef LLAMA_BOLTS_EMULATE_BF16

/* Subnormal numbers become zeros of the same sign. */
INLINE vec flush_subnormals(vec v)
{
    const __m512i bits = _mm512_castps_si512(v);
    const __m512i exponent = _mm512_and_si512(bits, _mm512_set1_epi32(0x7F800000));
    const __mmask16 tiny = _mm512_testn_epi32_mask(exponent, exponent);
    const __m512i sign = _mm512_and_si512(bits, _mm512_set1_epi32((int)0x80000000u));
    return _mm512_castsi512_ps(_mm512_mask_mov_epi32(bits, tiny, sign));
}

INLINE vec mac_flushed(vec acc, __m512i x, __m512i w)
{
    return flush_subnormals(_mm512_fmadd_ps(flush_subnormals(_mm512_castsi512_ps(x)),
                                            flush_subnormals(_mm512_castsi512_ps(w)), acc));
}

/*
 * What Intel's manual says of vdpbf16ps, for test builds on processors without it: the odd
 * elements and then the even ones, each by a fused multiply-add, subnormals taken and given as 0.
 */
INLINE vec mac_bf16(vec acc, vec x, vec w)
{
    const __m512i xi = _mm512_castps_si512(x), wi = _mm512_castps_si512(w);
    const __m512i upper = _mm512_set1_epi32(-0x10000);
    const vec odd = mac_flushed(flush_subnormals(acc), _mm512_and_si512(xi, upper),
                                _mm512_and_si512(wi, upper));
    return mac_flushed(odd, _mm512_slli_epi32(xi, 16), _mm512_slli_epi32(wi, 16));
}

#else

INLINE vec mac_bf16(vec acc, vec x, vec w)
{
    return _mm512_dpbf16_ps(acc, (__m512bh)x, (__m512bh)w);
}

#endif

#endif
