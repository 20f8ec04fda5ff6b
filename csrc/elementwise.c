#include "kernel_set.h"

/* Elements handed out at a time. */
enum { SPAN = 8192 };

typedef struct Spans {
    const KernelSet *set;
    char *out;
    const char *a, *b;
    ptrdiff_t n;
    ElementwiseOp op;
    ElementType type;
} Spans;

static void run_span(void *work, ptrdiff_t unit, int thread)
{
    (void)thread;
    const Spans *w = work;
    const ptrdiff_t start = unit * SPAN, at = start * type_bytes(w->type);
    w->set->elementwise_span(w->out + at, w->a + at, w->op == OP_SILU ? NULL : w->b + at,
                             min_size(SPAN, w->n - start), w->op, w->type);
}

/*
 * elementwise: out[i] = a[i] + b[i] | a[i] * b[i] | silu(a[i]) | silu(a[i]) * b[i]
 * with silu(x) = x / (1 + exp(-x))
 *
 *   a, b  [n]  bfloat16 or float32; b is not read (and may be null) for silu
 *   out   [n]  the type of a; may be a or b itself
 *
 * Computed in float32 and rounded once. Threads take spans of elements, which are independent.
 * Checked by the caller: contiguity, sizes, one type for all.
 */
void elementwise(void *out, const void *a, const void *b, ptrdiff_t n, ElementwiseOp op,
                 ElementType type, int threads)
{
    const int workers = threads_for(n, ELEMENTS_PER_THREAD, threads);
    run_units(&(Spans){kernel_set(), out, a, b, n, op, type}, run_span, ceil_div(n, SPAN), 1,
              workers);
}
