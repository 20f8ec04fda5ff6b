/*
 * The functions on one row or span, in plain C, compiled once for each instruction set.
 *
 * Values pass through blocks of float32, so that a formula is written once for all dtypes. Sums
 * run in 16 lanes and are folded in one fixed order; everything else is element by element. Both
 * vectorise without changing a bit.
 */
#ifndef LLAMA_BOLTS_ROW_KERNELS_H
#define LLAMA_BOLTS_ROW_KERNELS_H

#include <math.h>

#include "kernel_set.h"
#include "scalar.h"

/* Elements handled at a time: a multiple of LANES, small enough to stay in the first cache. */
enum { BLOCK = 256 };

/* A block holds at most BLOCK elements, or fewer at the end of the row. */
#define FOR_EACH_BLOCK(start, count, n)                                            \
    for (ptrdiff_t start = 0, count; start < (n) && ((count = min_size(BLOCK, (n) - start)), 1); \
         start += BLOCK)

static inline const void *element_at(const void *x, int type, ptrdiff_t index)
{
    return (const char *)x + index * type_bytes(type);
}

static inline void *output_at(void *x, int type, ptrdiff_t index)
{
    return (char *)x + index * type_bytes(type);
}

/* y[0..n) = x[0..n) as float32; exact. */
static inline void widen(const void *x, int type, ptrdiff_t n, float *restrict y)
{
    const uint16_t *half = (const uint16_t *)x;
    if (type == TYPE_BF16)
        for (ptrdiff_t i = 0; i < n; i++)
            y[i] = bf16_to_f32(half[i]);
    else if (type == TYPE_F16)
        for (ptrdiff_t i = 0; i < n; i++)
            y[i] = f16_to_f32(half[i]);
    else
        memcpy(y, x, (size_t)n * sizeof(float));
}

/* y[0..n) = x[0..n) rounded once to the type. */
static inline void narrow(const float *restrict x, ptrdiff_t n, void *y, int type)
{
    uint16_t *half = (uint16_t *)y;
    if (type == TYPE_BF16)
        for (ptrdiff_t i = 0; i < n; i++)
            half[i] = f32_to_bf16(x[i]);
    else if (type == TYPE_F16)
        for (ptrdiff_t i = 0; i < n; i++)
            half[i] = f32_to_f16(x[i]);
    else
        memcpy(y, x, (size_t)n * sizeof(float));
}

/* Widens a block and pads it up to whole lanes; returns the number of elements with the padding. */
static inline ptrdiff_t widen_lanes(const void *x, int type, ptrdiff_t start, ptrdiff_t count,
                                    float padding, float *restrict block)
{
    const ptrdiff_t padded = ceil_div(count, LANES) * LANES;
    widen(element_at(x, type, start), type, count, block);
    for (ptrdiff_t i = count; i < padded; i++)
        block[i] = padding;
    return padded;
}

/* The one order in which 16 lanes become one number. */
static inline float fold_lanes(float lanes[LANES])
{
    for (int width = LANES / 2; width > 0; width /= 2)
        for (int l = 0; l < width; l++)
            lanes[l] += lanes[l + width];
    return lanes[0];
}

/* ---- products ---- */

/*
 * A panel of float32: [pass][block][phase][token][PASS_LANES], padded by zeros. A set whose vectors
 * hold fewer than 16 lanes passes over a panel more than once, and finds each pass side by side.
 * bfloat16 has two phases per block of 32 elements, first the odd elements and then the even ones;
 * a little-endian pair has the odd one in its upper half. float32 has one phase.
 */
enum { PASSES = LANES / PASS_LANES };

INLINE void split_pairs(const uint32_t *restrict pairs, float *restrict odd, float *restrict even)
{
    for (int l = 0; l < PASS_LANES; l++)
        odd[l] = float_of(pairs[l] & 0xFFFF0000u);
    for (int l = 0; l < PASS_LANES; l++)
        even[l] = float_of(pairs[l] << 16);
}

/* One block of one token; out is its place in the first pass. */
INLINE void pack_block(int phases, const uint32_t *block, int tokens, ptrdiff_t pass_size,
                       float *out)
{
    for (int pass = 0; pass < PASSES; pass++, block += PASS_LANES, out += pass_size)
        if (phases == 2)
            split_pairs(block, out, out + tokens * PASS_LANES);
        else
            memcpy(out, block, PASS_LANES * sizeof(float));
}

