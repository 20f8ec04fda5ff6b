/* q8_0 of ggml: a block of 32 elements d * q consists of d as float16 and q as int8. */
#pragma once
#include "formats/format.h"

/* d = absmax / 127. q = x / d, with d before rounding, rounded to the nearest integer,
 * ties away from zero. */
INLINE void q8_0_quantize(uint8_t *block, void *scale, const float *x, ptrdiff_t count,
                          ptrdiff_t *refused)
{
    (void)scale;
    const float d = block_absmax(x, q8_0_elements, refused) / 127.0f;
    const float factor = put_scale(block, d, refused);
    for (ptrdiff_t i = 0; i < count; i++)
        block[2 + i] = (uint8_t)(int8_t)(isfinite(x[i]) ? roundf(x[i] * factor) : 0.0f);
}

static const ExpandedFormat q8_0_format = {
    .elements = q8_0_elements,
    .code_bytes = q8_0_code_bytes,
    .fields = {{SHARED, .offset = 2, .bits = 8, .apart = 1}},
    .scale_type = TYPE_FLOAT16,
    .parts = 1,
    .quantize = q8_0_quantize,
};
