#include "kernel_set.h"

typedef struct Rows {
    const KernelSet *set;
    char *out;
    const char *x;
    ptrdiff_t n;
    ElementType x_type, out_type;
} Rows;

static void run_row(void *work, ptrdiff_t r, int thread)
{
    (void)thread;
    const Rows *w = work;
    w->set->softmax_row(w->out + r * w->n * type_bytes(w->out_type),
                        w->x + r * w->n * type_bytes(w->x_type), w->n, w->x_type, w->out_type);
}

/*
 * softmax: out[r, i] = exp(x[r, i] - max_r) * (1 / sum over j of exp(x[r, j] - max_r))
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
    const int workers = threads_for(rows * n, ELEMENTS_PER_THREAD / 4, threads);
    run_units(&(Rows){kernel_set(), out, x, n, x_type, out_type}, run_row, rows, 4, workers);
}
