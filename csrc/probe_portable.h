/* The probes of probe.c in plain C. */
#ifndef LLAMA_BOLTS_PROBE_PORTABLE_H
#define LLAMA_BOLTS_PROBE_PORTABLE_H

#include "kernel_set.h"

#include <string.h>

/* Exclusive or of all 32-bit words; how many are in flight is left to the compiler. */
static uint32_t read_span(const char *bytes, ptrdiff_t count, int streams)
{
    (void)streams;
    uint64_t pairs = 0, pair;
    for (ptrdiff_t i = 0; i < count / 8; i++) {
        memcpy(&pair, bytes + 8 * i, 8);
        pairs ^= pair;
    }
    uint32_t all = (uint32_t)(pairs ^ pairs >> 32), word = 0;
    if (count % 8 >= 4)
        memcpy(&word, bytes + count / 8 * 8, 4);
    return all ^ word;
}

/* Without intrinsics nothing keeps a compiler from spilling the sums: no peak is claimed. */
static ptrdiff_t multiply_add_chains(int kind, const float *seeds, ptrdiff_t rounds, float *result)
{
    (void)kind, (void)seeds, (void)rounds;
    *result = 0.0f;
    return 0;
}

#endif
