/* AVX-512 vectors for nf4_tile.h: a table of 16 values in one register. */
#ifndef LLAMA_BOLTS_NF4_AVX512_H
#define LLAMA_BOLTS_NF4_AVX512_H

#include "quantized_rows.h"
#include "tile.h"

/* Rows side by side: as many streams from memory as serve it best. */
enum { NF4_ROWS = 4 };

typedef struct Nf4Table {
    vec values;
} Nf4Table;

/* The values of the 16 codes of a block. */
INLINE Nf4Table nf4_table(const float *scale)
{
    return (Nf4Table){_mm512_mul_ps(_mm512_loadu_ps(nf4_code), _mm512_set1_ps(*scale))};
}

/*
 * The 16 elements of 8 bytes. A load puts the first four bytes into every even lane and the others
 * into every odd one; shifted, each lane begins with its code, and vpermps reads no more than that.
 * So the first eight elements come in the even lanes.
 */
INLINE vec nf4_values(const uint8_t *codes, Nf4Table table, int part)
{
    (void)part;
    const __m512i bytes = _mm512_broadcastq_epi64(_mm_loadl_epi64((const __m128i *)codes));
    const __m512i places =
        _mm512_setr_epi32(4, 4, 0, 0, 12, 12, 8, 8, 20, 20, 16, 16, 28, 28, 24, 24);
    return _mm512_permutexvar_ps(_mm512_srlv_epi32(bytes, places), table.values);
}

INLINE vec to_nf4_order(vec elements)
{
    const __m512i order = _mm512_setr_epi32(0, 8, 1, 9, 2, 10, 3, 11, 4, 12, 5, 13, 6, 14, 7, 15);
    return _mm512_permutexvar_ps(order, elements);
}

INLINE vec from_nf4_order(vec lanes)
{
    const __m512i order = _mm512_setr_epi32(0, 2, 4, 6, 8, 10, 12, 14, 1, 3, 5, 7, 9, 11, 13, 15);
    return _mm512_permutexvar_ps(order, lanes);
}

#include "nf4_tile.h"

#endif