/* Blocks are 64 bytes: 32 bfloat16 or 16 float32. */
INLINE void pack_row(int phases, const char *row, int tokens, ptrdiff_t bytes, float *out)
{
    const ptrdiff_t step = (ptrdiff_t)phases * tokens * PASS_LANES;
    const ptrdiff_t pass_size = ceil_div(bytes, 64) * step;
    uint32_t block[LANES];
    ptrdiff_t at = 0;
    for (; at + 64 <= bytes; at += 64, out += step) {
        memcpy(block, row + at, 64);
        pack_block(phases, block, tokens, pass_size, out);
    }
    if (at < bytes) {
        memset(block, 0, 64);
        memcpy(block, row + at, (size_t)(bytes - at));
        pack_block(phases, block, tokens, pass_size, out);
    }
}

/* The same for bfloat16 next to float32 weights: blocks of 16, widened. */
INLINE void pack_widened_row(const uint16_t *row, int tokens, ptrdiff_t count, float *out)
{
    const ptrdiff_t step = (ptrdiff_t)tokens * PASS_LANES;
    const ptrdiff_t pass_size = ceil_div(count, LANES) * step;
    uint32_t block[LANES];
    ptrdiff_t at = 0;
    for (; at + LANES <= count; at += LANES, out += step) {
        for (int l = 0; l < LANES; l++)
            block[l] = (uint32_t)row[at + l] << 16;
        pack_block(1, block, tokens, pass_size, out);
    }
    if (at < count) {
        memset(block, 0, sizeof block);
        for (ptrdiff_t l = 0; l < count - at; l++)
            block[l] = (uint32_t)row[at + l] << 16;
        pack_block(1, block, tokens, pass_size, out);
    }
}

static void pack_panel(int kind, const char *x, ptrdiff_t x_stride, int tokens, ptrdiff_t count,
                       float *panel)
{
    for (int t = 0; t < tokens; t++) {
        const char *row = x + t * x_stride;
        float *out = panel + t * PASS_LANES;
        if (kind == PRODUCT_BF16)
            pack_row(BF16_PHASES, row, tokens, count * 2, out);
        else if (kind == PRODUCT_BF16_F32)
            pack_widened_row((const uint16_t *)row, tokens, count, out);
        else
            pack_row(1, row, tokens, count * 4, out);
    }
}

/* ---- softmax ---- */

/* The maximum, passing over NaN (which comes back through exp). */
static inline float row_maximum(const void *x, int type, ptrdiff_t n)
{
    float block[BLOCK], lanes[LANES];
    for (int l = 0; l < LANES; l++)
        lanes[l] = -INFINITY;
    FOR_EACH_BLOCK(start, count, n)
    {
        const ptrdiff_t padded = widen_lanes(x, type, start, count, -INFINITY, block);
        for (ptrdiff_t i = 0; i < padded; i += LANES)
            for (int l = 0; l < LANES; l++)
                lanes[l] = block[i + l] > lanes[l] ? block[i + l] : lanes[l];
    }
    for (int l = 1; l < LANES; l++)
        lanes[0] = lanes[l] > lanes[0] ? lanes[l] : lanes[0];
    return lanes[0];
}

/* block[i] = exp(x[i] - maximum), padded by zeros. */
static inline ptrdiff_t exp_block(const void *x, int type, ptrdiff_t start, ptrdiff_t count,
                                  float maximum, float *restrict block)
{
    const ptrdiff_t padded = widen_lanes(x, type, start, count, -INFINITY, block);
    for (ptrdiff_t i = 0; i < padded; i++)
        block[i] = exp_f32(block[i] - maximum);
    return padded;
}

/* The exponentials are computed twice rather than kept: no scratch, and x may be out. */
static void softmax_row(const void *x, int x_type, void *out, int out_type, ptrdiff_t n)
{
    const float maximum = row_maximum(x, x_type, n);
    float block[BLOCK], lanes[LANES] = {0};
    FOR_EACH_BLOCK(start, count, n)
    {
        const ptrdiff_t padded = exp_block(x, x_type, start, count, maximum, block);
        for (ptrdiff_t i = 0; i < padded; i += LANES)
            for (int l = 0; l < LANES; l++)
                lanes[l] += block[i + l];
    }
    const float sum = fold_lanes(lanes);
    FOR_EACH_BLOCK(start, count, n)
    {
        exp_block(x, x_type, start, count, maximum, block);
        for (ptrdiff_t i = 0; i < count; i++)
            block[i] = block[i] / sum;
        narrow(block, count, output_at(out, out_type, start), out_type);
    }
}

/* ---- rms_norm ---- */

