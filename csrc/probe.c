/* The limits of a machine: how fast memory is read, and how fast products are added up. */
#include "kernel_set.h"

enum { PROBE_CHUNK = 1 << 20 };

/*
 * probe_read: the exclusive or of all 32-bit words of a buffer
 *
 *   bytes    [count]  anything; an end of less than 4 bytes is left out
 *   streams  1, 2, 4 or 8 places that each thread reads from in turn
 *
 * Threads take chunks, as the products take blocks of weight rows. Nothing is computed that could
 * take longer than the reading.
 */
uint32_t probe_read(const void *bytes, ptrdiff_t count, int streams, int threads)
{
    const KernelSet *set = kernel_set();
    const char *start = (const char *)bytes;
    const int workers = threads_for(count, PROBE_CHUNK, threads);
    uint32_t all = 0;
#pragma omp parallel for schedule(dynamic, 1) num_threads(workers) if (workers > 1) \
    reduction(^ : all)
    for (ptrdiff_t at = 0; at < count; at += PROBE_CHUNK)
        all ^= set->read_span(start + at, min_size(PROBE_CHUNK, count - at), streams);
    return all;
}

/*
 * probe_multiply_add: multiply-adds of a product of bfloat16 or float32, in registers alone
 *
 *   result  one of the sums of each thread, added up: what keeps them from being left out
 *
 * Each thread does the same. Returns the multiplications and additions that were done; 0 where the
 * set has no vectors and so no peak.
 */
ptrdiff_t probe_multiply_add(float *result, ptrdiff_t rounds, ElementType type, int threads)
{
    float seeds[32];
    for (int i = 0; i < 32; i++)
        seeds[i] = 1.0f + 0.25f * (float)i;
    const KernelSet *set = kernel_set();
    ptrdiff_t operations = 0;
    float sum = 0.0f;
#pragma omp parallel for num_threads(threads) if (threads > 1) reduction(+ : operations, sum)
    for (int t = 0; t < threads; t++) {
        float one;
        operations += set->multiply_add_chains(&one, seeds, rounds, type);
        sum += one;
    }
    *result = sum;
    return operations;
}
