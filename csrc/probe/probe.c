/* Measures the limits of a machine: memory bandwidth and the speed of multiply-adds. */
#include "probe/probe.h"
#include <stdatomic.h>

enum { PROBE_CHUNK = 1 << 20 };

typedef struct Read {
    const ProbeKernels *kernels;
    const char *start;
    ptrdiff_t count;
    int streams;
    _Atomic uint32_t all;
} Read;

static void read_chunk(void *work, ptrdiff_t chunk, int thread)
{
    (void)thread;
    Read *w = work;
    const ptrdiff_t at = chunk * PROBE_CHUNK, count = min_size(PROBE_CHUNK, w->count - at);
    atomic_fetch_xor(&w->all, w->kernels->read_span(w->start + at, count, w->streams));
}

/*
 * probe_read: the exclusive or of all 32-bit words of a buffer
 *
 *   bytes    [count]  any data; a remainder of less than 4 bytes is ignored
 *   streams  1, 2, 4 or 8, the number of streams that each thread reads at the same time
 *
 * Threads take chunks, as products take blocks of weight rows. The computation is never slower than
 * reading.
 */
uint32_t probe_read(const void *bytes, ptrdiff_t count, int streams, int threads)
{
    const int workers = threads_for(count, PROBE_CHUNK, threads);
    Read read = {kernel_set()->probe, bytes, count, streams, 0};
    run_units(&read, read_chunk, ceil_div(count, PROBE_CHUNK), 1, workers);
    return atomic_load(&read.all);
}

typedef struct Chains {
    const ProbeKernels *kernels;
    const float *seeds;
    ptrdiff_t rounds;
    ElementType type;
    _Atomic ptrdiff_t operations;
    _Atomic float sum; /* the sum of the thread that ends last */
} Chains;

static void run_chains_of(void *work, ptrdiff_t number, int thread)
{
    (void)number, (void)thread;
    Chains *w = work;
    float sum;
    atomic_fetch_add(&w->operations,
                     w->kernels->multiply_add_chains(&sum, w->seeds, w->rounds, w->type));
    atomic_store(&w->sum, sum);
}

/*
 * probe_multiply_add: multiply-adds of a product of bfloat16 or float32, only in registers
 *
 *   result  a sum of one thread, so that the compiler does not remove the multiply-adds
 *
 * All threads do the same work. Returns the number of multiplications and additions, or 0 if the
 * set has no vectors.
 */
ptrdiff_t probe_multiply_add(float *result, ptrdiff_t rounds, ElementType type, int threads)
{
    float seeds[32];
    for (int i = 0; i < 32; i++)
        seeds[i] = 1.0f + 0.25f * (float)i;
    Chains chains = {kernel_set()->probe, seeds, rounds, type, 0, 0.0f};
    run_units(&chains, run_chains_of, threads, 1, threads);
    *result = atomic_load(&chains.sum);
    return atomic_load(&chains.operations);
}
