#include "kernel_set.h"
#include "threads.h"

/* Elements handed out at a time. */
enum { SPAN = 8192 };

/*
 * convert: out[i] = x[i] in another type
 *
 *   x    [n]  bfloat16, float16 or float32
 *   out  [n]  bfloat16, float16 or float32; does not overlap x
 *
 * Widening is exact. Narrowing rounds to nearest, ties to even; too large becomes Inf; a NaN stays
 * a NaN, quiet, with its sign. Threads take spans of elements, which are independent.
 * Checked by the caller: contiguity and sizes.
 */
void convert(const void *x, int x_type, void *out, int out_type, ptrdiff_t n, int threads)
{
    const KernelSet *set = kernel_set();
    const int workers = threads_for(n, ELEMENTS_PER_THREAD, threads);
#pragma omp parallel for schedule(dynamic, 1) num_threads(workers) if (workers > 1)
    for (ptrdiff_t start = 0; start < n; start += SPAN)
        set->convert_span((const char *)x + start * type_bytes(x_type), x_type,
                          (char *)out + start * type_bytes(out_type), out_type,
                          min_size(SPAN, n - start));
}
