#include "product.h"
#include "threads.h"

/* Weight rows per chunk: as many as multiply takes, but several chunks for each thread. */
static ptrdiff_t chunk_rows(ptrdiff_t out_features, int threads)
{
    const ptrdiff_t shared = ceil_div(out_features, 4 * (ptrdiff_t)threads);
    return min_size(ceil_div(shared, 4) * 4, CHUNK_ROWS);
}

/*
 * linear: out[t, o] = sum over i of x[t, i] * weight[o, i]
 *
 *   x        [T, in]    bfloat16 | float32 | float32   (kind: BF16 | F32 | F32_F16)
 *   weight   [out, in]  bfloat16 | float32 | float16
 *   out      [T, out]   bfloat16 or float32
 *   scratch  threads * product_scratch_bytes() + 64
 *
 * Threads take chunks of weight rows: each weight is read from memory by one thread once per
 * group of tokens, and no two threads write the same output. Chunks are handed out dynamically, so
 * that a disturbed processor holds nobody up.
 * Checked by the caller: contiguity, sizes, and that out and scratch overlap nothing.
 */
void linear(const void *x, const void *weight, void *out, void *scratch, ptrdiff_t T,
            ptrdiff_t in_features, ptrdiff_t out_features, int kind, int out_type, int threads)
{
    const KernelSet *set = kernel_set();
    const ptrdiff_t x_stride = in_features * product_x_bytes(kind);
    const ptrdiff_t weight_stride = in_features * product_weight_bytes(kind);
    const ptrdiff_t out_stride = out_features * type_bytes(out_type);
    char *lines = align_to_line(scratch);

    const int workers = threads_for(T * in_features * out_features, PRODUCTS_PER_THREAD, threads);
    const ptrdiff_t rows = chunk_rows(out_features, workers);
#pragma omp parallel for schedule(dynamic, 1) num_threads(workers) if (workers > 1)
    for (ptrdiff_t row = 0; row < out_features; row += rows)
        for (ptrdiff_t t = 0; t < T; t += GROUP_TOKENS) {
            const Operands operands = {
                .x = (const char *)x + t * x_stride,
                .x_stride = x_stride,
                .tokens = min_size(GROUP_TOKENS, T - t),
                .weight = (const char *)weight + row * weight_stride,
                .weight_stride = weight_stride,
                .rows = min_size(rows, out_features - row),
                .in = in_features,
                .out = (char *)out + t * out_stride + row * type_bytes(out_type),
                .out_stride = out_stride,
                .kind = kind,
                .out_type = out_type,
            };
            multiply(set, &operands, lines + thread_index() * product_scratch_bytes());
        }
}
