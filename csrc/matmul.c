#include "product.h"
#include "threads.h"

/* How the work of batched_matmul is cut into units. */
typedef struct Cut {
    ptrdiff_t groups;    /* of rows of a, for each member of the batch */
    ptrdiff_t stretches; /* of rows of b */
    ptrdiff_t stretch;   /* rows of b in one */
} Cut;

/* Stretches of b's rows: whole chunks, as long as each thread has several units to take. */
static Cut cut_work(ptrdiff_t batches, ptrdiff_t m, ptrdiff_t n, int threads)
{
    Cut cut = {.groups = ceil_div(m, GROUP_TOKENS)};
    const ptrdiff_t wanted = ceil_div(4 * (ptrdiff_t)threads, batches * cut.groups);
    cut.stretch = ceil_div(ceil_div(n, wanted), CHUNK_ROWS) * CHUNK_ROWS;
    cut.stretches = ceil_div(n, cut.stretch);
    return cut;
}

/*
 * batched_matmul: out[b, i, j] = sum over l of a[b, i, l] * b[b, j, l]
 *
 *   a        [batches, m, k]  bfloat16 | float32   (kind: BF16 | F32), unit stride along k
 *   b        [batches, n, k]  the type of a, unit stride along k
 *   out      [batches, m, n]  bfloat16 or float32, contiguous
 *   scratch  threads * product_scratch_bytes() + 64
 *
 * Threads take units of (member of the batch, group of a's rows, stretch of b's rows), which are
 * independent; b is cut into stretches only where batch and groups give too few units.
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
    char *lines = align_to_line(scratch);

    const int workers = threads_for(batches * m * n * (k + 1), PRODUCTS_PER_THREAD, threads);
    const Cut cut = cut_work(batches, m, n, workers);
    const ptrdiff_t units = batches * cut.groups * cut.stretches;
#pragma omp parallel for schedule(dynamic, 1) num_threads(workers) if (workers > 1)
    for (ptrdiff_t unit = 0; unit < units; unit++) {
        const ptrdiff_t begin = unit % cut.stretches * cut.stretch;
        const ptrdiff_t end = min_size(begin + cut.stretch, n);
        const ptrdiff_t i = unit / cut.stretches % cut.groups * GROUP_TOKENS;
        const ptrdiff_t batch = unit / cut.stretches / cut.groups;
        for (ptrdiff_t j = begin; j < end; j += CHUNK_ROWS) {
            const Operands operands = {
                .x = (const char *)a + batch * a_batch_stride + i * a_row_stride,
                .x_stride = a_row_stride,
                .tokens = min_size(GROUP_TOKENS, m - i),
                .weight = (const char *)b + batch * b_batch_stride + j * b_row_stride,
                .weight_stride = b_row_stride,
                .rows = min_size(CHUNK_ROWS, end - j),
                .in = k,
                .out = (char *)out + ((batch * m + i) * n + j) * out_bytes,
                .out_stride = n * out_bytes,
                .kind = kind,
                .out_type = out_type,
            };
            multiply(set, &operands, lines + thread_index() * product_scratch_bytes());
        }
    }
}
