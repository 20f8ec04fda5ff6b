/* Operations on the bytes of a group of 32 codes, for the sets that have AVX2. */
#pragma once
#include "tile.h"

/* The codes of one group as int8: what expand_group makes (formats.h). */
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
    const __m128i both = _mm_loadu_si128((const __m128i *)bytes);
    return bit_field(_mm256_set_m128i(_mm_srli_epi16(both, 4), both), 0, 4, 0);
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
