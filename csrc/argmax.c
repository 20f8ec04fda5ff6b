#include "kernel_set.h"

/*
 * argmax: out[r] = the least i with x[r, i] = max over j of x[r, j]
 *
 *   x    [rows, n]  bfloat16 or float32, n > 0
 *   out  [rows]     int32
 *
 * As in NumPy and PyTorch, a NaN counts as the maximum: the first NaN wins. Threads take rows.
 * Checked by the caller: contiguity, sizes, n > 0 and n < 2^31.
 */
void argmax(int32_t *out, const void *x, ptrdiff_t rows, ptrdiff_t n, ElementType type, int threads)
{
    const KernelSet *set = kernel_set();
    const int workers = threads_for(rows * n, ELEMENTS_PER_THREAD, threads);
#pragma omp parallel for schedule(dynamic, 1) num_threads(workers) if (workers > 1)
    for (ptrdiff_t r = 0; r < rows; r++)
        out[r] = (int32_t)set->argmax_row((const char *)x + r * n * type_bytes(type), n, type);
}
