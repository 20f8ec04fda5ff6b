/*
 * Block-quantised formats in plain C, compiled once for each instruction set: quantising and
 * dequantising blocks, and the scales of blocks.
 *
 * nf4 is the 4-bit normal float of QLoRA (T. Dettmers et al., 2023) as bitsandbytes 0.50 stores it:
 * an element is code[c] * absmax of its block of 64, rounded once in float32; two codes lie in a
 * byte, the first in the upper half. Nested, absmax is itself an 8-bit code: code[c] * absmax of
 * its block of 256, plus an offset, each rounded. int8 is c * scale of its block of 32, which
 * float32 holds exactly because scales are bfloat16. How they are multiplied: nf4_tile.h and int8_rows.h.
 */
#ifndef LLAMA_BOLTS_QUANTIZED_ROWS_H
#define LLAMA_BOLTS_QUANTIZED_ROWS_H

#include "quantized.h"
#include "row_kernels.h"

/* Quantiles of the normal distribution, with an exact zero. Source: bitsandbytes, NF4. */
static const float nf4_code[16] = {
    -1.0f, -0.6961928009986877f, -0.5250730514526367f, -0.39491748809814453f,
    -0.28444138169288635f, -0.18477343022823334f, -0.09105003625154495f, 0.0f,
    0.07958029955625534f, 0.16093020141124725f, 0.24611230194568634f, 0.33791524171829224f,
    0.44070982933044434f, 0.5626170039176941f, 0.7229568362236023f, 1.0f,
};

/* ---- scales ---- */

/* scales[i] = what the codes of block first + i are multiplied by. */
INLINE void expand_scales(const QuantizedWeight *w, ptrdiff_t first, ptrdiff_t count,
                          float *restrict scales)
{
    const uint8_t *codes = (const uint8_t *)w->scales + first;
    if (w->format == QUANTIZED_INT8)
        for (ptrdiff_t i = 0; i < count; i++)
            scales[i] = bf16_to_f32(((const uint16_t *)w->scales)[first + i]);
    else if (w->format == QUANTIZED_NF4)
        memcpy(scales, (const float *)w->scales + first, (size_t)count * sizeof(float));
    else
        for (ptrdiff_t i = 0, end; i < count; i = end) {
            const ptrdiff_t block = (first + i) / NESTED_BLOCK;
            const float absmax = w->nested_absmax[block], offset = w->nested_offset;
            end = min_size(count, (block + 1) * NESTED_BLOCK - first);
            for (ptrdiff_t b = i; b < end; b++)
                scales[b] = w->nested_code[codes[b]] * absmax + offset;
        }
}

/* ---- dequantising ---- */

/* Elements [first, first + count) of one block. */
INLINE void widen_codes(const QuantizedWeight *w, ptrdiff_t first, ptrdiff_t count, float scale,
                        float *restrict out)
{
    if (w->format == QUANTIZED_INT8)
        for (ptrdiff_t i = 0; i < count; i++)
            out[i] = (float)(int8_t)w->codes[first + i] * scale;
    else
        for (ptrdiff_t i = 0; i < count; i++) {
            const unsigned pair = w->codes[(first + i) / 2];
            out[i] = nf4_code[(first + i) % 2 ? pair & 15u : pair >> 4] * scale;
        }
}

/* out[i] = element first + i, rounded once to the type; any first, any count. */
static void dequantize_any(const QuantizedWeight *w, ptrdiff_t first, ptrdiff_t count, void *out,
                           int out_type)
{
    const ptrdiff_t size = quantized_block(w->format);
    for (ptrdiff_t done = 0; done < count;) {
        const ptrdiff_t at = first + done;
        const ptrdiff_t some = min_size(size - at % size, count - done);
        float scale, block[MOST_BLOCK];
        expand_scales(w, at / size, 1, &scale);
        widen_codes(w, at, some, scale, block);
        narrow(block, some, output_at(out, out_type, done), out_type);
        done += some;
    }
}

/* ---- quantising ---- */