static void rms_norm_row(const void *x, int x_type, const void *weight, int weight_type, void *out,
                         int out_type, float eps, ptrdiff_t D)
{
    float block[BLOCK], factors[BLOCK], lanes[LANES] = {0};
    FOR_EACH_BLOCK(start, count, D)
    {
        const ptrdiff_t padded = widen_lanes(x, x_type, start, count, 0.0f, block);
        for (ptrdiff_t i = 0; i < padded; i += LANES)
            for (int l = 0; l < LANES; l++)
                lanes[l] += block[i + l] * block[i + l];
    }
    const float scale = 1.0f / sqrtf(fold_lanes(lanes) / (float)D + eps);
    FOR_EACH_BLOCK(start, count, D)
    {
        widen(element_at(x, x_type, start), x_type, count, block);
        widen(element_at(weight, weight_type, start), weight_type, count, factors);
        for (ptrdiff_t i = 0; i < count; i++)
            block[i] = block[i] * scale * factors[i];
        narrow(block, count, output_at(out, out_type, start), out_type);
    }
}

/* ---- rotary ---- */

/* Widens pairs that lie half a head apart, and lays them side by side; count is even. */
static inline void widen_halves(const void *x, int type, ptrdiff_t half, ptrdiff_t count,
                                float *restrict block)
{
    float first[BLOCK / 2], second[BLOCK / 2];
    widen(x, type, count / 2, first);
    widen(element_at(x, type, half), type, count / 2, second);
    for (ptrdiff_t i = 0; i < count / 2; i++) {
        block[2 * i] = first[i];
        block[2 * i + 1] = second[i];
    }
}

/* (a + ib)(c + is) = (ac - bs) + i(as + bc) for each pair; one token, all its heads. */
static void rotary_row(const void *x, const float *frequencies, void *out, int type, int halves,
                       ptrdiff_t heads, ptrdiff_t h)
{
    float block[BLOCK], turned[BLOCK];
    for (ptrdiff_t head = 0; head < heads; head++)
        FOR_EACH_BLOCK(start, count, h)
        {
            const float *f = frequencies + start;
            const ptrdiff_t at = head * h + start;
            if (halves)
                widen_halves(element_at(x, type, head * h + start / 2), type, h / 2, count, block);
            else
                widen(element_at(x, type, at), type, count, block);
            /* Two loops: gcc makes a fused fmaddsub of a difference beside a sum in one. */
            for (ptrdiff_t i = 0; i < count; i += 2)
                turned[i] = block[i] * f[i] - block[i + 1] * f[i + 1];
            for (ptrdiff_t i = 0; i < count; i += 2)
                turned[i + 1] = block[i] * f[i + 1] + block[i + 1] * f[i];
            narrow(turned, count, output_at(out, type, at), type);
        }
}

/* ---- element by element ---- */

static inline void apply(int op, float *restrict a, const float *restrict b, ptrdiff_t n)
{
    if (op == OP_ADD)
        for (ptrdiff_t i = 0; i < n; i++)
            a[i] = a[i] + b[i];
    else if (op == OP_MULTIPLY)
        for (ptrdiff_t i = 0; i < n; i++)
            a[i] = a[i] * b[i];
    else if (op == OP_SILU)
        for (ptrdiff_t i = 0; i < n; i++)
            a[i] = silu_f32(a[i]);
    else
        for (ptrdiff_t i = 0; i < n; i++)
            a[i] = silu_f32(a[i]) * b[i];
}

static void elementwise_span(int op, const void *a, const void *b, void *out, int type, ptrdiff_t n)
{
    float left[BLOCK], right[BLOCK];
    FOR_EACH_BLOCK(start, count, n)
    {
        widen(element_at(a, type, start), type, count, left);
        if (op != OP_SILU)
            widen(element_at(b, type, start), type, count, right);
        apply(op, left, right, count);
        narrow(left, count, output_at(out, type, start), type);
    }
}

static void convert_span(const void *x, int x_type, void *out, int out_type, ptrdiff_t n)
{
    float block[BLOCK];
    FOR_EACH_BLOCK(start, count, n)
    {
        widen(element_at(x, x_type, start), x_type, count, block);
        narrow(block, count, output_at(out, out_type, start), out_type);
    }
}

/* ---- argmax ---- */

/* 1 when the block of padded elements holds a NaN or a number above the best. */
static inline int any_better(const float *restrict block, ptrdiff_t padded, float best)
{
    int better = 0;
    for (ptrdiff_t i = 0; i < padded; i++)
        better |= !(block[i] <= best);
    return better;
}

/* Blocks without anything better are passed over whole; the first NaN ends the search. */
static ptrdiff_t argmax_row(const void *x, int type, ptrdiff_t n)
{
    float block[BLOCK];
    float best = -INFINITY;
    ptrdiff_t index = 0;
    FOR_EACH_BLOCK(start, count, n)
    {
        const ptrdiff_t padded = widen_lanes(x, type, start, count, -INFINITY, block);
        if (!any_better(block, padded, best))
            continue;
        for (ptrdiff_t i = 0; i < count; i++) {
            if (block[i] <= best)
                continue;
            index = start + i;
            best = block[i];
            if (best != best)
                return index;
        }
    }
    return index;
}

#endif
