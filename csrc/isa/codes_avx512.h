/* AVX-512 vectors for the codes of block-quantized weights. */
#pragma once

#ifndef VECTORS
#define VECTORS "isa/vectors_avx512.h"
#endif
#include "isa/codes_avx.h"

typedef vec Table;

/* The values of the 16 codes times the scale of a block. */
INLINE Table table_times(const float values[16], float scale)
{
    return _mm512_mul_ps(_mm512_loadu_ps(values), _mm512_set1_ps(scale));
}

/* The 16 elements in 8 bytes; the first of a byte is in its upper half. The first eight lanes
 * contain the first four bytes, and the other lanes the last four, shifted so that the lowest bits
 * of each lane are its code. vpermps only uses these bits. */
INLINE vec table_values(const uint8_t *codes, Table table, int part)
{
    (void)part;
    const __m512i bytes = _mm512_broadcastq_epi64(_mm_loadl_epi64((const __m128i *)codes));
    const __m512i words = _mm512_setr_epi32(0, 0, 0, 0, 0, 0, 0, 0, 1, 1, 1, 1, 1, 1, 1, 1);
    const __m512i places =
        _mm512_setr_epi32(4, 0, 12, 8, 20, 16, 28, 24, 4, 0, 12, 8, 20, 16, 28, 24);
    return _mm512_permutexvar_ps(_mm512_srlv_epi32(_mm512_permutexvar_epi32(words, bytes), places),
                                 table);
}

/* Groups of codes per integer vector; pieces of 16 bytes per integer vector; and the maximum number
 * of bits of codes that are multiplied as bytes (transposed_bytes.h). */
enum { VECTOR_GROUPS = 2 };
#define BYTE_LANES 4
#define BYTE_BITS 6

INLINE ivec join_groups(const group *groups)
{
    return _mm512_inserti64x4(_mm512_castsi256_si512(groups[0]), groups[1], 1);
}

/* 16 bytes of each of four. */
INLINE ivec join_quarters(const uint8_t *a, const uint8_t *b, const uint8_t *c, const uint8_t *d)
{
    const __m512i first = _mm512_castsi128_si512(_mm_loadu_si128((const __m128i *)a));
    const __m512i two = _mm512_inserti32x4(first, _mm_loadu_si128((const __m128i *)b), 1);
    const __m512i three = _mm512_inserti32x4(two, _mm_loadu_si128((const __m128i *)c), 2);
    return _mm512_inserti32x4(three, _mm_loadu_si128((const __m128i *)d), 3);
}

/* The entries of tables of 32 or 64 numbers of 16 bits, by the lowest bits of each place. */
INLINE ivec look_up_32(ivec places, const uint16_t *table)
{
    return _mm512_permutexvar_epi16(places, _mm512_loadu_si512(table));
}

INLINE ivec look_up_64(ivec places, const uint16_t *table)
{
    return _mm512_permutex2var_epi16(_mm512_loadu_si512(table), places,
                                     _mm512_loadu_si512(table + 32));
}

/* 16-bit codes of two groups, or of one group of two rows. */
typedef struct WidePair {
    ivec even[1], odd[1];
} WidePair;

/* The table entries of the codes in 32 bytes. The first code of a byte is in its upper half. */
INLINE WidePair look_up_wide(const uint8_t *bytes, const int16_t table[16])
{
    const ivec both = _mm512_cvtepu8_epi16(_mm256_loadu_si256((const __m256i *)bytes));
    const ivec entries = _mm512_broadcast_i64x4(_mm256_loadu_si256((const __m256i *)table));
    return (WidePair){{_mm512_permutexvar_epi16(_mm512_srli_epi16(both, 4), entries)},
                      {_mm512_permutexvar_epi16(both, entries)}};
}

INLINE ivec wide_of_rows(const ivec *first, const ivec *second, int index)
{
    return index ? _mm512_shuffle_i64x2(*first, *second, 0xEE)
                 : _mm512_shuffle_i64x2(*first, *second, 0x44);
}

/* Loads 16 bytes of each of BYTE_LANES adjacent blocks, starting at byte `skip` of the block, with
 * two loads: the first 64 bytes of all blocks, and the last 64 bytes. Blocks have 16 to 32 bytes.
 * `bytes` and `skip` are even. */
INLINE ivec join_neighbours(const uint8_t *blocks, const ptrdiff_t bytes, int skip)
{
    const ptrdiff_t second = BYTE_LANES * bytes - 64; /* where the second load begins */
    uint16_t places __attribute__((vector_size(64))); /* indices of 16-bit words: 32 per load */
#pragma GCC unroll 32
    for (int i = 0; i < 32; i++) {
        const ptrdiff_t word = (i / 8 * bytes + skip) / 2 + i % 8;
        places[i] = (uint16_t)(word < 32 ? word : word - second / 2 + 32);
    }
    return _mm512_permutex2var_epi16(_mm512_loadu_si512(blocks), (__m512i)places,
                                     _mm512_loadu_si512(blocks + second));
}

