#include "kernel_set.h"

/* Elements handed out at a time. */
enum { SPAN = 8192 };

typedef struct Spans {
    const KernelSet *set;
    char *out;
    const char *x;
    ptrdiff_t n;
    ElementType x_type, out_type;
} Spans;

static void run_span(void *work, ptrdiff_t unit, int thread)
{
    (void)thread;
    const Spans *w = work;
    const ptrdiff_t start = unit * SPAN;
    w->set->convert_span(w->out + start * type_bytes(w->out_type),
                         w->x + start * type_bytes(w->x_type), min_size(SPAN, w->n - start),
                         w->x_type, w->out_type);
}

/*
 * convert: out[i] = x[i] in another type
 *
 *   x    [n]  any plain type
 *   out  [n]  any plain type; does not overlap x
 *
 * Widening is exact. Narrowing rounds to nearest, ties to even; too large becomes Inf
 * (float8_e4m3fn: NaN); a NaN stays a NaN, quiet, with its sign. Threads take spans of elements,
 * which are independent. Checked by the caller: contiguity and sizes.
 */
void convert(void *out, const void *x, ptrdiff_t n, ElementType x_type, ElementType out_type,
             int threads)
{
    const int workers = threads_for(n, ELEMENTS_PER_THREAD, threads);
    run_units(&(Spans){kernel_set(), out, x, n, x_type, out_type}, run_span, ceil_div(n, SPAN), 1,
              workers);
}
