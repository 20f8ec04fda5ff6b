#include "kernel_set.h"

/* Elements that a thread takes at a time: whole blocks. */
enum { QUANTIZED_SPAN = 16384 };

/*
 * quantize: codes and scales of blocks
 *
 *   codes   [code bytes of n elements, rounded up]
 *   scales  [blocks]  of the format's type
 *   x       [n]       any plain type
 *
 * Threads take spans of whole blocks, which are independent. Returns how many elements are NaN or
 * infinite; what they became means nothing.
 * Checked by the caller: contiguity and sizes, and that the format has a quantizer.
 */
ptrdiff_t quantize(void *codes, void *scales, const void *x, ptrdiff_t n, ElementType x_type,
                   ElementType type, int threads)
{
    const BlockFormat *format = &kernel_set()->formats[type];
    const int workers = threads_for(n, ELEMENTS_PER_THREAD, threads);
    ptrdiff_t refused = 0;
#pragma omp parallel for schedule(dynamic, 1) num_threads(workers) if (workers > 1) \
    reduction(+ : refused)
    for (ptrdiff_t start = 0; start < n; start += QUANTIZED_SPAN)
        refused += format->quantize_span(codes, scales, x, start / block_elements(type),
                                         min_size(QUANTIZED_SPAN, n - start), x_type);
    return refused;
}

/*
 * dequantize: out[t, i] = weight[rows[t], i]
 *
 *   out     [T, columns]  any plain type
 *   weight  any format, at least as many rows as are asked for
 *   rows    [T], or NULL for t itself
 *
 * Threads take spans of the result, which are independent.
 * Checked by the caller: contiguity, sizes, row numbers, and that out overlaps nothing.
 */
void dequantize(void *out, const Weight *weight, const int32_t *rows, ptrdiff_t T,
                ptrdiff_t columns, ElementType out_type, int threads)
{
    const BlockFormat *format = &kernel_set()->formats[weight->type];
    const ptrdiff_t spans = ceil_div(columns, QUANTIZED_SPAN);
    const int workers = threads_for(T * columns, ELEMENTS_PER_THREAD, threads);
#pragma omp parallel for schedule(dynamic, 1) num_threads(workers) if (workers > 1)
    for (ptrdiff_t unit = 0; unit < T * spans; unit++) {
        const ptrdiff_t t = unit / spans, start = unit % spans * QUANTIZED_SPAN;
        const ptrdiff_t row = rows ? rows[t] : t;
        format->dequantize_span((char *)out + (t * columns + start) * type_bytes(out_type), weight,
                                row * columns + start, min_size(QUANTIZED_SPAN, columns - start),
                                out_type);
    }
}
