/* What the sets with AVX2 and AVX-512 share: the bytes of a group of 32 codes, and integer vectors.
 */
#pragma once
#include <string.h>

#ifndef VECTORS
#define VECTORS "isa/vectors_avx2.h"
#endif
#include VECTORS

/* The codes of one group as int8: what expand_group makes (formats/format.h). */
typedef __m256i group;

/* Some bits of each byte, from bit `from` on, moved to bit `to`. */
INLINE group bit_field(group bytes, int from, int bits, int to)
{
    const __m256i mask = _mm256_set1_epi8((char)(((1 << bits) - 1) << to));
    return _mm256_and_si256(from >= to ? _mm256_srli_epi16(bytes, from - to)
                                       : _mm256_slli_epi16(bytes, to - from),
                            mask);
}

/* The lower halves of 16 bytes, and then the upper ones. */
INLINE group nibbles(const uint8_t *bytes)
{
    const __m256i both = _mm256_broadcastsi128_si256(_mm_loadu_si128((const __m128i *)bytes));
    const __m256i shifts = _mm256_setr_epi64x(0, 0, 4, 4);
    return bit_field(_mm256_srlv_epi64(both, shifts), 0, 4, 0);
}

/* `value` in the bytes whose bit is set, else 0. */
INLINE group spread_bits(uint32_t bits, int value)
{
    const __m256i places = _mm256_set1_epi64x((long long)0x8040201008040201u);
    const __m256i order = _mm256_setr_epi8(0, 0, 0, 0, 0, 0, 0, 0, 1, 1, 1, 1, 1, 1, 1, 1, 2, 2, 2,
                                           2, 2, 2, 2, 2, 3, 3, 3, 3, 3, 3, 3, 3);
    const __m256i bytes = _mm256_shuffle_epi8(_mm256_set1_epi32((int)bits), order);
    const __m256i is_set = _mm256_cmpeq_epi8(_mm256_and_si256(bytes, places), places);
    return _mm256_and_si256(is_set, _mm256_set1_epi8((char)value));
}

/* The bits of both, less an offset. */
INLINE group merge_codes(group lower, group upper, int offset)
{
    return _mm256_sub_epi8(_mm256_or_si256(lower, upper), _mm256_set1_epi8((char)offset));
}

/* What codes below 16 stand for in a table. */
INLINE group look_up(group codes, const int8_t table[16])
{
    const __m128i entries = _mm_loadu_si128((const __m128i *)table);
    return _mm256_shuffle_epi8(_mm256_broadcastsi128_si256(entries), codes);
}

/* A vector of integers; __m256i or __m512i. */
typedef long long ivec __attribute__((vector_size(4 * VEC_LANES), may_alias));

/* The same bits in lanes of other sizes; operators work on all of them. */
typedef int32_t int_lanes __attribute__((vector_size(sizeof(ivec))));
typedef int16_t short_lanes __attribute__((vector_size(sizeof(ivec))));
typedef int8_t byte_lanes __attribute__((vector_size(sizeof(ivec))));

INLINE ivec ivec_load(const void *p)
{
    ivec v;
    memcpy(&v, p, sizeof v);
    return v;
}

/* A word of 32 bits, two numbers of 16 bits or four of 8, in every lane. */
INLINE ivec ivec_all_of(const void *numbers)
{
    int32_t word;
    memcpy(&word, numbers, sizeof word);
    return (ivec)((int_lanes){0} + word);
}

INLINE ivec ivec_add(ivec a, ivec b) { return (ivec)((int_lanes)a + (int_lanes)b); }
INLINE vec ivec_to_float(ivec v) { return __builtin_convertvector((int_lanes)v, vec); }

/* Codes in the upper bytes of 16 bits: odd ones. Those in the lower bytes, times 2^8: even ones. */
INLINE ivec upper_codes(ivec codes) { return (ivec)((short_lanes)codes >> 8); }
INLINE ivec lower_codes_times_256(ivec codes) { return (ivec)((short_lanes)codes << 8); }

/* The compiler no longer knows the value of a vector. Else it adds the sums of several steps to
 * one another first, for which it has too few registers. */
#ifdef __APPLE__ /* whose clang takes no vectors of AVX-512 here */
#define forget_vector(v) ((void)0)
#else
#define forget_vector(v) __asm__("" : "+v"(v))
#endif

/* Words of a and b in turn, from the lower or upper halves of each 16 bytes; and pairs of words.
 * codes_avx2.h and codes_avx512.h define them. */
INLINE ivec lower_words(ivec a, ivec b);
INLINE ivec upper_words(ivec a, ivec b);
INLINE ivec lower_pairs(ivec a, ivec b);
INLINE ivec upper_pairs(ivec a, ivec b);

/* In each 16 bytes of four vectors: the words i of all become vector i. */
INLINE void transpose_in_lanes(ivec v[4])
{
    const ivec a = lower_words(v[0], v[1]), b = upper_words(v[0], v[1]);
    const ivec c = lower_words(v[2], v[3]), d = upper_words(v[2], v[3]);
    v[0] = lower_pairs(a, c);
    v[1] = upper_pairs(a, c);
    v[2] = lower_pairs(b, d);
    v[3] = upper_pairs(b, d);
}

/* Numbers of a group of x stay where they are (integer_panel.h). */
INLINE void arrange_numbers(int16_t *numbers, const int have_8_bits)
{
    (void)numbers;
    (void)have_8_bits;
}
