/* The probes of probe.c in plain C. */
#pragma once
#include <string.h>
#include "probe/probe.h"

/* The exclusive or of all 32-bit words. The compiler decides how many loads overlap. */
static uint32_t read_span(const char *bytes, ptrdiff_t count, int streams)
{
    (void)streams;
    uint32_t all = 0, word;
    for (ptrdiff_t at = 0; at + 4 <= count; at += 4) {
        memcpy(&word, bytes + at, 4);
        all ^= word;
    }
    return all;
}

/* Returns 0, because a compiler may spill the sums, which would make the result too low. */
static ptrdiff_t multiply_add_chains(float *result, const float *seeds, ptrdiff_t rounds,
                                     ElementType type)
{
    (void)type;
    (void)seeds;
    (void)rounds;
    *result = 0.0f;
    return 0;
}
