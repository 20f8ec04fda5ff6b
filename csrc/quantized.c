#include "kernel_set.h"
#include <stdatomic.h>

/* Elements that a thread takes at a time: whole blocks. */
enum { QUANTIZED_SPAN = 16384 };

typedef struct Spans {
    const BlockFormat *format;
    void *codes, *scales;
    const void *x;
    ptrdiff_t n;
    ElementType x_type, type;
    _Atomic ptrdiff_t refused;
} Spans;

static void quantize_unit(void *work, ptrdiff_t unit, int thread)
{
    (void)thread;
    Spans *w = work;
    const ptrdiff_t start = unit * QUANTIZED_SPAN;
    atomic_fetch_add(&w->refused, w->format->quantize_span(
                                      w->codes, w->scales, w->x, start / block_elements(w->type),
                                      min_size(QUANTIZED_SPAN, w->n - start), w->x_type));
}

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
    const int workers = threads_for(n, ELEMENTS_PER_THREAD, threads);
    Spans spans = {&kernel_set()->formats[type], codes, scales, x, n, x_type, type, 0};
    run_units(&spans, quantize_unit, ceil_div(n, QUANTIZED_SPAN), 1, workers);
    return atomic_load(&spans.refused);
}

typedef struct Rows {
    const BlockFormat *format;
    char *out;
    const Weight *weight;
    const int32_t *rows;
    ptrdiff_t columns, spans; /* spans: of a row */
    ElementType out_type;
} Rows;

static void dequantize_unit(void *work, ptrdiff_t unit, int thread)
{
    (void)thread;
    const Rows *w = work;
    const ptrdiff_t t = unit / w->spans, start = unit % w->spans * QUANTIZED_SPAN;
    const ptrdiff_t row = w->rows ? w->rows[t] : t;
    w->format->dequantize_span(w->out + (t * w->columns + start) * type_bytes(w->out_type),
                               w->weight, row * w->columns + start,
                               min_size(QUANTIZED_SPAN, w->columns - start), w->out_type);
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
    run_units(&(Rows){format, out, weight, rows, columns, spans, out_type}, dequantize_unit,
              T * spans, 1, workers);
}