/* The words at the given positions. */
INLINE ivec order_words(ivec words, const int places[VEC_LANES])
{
    return _mm512_permutexvar_epi32(_mm512_loadu_si512(places), words);
}

/* Loads the same 32 bytes into both halves. */
INLINE ivec load_for_all(const uint8_t *bytes)
{
    return _mm512_broadcast_i64x4(_mm256_loadu_si256((const __m256i *)bytes));
}

/* The lower or upper 16 bytes of each 32 bytes: both of a, and then both of b. */
INLINE ivec lower_halves(ivec a, ivec b) { return _mm512_shuffle_i32x4(a, b, 0x88); }
INLINE ivec upper_halves(ivec a, ivec b) { return _mm512_shuffle_i32x4(a, b, 0xDD); }

/* Transposes words: word i of all 16 vectors is moved to vector i. */
INLINE void transpose_square(ivec v[16])
{
#pragma GCC unroll 4
    for (int i = 0; i < 16; i += 4)
        transpose_in_lanes(v + i);
#pragma GCC unroll 4
    for (int i = 0; i < 4; i++) {
        const ivec even[2] = {lower_halves(v[i], v[4 + i]), lower_halves(v[8 + i], v[12 + i])};
        const ivec odd[2] = {upper_halves(v[i], v[4 + i]), upper_halves(v[8 + i], v[12 + i])};
        v[i] = lower_halves(even[0], even[1]);
        v[4 + i] = lower_halves(odd[0], odd[1]);
        v[8 + i] = upper_halves(even[0], even[1]);
        v[12 + i] = upper_halves(odd[0], odd[1]);
    }
}

/* a | (b rotated & mask). Word i of b is rotated left by left[i] bits. The mask is
 * repeated for each byte. */
INLINE ivec or_rotated(ivec a, ivec b, const int left[VEC_LANES], int mask)
{
    const __m512i rotated = _mm512_rolv_epi32(b, _mm512_loadu_si512(left));
    return _mm512_ternarylogic_epi32(a, rotated, _mm512_set1_epi8((char)mask), 0xF8);
}

/* Sums of pairs of products of bytes, in 16 bits. */
INLINE ivec multiply_bytes(ivec is_unsigned, ivec is_signed)
{
    return _mm512_maddubs_epi16(is_unsigned, is_signed);
}

#if defined(AVX512BF16) && !defined(LLAMA_BOLTS_EMULATE_BF16)
/* sum + the products of four bytes, with vpdpbusd of AVX512-VNNI, which the set avx512bf16
 * requires. Builds that emulate BF16 do not use it. */
#define ADDS_BYTES
INLINE ivec add_bytes(ivec sum, ivec is_unsigned, ivec is_signed)
{
    return _mm512_dpbusd_epi32(sum, is_unsigned, is_signed);
}
#endif

/* The magnitudes of codes, as unsigned bytes so that 128 fits, and x with
 * the signs of the codes. */
INLINE ivec magnitudes(ivec codes) { return _mm512_abs_epi8(codes); }

INLINE ivec with_signs_of(ivec x, ivec codes)
{
    return _mm512_mask_sub_epi8(x, _mm512_movepi8_mask(codes), _mm512_setzero_si512(), x);
}

/* Loads VEC_LANES / 2 numbers and repeats each of them. */
INLINE vec load_twice(const float *x)
{
    const __m512i order = _mm512_setr_epi32(0, 0, 1, 1, 2, 2, 3, 3, 4, 4, 5, 5, 6, 6, 7, 7);
    return _mm512_permutexvar_ps(order, _mm512_castps256_ps512(_mm256_loadu_ps(x)));
}

/* a[2i] * b[2i] + a[2i+1] * b[2i+1] */
INLINE ivec multiply_pairs(ivec a, ivec b) { return _mm512_madd_epi16(a, b); }

/*
 * For many tokens (many_tokens.h): sum + multiply_pairs(a, b). With `one_step`, a single
 * instruction computes this. It is written in assembly, because compilers accept its intrinsic only
 * in code that is compiled for processors with that instruction.
 */
INLINE ivec add_products(const int one_step, ivec sum, ivec a, ivec b)
{
    if (!one_step)
        return _mm512_add_epi32(sum, multiply_pairs(a, b));
#ifndef __APPLE__
    __asm__("vpdpwssd %2, %1, %0" : "+v"(sum) : "v"(a), "v"(b));
#endif
    return sum;
}

/* sum + the products of four bytes, of which the bytes of a are unsigned. A single instruction
 * computes this. */
