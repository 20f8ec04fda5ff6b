#include "kernel_set.h"
#include "threads.h"

#include <string.h>

/* One position of one head: its words go to every 16th place of its group. */
static void spread_words(const char *x, ptrdiff_t words, char *place)
{
    for (ptrdiff_t w = 0; w < words; w++)
        memcpy(place + w * LANES * 4, x + w * 4, 4);
}

/*
 * write_cache: lays the keys and values of positions [start_pos, start_pos + T) into the cache
 *
 *   xk, xv  [T, K, h]              bfloat16 or float32
 *   keys    [K, C/16, words, 16]   of the same type (attention.c)
 *   values  [K, C, h]
 *
 * Threads take tokens.
 * Checked by the caller: contiguity, sizes, h even, start_pos + T <= C, and that nothing overlaps.
 */
void write_cache(const void *xk, const void *xv, void *keys, void *values, ptrdiff_t T,
                 ptrdiff_t start_pos, ptrdiff_t K, ptrdiff_t h, ptrdiff_t C, int type, int threads)
{
    const ptrdiff_t bytes = h * type_bytes(type);
    const int workers = threads_for(T * K * h, ELEMENTS_PER_THREAD, threads);
#pragma omp parallel for schedule(static) num_threads(workers) if (workers > 1)
    for (ptrdiff_t t = 0; t < T; t++)
        for (ptrdiff_t k = 0; k < K; k++) {
            const ptrdiff_t from = (t * K + k) * bytes, at = start_pos + t;
            char *group = (char *)keys + (k * C + at / LANES * LANES) * bytes;
            spread_words((const char *)xk + from, bytes / 4, group + at % LANES * 4);
            memcpy((char *)values + (k * C + at) * bytes, (const char *)xv + from, (size_t)bytes);
        }
}
