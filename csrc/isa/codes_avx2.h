/* AVX2 vectors for the codes of block-quantized weights. */
#pragma once
#include "isa/codes_avx.h"

typedef struct Table {
    vec lower, upper; /* values of codes 0 to 7, and 8 to 15 */
} Table;

/* The values of the 16 codes times the scale of a block. */
INLINE Table table_times(const float values[16], float scale)
{
    const __m256 factor = _mm256_set1_ps(scale);
    return (Table){_mm256_mul_ps(_mm256_loadu_ps(values), factor),
                   _mm256_mul_ps(_mm256_loadu_ps(values + 8), factor)};
}

/*
 * Eight of the 16 elements in 8 bytes, in order. Each lane contains 4 bytes, shifted so that its
 * lowest bits are the code of the lane. vpermps uses the lower three bits of the code. The fourth
 * bit is shifted to the sign bit, which selects one of the two results.
 */
INLINE vec table_values(const uint8_t *codes, Table table, int part)
{
    int32_t four;
    memcpy(&four, codes + 4 * part, sizeof four);
    const __m256i places = _mm256_setr_epi32(4, 0, 12, 8, 20, 16, 28, 24);
    const __m256i numbers = _mm256_srlv_epi32(_mm256_set1_epi32(four), places);
    return _mm256_blendv_ps(_mm256_permutevar8x32_ps(table.lower, numbers),
                            _mm256_permutevar8x32_ps(table.upper, numbers),
                            _mm256_castsi256_ps(_mm256_slli_epi32(numbers, 28)));
}

/* Groups of codes per integer vector; pieces of 16 bytes per integer vector; and the maximum number
 * of bits of codes that are multiplied as bytes (transposed_bytes.h). */
enum { VECTOR_GROUPS = 1 };
#define BYTE_LANES 2
#define BYTE_BITS 4

INLINE ivec join_groups(const group *groups) { return groups[0]; }

/* 16-bit codes of two groups, one after the other. */
typedef struct WidePair {
    ivec even[2], odd[2];
} WidePair;

/* Loads the same bytes into both halves. */
INLINE ivec load_both(const void *bytes)
{
    return _mm256_broadcastsi128_si256(_mm_loadu_si128((const __m128i *)bytes));
}

/* The table entries of the codes in 32 bytes. The first code of a byte is in its upper half. */
INLINE WidePair look_up_wide(const uint8_t *bytes, const int16_t table[16])
{
    const ivec mask = _mm256_set1_epi8(15), first = load_both(table), second = load_both(table + 8);
    const ivec lower_bytes = _mm256_set1_epi16(255);
    const ivec lower = _mm256_packus_epi16(_mm256_and_si256(first, lower_bytes),
                                           _mm256_and_si256(second, lower_bytes));
    const ivec upper =
        _mm256_packus_epi16(_mm256_srli_epi16(first, 8), _mm256_srli_epi16(second, 8));
    const ivec both = _mm256_permute4x64_epi64(_mm256_loadu_si256((const __m256i *)bytes), 0xD8);
    const ivec even = _mm256_and_si256(_mm256_srli_epi16(both, 4), mask);
    const ivec odd = _mm256_and_si256(both, mask);
    const ivec even_lower = _mm256_shuffle_epi8(lower, even);
    const ivec even_upper = _mm256_shuffle_epi8(upper, even);
    const ivec odd_lower = _mm256_shuffle_epi8(lower, odd);
    const ivec odd_upper = _mm256_shuffle_epi8(upper, odd);
    return (WidePair){
        {_mm256_unpacklo_epi8(even_lower, even_upper),
         _mm256_unpackhi_epi8(even_lower, even_upper)},
        {_mm256_unpacklo_epi8(odd_lower, odd_upper), _mm256_unpackhi_epi8(odd_lower, odd_upper)}};
}

INLINE ivec wide_of_rows(const ivec *first, const ivec *second, int index)
{
    (void)second;
    return first[index];
}

/* Loads 16 bytes of each of BYTE_LANES adjacent blocks, starting at byte `skip` of the block. */
INLINE ivec join_neighbours(const uint8_t *blocks, const ptrdiff_t bytes, int skip)
{
    return _mm256_inserti128_si256(
        _mm256_castsi128_si256(_mm_loadu_si128((const __m128i *)(blocks + skip))),
        _mm_loadu_si128((const __m128i *)(blocks + bytes + skip)), 1);
}

/* The words at the given positions. */
INLINE ivec order_words(ivec words, const int places[VEC_LANES])
{
    return _mm256_permutevar8x32_epi32(words, _mm256_loadu_si256((const __m256i *)places));
}

/* Sums of pairs of products of bytes, in 16 bits. */
INLINE ivec multiply_bytes(ivec is_unsigned, ivec is_signed)
{
    return _mm256_maddubs_epi16(is_unsigned, is_signed);
}

/* The magnitudes of codes, as unsigned bytes so that 128 fits, and x with
 * the signs of the codes. */
INLINE ivec magnitudes(ivec codes) { return _mm256_abs_epi8(codes); }
INLINE ivec with_signs_of(ivec x, ivec codes) { return _mm256_sign_epi8(x, codes); }

