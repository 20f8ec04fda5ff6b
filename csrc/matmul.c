#include "product.h"

/* The operands of batched_matmul, and how its work is cut into units. */
typedef struct Batch {
    const KernelSet *set;
    const char *a, *b;
    char *out;
    ptrdiff_t a_batch_stride, a_row_stride, b_batch_stride, b_row_stride, m, n, k;
    Form form;
    ElementType type, out_type;
    Scratch scratch;
    ptrdiff_t group, groups; /* rows of a in one; of them, for each member of the batch */
    ptrdiff_t span, spans;   /* rows of b in one; of them */
} Batch;

/* Groups that a thread's panels have room for, and spans of b's rows: whole chunks, as long as
 * each thread has several units to take. */
static void cut_work(Batch *batch, ptrdiff_t batches, int workers, int threads)
{
    batch->group =
        min_size(batch->scratch.panel_tokens / PANEL_TOKENS / threads * PANEL_TOKENS, GROUP_TOKENS);
    batch->groups = ceil_div(batch->m, batch->group);
    const ptrdiff_t wanted = ceil_div(4 * (ptrdiff_t)workers, batches * batch->groups);
    batch->span = ceil_div(ceil_div(batch->n, wanted), CHUNK_ROWS) * CHUNK_ROWS;
    batch->spans = ceil_div(batch->n, batch->span);
}

/* One group of a's rows times one span of b's rows. */
static void multiply_unit(void *work, ptrdiff_t unit, int thread)
{
    const Batch *batch = work;
    const ptrdiff_t begin = unit % batch->spans * batch->span;
    const ptrdiff_t end = min_size(begin + batch->span, batch->n);
    const ptrdiff_t i = unit / batch->spans % batch->groups * batch->group;
    const ptrdiff_t member = unit / batch->spans / batch->groups;
    const ptrdiff_t out_bytes = type_bytes(batch->out_type), room = panel_room(batch->k);
    Weight rows = {.type = batch->type};
    Operands operands = {.out_stride = batch->n * out_bytes,
                         .x = batch->a + member * batch->a_batch_stride + i * batch->a_row_stride,
                         .x_stride = batch->a_row_stride,
                         .panels =
                             batch->scratch.panels + thread * batch->group / PANEL_TOKENS * room,
                         .weight = &rows,
                         .weight_stride = batch->b_row_stride,
                         .tokens = min_size(batch->group, batch->m - i),
                         .in = batch->k,
                         .form = batch->form,
                         .x_type = batch->type,
                         .out_type = batch->out_type};
    if (batch->k && !reads_rows(operands.tokens, batch->type, batch->type, batch->form))
        for (ptrdiff_t t = 0; t < operands.tokens; t += PANEL_TOKENS)
            batch->set->pack[batch->form](operands.panels + t / PANEL_TOKENS * room,
                                          operands.x + t * operands.x_stride, operands.x_stride,
                                          (int)min_size(PANEL_TOKENS, operands.tokens - t),
                                          batch->k, batch->type);
    for (ptrdiff_t j = begin; j < end; j += CHUNK_ROWS) {
        rows.data = batch->b + member * batch->b_batch_stride + j * batch->b_row_stride;
        operands.rows = min_size(CHUNK_ROWS, end - j);
        operands.out = batch->out + ((member * batch->m + i) * batch->n + j) * out_bytes;
        multiply(batch->set, &operands, &batch->scratch, thread);
    }
}

/*
 * batched_matmul: out[b, i, j] = sum over l of a[b, i, l] * b[b, j, l]
 *
 *   a        [batches, m, k]  bfloat16 or float32, unit stride along k
 *   b        [batches, n, k]  the type of a, unit stride along k
 *   out      [batches, m, n]  bfloat16 or float32, contiguous
 *   scratch  product_scratch_bytes(k, threads)
 *
 * Threads take units of (member of the batch, group of a's rows, span of b's rows), which are
 * independent; b is cut into spans only where batch and groups give too few units.
 * Checked by the caller: strides (bytes, not negative), sizes, and that out and scratch overlap
 * nothing.
 */
void batched_matmul(void *out, void *scratch, const void *a, const void *b, ptrdiff_t batches,
                    ptrdiff_t m, ptrdiff_t n, ptrdiff_t k, ptrdiff_t a_batch_stride,
                    ptrdiff_t a_row_stride, ptrdiff_t b_batch_stride, ptrdiff_t b_row_stride,
                    ElementType type, ElementType out_type, int threads)
{
    if (batches == 0 || m == 0 || n == 0)
        return;
    Batch batch = {.set = kernel_set(),
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
                   .form = product_form(m, type, type, k),
                   .type = type,
                   .out_type = out_type,
                   .scratch = cut_scratch(scratch, k, threads)};
    const int workers = threads_for(batches * m * n * (k + 1), PRODUCTS_PER_THREAD, threads);
    cut_work(&batch, batches, workers, threads);
    run_units(&batch, multiply_unit, batches * batch.groups * batch.spans, 1, workers);
}
