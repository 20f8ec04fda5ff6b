/* AVX2 vectors for quantized_tile.h: a table of 16 values in two registers. */
#ifndef LLAMA_BOLTS_QUANTIZED_AVX2_H
#define LLAMA_BOLTS_QUANTIZED_AVX2_H

#include "quantized_rows.h"
#include "tile.h"

typedef struct Nf4Table {
    vec values[VEC_PARTS];
} Nf4Table;

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

/* To 8 bits, ties to even, in place; a NaN stays a NaN, and quiet. */
INLINE vec round_to_bf16(vec w)
{
    const __m256i u = _mm256_castps_si256(w), upper = _mm256_set1_epi32(-0x10000);
    const __m256i tie = _mm256_and_si256(_mm256_srli_epi32(u, 16), _mm256_set1_epi32(1));
    const __m256i up = _mm256_add_epi32(u, _mm256_add_epi32(tie, _mm256_set1_epi32(0x7FFF)));
    const __m256i quiet = _mm256_or_si256(u, _mm256_set1_epi32(0x400000));
    const __m256 nan = _mm256_cmp_ps(w, w, _CMP_UNORD_Q);
    const __m256 either =
        _mm256_blendv_ps(_mm256_castsi256_ps(up), _mm256_castsi256_ps(quiet), nan);
    return _mm256_and_ps(either, _mm256_castsi256_ps(upper));
}

/* Words of two bfloat16: the odd one in the upper half. Both lower halves are zeros. */
INLINE vec join_pairs(vec odd, vec even)
{
    const __m256i lower = _mm256_srli_epi32(_mm256_castps_si256(even), 16);
    return _mm256_or_ps(odd, _mm256_castsi256_ps(lower));
}

/* Values of the odd (phase 0) or even elements among the 32 of 16 bytes: lanes of one part. */
INLINE vec nf4_values(const uint8_t *codes, Nf4Table table, int phase, int part)
{
    const __m256i bytes =
        _mm256_cvtepu8_epi32(_mm_loadl_epi64((const __m128i *)(codes + 8 * part)));
    /* vpermps reads the lower three bits of each number; the fourth becomes the sign. */
    const __m256i numbers = phase == 0 ? bytes : _mm256_srli_epi32(bytes, 4);
    const __m256i fourth = _mm256_slli_epi32(bytes, phase == 0 ? 28 : 24);
    return _mm256_blendv_ps(_mm256_permutevar8x32_ps(table.values[0], numbers),
                            _mm256_permutevar8x32_ps(table.values[1], numbers),
                            _mm256_castsi256_ps(fourth));
}

#include "quantized_tile.h"

#endif
