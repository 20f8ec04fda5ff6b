#include "kernel_set.h"
#include "threads.h"

enum {
    /* Tokens packed at a time: bounds the scratch, and is enough to stay bound by arithmetic. */
    GROUP_TOKENS = 86 * PANEL_TOKENS,
    /* Bytes of weight rows that stay in the second cache while the panels pass over them. */
    CHUNK_BYTES = 384 * 1024,
    /* Multiply-adds that are worth one more thread. */
    PRODUCTS_PER_THREAD = 128 * 1024
};

/* Weight rows per chunk: fit the cache, and leave each thread several chunks to take. */
static ptrdiff_t chunk_rows(ptrdiff_t out_features, ptrdiff_t row_bytes, int threads)
{
    const ptrdiff_t fitting = CHUNK_BYTES / (row_bytes + 1);
    const ptrdiff_t shared = ceil_div(out_features, 4 * (ptrdiff_t)threads);
    const ptrdiff_t rows = min_size(min_size(fitting, shared), CHUNK_ROWS) & ~(ptrdiff_t)3;
    return rows < 4 ? 4 : rows;
}

/* One chunk of weight rows for all panels of a group of tokens. */
static void linear_chunk(const KernelSet *set, int kind, const char *panels, ptrdiff_t tokens,
                         const char *weight, ptrdiff_t rows, ptrdiff_t in, char *out,
                         ptrdiff_t out_stride, int out_type)
{
    const ptrdiff_t row_bytes = in * product_weight_bytes(kind);
    const ptrdiff_t full_panel = panel_bytes(set, kind, PANEL_TOKENS, in);
    float sums[PANEL_TOKENS * CHUNK_ROWS];
    for (ptrdiff_t first = 0; first < tokens; first += PANEL_TOKENS) {
        const int count = (int)min_size(PANEL_TOKENS, tokens - first);
        set->tile_rows(kind, panels + first / PANEL_TOKENS * full_panel, count, weight, row_bytes,
                       rows, in, sums);
        for (int t = 0; t < count; t++)
            set->convert_span(sums + t * CHUNK_ROWS, TYPE_F32, out + (first + t) * out_stride,
                              out_type, rows);
    }
}

ptrdiff_t linear_scratch_bytes(ptrdiff_t T, ptrdiff_t in_features, int kind)
{
    return panel_bytes(kernel_set(), kind, min_size(T, GROUP_TOKENS), in_features) + 64;
}

/*
 * linear: out[t, o] = sum over i of x[t, i] * weight[o, i]
 *
 *   x        [T, in]    bfloat16 | float32 | float32   (kind: BF16 | F32 | F32_F16)
 *   weight   [out, in]  bfloat16 | float32 | float16
 *   out      [T, out]   bfloat16 or float32
 *   scratch  linear_scratch_bytes(T, in, kind): the activations packed into panels of six tokens
 *
 * Threads take chunks of weight rows: each weight is read from memory by one thread once per
 * group of tokens, whatever T is, and no two threads write the same output. Chunks are handed out
 * dynamically, so that a disturbed processor holds nobody up. Packing is split over panels.
 * Checked by the caller: contiguity, sizes, and that out and scratch overlap nothing.
 */
void linear(const void *x, const void *weight, void *out, void *scratch, ptrdiff_t T,
            ptrdiff_t in_features, ptrdiff_t out_features, int kind, int out_type, int threads)
{
    const KernelSet *set = kernel_set();
    const ptrdiff_t in = in_features;
    const ptrdiff_t x_stride = in * product_x_bytes(kind);
    const ptrdiff_t row_bytes = in * product_weight_bytes(kind);
    const ptrdiff_t out_stride = out_features * type_bytes(out_type);
    const ptrdiff_t full_panel = panel_bytes(set, kind, PANEL_TOKENS, in);
    char *panels = align_to_line(scratch);

    for (ptrdiff_t group = 0; group < T; group += GROUP_TOKENS) {
        const ptrdiff_t tokens = min_size(GROUP_TOKENS, T - group);
        const char *rows = (const char *)x + group * x_stride;
        const ptrdiff_t panel_count = ceil_div(tokens, PANEL_TOKENS);
        const int packers = threads_for(tokens * in, 4 * ELEMENTS_PER_THREAD, threads);
#pragma omp parallel for schedule(dynamic, 1) num_threads(packers) if (packers > 1)
        for (ptrdiff_t p = 0; p < panel_count; p++)
            set->pack_panel(kind, rows + p * PANEL_TOKENS * x_stride, x_stride,
                            (int)min_size(PANEL_TOKENS, tokens - p * PANEL_TOKENS), in,
                            panels + p * full_panel);

        const int workers = threads_for(tokens * in * out_features, PRODUCTS_PER_THREAD, threads);
        const ptrdiff_t chunk = chunk_rows(out_features, row_bytes, workers);
        const ptrdiff_t chunks = ceil_div(out_features, chunk);
#pragma omp parallel for schedule(dynamic, 1) num_threads(workers) if (workers > 1)
        for (ptrdiff_t c = 0; c < chunks; c++)
            linear_chunk(set, kind, panels, tokens, (const char *)weight + c * chunk * row_bytes,
                         min_size(chunk, out_features - c * chunk), in,
                         (char *)out + group * out_stride + c * chunk * type_bytes(out_type),
                         out_stride, out_type);
    }
}
