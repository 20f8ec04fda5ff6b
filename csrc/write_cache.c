#include "attention.h"
#include <string.h>

typedef struct Tokens {
    char *keys, *values;
    const char *xk, *xv;
    const ptrdiff_t *blocks;
    ptrdiff_t start_pos, K, C, bytes;
} Tokens;

static void write_token(void *work, ptrdiff_t t, int thread)
{
    (void)thread;
    const Tokens *w = work;
    const ptrdiff_t position = w->start_pos + t, bytes = w->bytes;
    const ptrdiff_t block = position / ATTENTION_BLOCK, place = position % ATTENTION_BLOCK;
    const ptrdiff_t at = w->blocks ? w->blocks[block] * ATTENTION_BLOCK + place : position;
    for (ptrdiff_t k = 0; k < w->K && bytes > 0; k++) {
        const ptrdiff_t from = (t * w->K + k) * bytes;
        char *group = w->keys + (k * w->C + at / LANES * LANES) * bytes;
        for (ptrdiff_t word = 0; word < bytes; word += 4)
            memcpy(group + at % LANES * 4 + word * LANES, w->xk + from + word, 4);
        memcpy(w->values + (k * w->C + at) * bytes, w->xv + from, (size_t)bytes);
    }
}

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
    const int workers = threads_for(T * K * h, ELEMENTS_PER_THREAD, threads);
    run_units(&(Tokens){keys, values, xk, xv, blocks, start_pos, K, C, h * type_bytes(type)},
              write_token, T, 4, workers);
}
