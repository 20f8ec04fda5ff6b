/*
 * Conversions and exp of one float32, in plain C without branches, so that loops over them
 * vectorise. Contraction is disabled (-ffp-contract=off), so every instruction set gives the same
 * bits.
 */
#pragma once
#include <math.h>
#include <string.h>
#include "kernels.h"

/* The storage type of the elements of each type. */
typedef uint16_t bfloat16_bits, float16_bits;
typedef float float32_bits;
typedef uint8_t float8_e4m3fn_bits, float8_e5m2_bits;

INLINE uint32_t bits_of(float x)
{
    uint32_t u;
    memcpy(&u, &x, sizeof u);
    return u;
}

INLINE float float_of(uint32_t u)
{
    float x;
    memcpy(&x, &u, sizeof x);
    return x;
}

INLINE float float32_to_float32(float x) { return x; }
INLINE float bfloat16_to_float32(uint16_t x) { return float_of((uint32_t)x << 16); }

/* Rounds to nearest, ties to even. A NaN becomes quiet and keeps its sign and upper payload. */
INLINE uint16_t float32_to_bfloat16(float x)
{
    const uint32_t u = bits_of(x);
    const uint32_t rounded = (u + 0x7FFFu + ((u >> 16) & 1u)) >> 16;
    const uint32_t quiet = (u >> 16) | 0x40u;
    return (uint16_t)((int32_t)(u & 0x7FFFFFFFu) > 0x7F800000 ? quiet : rounded);
}

/*
 * Exact. The exponent and the mantissa are moved into place, and the exponent bias is corrected. A
 * float16 subnormal becomes normal by subtracting 2^-14 from 2^-14 * 1.mantissa.
 */
INLINE float float16_to_float32(uint16_t x)
{
    const uint32_t magnitude = ((uint32_t)x & 0x7FFFu) << 13;
    const uint32_t exponent = magnitude & 0x0F800000u;
    const uint32_t normal = magnitude + 0x38000000u;
    const uint32_t special = (normal + 0x38000000u) | ((magnitude & 0x7FFFFFu) ? 0x400000u : 0u);
    const uint32_t subnormal = bits_of(float_of(normal + 0x800000u) - float_of(0x38800000u));
    const uint32_t value = exponent == 0x0F800000u ? special : exponent == 0 ? subnormal : normal;
    return float_of(value | (((uint32_t)x & 0x8000u) << 16));
}

/* Rounds to nearest, ties to even. For subnormals, an addition rounds at the right bit. */
INLINE uint16_t float32_to_float16(float x)
{
    const uint32_t u = bits_of(x);
    const uint32_t magnitude = u & 0x7FFFFFFFu;
    const uint32_t nan = 0x7E00u | ((magnitude >> 13) & 0x3FFu);
    const uint32_t large = (int32_t)magnitude > 0x7F800000 ? nan : 0x7C00u;
    const uint32_t small = bits_of(float_of(magnitude) + 0.5f) - 0x3F000000u;
    const uint32_t normal = (magnitude - 0x38000000u + 0xFFFu + ((magnitude >> 13) & 1u)) >> 13;
    const uint32_t value = (int32_t)magnitude >= 0x47800000  ? large
                           : (int32_t)magnitude < 0x38800000 ? small
                                                             : normal;
    return (uint16_t)(value | ((u >> 16) & 0x8000u));
}

/*
 * The 8-bit floats of the Open Compute Project (OFP8, 2023), rounded as ml_dtypes rounds them.
 *
 * float8_e5m2 is the upper half of a float16. float8_e4m3fn has no infinity; its only NaN has all
 * bits set except the sign. If its bits are moved to the positions of the exponent and the mantissa
 * of a float16, the result is the element times 2^-8, also for subnormal numbers.
 */

/* Converts an element in the upper half of 16 bits, or a vector of such elements, to a float16,
 * which must be multiplied by FACTOR to get the element. `+ 0x100` carries into the top bit only
 * for the NaN. */
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
 * Rounds the magnitude of x to nearest, ties to even, for a type with `bits` mantissa bits whose
 * smallest normal number has the exponent `least`. The result may exceed the largest number of the
 * type. Below `least`, an addition rounds at the right bit.
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

/* Rounds x to 8 bits, including the sign. Values above the largest number become `infinity`, and a
 * NaN becomes `nan`. */
INLINE uint8_t round_float8(float x, int bits, int least, uint32_t infinity, uint32_t nan)
{
    const uint32_t rounded = round_magnitude(x, bits, least), magnitude = bits_of(x) & 0x7FFFFFFFu;
    const uint32_t large = (int32_t)magnitude > 0x7F800000 ? nan : infinity;
    const uint32_t value = rounded > infinity ? large : rounded;
    return (uint8_t)(value | (bits_of(x) >> 24 & 0x80u));
}

INLINE uint8_t float32_to_float8_e4m3fn(float x) { return round_float8(x, 3, -6, 0x7F, 0x7F); }
INLINE uint8_t float32_to_float8_e5m2(float x) { return round_float8(x, 2, -14, 0x7C, 0x7E); }

/*
 * a * b + c, rounded once. If the processor has the instruction, fmaf compiles to it. Otherwise the
 * sum is computed in double: the product is exact, the sum is rounded to odd by means of its exact
 * error (S. Boldo, G. Melquiond, "Emulation of FMA and correctly rounded sums", 2008), and the
 * conversion to float32 then rounds correctly.
 */
