#include "kernel_set.h"

/* Elements handed out at a time. */
enum { SPAN = 8192 };

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
    const KernelSet *set = kernel_set();
    const int workers = threads_for(n, ELEMENTS_PER_THREAD, threads);
#pragma omp parallel for schedule(dynamic, 1) num_threads(workers) if (workers > 1)
    for (ptrdiff_t start = 0; start < n; start += SPAN)
        set->convert_span((char *)out + start * type_bytes(out_type),
                          (const char *)x + start * type_bytes(x_type), min_size(SPAN, n - start),
                          x_type, out_type);
}
