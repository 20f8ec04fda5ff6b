/*
 * Products of two tensors. Each element is a sum along k in blocks of 256 elements: a block is one
 * chain, and the sums of the blocks are added in order. Attention uses the same order, along the
 * elements of a head and along positions, so it has the bits of two matmuls. From the innermost
 * loop to the outermost:
 *   - a tile of 6 rows x 64 columns (16 with AVX2) is in registers;
 *   - a panel of 6 rows is multiplied by the columns of a span;
 *   - a packed block of 256 elements of these columns stays in the L2 cache while all panels of the
 *     unit are multiplied by it.
 */
#include "attention/attention.h"
#include <string.h>

enum {
    UNIT_ROWS = 42 * PANEL_TOKENS,
    SPAN_COLUMNS = ATTENTION_BLOCK, /* maximum of multiply_chains */
    /* Several units per thread, so that a preempted thread delays little work. */
    UNITS_PER_THREAD = 4,
    /* Number of multiply-adds for which another thread pays off. */
    MULTIPLY_ADDS_PER_THREAD = 128 * 1024
};

/* The scratch of a thread. */
typedef struct MatmulScratch {
    _Alignas(LINE) float columns[SPAN_COLUMNS * ATTENTION_BLOCK]; /* [group][word][lane] */
    float panel[PANEL_TOKENS * ATTENTION_BLOCK];
    float sums[PANEL_TOKENS * SPAN_COLUMNS];
    float totals[UNIT_ROWS * SPAN_COLUMNS];
} MatmulScratch;

/* Bytes between two matrices of a batch, two rows of a matrix, and two elements of a row. */
typedef struct Strides {
    ptrdiff_t batch, row, element;
} Strides;

/* The operands of batched_matmul, and the division of its work into units. */
typedef struct Batch {
    const KernelSet *set;
    const char *a, *b;
    char *out;
    Strides a_strides, b_strides;
    ptrdiff_t m, n, k;
    ElementType type, out_type;
    MatmulScratch *scratch;
    ptrdiff_t unit, units; /* rows of a per unit; units per member of the batch */
    ptrdiff_t span, spans; /* columns of b per span; spans */
} Batch;

ptrdiff_t matmul_scratch_bytes(int threads)
{
    return LINE + threads * (ptrdiff_t)sizeof(MatmulScratch);
}

/* Copies `count` elements of 2 or 4 bytes that are `stride` bytes apart. */
static void gather(char *restrict to, const char *restrict from, ptrdiff_t stride, ptrdiff_t count,
                   ptrdiff_t bytes)
{
    if (stride == bytes)
        memcpy(to, from, (size_t)(count * bytes));
    else if (bytes == 2)
        for (ptrdiff_t i = 0; i < count; i++)
            memcpy(to + 2 * i, from + i * stride, 2);
    else
        for (ptrdiff_t i = 0; i < count; i++)
            memcpy(to + 4 * i, from + i * stride, 4);
}

/* Copies one word of a column: one element of 4 bytes, or two elements of 2 bytes that
 * are adjacent along k. */
static inline void copy_word(char *to, const char *from, ptrdiff_t stride, int is_pair,
                             ptrdiff_t bytes)
{
    if (bytes == 4) {
        memcpy(to, from, 4);
        return;
    }
    uint16_t pair[2] = {0, 0};
    memcpy(&pair[0], from, 2);
    if (is_pair)
        memcpy(&pair[1], from + stride, 2);
    memcpy(to, pair, 4);
}

/*
 * Packs elements [0, count) of some columns as [group][word][lane], padded with zeros. Columns that
 * are contiguous in memory are read together, one word at a time. Otherwise, each column is read
 * along k.
 */
static void pack_columns(const Batch *batch, const char *b, ptrdiff_t columns, ptrdiff_t count,
                         float *packed)
{
    const ptrdiff_t bytes = type_bytes(batch->type), words = element_words(batch->type, count);
    const ptrdiff_t along = batch->b_strides.element, across = batch->b_strides.row;
    const ptrdiff_t word_bytes = 4 / bytes * along; /* bytes between two words of b */
    const ptrdiff_t group_bytes = words * LINE, whole_words = count * bytes / 4;
    char *to = (char *)packed;
    ptrdiff_t column = 0;
    if (across == bytes) {
        column = columns / LANES * LANES;
        for (ptrdiff_t w = 0; w < words; w++)
            for (ptrdiff_t first = 0; first < column; first += LANES)
                for (ptrdiff_t l = 0; l < LANES; l++)
                    copy_word(to + first / LANES * group_bytes + w * LINE + l * 4,
                              b + w * word_bytes + (first + l) * bytes, along, w < whole_words,
                              bytes);
    }
    if (columns % LANES != 0)
        memset(to + columns / LANES * group_bytes, 0, (size_t)group_bytes);
    for (; column < columns; column++)
        for (ptrdiff_t w = 0; w < words; w++)
            copy_word(to + column / LANES * group_bytes + w * LINE + column % LANES * 4,
                      b + column * across + w * word_bytes, along, w < whole_words, bytes);
}