INLINE float fused_multiply_add(float a, float b, float c)
{
#if defined(__FP_FAST_FMAF) || defined(VECTORS)
    return __builtin_fmaf(a, b, c);
#else
    const double product = (double)a * (double)b, addend = (double)c;
    const double sum = product + addend;
    const double back = sum - product;
    const double error = (product - (sum - back)) + (addend - back);
    uint64_t u;
    memcpy(&u, &sum, sizeof u);
    const uint64_t inexact = (uint64_t)((error < 0.0) | (error > 0.0)) & ~u & 1u;
    const uint64_t away = (uint64_t)((error > 0.0) == (sum > 0.0));
    u += inexact * (2 * away - 1);
    double odd;
    memcpy(&odd, &u, sizeof odd);
    return (float)odd;
#endif
}

/* Adds 16 lanes to one number. All sums of lanes use this order. */
static inline float reduce_lanes(float lanes[LANES])
{
    for (int width = LANES / 2; width > 0; width /= 2)
        for (int l = 0; l < width; l++)
            lanes[l] += lanes[l + width];
    return lanes[0];
}

/* The largest of 16 lanes, none of which is a NaN. */
static inline float largest_lane(const float lanes[LANES])
{
    float largest = lanes[0];
    for (int l = 1; l < LANES; l++)
        largest = lanes[l] > largest ? lanes[l] : largest;
    return largest;
}

/*
 * exp(x) for x <= 0: 2^n * exp(r), n = round(x / ln 2), r = x - n ln 2 in two steps, exp(r) by a
 * polynomial (coefficients of the Cephes library's expf, S. L. Moshier). The error is below 2 units
 * in the last place, and subnormal results, 0 and NaN are correct. 2^n is applied as two factors,
 * because n can be as low as -150. Results that would round to 0 are set to 0 directly, because
 * underflow is slow. Adding 1.5 * 2^23 rounds to an integer, which is left in the low bits.
 */
INLINE float exp_f32(float x)
{
    const float shifted = fused_multiply_add(x, 1.44269504088896341f, 12582912.0f);
    const float n = shifted - 12582912.0f;
    float r = fused_multiply_add(n, -0.693359375f, x);
    r = fused_multiply_add(n, 2.12194440e-4f, r);
    const float square = r * r;
    const float high = fused_multiply_add(1.9875691500e-4f, r, 1.3981999507e-3f);
    const float middle = fused_multiply_add(8.3334519073e-3f, r, 4.1665795894e-2f);
    const float low = fused_multiply_add(1.6666665459e-1f, r, 5.0000001201e-1f);
    const float p = fused_multiply_add(fused_multiply_add(high, square, middle), square, low);
    const float y = fused_multiply_add(p, square, r) + 1.0f;
    const float result = y * float_of((bits_of(shifted) << 23) + 0x5F800000u) * 0x1p-64f;
    return x < -103.98f ? 0.0f : result;
}

/* silu(x) = x / (1 + exp(-x)), computed with exp(-|x|), which cannot overflow. */
INLINE float silu_f32(float x)
{
    const float magnitude = float_of(bits_of(x) & 0x7FFFFFFFu);
    const float e = exp_f32(-magnitude);
    return (x < 0.0f ? x * e : x) / (1.0f + e);
}

/* The limit and the factor of clamped_swiglu_f32 (gpt-oss). */
#define CLAMPED_SWIGLU_LIMIT 7.0f
#define CLAMPED_SWIGLU_ALPHA 1.702f

/* (u + 1) * g / (1 + exp(-alpha g)), with g = min(gate, limit) and u = up limited to
 * -limit...limit, computed like silu. A NaN fails each comparison and stays. */
INLINE float clamped_swiglu_f32(float gate, float up)
{
    const float limit = CLAMPED_SWIGLU_LIMIT;
    const float g = gate > limit ? limit : gate;
    const float below = up > limit ? limit : up;
    const float u = below < -limit ? -limit : below;
    const float e = exp_f32(-float_of(bits_of(CLAMPED_SWIGLU_ALPHA * g) & 0x7FFFFFFFu));
    return (u + 1.0f) * ((g < 0.0f ? g * e : g) / (1.0f + e));
}

/* gelu(x) = x / 2 * (1 + tanh(u)) = x / (1 + exp(-2u)), u = sqrt(2 / pi) * (x + 0.044715 x^3): the
 * approximation of GELU by tanh (D. Hendrycks, K. Gimpel, 2016), computed like silu. */
INLINE float gelu_f32(float x)
{
    const float inner = fused_multiply_add(0.044715f * x * x, x, x);
    const float e = exp_f32(-float_of(bits_of(1.59576912160573f * inner) & 0x7FFFFFFFu));
    return (x < 0.0f ? x * e : x) / (1.0f + e);
}

/* tanh(x), by a polynomial below 0.625 (coefficients of the Cephes library's tanhf, S. L. Moshier)
 * and above as 1 - 2 exp(-2|x|) / (1 + exp(-2|x|)). The error is below 2 units in the last place.
 */
INLINE float tanh_f32(float x)
{
    const float magnitude = float_of(bits_of(x) & 0x7FFFFFFFu);
    const float e = exp_f32(-2.0f * magnitude);
    const float large = 1.0f - 2.0f * e / (1.0f + e);
    const float square = magnitude * magnitude;
    float p = fused_multiply_add(-5.70498872745e-3f, square, 2.06390887954e-2f);
    p = fused_multiply_add(p, square, -5.37397155531e-2f);
    p = fused_multiply_add(p, square, 1.33314422036e-1f);
    p = fused_multiply_add(p, square, -3.33332819422e-1f);
    const float small = fused_multiply_add(p * square, magnitude, magnitude);
    return float_of(bits_of(magnitude < 0.625f ? small : large) | (bits_of(x) & 0x80000000u));
}

/* cap * tanh(x / cap): limits values to the range from -cap to cap. */
INLINE float soft_cap_f32(float x, float cap) { return cap * tanh_f32(x / cap); }
