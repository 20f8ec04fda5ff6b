#include "kernel_set.h"

/* Elements handed out at a time. */
enum { SPAN = 8192 };

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
    const KernelSet *set = kernel_set();
    const ptrdiff_t bytes = type_bytes(type);
    const int workers = threads_for(n, ELEMENTS_PER_THREAD, threads);
#pragma omp parallel for schedule(dynamic, 1) num_threads(workers) if (workers > 1)
    for (ptrdiff_t start = 0; start < n; start += SPAN)
        set->elementwise_span((char *)out + start * bytes, (const char *)a + start * bytes,
                              op == OP_SILU ? NULL : (const char *)b + start * bytes,
                              min_size(SPAN, n - start), op, type);
}
