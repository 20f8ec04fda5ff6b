#include "kernel_set.h"

typedef struct Rows {
    const KernelSet *set;
    int32_t *out;
    const char *x;
    ptrdiff_t n;
    ElementType type;
} Rows;

static void run_row(void *work, ptrdiff_t r, int thread)
{
    (void)thread;
    const Rows *w = work;
    const char *row = w->x + r * w->n * type_bytes(w->type);
    w->out[r] = (int32_t)w->set->argmax_row(row, w->n, w->type);
}

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
    const int workers = threads_for(rows * n, ELEMENTS_PER_THREAD, threads);
    run_units(&(Rows){kernel_set(), out, x, n, type}, run_row, rows, 1, workers);
}
