/*
 * NEON vectors for tile.h: four vectors contain the 16 lanes of a sum. With NEON_BF16, which units
 * of neonbf16 define, two instructions multiply pairs of bfloat16: the odd elements and then the
 * even elements. Otherwise, pairs are widened with a mask or a shift and multiplied by two fused
 * multiply-adds.
 */
#pragma once
#include <arm_neon.h>
#include <string.h>
#include "kernels.h"

/* 4 x 6 accumulators, 4 weights, 1 activation: 29 of 32 registers. */
enum { VEC_LANES = 4, VEC_PARTS = LANES / VEC_LANES, TILE_ROWS = 4, TILE_VECTORS = 4 };

typedef float32x4_t vec;

INLINE vec vec_zero(void) { return vdupq_n_f32(0.0f); }
/* Loads from any address, because rows with an odd number of bfloat16 elements begin in
 * the middle of a word. */
INLINE vec vec_load(const float *x) { return vreinterpretq_f32_u8(vld1q_u8((const uint8_t *)x)); }
INLINE vec vec_all(const float *x) { return vld1q_dup_f32(x); }
INLINE void vec_store(float *x, vec v) { vst1q_f32(x, v); }
INLINE vec vec_add(vec a, vec b) { return vaddq_f32(a, b); }
INLINE vec vec_multiply(vec a, vec b) { return vmulq_f32(a, b); }
INLINE vec mac_float32(vec acc, vec x, vec w) { return vfmaq_f32(acc, x, w); }
/* The maximum, or b if either is a NaN. */
INLINE vec vec_maximum(vec a, vec b) { return vbslq_f32(vcgtq_f32(a, b), a, b); }

#ifdef NEON_BF16
enum { PAIR_PHASES = 1 };
INLINE vec mac_pairs(vec acc, vec x, vec w)
{
    const bfloat16x8_t of_x = vreinterpretq_bf16_f32(x), of_w = vreinterpretq_bf16_f32(w);
    return vbfmlalbq_f32(vbfmlaltq_f32(acc, of_x, of_w), of_x, of_w);
}
#else
enum { PAIR_PHASES = 2 };
INLINE vec mac_pairs(vec acc, vec x, vec w) { return mac_float32(acc, x, w); }
#endif

/* VEC_LANES 16-bit numbers. Operators apply to all of them. */
typedef uint16_t halves __attribute__((vector_size(8)));
INLINE vec widen_float16(halves x) { return vcvt_f32_f16((float16x4_t)x); }
INLINE vec widen_bfloat16(halves x)
{
    return vreinterpretq_f32_u32(vshll_n_u16((uint16x4_t)x, 16));
}
INLINE halves halves_of_bytes(const char *x)
{
    uint32_t four;
    memcpy(&four, x, sizeof four);
    return (halves)vget_low_u16(vmovl_u8(vcreate_u8(four)));
}

/* VEC_LANES int8 codes, widened exactly. */
INLINE vec vec_of_codes(const char *x)
{
    uint32_t four;
    memcpy(&four, x, sizeof four);
    const int16x8_t wide = vmovl_s8(vcreate_s8(four));
    return vcvtq_f32_s32(vmovl_s16(vget_low_s16(wide)));
}

/* Loads that only access the first words. */
typedef ptrdiff_t word_mask;
INLINE word_mask first_words(ptrdiff_t count) { return count; }
INLINE vec load_words(const float *x, word_mask count)
{
    float words[VEC_LANES] = {0};
    memcpy(words, x, (size_t)count * sizeof(float));
    return vld1q_f32(words);
}

/* Reduces lanes as l + (l + 8), then + 4, + 2, + 1. */
INLINE float reduce_vectors(const vec *v)
{
    const vec four = vaddq_f32(vaddq_f32(v[0], v[2]), vaddq_f32(v[1], v[3]));
    const float32x2_t two = vadd_f32(vget_low_f32(four), vget_high_f32(four));
    return vget_lane_f32(two, 0) + vget_lane_f32(two, 1);
}

/* Reduces the lanes of adjacent rows, each of which has four vectors. */
INLINE void reduce_rows(float *out, const vec *v, const int rows)
{
#pragma GCC unroll 4
    for (int r = 0; r < rows; r++)
        out[r] = reduce_vectors(v + 4 * r);
}
