/*
 * The formats of ggml whose blocks of 32 elements have codes q of 4 or 5 bits:
 *
 *   q4_0  d * (q - 8)   float16 d; 16 bytes of lower bits
 *   q4_1  d * q + m     float16 d, m; 16 bytes
 *   q5_0  d * (q - 16)  float16 d; the fifth bits, as one number; 16 bytes
 *   q5_1  d * q + m     float16 d, m; the fifth bits; 16 bytes
 *
 * The lower half of byte j contains the lower bits of code j, and the upper half the lower bits of
 * code j + 16.
 */
#pragma once
#include "formats/format.h"

/*
 * d = m / -8, where m is the first element with the largest magnitude. q = x / d + 8.5, truncated,
 * where d is the float32 value before rounding.
 */
INLINE void q4_0_quantize(uint8_t *block, void *scale, const float *x, ptrdiff_t count,
                          ptrdiff_t *refused)
{
    (void)scale;
    const float absmax = block_absmax(x, q4_0_elements, refused);
    int first = 0;
    while (first < count - 1 && fabsf(x[first]) < absmax)
        first++;
    const float factor = put_scale(block, x[first] / -8.0f, refused);
    for (int i = 0; i < q4_0_elements / 2; i++) {
        int codes[2];
        for (int half = 0; half < 2; half++) {
            const float code = x[i + half * q4_0_elements / 2] * factor + 8.5f;
            codes[half] = code < 15.0f ? (int)code : 15;
        }
        block[2 + i] = (uint8_t)(codes[0] | codes[1] << 4);
    }
}

static const ExpandedFormat q4_0_format = {
    .elements = q4_0_elements,
    .code_bytes = q4_0_code_bytes,
    .fields = {{HALVES, .offset = 2, .bits = 4}},
    .less = 8,
    .scale_type = TYPE_FLOAT16,
    .parts = 1,
    .quantize = q4_0_quantize,
};
static const ExpandedFormat q4_1_format = {
    .elements = q4_1_elements,
    .code_bytes = q4_1_code_bytes,
    .fields = {{HALVES, .offset = 4, .bits = 4}},
    .scale_type = TYPE_FLOAT16,
    .parts = 1,
    .has_mins = 1,
};
static const ExpandedFormat q5_0_format = {
    .elements = q5_0_elements,
    .code_bytes = q5_0_code_bytes,
    .fields = {{HALVES, .offset = 6, .bits = 4}, {WORD, .offset = 2, .bits = 1, .to = 4}},
    .less = 16,
    .scale_type = TYPE_FLOAT16,
    .parts = 1,
};
static const ExpandedFormat q5_1_format = {
    .elements = q5_1_elements,
    .code_bytes = q5_1_code_bytes,
    .fields = {{HALVES, .offset = 8, .bits = 4}, {WORD, .offset = 4, .bits = 1, .to = 4}},
    .scale_type = TYPE_FLOAT16,
    .parts = 1,
    .has_mins = 1,
};
