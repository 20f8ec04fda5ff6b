#include "kernel_set.h"
#include "threads.h"

enum { PRODUCTS_PER_THREAD = 128 * 1024 };

/* Up to six rows of a with some rows of b, for one member of the batch. */
static void matmul_unit(const KernelSet *set, int kind, const char *a, ptrdiff_t a_row_stride,
                        int count, const char *b, ptrdiff_t b_row_stride, ptrdiff_t n, ptrdiff_t k,
                        char *panel, char *out, ptrdiff_t out_stride, int out_type)
{
    float sums[PANEL_TOKENS * CHUNK_ROWS];
    set->pack_panel(kind, a, a_row_stride, count, k, panel);
    for (ptrdiff_t first = 0; first < n; first += CHUNK_ROWS) {
        const ptrdiff_t rows = min_size(CHUNK_ROWS, n - first);
        set->tile_rows(kind, panel, count, b + first * b_row_stride, b_row_stride, rows, k, sums);
        for (int t = 0; t < count; t++)
            set->convert_span(sums + t * CHUNK_ROWS, TYPE_F32,
                              out + t * out_stride + first * type_bytes(out_type), out_type, rows);
    }
}

static ptrdiff_t thread_panel_bytes(const KernelSet *set, ptrdiff_t m, ptrdiff_t k, int kind)
{
    return ceil_div(panel_bytes(set, kind, min_size(m, PANEL_TOKENS), k), 64) * 64;
}

ptrdiff_t batched_matmul_scratch_bytes(ptrdiff_t m, ptrdiff_t k, int kind, int threads)
{
    return thread_panel_bytes(kernel_set(), m, k, kind) * threads + 64;
}

/*
 * batched_matmul: out[b, i, j] = sum over l of a[b, i, l] * b[b, j, l]
 *
 *   a        [batches, m, k]  bfloat16 | float32   (kind: BF16 | F32), unit stride along k
 *   b        [batches, n, k]  the type of a, unit stride along k
 *   out      [batches, m, n]  bfloat16 or float32, contiguous
 *   scratch  batched_matmul_scratch_bytes(m, k, kind, threads): one panel for each thread
 *
 * Threads take units of (member of the batch, panel of six rows of a, stretch of b's rows): they
 * are independent, and a thread packs its own panel, so scratch does not grow with m. b's rows are
 * cut into stretches only where batch and m give too few units.
 * Checked by the caller: strides (bytes, not negative), sizes, and that out and scratch overlap
 * nothing.
 */
void batched_matmul(const void *a, ptrdiff_t a_batch_stride, ptrdiff_t a_row_stride, const void *b,
                    ptrdiff_t b_batch_stride, ptrdiff_t b_row_stride, void *out, void *scratch,
                    ptrdiff_t batches, ptrdiff_t m, ptrdiff_t n, ptrdiff_t k, int kind,
                    int out_type, int threads)
{
    if (batches == 0 || m == 0 || n == 0)
        return;
    const KernelSet *set = kernel_set();
    const ptrdiff_t out_bytes = type_bytes(out_type);
    const ptrdiff_t thread_panel = thread_panel_bytes(set, m, k, kind);
    char *panels = align_to_line(scratch);

    const int workers = threads_for(batches * m * n * (k + 1), PRODUCTS_PER_THREAD, threads);
    const ptrdiff_t groups = ceil_div(m, PANEL_TOKENS);
    const ptrdiff_t wanted = ceil_div(4 * (ptrdiff_t)workers, batches * groups);
    const ptrdiff_t stretch = ceil_div(ceil_div(n, wanted), CHUNK_ROWS) * CHUNK_ROWS;
    const ptrdiff_t stretches = ceil_div(n, stretch);
    const ptrdiff_t units = batches * groups * stretches;
#pragma omp parallel for schedule(dynamic, 1) num_threads(workers) if (workers > 1)
    for (ptrdiff_t unit = 0; unit < units; unit++) {
        const ptrdiff_t j = unit % stretches * stretch;
        const ptrdiff_t i = unit / stretches % groups * PANEL_TOKENS;
        const ptrdiff_t batch = unit / stretches / groups;
        matmul_unit(set, kind, (const char *)a + batch * a_batch_stride + i * a_row_stride,
                    a_row_stride, (int)min_size(PANEL_TOKENS, m - i),
                    (const char *)b + batch * b_batch_stride + j * b_row_stride, b_row_stride,
                    min_size(stretch, n - j), k, panels + thread_index() * thread_panel,
                    (char *)out + ((batch * m + i) * n + j) * out_bytes, n * out_bytes, out_type);
    }
}
