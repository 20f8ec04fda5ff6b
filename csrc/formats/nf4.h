/*
 * nf4, the 4-bit normal float of QLoRA (T. Dettmers et al., 2023), as bitsandbytes 0.50 stores it.
 *
 * An element is nf4_code[c] * absmax, rounded once to float32, with one absmax for a block of 64. A
 * byte contains two codes, the first in its upper half. With double quantization, absmax is stored
 * as an 8-bit code c: it is code[c] times a scale that 256 blocks share, plus an offset. Both steps
 * are rounded.
 */
#pragma once
#include "formats/format.h"

/* Quantiles of the normal distribution, with an exact zero. Source: bitsandbytes, NF4. */
/* clang-format off */
static const Levels nf4_levels = {{
    -1.0f, -0.6961928009986877f, -0.5250730514526367f, -0.39491748809814453f,
    -0.28444138169288635f, -0.18477343022823334f, -0.09105003625154495f, 0.0f,
    0.07958029955625534f, 0.16093020141124725f, 0.24611230194568634f, 0.33791524171829224f,
    0.44070982933044434f, 0.5626170039176941f, 0.7229568362236023f, 1.0f,
}, {
    -2048, -1426, -1075, -809, -583, -378, -186, 0, 163, 330, 504, 692, 903, 1152, 1481, 2048,
}};
/* clang-format on */

INLINE void nf4_factors(Factors *factors, int at, const uint8_t *codes, const void *scale)
{
    (void)codes;
    const float step = *(const float *)scale * LEVEL_STEP;
    factors->scales[at / 4] |= (uint64_t)bits_of(step) << at / 2 % 2 * 32;
}

/*
 * Quantizes a block like bitsandbytes on a CPU: a code is the number of midpoints between adjacent
 * levels that are below x / absmax. The elements of a whole block are multiplied by the reciprocal
 * of absmax. The elements of a short block at the end are divided by absmax, which is at least
 * 1e-38.
 */
INLINE void nf4_quantize(uint8_t *codes, void *scale, const float *x, ptrdiff_t count,
                         ptrdiff_t *refused)
{
    const float absmax = block_absmax(x, nf4_elements, refused);
    const float least = absmax < 1e-38f ? 1e-38f : absmax;
    const float factor = 1.0f / least;
    int32_t numbers[nf4_elements];
    for (int i = 0; i < nf4_elements; i++) {
        const float v = count == nf4_elements ? x[i] * factor : x[i] / least;
        int32_t below = 0;
        for (int m = 0; m < 15; m++)
            below += (nf4_levels.exact[m] + nf4_levels.exact[m + 1]) / 2.0f < v;
        numbers[i] = below;
    }
    for (ptrdiff_t i = 0; i < ceil_div(count, 2); i++)
        codes[i] = (uint8_t)(numbers[2 * i] << 4 | numbers[2 * i + 1]);
    *(float *)scale = count == nf4_elements ? absmax : least;
}

static const ExpandedFormat nf4_format = {
    .elements = nf4_elements,
    .code_bytes = nf4_code_bytes,
    .scale_bytes = nf4_scale_bytes,
    .fields = {{NEIGHBOURS, .bits = 4}},
    .levels = &nf4_levels,
    .factors = nf4_factors,
    .scale_type = TYPE_FLOAT32,
    .parts = 1,
    .quantize = nf4_quantize,
};
static const ExpandedFormat nf4_double_format = {
    .elements = nf4_double_elements,
    .code_bytes = nf4_double_code_bytes,
    .scale_bytes = nf4_double_scale_bytes,
    .fields = {{NEIGHBOURS, .bits = 4}},
    .levels = &nf4_levels,
    .factors = nf4_factors,
    .scale_type = TYPE_FLOAT32,
    .parts = 1,
};
