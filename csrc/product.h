/* The products of some tokens with some weight rows, on one thread; used by linear and matmul. */
#ifndef LLAMA_BOLTS_PRODUCT_H
#define LLAMA_BOLTS_PRODUCT_H

#include "kernel_set.h"

enum {
    /* Tokens that one call of multiply takes. */
    GROUP_TOKENS = 20 * PANEL_TOKENS,
    /* Multiply-adds that are worth one more thread. */
    PRODUCTS_PER_THREAD = 128 * 1024
};

typedef struct Operands {
    const char *x; /* [tokens, in] */
    ptrdiff_t x_stride;
    ptrdiff_t tokens; /* at most GROUP_TOKENS */
    const char *weight; /* [rows, in] */
    ptrdiff_t weight_stride;
    ptrdiff_t rows; /* at most CHUNK_ROWS */
    ptrdiff_t in;
    char *out; /* [tokens, rows] of out_type, rows side by side */
    ptrdiff_t out_stride;
    int kind, out_type;
} Operands;

/* Computes out; scratch: product_scratch_bytes() for this thread, at a cache line. */
void multiply(const KernelSet *set, const Operands *o, char *scratch);

#endif
