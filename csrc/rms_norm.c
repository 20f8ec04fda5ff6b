#include "kernel_set.h"

typedef struct Rows {
    const KernelSet *set;
    char *out;
    const char *x;
    const void *weight;
    ptrdiff_t D;
    float eps;
    ElementType x_type, weight_type, out_type;
} Rows;

static void run_row(void *work, ptrdiff_t r, int thread)
{
    (void)thread;
    const Rows *w = work;
    w->set->rms_norm_row(w->out + r * w->D * type_bytes(w->out_type),
                         w->x + r * w->D * type_bytes(w->x_type), w->weight, w->D, w->eps,
                         w->x_type, w->weight_type, w->out_type);
}

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
    const int workers = threads_for(rows * D, ELEMENTS_PER_THREAD, threads);
    run_units(&(Rows){kernel_set(), out, x, weight, D, eps, x_type, weight_type, out_type}, run_row,
              rows, 4, workers);
}