INLINE ivec add_byte_products(ivec sum, ivec a, ivec b)
{
#ifdef __APPLE__ /* not called there: adds_in_one_step */
    (void)a, (void)b;
#else
    __asm__("vpdpbusd %2, %1, %0" : "+v"(sum) : "v"(a), "v"(b));
#endif
    return sum;
}

/* Whether the processor has this instruction, which Skylake lacks. In test builds, one
 * of the instruction sets does not use it. */
INLINE int adds_in_one_step(void)
{
#ifdef LLAMA_BOLTS_EMULATE_BF16
    if (PAIR_PHASES == 2)
        return 0;
#endif
#ifdef __APPLE__ /* clang does not accept AVX-512 vectors in such an instruction */
    return 0;
#endif
    return __builtin_cpu_supports("avx512vnni") != 0;
}

/* Alternate words, or pairs of words, of a and b (codes_avx.h). */
INLINE ivec lower_words(ivec a, ivec b) { return _mm512_unpacklo_epi32(a, b); }
INLINE ivec upper_words(ivec a, ivec b) { return _mm512_unpackhi_epi32(a, b); }
INLINE ivec lower_pairs(ivec a, ivec b) { return _mm512_unpacklo_epi64(a, b); }
INLINE ivec upper_pairs(ivec a, ivec b) { return _mm512_unpackhi_epi64(a, b); }

/* Restores the order of groups, which is 0 2 4 6, 1 3 5 7, 8 10 12 14, 9 11 13 15. */
INLINE ivec order_blocks(ivec sums)
{
    const __m512i places = _mm512_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7, 8, 12, 9, 13, 10, 14, 11, 15);
    return _mm512_permutexvar_epi32(places, sums);
}

/* Joins two vectors, which contain in each 16 bytes one partial sum of each of 4 vectors, to the
 * sums of groups, or of one half of each group. */
INLINE ivec join_blocks(ivec a, ivec b)
{
    return order_blocks(_mm512_add_epi32(lower_halves(a, b), upper_halves(a, b)));
}

INLINE ivec join_halves(ivec a, ivec b, int half)
{
    return order_blocks(half ? upper_halves(a, b) : lower_halves(a, b));
}

/* 16-bit numbers for VEC_LANES groups. */
INLINE halves join_words(const uint64_t *words)
{
    return (halves)_mm256_set_epi64x((int64_t)words[3], (int64_t)words[2], (int64_t)words[1],
                                     (int64_t)words[0]);
}

/* Eight copies of the lowest of four 16-bit numbers, and eight of the next. */
INLINE halves repeat_halves(uint64_t four)
{
    const __m256i places = _mm256_setr_epi16(0, 0, 0, 0, 0, 0, 0, 0, 1, 1, 1, 1, 1, 1, 1, 1);
    const __m128i word = _mm_cvtsi64_si128((int64_t)four);
    return (halves)_mm256_permutexvar_epi16(places, _mm256_castsi128_si256(word));
}

/* Whether 64 bytes contain the numbers of four blocks, and the 64 bytes for the last four blocks
 * end inside these blocks. */
#define GATHERS_HALVES(apart) ((apart) == 18 || (apart) == 20)

/* 16-bit numbers for VEC_LANES groups, at a distance of `apart` bytes. */
INLINE halves halves_apart(const uint8_t *bytes, const ptrdiff_t apart)
{
    const __m512i places = _mm512_set1_epi64(apart / 2 * 0x0003000200010000);
    __m512i all = _mm512_setzero_si512();
#pragma GCC unroll 4
    for (int i = 0; i < 4; i++)
        all = _mm512_mask_permutexvar_epi16(all, 15u << 4 * i, places,
                                            _mm512_loadu_si512(bytes + 4 * i * apart));
    return (halves)_mm512_castsi512_si256(all);
}

/* The steps of VEC_LANES groups (formats/format.h), for one part of each group. */
INLINE vec widen_steps(const uint64_t *steps, int parts, int part)
{
    const __m256i all = (__m256i)join_words(steps);
    if (parts == 1)
        return _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(_mm256_castsi256_si128(all)));
    const __m512i both = _mm512_cvtepi16_epi32(all);
    const __m512i first = _mm512_srai_epi32(_mm512_slli_epi32(both, 24), 24);
    return _mm512_cvtepi32_ps(part ? _mm512_srai_epi32(both, 8) : first);
}

/* The lower 16 bytes of each half of a and b, and the upper 16 bytes of each half. */
INLINE ivec lower_quarters(ivec a, ivec b)
{
    return _mm512_permutex2var_epi64(a, _mm512_setr_epi64(0, 1, 8, 9, 4, 5, 12, 13), b);
}

INLINE ivec upper_quarters(ivec a, ivec b)
{
    return _mm512_permutex2var_epi64(a, _mm512_setr_epi64(2, 3, 10, 11, 6, 7, 14, 15), b);
}
