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
