#include "attention.h"
#include <string.h>

/*
 * write_cache: lays the keys and values of positions [start_pos, start_pos + T) into the cache
 *
 *   xk, xv  [T, K, h]              bfloat16 or float32
 *   keys    [K, C/16, words, 16]   of the same type (attention.c)
 *   values  [K, C, h]
 *   blocks  where the blocks of the sequence lie, or NULL (attention.c)
 *
 * The words of a key go to every 16th place of its group. Threads take tokens.
 * Checked by the caller: contiguity, sizes, h even, places below C, and that nothing overlaps.
 */
void write_cache(void *keys, void *values, const void *xk, const void *xv, const ptrdiff_t *blocks,
                 ptrdiff_t T, ptrdiff_t start_pos, ptrdiff_t K, ptrdiff_t h, ptrdiff_t C,
                 ElementType type, int threads)
{
    const ptrdiff_t bytes = h * type_bytes(type);
    const int workers = threads_for(T * K * h, ELEMENTS_PER_THREAD, threads);
#pragma omp parallel for schedule(static) num_threads(workers) if (workers > 1)
    for (ptrdiff_t t = 0; t < T; t++)
        for (ptrdiff_t k = 0; k < K && h > 0; k++) {
            const ptrdiff_t from = (t * K + k) * bytes, position = start_pos + t;
            const ptrdiff_t block = position / ATTENTION_BLOCK, place = position % ATTENTION_BLOCK;
            const ptrdiff_t at = blocks ? blocks[block] * ATTENTION_BLOCK + place : position;
            char *group = (char *)keys + (k * C + at / LANES * LANES) * bytes;
            for (ptrdiff_t word = 0; word < bytes; word += 4)
                memcpy(group + at % LANES * 4 + word * LANES, (const char *)xk + from + word, 4);
            memcpy((char *)values + (k * C + at) * bytes, (const char *)xv + from, (size_t)bytes);
        }
}
