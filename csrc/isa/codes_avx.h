/* Code shared by the instruction sets with AVX2 and AVX-512: the bytes of a group of 32 codes, and
 * integer vectors. */
#pragma once
#include <string.h>

#ifndef VECTORS
#define VECTORS "isa/vectors_avx2.h"
#endif
#include VECTORS

/* The codes of one group as int8, the result of expand_group (formats/format.h). */
typedef __m256i group;

/* Number of codes in a unit, whose groups are as many as the lanes of a vector. Only AVX2 and
 * AVX-512 have units. */
#define UNIT_CODES (VEC_LANES * GROUP)

/* Extracts some bits of each byte, starting at bit `from`, and moves them to bit `to`. */
INLINE group bit_field(group bytes, int from, int bits, int to)
{
    const __m256i mask = _mm256_set1_epi8((char)(((1 << bits) - 1) << to));
    return _mm256_and_si256(from >= to ? _mm256_srli_epi16(bytes, from - to)
                                       : _mm256_slli_epi16(bytes, to - from),
                            mask);
}

/* The lower halves of 16 bytes, followed by the upper halves. */
INLINE group nibbles(const uint8_t *bytes)
{
    const __m256i both = _mm256_broadcastsi128_si256(_mm_loadu_si128((const __m128i *)bytes));
    const __m256i shifts = _mm256_setr_epi64x(0, 0, 4, 4);
    return bit_field(_mm256_srlv_epi64(both, shifts), 0, 4, 0);
}

/* Sets the bytes whose bit is set to `value`, and all others to 0. */
INLINE group spread_bits(uint32_t bits, int value)
{
    const __m256i places = _mm256_set1_epi64x((long long)0x8040201008040201u);
    const __m256i order = _mm256_setr_epi8(0, 0, 0, 0, 0, 0, 0, 0, 1, 1, 1, 1, 1, 1, 1, 1, 2, 2, 2,
                                           2, 2, 2, 2, 2, 3, 3, 3, 3, 3, 3, 3, 3);
    const __m256i bytes = _mm256_shuffle_epi8(_mm256_set1_epi32((int)bits), order);
    const __m256i is_set = _mm256_cmpeq_epi8(_mm256_and_si256(bytes, places), places);
    return _mm256_and_si256(is_set, _mm256_set1_epi8((char)value));
}

/* Combines the bits of both, and subtracts an offset. */
INLINE group merge_codes(group lower, group upper, int offset)
{
    return _mm256_sub_epi8(_mm256_or_si256(lower, upper), _mm256_set1_epi8((char)offset));
}

/* The table entries of codes below 16. */
INLINE group look_up(group codes, const int8_t table[16])
{
    const __m128i entries = _mm_loadu_si128((const __m128i *)table);
    return _mm256_shuffle_epi8(_mm256_broadcastsi128_si256(entries), codes);
}

/* A vector of integers: __m256i or __m512i. */
typedef long long ivec __attribute__((vector_size(4 * VEC_LANES), may_alias));

/* The same vector with lanes of other sizes. Operators apply to all lanes. */
typedef int32_t int_lanes __attribute__((vector_size(sizeof(ivec))));
typedef int16_t short_lanes __attribute__((vector_size(sizeof(ivec))));
typedef int8_t byte_lanes __attribute__((vector_size(sizeof(ivec))));

INLINE ivec ivec_load(const void *p)
{
    ivec v;
    memcpy(&v, p, sizeof v);
    return v;
}

/* One 32-bit word, two 16-bit numbers or four 8-bit numbers in every lane. */
INLINE ivec ivec_all_of(const void *numbers)
{
    int32_t word;
    memcpy(&word, numbers, sizeof word);
    return (ivec)((int_lanes){0} + word);
}

INLINE ivec ivec_add(ivec a, ivec b) { return (ivec)((int_lanes)a + (int_lanes)b); }
INLINE vec ivec_to_float(ivec v) { return __builtin_convertvector((int_lanes)v, vec); }

/* The codes in the upper bytes of 16-bit words, which are the odd codes, and the codes in the lower
 * bytes, which are the even codes, times 2^8. */
INLINE ivec upper_codes(ivec codes) { return (ivec)((short_lanes)codes >> 8); }
INLINE ivec lower_codes_times_256(ivec codes) { return (ivec)((short_lanes)codes << 8); }

/* Hides the value of a vector from the compiler. Otherwise it first adds the sums of several steps
 * to each other, for which there are not enough registers. */
#ifdef __APPLE__ /* clang does not accept AVX-512 vectors here */
#define forget_vector(v) ((void)0)
#else
#define forget_vector(v) __asm__("" : "+v"(v))
#endif

/* Alternate words or pairs of words of a and b, from the lower or upper half of each 16 bytes.
 * codes_avx2.h and codes_avx512.h define these functions. */
INLINE ivec lower_words(ivec a, ivec b);
INLINE ivec upper_words(ivec a, ivec b);
INLINE ivec lower_pairs(ivec a, ivec b);
INLINE ivec upper_pairs(ivec a, ivec b);

/* Transposes words in each 16 bytes of four vectors: word i of all vectors is moved to vector i. */
INLINE void transpose_in_lanes(ivec v[4])
{
    const ivec a = lower_words(v[0], v[1]), b = upper_words(v[0], v[1]);
    const ivec c = lower_words(v[2], v[3]), d = upper_words(v[2], v[3]);
    v[0] = lower_pairs(a, c);
    v[1] = upper_pairs(a, c);
    v[2] = lower_pairs(b, d);
    v[3] = upper_pairs(b, d);
}

/* The lower 16 bytes of each 32 of a and b, and the upper ones, as those headers define them. */
INLINE ivec lower_quarters(ivec a, ivec b);
INLINE ivec upper_quarters(ivec a, ivec b);

/* Transposes words: word i of all eight vectors is moved to vector i. So the rows, which were
 * vectors, become lanes. */
INLINE void transpose_words(ivec v[8])
{
    transpose_in_lanes(v);
    transpose_in_lanes(v + 4);
#pragma GCC unroll 4
    for (int i = 0; i < 4; i++) {
        const ivec first = v[i], second = v[i + 4];
        v[i] = lower_quarters(first, second);
        v[i + 4] = upper_quarters(first, second);
    }
}

/* Leaves the numbers of a group of x in the layout of integer_panel.h. */
INLINE void arrange_numbers(int16_t *numbers, const int have_8_bits)
{
    (void)numbers;
    (void)have_8_bits;
}
