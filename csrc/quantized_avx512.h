/* AVX-512 vectors for quantized_tile.h: a table of 16 values in one register. */
#ifndef LLAMA_BOLTS_QUANTIZED_AVX512_H
#define LLAMA_BOLTS_QUANTIZED_AVX512_H

#include "quantized_rows.h"
#include "tile.h"

typedef struct Nf4Table {
    vec values[VEC_PARTS];
} Nf4Table;

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

/* To 8 bits, ties to even, in place; a NaN stays a NaN, and quiet. */
INLINE vec round_to_bf16(vec w)
{
    const __m512i u = _mm512_castps_si512(w), upper = _mm512_set1_epi32(-0x10000);
    const __m512i tie = _mm512_and_si512(_mm512_srli_epi32(u, 16), _mm512_set1_epi32(1));
    const __m512i up = _mm512_add_epi32(u, _mm512_add_epi32(tie, _mm512_set1_epi32(0x7FFF)));
    const __m512i quiet = _mm512_or_si512(u, _mm512_set1_epi32(0x400000));
    const __mmask16 nan = _mm512_cmp_ps_mask(w, w, _CMP_UNORD_Q);
    return _mm512_castsi512_ps(_mm512_and_si512(_mm512_mask_mov_epi32(up, nan, quiet), upper));
}

/* Words of two bfloat16: the odd one in the upper half. Both lower halves are zeros. */
INLINE vec join_pairs(vec odd, vec even)
{
    return _mm512_castsi512_ps(_mm512_or_si512(
        _mm512_castps_si512(odd), _mm512_srli_epi32(_mm512_castps_si512(even), 16)));
}

/* Values of the odd (phase 0) or even elements among the 32 of 16 bytes. */
INLINE vec nf4_values(const uint8_t *codes, Nf4Table table, int phase, int part)
{
    (void)part;
    const __m512i bytes = _mm512_cvtepu8_epi32(_mm_loadu_si128((const __m128i *)codes));
    /* vpermps reads the lower four bits of each number. */
    return _mm512_permutexvar_ps(phase == 0 ? bytes : _mm512_srli_epi32(bytes, 4), table.values[0]);
}

#include "quantized_tile.h"

#endif