/* Loads VEC_LANES / 2 numbers and repeats each of them. */
INLINE vec load_twice(const float *x)
{
    const __m256i order = _mm256_setr_epi32(0, 0, 1, 1, 2, 2, 3, 3);
    return _mm256_permutevar8x32_ps(_mm256_castps128_ps256(_mm_loadu_ps(x)), order);
}

/* a[2i] * b[2i] + a[2i+1] * b[2i+1] */
INLINE ivec multiply_pairs(ivec a, ivec b) { return _mm256_madd_epi16(a, b); }

/* sum + multiply_pairs(a, b). With `one_step`, a single instruction computes this. It is written in
 * assembly, because compilers accept its intrinsic only in code that is compiled for processors
 * with that instruction. */
INLINE ivec add_products(const int one_step, ivec sum, ivec a, ivec b)
{
    if (!one_step)
        return _mm256_add_epi32(sum, multiply_pairs(a, b));
    __asm__("%{vex%} vpdpwssd %2, %1, %0" : "+x"(sum) : "x"(a), "x"(b));
    return sum;
}

/* sum + the products of four bytes, of which the bytes of a are unsigned. A single instruction
 * computes this. */
INLINE ivec add_byte_products(ivec sum, ivec a, ivec b)
{
    __asm__("%{vex%} vpdpbusd %2, %1, %0" : "+x"(sum) : "x"(a), "x"(b));
    return sum;
}

/* Whether the processor has AVX-VNNI: Alder Lake, Sapphire Rapids, Zen 5 and later. Sanitized test
 * builds do not use it. */
INLINE int adds_in_one_step(void)
{
#ifdef LLAMA_BOLTS_EMULATE_BF16
    return 0;
#else
    return __builtin_cpu_supports("avxvnni") != 0;
#endif
}

/* Alternate words, or pairs of words, of a and b (codes_avx.h). */
INLINE ivec lower_words(ivec a, ivec b) { return _mm256_unpacklo_epi32(a, b); }
INLINE ivec upper_words(ivec a, ivec b) { return _mm256_unpackhi_epi32(a, b); }
INLINE ivec lower_pairs(ivec a, ivec b) { return _mm256_unpacklo_epi64(a, b); }
INLINE ivec upper_pairs(ivec a, ivec b) { return _mm256_unpackhi_epi64(a, b); }

/* The lower 16 bytes of a and b, and the upper 16 bytes of a and b. */
#define lower_halves lower_quarters
#define upper_halves upper_quarters
/* A vector has 8 words, so 8 vectors are a square. */
#define transpose_square transpose_words
INLINE ivec lower_quarters(ivec a, ivec b) { return _mm256_permute2x128_si256(a, b, 0x20); }
INLINE ivec upper_quarters(ivec a, ivec b) { return _mm256_permute2x128_si256(a, b, 0x31); }

/* Joins two vectors, which contain in each 16 bytes one partial sum of each of 4 vectors, to the
 * sums of groups, or of one half of each group. */
INLINE ivec join_blocks(ivec a, ivec b)
{
    return _mm256_add_epi32(lower_quarters(a, b), upper_quarters(a, b));
}

INLINE ivec join_halves(ivec a, ivec b, int half)
{
    return half ? upper_quarters(a, b) : lower_quarters(a, b);
}

/* 16-bit numbers for VEC_LANES groups. */
INLINE halves join_words(const uint64_t *words)
{
    return (halves)_mm_set_epi64x((int64_t)words[1], (int64_t)words[0]);
}

/* Whether halves_apart loads the numbers of such blocks: of all. */
#define GATHERS_HALVES(apart) 1

INLINE int16_t load_half(const uint8_t *bytes)
{
    int16_t half;
    memcpy(&half, bytes, sizeof half);
    return half;
}

/* Four 16-bit numbers at a distance of `apart` bytes. */
INLINE __m128i four_halves(const uint8_t *bytes, const ptrdiff_t apart)
{
    const __m128i one = _mm_cvtsi32_si128(load_half(bytes));
    const __m128i two = _mm_insert_epi16(one, load_half(bytes + apart), 1);
    const __m128i three = _mm_insert_epi16(two, load_half(bytes + 2 * apart), 2);
    return _mm_insert_epi16(three, load_half(bytes + 3 * apart), 3);
}

/* 16-bit numbers for VEC_LANES groups, at a distance of `apart` bytes. */
INLINE halves halves_apart(const uint8_t *bytes, const ptrdiff_t apart)
{
    return (halves)_mm_unpacklo_epi64(four_halves(bytes, apart),
                                      four_halves(bytes + 4 * apart, apart));
}

/* The lowest of four 16-bit numbers, for VEC_LANES groups. */
INLINE halves repeat_halves(uint64_t four) { return (halves)_mm_set1_epi16((short)four); }

/* The steps of VEC_LANES groups (formats/format.h), for one part of each group. */
INLINE vec widen_steps(const uint64_t *steps, int parts, int part)
{
    if (parts == 1)
        return _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(_mm_cvtsi64_si128((int64_t)steps[0])));
    const __m256i both = _mm256_cvtepi16_epi32((__m128i)join_words(steps));
    const __m256i first = _mm256_srai_epi32(_mm256_slli_epi32(both, 24), 24);
    return _mm256_cvtepi32_ps(part ? _mm256_srai_epi32(both, 8) : first);
}
