/* AVX-512 vectors for int8_tile.h: a vector of codes is two blocks. */
#ifndef LLAMA_BOLTS_INT8_AVX512_H
#define LLAMA_BOLTS_INT8_AVX512_H

#include "int8_rows.h"
#include "tile.h"

typedef __m512i ivec;

INLINE ivec ivec_load(const void *p)
{
    return _mm512_loadu_si512(p);
}

INLINE void ivec_store(void *p, ivec v)
{
    _mm512_storeu_si512(p, v);
}

INLINE ivec ivec_all_of(const int16_t *pair)
{
    int32_t both;
    memcpy(&both, pair, sizeof both);
    return _mm512_set1_epi32(both);
}

INLINE ivec ivec_add(ivec a, ivec b)
{
    return _mm512_add_epi32(a, b);
}

/* a[2i] * b[2i] + a[2i+1] * b[2i+1] */
INLINE ivec multiply_pairs(ivec a, ivec b)
{
    return _mm512_madd_epi16(a, b);
}

/*
 * sum + multiply_pairs(a, b); `one_step` where the processor does that in one instruction. It is
 * written out, since a compiler takes its name only in code that is for such processors alone.
 */
INLINE ivec add_products(const int one_step, ivec sum, ivec a, ivec b)
{
    if (!one_step)
        return ivec_add(sum, multiply_pairs(a, b));
    __asm__("vpdpwssd %2, %1, %0" : "+v"(sum) : "v"(a), "v"(b));
    return sum;
}

/* Most processors with AVX-512 have it; Skylake's have not. In test builds, one set goes without. */
INLINE int adds_in_one_step(void)
{
#ifdef LLAMA_BOLTS_EMULATE_BF16
    if (BF16_PHASES == 2)
        return 0;
#endif
    return __builtin_cpu_supports("avx512vnni") != 0;
}

/* Codes in the upper bytes of words, to words: odd codes. */
INLINE ivec upper_codes(ivec codes)
{
    return _mm512_srai_epi16(codes, 8);
}

/* Even codes, times 2^8. */
INLINE ivec lower_codes_times_256(ivec codes)
{
    return _mm512_slli_epi16(codes, 8);
}

INLINE ivec divide_by_256(ivec v)
{
    return _mm512_srai_epi32(v, 8);
}

/* Where x's numbers for the i-th vector of codes are; pairs of blocks lie `apart` from another. */
INLINE const int16_t *numbers_of(const int16_t *x, ptrdiff_t apart, int i)
{
    return x + i * apart;
}

INLINE vec vec_multiply(vec a, vec b)
{
    return _mm512_mul_ps(a, b);
}

INLINE vec ivec_to_float(ivec v)
{
    return _mm512_cvtepi32_ps(v);
}

INLINE vec vec_load_bf16(const uint16_t *x)
{
    const __m512i words = _mm512_cvtepu16_epi32(_mm256_loadu_si256((const __m256i *)x));
    return _mm512_castsi512_ps(_mm512_slli_epi32(words, 16));
}

/* Words of a and b in turn, from the lower or upper halves of each 16 bytes. */
INLINE ivec lower_words(ivec a, ivec b)
{
    return _mm512_unpacklo_epi32(a, b);
}

INLINE ivec upper_words(ivec a, ivec b)
{
    return _mm512_unpackhi_epi32(a, b);
}

/* The same with pairs of words. */
INLINE ivec lower_pairs(ivec a, ivec b)
{
    return _mm512_unpacklo_epi64(a, b);
}

INLINE ivec upper_pairs(ivec a, ivec b)
{
    return _mm512_unpackhi_epi64(a, b);
}

/* Of two vectors that hold, in each 16 bytes, one partial sum of 4 vectors: the sums of blocks. */
INLINE ivec join_blocks(ivec a, ivec b)
{
    /* Blocks come out as 0 2 4 6, 1 3 5 7, 8 10 12 14, 9 11 13 15. */
    const __m512i places =
        _mm512_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7, 8, 12, 9, 13, 10, 14, 11, 15);
    const __m512i sums = _mm512_add_epi32(_mm512_shuffle_i32x4(a, b, 0x88),
                                          _mm512_shuffle_i32x4(a, b, 0xDD));
    return _mm512_permutexvar_epi32(places, sums);
}

/* A block of codes of the i-th row, and of the one eight rows further. */
INLINE ivec load_rows(const uint8_t *const *rows, int i, ptrdiff_t at)
{
    const __m256i first = _mm256_loadu_si256((const __m256i *)(rows[i] + at));
    const __m256i second = _mm256_loadu_si256((const __m256i *)(rows[i + 8] + at));
    return _mm512_inserti64x4(_mm512_castsi256_si512(first), second, 1);
}

/* The lower 16 bytes of each half of a and b, and the upper ones. */
INLINE ivec lower_quarters(ivec a, ivec b)
{
    return _mm512_permutex2var_epi64(a, _mm512_setr_epi64(0, 1, 8, 9, 4, 5, 12, 13), b);
}

INLINE ivec upper_quarters(ivec a, ivec b)
{
    return _mm512_permutex2var_epi64(a, _mm512_setr_epi64(2, 3, 10, 11, 6, 7, 14, 15), b);
}

#include "int8_tile.h"

#endif
