/*
 * The 8-bit floats of the Open Compute Project (OFP8, 2023), as ml_dtypes rounds them.
 *
 * float8_e5m2 is the upper half of a float16. float8_e4m3fn has no infinity: what would be one is
 * its NaN, all bits set but the sign. Its bits, moved to where float16 has exponent and mantissa,
 * give the element times 2^-8, subnormal numbers included.
 */
#pragma once
#include "scalar.h"

typedef uint8_t float8_e4m3fn_bits, float8_e5m2_bits;

/* For an element in the upper half of 16 bits, or a vector of such: the float16 that FACTOR times
 * is the element. `+ 0x100` carries into the top bit for the NaN alone. */
#define FLOAT8_E5M2_HALF(u) (u)
#define FLOAT8_E5M2_FACTOR 1.0f
#define FLOAT8_E4M3FN_HALF(u) \
    (((u) & 0x8000) | (((u) & 0x7F00) >> 1) | ((((u) & 0x7F00) + 0x100) & 0x8000) >> 1)
#define FLOAT8_E4M3FN_FACTOR 256.0f

INLINE float float8_e5m2_to_float32(uint8_t x) { return float16_to_float32((uint16_t)(x << 8)); }

INLINE float float8_e4m3fn_to_float32(uint8_t x)
{
    return float16_to_float32((uint16_t)FLOAT8_E4M3FN_HALF(x << 8)) * FLOAT8_E4M3FN_FACTOR;
}

/*
 * The magnitude of x to nearest, ties to even, in a float of `bits` mantissa bits whose smallest
 * normal number has the exponent `least`; may be above the largest number. Below `least` an
 * addition rounds at the right bit.
 */
INLINE uint32_t round_magnitude(float x, int bits, int least)
{
    const uint32_t magnitude = bits_of(x) & 0x7FFFFFFFu, shift = 23 - (uint32_t)bits;
    const uint32_t first = (uint32_t)(least + 127) << 23;
    const uint32_t adder = first + (shift << 23);
    const uint32_t small = bits_of(float_of(magnitude) + float_of(adder)) - adder;
    const uint32_t even = (magnitude >> shift) & 1u;
    const uint32_t normal =
        (magnitude - first + (1u << 23) + (1u << (shift - 1)) - 1u + even) >> shift;
    return (int32_t)magnitude < (int32_t)first ? small : normal;
}

/* The same as 8 bits with the sign; what is above the largest number is `infinity`, or `nan`. */
INLINE uint8_t round_float8(float x, int bits, int least, uint32_t infinity, uint32_t nan)
{
    const uint32_t rounded = round_magnitude(x, bits, least), magnitude = bits_of(x) & 0x7FFFFFFFu;
    const uint32_t large = (int32_t)magnitude > 0x7F800000 ? nan : infinity;
    const uint32_t value = rounded > infinity ? large : rounded;
    return (uint8_t)(value | (bits_of(x) >> 24 & 0x80u));
}

INLINE uint8_t float32_to_float8_e4m3fn(float x) { return round_float8(x, 3, -6, 0x7F, 0x7F); }
INLINE uint8_t float32_to_float8_e5m2(float x) { return round_float8(x, 2, -14, 0x7C, 0x7E); }
