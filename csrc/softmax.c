#include "kernel_set.h"

/*
 * softmax: out[r, i] = exp(x[r, i] - max_r) / sum over j of exp(x[r, j] - max_r)
 *
 *   x    [rows, n]  bfloat16 or float32
 *   out  [rows, n]  bfloat16 or float32; may be x itself when the types are equal
 *
 * The maximum keeps every exponential at or below 1. Columns of -Inf at the end (a mask) add exact
 * zeros and change no bit of the rest. As in PyTorch, a row that is all -Inf, or that holds a NaN
 * or +Inf, becomes all NaN; finite scores never give a NaN.
 * Threads take rows, which are independent.
 * Checked by the caller: contiguity and sizes.
 */
void softmax(void *out, const void *x, ptrdiff_t rows, ptrdiff_t n, ElementType x_type,
             ElementType out_type, int threads)
{
    const KernelSet *set = kernel_set();
    const int workers = threads_for(rows * n, ELEMENTS_PER_THREAD / 4, threads);
#pragma omp parallel for schedule(dynamic, 4) num_threads(workers) if (workers > 1)
    for (ptrdiff_t r = 0; r < rows; r++)
        set->softmax_row((char *)out + r * n * type_bytes(out_type),
                         (const char *)x + r * n * type_bytes(x_type), n, x_type, out_type);
}
