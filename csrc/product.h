/* The products of some tokens with some weight rows, on one thread; used by linear and matmul. */
#ifndef LLAMA_BOLTS_PRODUCT_H
#define LLAMA_BOLTS_PRODUCT_H

#include "kernel_set.h"

enum {
    /* Tokens that one call of multiply takes. */
    GROUP_TOKENS = 20 * PANEL_TOKENS,
    /* Multiply-adds that are worth one more thread. */
    PRODUCTS_PER_THREAD = 128 * 1024,
    /* Floats in which the sums of a chunk and a panel rest between two stretches. */
    PANEL_LANES = CHUNK_ROWS * PANEL_TOKENS * LANES
};

typedef struct Operands {
    const char *x; /* [tokens, in] */
    ptrdiff_t x_stride;
    float *panels;    /* the same tokens as pack_tokens laid them out; not read for one token */
    ptrdiff_t tokens; /* at most GROUP_TOKENS */
    const char *weight; /* [rows, in]; not read where it is quantized */
    ptrdiff_t weight_stride;
    const QuantizedWeight *quantized; /* or NULL */
    ptrdiff_t quantized_row;          /* the first of the rows in it */
    ptrdiff_t rows; /* at most CHUNK_ROWS */
    ptrdiff_t in;
    char *out; /* [tokens, rows] of out_type, rows side by side */
    ptrdiff_t out_stride;
    int kind, out_type;
} Operands;

/* How the scratch of an op is used; panels belong to the op, the rest to each thread. */
typedef struct Scratch {
    float *panels;
    char *threads;
    ptrdiff_t panel_tokens; /* that `panels` has room for */
} Scratch;

Scratch cut_scratch(void *scratch, ptrdiff_t in, int threads);

/* Floats between two panels of one op. */
ptrdiff_t panel_room(ptrdiff_t in);

/* Lays one panel out; x is its first token, of `tokens` that are left. */
void pack_tokens(const KernelSet *set, int kind, const char *x, ptrdiff_t x_stride,
                 ptrdiff_t tokens, ptrdiff_t in, float *panel);

/* Rounds sums [tokens][CHUNK_ROWS] into o's rows of some of its tokens. */
void store_rows(const KernelSet *set, const Operands *o, ptrdiff_t first_token, ptrdiff_t tokens,
                const float *sums);

/* Computes out on a thread. */
void multiply(const KernelSet *set, const Operands *o, const Scratch *scratch, int thread);

#endif
