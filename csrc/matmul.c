#include "product.h"
#include "threads.h"

/* The operands of batched_matmul, and how its work is cut into units. */
typedef struct Batch {
    const KernelSet *set;
    const char *a, *b;
    char *out;
    ptrdiff_t a_batch_stride, a_row_stride, b_batch_stride, b_row_stride, m, n, k;
    int kind, out_type;
    Scratch scratch;
    ptrdiff_t group, groups;       /* rows of a in one; of them, for each member of the batch */
    ptrdiff_t stretch, stretches;  /* rows of b in one; of them */
} Batch;

/* Groups that a thread's panels have room for, and stretches of b's rows: whole chunks, as long as
 * each thread has several units to take. */
static void cut_work(Batch *batch, ptrdiff_t batches, int workers, int threads)
{
    batch->group = min_size(batch->scratch.panel_tokens / PANEL_TOKENS / threads * PANEL_TOKENS,
                            GROUP_TOKENS);
    batch->groups = ceil_div(batch->m, batch->group);
    const ptrdiff_t wanted = ceil_div(4 * (ptrdiff_t)workers, batches * batch->groups);
    batch->stretch = ceil_div(ceil_div(batch->n, wanted), CHUNK_ROWS) * CHUNK_ROWS;
    batch->stretches = ceil_div(batch->n, batch->stretch);
}

/* One group of a's rows times one stretch of b's rows. */
static void multiply_unit(const Batch *batch, ptrdiff_t unit)
{
    const int thread = thread_index();
    const ptrdiff_t begin = unit % batch->stretches * batch->stretch;
    const ptrdiff_t end = min_size(begin + batch->stretch, batch->n);
    const ptrdiff_t i = unit / batch->stretches % batch->groups * batch->group;
    const ptrdiff_t member = unit / batch->stretches / batch->groups;
    const ptrdiff_t out_bytes = type_bytes(batch->out_type), room = panel_room(batch->k);
    Operands operands = {
        .x = batch->a + member * batch->a_batch_stride + i * batch->a_row_stride,
        .x_stride = batch->a_row_stride,
        .panels = batch->scratch.panels + thread * batch->group / PANEL_TOKENS * room,
        .tokens = min_size(batch->group, batch->m - i),
        .weight_stride = batch->b_row_stride,
        .in = batch->k,
        .out_stride = batch->n * out_bytes,
        .kind = batch->kind,
        .out_type = batch->out_type,
    };
    if (operands.tokens > 1)
        for (ptrdiff_t t = 0; t < operands.tokens; t += PANEL_TOKENS)
            pack_tokens(batch->set, batch->kind, operands.x + t * operands.x_stride,
                        operands.x_stride, operands.tokens - t, batch->k,
                        operands.panels + t / PANEL_TOKENS * room);
    for (ptrdiff_t j = begin; j < end; j += CHUNK_ROWS) {
        operands.weight = batch->b + member * batch->b_batch_stride + j * batch->b_row_stride;
        operands.rows = min_size(CHUNK_ROWS, end - j);
        operands.out = batch->out + ((member * batch->m + i) * batch->n + j) * out_bytes;
        multiply(batch->set, &operands, &batch->scratch, thread);
    }
}

/*
 * batched_matmul: out[b, i, j] = sum over l of a[b, i, l] * b[b, j, l]
 *
 *   a        [batches, m, k]  bfloat16 | float32   (kind: BF16 | F32), unit stride along k
 *   b        [batches, n, k]  the type of a, unit stride along k
 *   out      [batches, m, n]  bfloat16 or float32, contiguous
 *   scratch  product_scratch_bytes(k, threads)
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
    Batch batch = {
        .set = kernel_set(),
        .a = a,
        .b = b,
        .out = out,
        .a_batch_stride = a_batch_stride,
        .a_row_stride = a_row_stride,
        .b_batch_stride = b_batch_stride,
        .b_row_stride = b_row_stride,
        .m = m,
        .n = n,
        .k = k,
        .kind = kind,
        .out_type = out_type,
        .scratch = cut_scratch(scratch, k, threads),
    };
    const int workers = threads_for(batches * m * n * (k + 1), PRODUCTS_PER_THREAD, threads);
    cut_work(&batch, batches, workers, threads);
    const ptrdiff_t units = batches * batch.groups * batch.stretches;
#pragma omp parallel for schedule(dynamic, 1) num_threads(workers) if (workers > 1)
    for (ptrdiff_t unit = 0; unit < units; unit++)
        multiply_unit(&batch, unit);
}
