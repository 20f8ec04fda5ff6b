#include "quantized.h"
#include "threads.h"

/* Elements that a thread takes at a time: whole blocks. */
enum { QUANTIZED_SPAN = 16384 };

/*
 * quantize: codes and scales of blocks
 *
 *   x       [n]  bfloat16, float16 or float32
 *   codes   [code_bytes(n), rounded up]
 *   scales  [blocks]  float32 (NF4) or bfloat16 (INT8)
 *
 * Threads take spans of whole blocks, which are independent. Returns how many elements are NaN or
 * infinite; what they became means nothing.
 * Checked by the caller: contiguity and sizes.
 */
ptrdiff_t quantize(const void *x, int x_type, uint8_t *codes, void *scales, int format,
                   ptrdiff_t n, int threads)
{
    const KernelSet *set = kernel_set();
    const int workers = threads_for(n, ELEMENTS_PER_THREAD, threads);
    ptrdiff_t refused = 0;
#pragma omp parallel for schedule(dynamic, 1) num_threads(workers) if (workers > 1) \
    reduction(+ : refused)
    for (ptrdiff_t start = 0; start < n; start += QUANTIZED_SPAN)
        refused += set->quantize_span(format, x, x_type, start / quantized_block(format),
                                      min_size(QUANTIZED_SPAN, n - start), codes, scales);
    return refused;
}

/*
 * dequantize: out[t, i] = weight[rows[t], i]
 *
 *   weight  any format, at least as many rows as are asked for
 *   rows    [T], or NULL for t itself
 *   out     [T, columns]  bfloat16, float16 or float32
 *
 * Threads take spans of the result, which are independent.
 * Checked by the caller: contiguity, sizes, row numbers, and that out overlaps nothing.
 */
void dequantize(const QuantizedWeight *weight, const int32_t *rows, void *out, int out_type,
                ptrdiff_t T, ptrdiff_t columns, int threads)
{
    const KernelSet *set = kernel_set();
    const ptrdiff_t spans = ceil_div(columns, QUANTIZED_SPAN);
    const int workers = threads_for(T * columns, ELEMENTS_PER_THREAD, threads);
#pragma omp parallel for schedule(dynamic, 1) num_threads(workers) if (workers > 1)
    for (ptrdiff_t unit = 0; unit < T * spans; unit++) {
        const ptrdiff_t t = unit / spans, start = unit % spans * QUANTIZED_SPAN;
        const ptrdiff_t row = rows ? rows[t] : t;
        set->dequantize_span(weight, row * columns + start,
                             min_size(QUANTIZED_SPAN, columns - start),
                             (char *)out + (t * columns + start) * type_bytes(out_type), out_type);
    }
}

void dequantize_stretch(const KernelSet *set, const Operands *o, ptrdiff_t start, ptrdiff_t count,
                        char *out)
{
    const int type = o->kind == PRODUCT_BF16 ? TYPE_BF16 : TYPE_F32;
    for (ptrdiff_t r = 0; r < o->rows; r++, out += QUANTIZED_STRETCH * type_bytes(type))
        set->dequantize_span(o->quantized, (o->quantized_row + r) * o->in + start, count, out,
                             type);
}
