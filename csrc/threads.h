/* How the drivers use threads. */
#ifndef LLAMA_BOLTS_THREADS_H
#define LLAMA_BOLTS_THREADS_H

#include <stddef.h>

#ifdef _OPENMP
#include <omp.h>
#endif

/* Elements below which a second thread costs more than it brings (a region takes about 1 us). */
enum { ELEMENTS_PER_THREAD = 16384 };

/* Threads for `work` units of which each thread should have at least `share`. */
static inline int threads_for(ptrdiff_t work, ptrdiff_t share, int threads)
{
    const ptrdiff_t useful = work / share;
    return useful < 1 ? 1 : useful < threads ? (int)useful : threads;
}

static inline int thread_index(void)
{
#ifdef _OPENMP
    return omp_get_thread_num();
#else
    return 0;
#endif
}

#endif