/* The largest magnitude, and how many elements are not finite. */
INLINE float block_absmax(const float *restrict x, ptrdiff_t count, ptrdiff_t *refused)
{
    float lanes[LANES] = {0};
    uint32_t bad = 0;
    for (ptrdiff_t i = 0; i < count; i += LANES)
        for (int l = 0; l < LANES; l++) {
            const uint32_t magnitude = bits_of(x[i + l]) & 0x7FFFFFFFu;
            bad += magnitude >= 0x7F800000u;
            lanes[l] = float_of(magnitude) > lanes[l] ? float_of(magnitude) : lanes[l];
        }
    for (int l = 1; l < LANES; l++)
        lanes[0] = lanes[l] > lanes[0] ? lanes[l] : lanes[0];
    *refused += bad;
    return lanes[0];
}

/*
 * As bitsandbytes does it on a processor: the number of midpoints between neighbours of the code
 * that lie below x / absmax. A whole block is multiplied by the reciprocal; a short one at the end
 * is divided, and its absmax is at least 1e-38.
 */
INLINE float quantize_nf4(const float *restrict x, ptrdiff_t count, uint8_t *restrict codes,
                          ptrdiff_t *refused)
{
    const float absmax = block_absmax(x, NF4_BLOCK, refused);
    const float least = absmax < 1e-38f ? 1e-38f : absmax;
    const float factor = 1.0f / least;
    int32_t numbers[NF4_BLOCK];
    for (int i = 0; i < NF4_BLOCK; i++) {
        const float v = count == NF4_BLOCK ? x[i] * factor : x[i] / least;
        int32_t below = 0;
        for (int m = 0; m < 15; m++)
            below += (nf4_code[m] + nf4_code[m + 1]) / 2.0f < v;
        numbers[i] = below;
    }
    for (ptrdiff_t i = 0; i < ceil_div(count, 2); i++)
        codes[i] = (uint8_t)(numbers[2 * i] << 4 | numbers[2 * i + 1]);
    return count == NF4_BLOCK ? absmax : least;
}

/*
 * scale = absmax / 127, to the nearest bfloat16, and 0 where that is subnormal; c = x times its
 * reciprocal, to the nearest integer. The rounded scale is off by 2^-9 at most: no c is above 127.
 */
INLINE uint16_t quantize_int8(const float *restrict x, ptrdiff_t count, uint8_t *restrict codes,
                              ptrdiff_t *refused)
{
    const float absmax = block_absmax(x, INT8_BLOCK, refused);
    const uint16_t nearest = f32_to_bf16(absmax / 127.0f);
    const uint16_t scale = nearest < 0x0080 ? 0 : nearest;
    const float factor = scale ? 1.0f / bf16_to_f32(scale) : 0.0f;
    int32_t numbers[INT8_BLOCK];
    /* Adding 1.5 * 2^23 rounds to an integer, ties to even, which is left in the low bits. */
    for (int i = 0; i < INT8_BLOCK; i++)
        numbers[i] = (int32_t)(bits_of(x[i] * factor + 12582912.0f) - 0x4B400000u);
    for (ptrdiff_t i = 0; i < count; i++)
        codes[i] = (uint8_t)numbers[i];
    return scale;
}

/* Blocks of `count` elements that begin at block `first`; returns how many are not finite. */
static ptrdiff_t quantize_span(int format, const void *x, int x_type, ptrdiff_t first,
                               ptrdiff_t count, uint8_t *codes, void *scales)
{
    const ptrdiff_t size = quantized_block(format);
    ptrdiff_t refused = 0;
    for (ptrdiff_t done = 0, block = first; done < count; done += size, block++) {
        const ptrdiff_t at = block * size, some = min_size(size, count - done);
        float values[MOST_BLOCK] = {0};
        widen(element_at(x, x_type, at), x_type, some, values);
        if (format == QUANTIZED_INT8)
            ((uint16_t *)scales)[block] = quantize_int8(values, some, codes + at, &refused);
        else
            ((float *)scales)[block] = quantize_nf4(values, some, codes + at / 2, &refused);
    }
    return refused;
}

#endif