/* Packs elements [0, count) of some rows of a. */
static void pack_panel(const Batch *batch, const char *a, int rows, ptrdiff_t count, float *panel)
{
    const ptrdiff_t bytes = type_bytes(batch->type), words = element_words(batch->type, count);
    float row[ATTENTION_BLOCK];
    row[words - 1] = 0.0f;
    for (int r = 0; r < rows; r++) {
        gather((char *)row, a + r * batch->a_strides.row, batch->a_strides.element, count, bytes);
        batch->set->attention->pack_chains(panel + r, (const char *)row, words, rows, batch->type);
    }
}

/* Multiplies some rows of a by a span of columns of b. */
static void multiply_unit(void *work, ptrdiff_t unit, int thread)
{
    const Batch *batch = work;
    MatmulScratch *scratch = batch->scratch + thread;
    const ptrdiff_t column = unit % batch->spans * batch->span;
    const ptrdiff_t columns = min_size(batch->span, batch->n - column);
    const ptrdiff_t row = unit / batch->spans % batch->units * batch->unit;
    const ptrdiff_t rows = min_size(batch->unit, batch->m - row);
    const ptrdiff_t member = unit / batch->spans / batch->units;
    const char *a = batch->a + member * batch->a_strides.batch + row * batch->a_strides.row;
    const char *b = batch->b + member * batch->b_strides.batch + column * batch->b_strides.row;
    memset(scratch->totals, 0, (size_t)(rows * SPAN_COLUMNS) * sizeof(float));
    for (ptrdiff_t start = 0; start < batch->k; start += ATTENTION_BLOCK) {
        const ptrdiff_t count = min_size(ATTENTION_BLOCK, batch->k - start);
        const ptrdiff_t words = element_words(batch->type, count);
        pack_columns(batch, b + start * batch->b_strides.element, columns, count, scratch->columns);
        for (ptrdiff_t r = 0; r < rows; r += PANEL_TOKENS) {
            const int of_panel = (int)min_size(PANEL_TOKENS, rows - r);
            pack_panel(batch, a + r * batch->a_strides.row + start * batch->a_strides.element,
                       of_panel, count, scratch->panel);
            batch->set->attention->multiply_chains(
                scratch->sums, scratch->panel, (const char *)scratch->columns, of_panel,
                ceil_div(columns, LANES), words, words, batch->type);
            float *totals = scratch->totals + r * SPAN_COLUMNS;
            for (int i = 0; i < of_panel; i++)
                for (ptrdiff_t j = 0; j < columns; j++)
                    totals[i * SPAN_COLUMNS + j] += scratch->sums[i * SPAN_COLUMNS + j];
        }
    }
    char *out =
        batch->out + ((member * batch->m + row) * batch->n + column) * type_bytes(batch->out_type);
    for (ptrdiff_t r = 0; r < rows; r++)
        batch->set->rows->convert_span(out + r * batch->n * type_bytes(batch->out_type),
                                       scratch->totals + r * SPAN_COLUMNS, columns, TYPE_FLOAT32,
                                       batch->out_type);
}

/*
 * batched_matmul: out[b, i, j] = sum over l of a[b, i, l] * b[b, j, l]
 *
 *   a        [batches, m, k]  bfloat16 or float32
 *   b        [batches, n, k]  the type of a
 *   out      [batches, m, n]  bfloat16 or float32, contiguous
 *   scratch  matmul_scratch_bytes(threads)
 *
 * Threads take units of (member of the batch, rows of a, span of b's columns), which are
 * independent of each other. The caller checks sizes, that strides are not negative (they are in
 * bytes), and that out and scratch do not overlap any other argument.
 */
void batched_matmul(void *out, void *scratch, const void *a, const void *b, ptrdiff_t batches,
                    ptrdiff_t m, ptrdiff_t n, ptrdiff_t k, ptrdiff_t a_batch_stride,
                    ptrdiff_t a_row_stride, ptrdiff_t a_stride, ptrdiff_t b_batch_stride,
                    ptrdiff_t b_row_stride, ptrdiff_t b_stride, ElementType type,
                    ElementType out_type, int threads)
{
    if (batches == 0 || m == 0 || n == 0)
        return;
    const int workers = threads_for(batches * m * n * (k + 1), MULTIPLY_ADDS_PER_THREAD, threads);
    const ptrdiff_t wanted = workers > 1 ? ceil_div(UNITS_PER_THREAD * workers, batches) : 1;
    Batch batch = {.set = kernel_set(),
                   .a = a,
                   .b = b,
                   .out = out,
                   .a_strides = {a_batch_stride, a_row_stride, a_stride},
                   .b_strides = {b_batch_stride, b_row_stride, b_stride},
                   .m = m,
                   .n = n,
                   .k = k,
                   .type = type,
                   .out_type = out_type,
                   .scratch = (MatmulScratch *)align_to_line(scratch)};
    /* Columns are divided first, because each unit packs its columns. */
    batch.span = ceil_div(min_size(SPAN_COLUMNS, ceil_div(n, wanted)), LANES) * LANES;
    batch.spans = ceil_div(n, batch.span);
    batch.unit = min_size(UNIT_ROWS, ceil_div(m, ceil_div(wanted, batch.spans)));
    batch.unit = ceil_div(batch.unit, PANEL_TOKENS) * PANEL_TOKENS;
    batch.units = ceil_div(m, batch.unit);
    run_units(&batch, multiply_unit, batches * batch.spans * batch.units, 1, workers);
}
