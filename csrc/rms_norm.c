#include "kernel_set.h"

/*
 * rms_norm: out[r, i] = x[r, i] * (1 / sqrt(mean over j of x[r, j]^2 + eps)) * weight[i]
 *
 *   x       [rows, D]  bfloat16 or float32
 *   weight  [D]        any plain type
 *   out     [rows, D]  bfloat16 or float32; may be x itself when the types are equal
 *
 * Computed in float32 and rounded once to out's type. Threads take rows, which are independent; a
 * row is summed by one thread in the fixed order of 16 lanes.
 * Checked by the caller: contiguity and sizes, D > 0.
 */
void rms_norm(void *out, const void *x, const void *weight, ptrdiff_t rows, ptrdiff_t D, float eps,
              ElementType x_type, ElementType weight_type, ElementType out_type, int threads)
{
    const KernelSet *set = kernel_set();
    const int workers = threads_for(rows * D, ELEMENTS_PER_THREAD, threads);
#pragma omp parallel for schedule(dynamic, 4) num_threads(workers) if (workers > 1)
    for (ptrdiff_t r = 0; r < rows; r++)
        set->rms_norm_row((char *)out + r * D * type_bytes(out_type),
                          (const char *)x + r * D * type_bytes(x_type), weight, D, eps, x_type,
                          weight_type, out_type);
}
