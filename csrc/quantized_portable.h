/* One token times block-quantised rows in plain C: they are dequantised stretch by stretch. */
#ifndef LLAMA_BOLTS_QUANTIZED_PORTABLE_H
#define LLAMA_BOLTS_QUANTIZED_PORTABLE_H

#include "dot_portable.h"
#include "quantized_rows.h"

static void dequantize_span(const QuantizedWeight *w, ptrdiff_t first, ptrdiff_t count, void *out,
                            int out_type)
{
    dequantize_any(w, first, count, out, out_type);
}

/* Nothing is kept widened here. */
static void widen_codes_stretch(const QuantizedWeight *w, ptrdiff_t row, ptrdiff_t rows,
                                ptrdiff_t in, ptrdiff_t start, ptrdiff_t count, float *widened)
{
    (void)w, (void)row, (void)rows, (void)in, (void)start, (void)count, (void)widened;
}

/* A panel of one token, in order. */
static void pack_nf4(int kind, const char *x, ptrdiff_t in, float *lanes)
{
    const int type = kind == PRODUCT_F32 ? TYPE_F32 : TYPE_BF16;
    widen(x, type, in, lanes);
}

/* out[r] = x . row (row + r), in float32. */
static void multiply_nf4(const QuantizedWeight *w, ptrdiff_t row, ptrdiff_t rows, ptrdiff_t in,
                         const float *x, float *out)
{
    float weight[QUANTIZED_STRETCH];
    for (ptrdiff_t r = 0; r < rows; r++) {
        float sums[LANES] = {0};
        for (ptrdiff_t start = 0; start < in; start += QUANTIZED_STRETCH) {
            const ptrdiff_t count = min_size(QUANTIZED_STRETCH, in - start);
            dequantize_any(w, (row + r) * in + start, count, weight, TYPE_F32);
            add_row(PRODUCT_F32, (const char *)(x + start), (const char *)weight, count, sums);
        }
        out[r] = fold_lanes(sums);
    }
}

#endif
