/*
 * The changes of products by low-rank adapters: y = W x + factor * B (A x).
 *
 * The tokens of a pass may have different adapters, and several of them. low_rank_products computes
 * A x for all of them, add_low_rank_changes then adds the products with B to the results of
 * `linear`. Both are a single parallel region for all adapters and all weights that have the same
 * x.
 *
 * B is stored by columns, so that a vector has the same column of many results. The kernels on rows
 * are in row_kernels.h. Each of their sums depends only on one token and one adapter, so any
 * division of the work gives the same bits. The caller checks contiguity, sizes and overlaps.
 */
#include "kernels.h"

enum {
    /* Number of multiply-adds for which another thread pays off. */
    LOW_RANK_PER_THREAD = 64 * 1024
};

/* The arguments of low_rank_products. */
typedef struct LowRankInputs {
    const RowKernels *kernels;
    float *low;
    const char *x;
    const ptrdiff_t *rows;
    const LowRankProduct *products;
    ptrdiff_t in;
    ElementType x_type;
} LowRankInputs;

/* Units of a product: LOW_RANK_ROWS rows of A times LOW_RANK_TOKENS tokens. */
static ptrdiff_t product_units(const LowRankProduct *product)
{
    return ceil_div(product->rank, LOW_RANK_ROWS) * ceil_div(product->count, LOW_RANK_TOKENS);
}

static void low_rank_product_unit(void *work, ptrdiff_t unit, int thread)
{
    (void)thread;
    const LowRankInputs *w = work;
    const LowRankProduct *product = w->products;
    for (; unit >= product_units(product); product++)
        unit -= product_units(product);
    const ptrdiff_t row_units = ceil_div(product->rank, LOW_RANK_ROWS);
    const ptrdiff_t row = unit % row_units * LOW_RANK_ROWS;
    const ptrdiff_t token = unit / row_units * LOW_RANK_TOKENS;
    const ptrdiff_t row_bytes = w->in * type_bytes(product->a_type);
    w->kernels->low_rank_products(
        w->low + product->low + token * product->rank + row, product->rank, w->x,
        w->rows + product->first + token, min_size(LOW_RANK_TOKENS, product->count - token),
        (const char *)product->a + row * row_bytes, min_size(LOW_RANK_ROWS, product->rank - row),
        w->in, w->x_type, product->a_type);
}

/*
 * low_rank_products: low_p[t, r] = sum over i of x[rows[first_p + t], i] * a_p[r, i], for each
 * product p
 *
 *   x     [T, in]            bfloat16 or float32
 *   rows                     numbers of tokens; product p uses count_p of them, from first_p on
 *   a_p   [rank_p, in]       any plain type
 *   low   [count_p, rank_p]  float32, at low_p for product p
 *
 * Element i is added to lane i mod 16, and the lanes are reduced in their fixed order. Threads take
 * four rows of A and eight tokens, so that a row is widened once for these tokens.
 */
void low_rank_products(float *low, const void *x, const ptrdiff_t *rows,
                       const LowRankProduct *products, ptrdiff_t count, ptrdiff_t in,
                       ElementType x_type, int threads)
{
    LowRankInputs work = {kernel_set()->rows, low, x, rows, products, in, x_type};
    ptrdiff_t units = 0, multiply_adds = 0;
    for (ptrdiff_t p = 0; p < count; p++) {
        units += product_units(&products[p]);
        multiply_adds += products[p].rank * products[p].count * in;
    }
    const int workers = threads_for(multiply_adds, LOW_RANK_PER_THREAD, threads);
    run_units(&work, low_rank_product_unit, units, 1, workers);
}

/* The arguments of add_low_rank_changes. */
typedef struct LowRankOutputs {
    const RowKernels *kernels;
    const LowRankResult *results;
    const LowRankChange *changes;
    const float *low;
    const ptrdiff_t *rows;
    ptrdiff_t T;
} LowRankOutputs;

static void low_rank_change_unit(void *work, ptrdiff_t unit, int thread)
{
    (void)thread;
    const LowRankOutputs *w = work;
    const LowRankResult *result = w->results;
    for (; unit >= ceil_div(result->columns, LOW_RANK_SPAN); result++)
        unit -= ceil_div(result->columns, LOW_RANK_SPAN);
    const ptrdiff_t columns = result->columns;
    const ptrdiff_t start = unit * LOW_RANK_SPAN;
    const ptrdiff_t count = min_size(LOW_RANK_SPAN, columns - start);
    for (ptrdiff_t c = result->first_change; c < result->first_change + result->changes; c++) {
        const LowRankChange *change = &w->changes[c];
        for (ptrdiff_t t = 0; t < change->count; t += LOW_RANK_TOKENS)
            w->kernels->add_low_rank_changes(
                result->out + start, columns, w->rows + change->first + t,
                min_size(LOW_RANK_TOKENS, change->count - t),
                w->low + change->low + t * change->rank, change->rank, change->factor,
                (const char *)change->b + start * type_bytes(change->b_type), count,
                change->b_type);
    }
    if (result->rounded == NULL)
        return;
    char *rounded = (char *)result->rounded + start * type_bytes(result->rounded_type);
    for (ptrdiff_t t = 0; t < w->T; t++)
        w->kernels->convert_span(rounded + t * columns * type_bytes(result->rounded_type),
                                 result->out + t * columns + start, count, TYPE_FLOAT32,
                                 result->rounded_type);
}

/*
 * add_low_rank_changes: out_p[rows[first_c + t], o] += sum over r of factor_c * low_c[t, r] *
 * b_c[r, o], for each change c of each result p, in the order of the changes
 *
 *   out_p  [T, columns_p]    float32
 *   rounded_p                out_p in another type, optional
 *   low_c  [count_c, rank_c] float32, the products with A
 *   b_c    [rank_c, columns_p], any plain type: the matrix B by columns
 *
 * The sum over r starts at 0, and is added to the result as a whole. The tokens of a change differ
 * from each other. Threads take spans of the columns of a result, with all their changes.
 */
void add_low_rank_changes(const LowRankResult *results, ptrdiff_t count,
                          const LowRankChange *changes, const float *low, const ptrdiff_t *rows,
                          ptrdiff_t T, int threads)
{
    LowRankOutputs work = {kernel_set()->rows, results, changes, low, rows, T};
    ptrdiff_t units = 0, multiply_adds = 0;
    for (ptrdiff_t p = 0; p < count; p++) {
        const LowRankChange *of_result = changes + results[p].first_change;
        units += ceil_div(results[p].columns, LOW_RANK_SPAN);
        for (ptrdiff_t c = 0; c < results[p].changes; c++)
            multiply_adds += of_result[c].rank * of_result[c].count * results[p].columns;
    }
    const int workers = threads_for(multiply_adds, LOW_RANK_PER_THREAD, threads);
    run_units(&work, low_rank_change_unit, units, 1, workers);
}
