/* Loads of 8-bit floats for tile.h: widened by way of float16 (float8.h). */
#pragma once
#include "float8.h"
#include "tile.h"

/* Single elements; and pairs, of which the odd element is in the upper half of 16 bits. */
#define DEFINE_FLOAT8_LOADS(name, HALF, FACTOR)                                     \
    INLINE vec load_##name(const char *block, int phase, int part)                  \
    {                                                                               \
        (void)phase;                                                                \
        const halves bytes = halves_of_bytes(block + VEC_LANES * part) << 8;        \
        return vec_multiply(widen_float16(HALF(bytes)), vec_all(&(float){FACTOR})); \
    }                                                                               \
    INLINE vec load_pairs_##name(const char *block, int phase, int part)            \
    {                                                                               \
        halves pairs;                                                               \
        memcpy(&pairs, block + 2 * VEC_LANES * part, sizeof pairs);                 \
        const halves upper = pairs & 0xFF00, lower = pairs << 8;                    \
        const vec factor = vec_all(&(float){FACTOR});                               \
        return join_pairs(vec_multiply(widen_float16(HALF(upper)), factor),         \
                          vec_multiply(widen_float16(HALF(lower)), factor), phase); \
    }

DEFINE_FLOAT8_LOADS(float8_e4m3fn, FLOAT8_E4M3FN_HALF, FLOAT8_E4M3FN_FACTOR)
DEFINE_FLOAT8_LOADS(float8_e5m2, FLOAT8_E5M2_HALF, FLOAT8_E5M2_FACTOR)
