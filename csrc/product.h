/* The products of some tokens with some weight rows, on one thread; used by linear and matmul. */
#pragma once
#include "kernel_set.h"

enum {
    /* Tokens that one call of multiply takes, at most. */
    GROUP_TOKENS = 43 * PANEL_TOKENS,
    /* Multiply-adds that are worth one more thread. */
    PRODUCTS_PER_THREAD = 128 * 1024,
    /* Floats in which the sums of a chunk and a panel rest between two K blocks. */
    PANEL_LANES = CHUNK_ROWS * PANEL_TOKENS * LANES
};

typedef struct Operands {
    char *out; /* [tokens, rows] of out_type, rows side by side */
    ptrdiff_t out_stride;
    const char *x; /* [tokens, in] */
    ptrdiff_t x_stride;
    float *panels;           /* the same tokens, packed; not read where reads_rows */
    const Weight *weight;    /* [.., in] */
    ptrdiff_t weight_stride; /* bytes from row to row of a plain weight */
    ptrdiff_t row, rows;     /* of the weight: the first, and how many, at most CHUNK_ROWS */
    const void *bias;        /* [.., of the weight's rows], or NULL */
    ptrdiff_t tokens;        /* at most GROUP_TOKENS */
    ptrdiff_t in;
    Form form;
    ElementType x_type, out_type, bias_type;
    int flushes; /* subnormal numbers, for KBlock */
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

/* How some tokens of x are multiplied by rows of `in` elements of a weight type. */
Form product_form(ptrdiff_t tokens, ElementType x_type, ElementType weight_type, ptrdiff_t in);

/* Tokens and weight rows that one call of multiply takes at best. */
typedef struct UnitSize {
    ptrdiff_t tokens, rows;
} UnitSize;

UnitSize best_unit(const KernelSet *set, ElementType weight_type, Form form, ptrdiff_t tokens,
                   ptrdiff_t in);

/* Whether a product reads one token as it is: from plain weights, in the type of x. */
int reads_rows(ptrdiff_t tokens, ElementType x_type, ElementType weight_type, Form form);

/* Adds the bias to sums [tokens][CHUNK_ROWS], and rounds them into some of o's tokens. */
void store_rows(const KernelSet *set, const Operands *o, ptrdiff_t first_token, ptrdiff_t tokens,
                float *sums);

/* Computes out on a thread. */
void multiply(const KernelSet *set, const Operands *o, const Scratch *scratch, int thread);
