#include "floats.h"

/* The bits of s (first = 0) or n (first = 4) of group g in the 12 bytes of both (k_quants.h). */
static int six_bits(const uint8_t *bytes, int g, int first)
{
    if (g < 4)
        return bytes[first + g] & 63;
    return (bytes[4 + g] >> first & 15) | bytes[first + g - 4] >> 6 << 4;
}

/* Converts 32 elements to 8-bit integers, where n is the largest, and returns the sum of the
 * squared errors of the integers. */
static float round_to_8_bits(int32_t *q, const uint16_t *x, float n, float absmax)
{
    float lanes[LANES] = {0};
    for (int i = 0; i < 32; i++) {
        const float exact = bfloat16_to_float32(x[i]) * (n / absmax);
        q[i] = (int32_t)rintf(exact);
        const float error = exact - (float)q[i];
        lanes[i / 2] += error * error;
    }
    return reduce_lanes(lanes);
}

/* Converts 32 finite bfloat16 elements to 8-bit integers, and returns their float32 scale. */
static float quantize_to_8_bits(int32_t *q, const uint16_t *x)
{
    float absmax = 0.0f;
    for (int i = 0; i < 32; i++) {
        const float magnitude = fabsf(bfloat16_to_float32(x[i]));
        absmax = magnitude > absmax ? magnitude : absmax;
    }
    if (absmax < 127.0f * 0x1p-126f) {
        memset(q, 0, 32 * sizeof *q);
        return 0.0f;
    }
    float best = 127.0f, least = INFINITY;
    for (float n = 127.0f; n >= 125.0f; n--) {
        const float errors = round_to_8_bits(q, x, n, absmax) / (n * n);
        if (errors < least) {
            best = n;
            least = errors;
        }
    }
    round_to_8_bits(q, x, best, absmax);
    return absmax / best;
}

/* Converts 32 finite bfloat16 elements to 16-bit integers, and returns their scale, a power of
 * two. */
static float quantize_to_16_bits(int32_t *q, const uint16_t *x)
{
    uint32_t exponent = 15; /* 2^-126 is the smallest normal power of two */
    for (int i = 0; i < 32; i++) {
        const uint32_t of_element = (x[i] & 0x7FFFu) >> 7;
        exponent = of_element > exponent ? of_element : exponent;
    }
    const float xs = float_of((exponent - 14) << 23); /* the largest q is 2^14 to 2^15 */
    for (int i = 0; i < 32; i++)
        q[i] = (int32_t)rintf(bfloat16_to_float32(x[i]) / xs);
    return xs;
}

/*
 * q4_k_reference: out[t, o] = sum over i of x[t, i] * weight[o, i], for each group g of 32 along i:
 *
 *     lane[g mod 16] = fma(sum of code * q, d * s * xs, lane[g mod 16])
 *     lane[g mod 16] = fma(sum of q, -m * n * xs, lane[g mod 16])
 *
 * where q are 8-bit or 16-bit integers.
 *
 *   out     [T, rows]                float32
 *   x       [T, in]                  bfloat16, finite; in a multiple of 256
 *   weight  [rows, in / 256][144]    blocks of q4_k (k_quants.h)
 *
 * This code is not optimized. linear has the same bits. The caller checks contiguity and sizes.
 */
void q4_k_reference(float *out, const uint16_t *x, const uint8_t *weight, ptrdiff_t T, ptrdiff_t in,
                    ptrdiff_t rows, Activations activations)
{
    for (ptrdiff_t t = 0; t < T; t++)
        for (ptrdiff_t o = 0; o < rows; o++) {
            float lanes[LANES] = {0};
            for (ptrdiff_t g = 0; g < in / 32; g++) {
                const uint8_t *block = weight + (o * in / 256 + g / 8) * q4_k_code_bytes;
                const uint8_t *codes = block + 16 + g % 8 / 2 * 32;
                uint16_t halves[2];
                memcpy(halves, block, sizeof halves);
                const float d = float16_to_float32(halves[0]), m = float16_to_float32(halves[1]);
                const float s = (float)six_bits(block + 4, (int)(g % 8), 0);
                const float n = (float)six_bits(block + 4, (int)(g % 8), 4);
                int32_t q[32], products = 0, sum = 0;
                const uint16_t *group = x + t * in + g * 32;
                const float xs = activations == ACTIVATIONS_INT8 ? quantize_to_8_bits(q, group)
                                                                 : quantize_to_16_bits(q, group);
                for (int i = 0; i < 32; i++) {
                    products += (codes[i] >> g % 2 * 4 & 15) * q[i];
                    sum += q[i];
                }
                float *lane = lanes + g % LANES;
                *lane = fused_multiply_add((float)products, d * s * xs, *lane);
                *lane = fused_multiply_add((float)sum, -m * n * xs, *lane);
            }
            out[t * rows + o] = reduce_lanes(lanes);
        }
}
