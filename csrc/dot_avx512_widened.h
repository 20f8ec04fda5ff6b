/* The bfloat16 step for AVX-512 without BF16: widen by mask or shift, two fused multiply-adds. */
#ifndef LLAMA_BOLTS_DOT_AVX512_WIDENED_H
#define LLAMA_BOLTS_DOT_AVX512_WIDENED_H

#include "dot_avx512.h"

/* Intel's Cascade Lake reads memory 1.3 times as fast in eight streams as in one. */
enum { BF16_PHASES = 2, STREAM_ROWS = 8 };

/* Phase 0 gives the odd elements (upper halves), phase 1 the even ones. */
INLINE vec load_bf16(const char *block, int phase, int part)
{
    (void)part;
    const __m512i pairs = _mm512_loadu_si512(block);
    const __m512i wide = phase == 0 ? _mm512_and_si512(pairs, _mm512_set1_epi32(-0x10000))
                                    : _mm512_slli_epi32(pairs, 16);
    return _mm512_castsi512_ps(wide);
}

INLINE vec mac_bf16(vec acc, vec x, vec w)
{
    return _mm512_fmadd_ps(x, w, acc);
}

#endif
