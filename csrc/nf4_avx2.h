/* AVX2 vectors for nf4_tile.h: a table of 16 values in two registers. */
#ifndef LLAMA_BOLTS_NF4_AVX2_H
#define LLAMA_BOLTS_NF4_AVX2_H

#include "quantized_rows.h"
#include "tile.h"

/* Rows side by side: with their tables no more fit into the registers. */
enum { NF4_ROWS = 2 };

typedef struct Nf4Table {
    vec lower, upper; /* of codes 0 to 7, and 8 to 15 */
} Nf4Table;

/* The values of the 16 codes of a block. */
INLINE Nf4Table nf4_table(const float *scale)
{
    const __m256 factor = _mm256_broadcast_ss(scale);
    return (Nf4Table){_mm256_mul_ps(_mm256_loadu_ps(nf4_code), factor),
                      _mm256_mul_ps(_mm256_loadu_ps(nf4_code + 8), factor)};
}

/*
 * Eight of the 16 elements of 8 bytes, in order: 4 bytes in every lane, shifted so that each begins
 * with its code. vpermps reads the lower three bits of it; the fourth, made the sign, chooses.
 */
INLINE vec nf4_values(const uint8_t *codes, Nf4Table table, int part)
{
    int32_t four;
    memcpy(&four, codes + 4 * part, sizeof four);
    const __m256i places = _mm256_setr_epi32(4, 0, 12, 8, 20, 16, 28, 24);
    const __m256i numbers = _mm256_srlv_epi32(_mm256_set1_epi32(four), places);
    return _mm256_blendv_ps(_mm256_permutevar8x32_ps(table.lower, numbers),
                            _mm256_permutevar8x32_ps(table.upper, numbers),
                            _mm256_castsi256_ps(_mm256_slli_epi32(numbers, 28)));
}

INLINE vec to_nf4_order(vec elements)
{
    return elements;
}

INLINE vec from_nf4_order(vec lanes)
{
    return lanes;
}

#include "nf4_tile.h"

#endif
