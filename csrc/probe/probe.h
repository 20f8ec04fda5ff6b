/* The kernels of an instruction set that measure the limits of a machine. */
#pragma once
#include "kernels.h"

typedef struct ProbeKernels {
    /* The exclusive or of all 32-bit words of a span. */
    uint32_t (*read_span)(const char *bytes, ptrdiff_t count, int streams);
    /* Multiply-adds in registers. Returns the number of operations, or 0 if
     * the set has no vectors. */
    ptrdiff_t (*multiply_add_chains)(float *result, const float *seeds, ptrdiff_t rounds,
                                     ElementType type);
} ProbeKernels;
