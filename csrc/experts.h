/*
 * The C surface of the ops on experts, which is a part of kernels.h in a file of its own.
 *
 * A pair is a token and one of the A experts that the token uses: pair t * A + a is token t with
 * its expert of index a. Python sorts the pairs by expert, and divides those of each expert into
 * segments.
 */
#pragma once
#include "kernels.h"

/* cffi: begin */

enum {
    /* Maximum number of pairs of a segment of experts. */
    EXPERT_PAIRS = 132
};

/* The same matrix of all experts. */
typedef struct ExpertMatrix {
    const Weight *weights;     /* [E], each [rows, in], all of one type */
    const void *const *biases; /* [E], each [rows], or NULL */
    ptrdiff_t rows, in;
    ElementType bias_type;
} ExpertMatrix;

/* A segment of the pairs, which are sorted by expert. */
typedef struct ExpertPairs {
    ptrdiff_t expert;
    ptrdiff_t first; /* the index of the first pair in this order */
    ptrdiff_t count; /* 1..EXPERT_PAIRS */
    ptrdiff_t panel; /* the index of the first panel of six rows */
} ExpertPairs;

/* rows.c: chooses the experts of each token with the largest logits, and gathers their values. */
void choose_experts(int32_t *experts, float *chosen, const float *logits, const float *values,
                    ptrdiff_t T, ptrdiff_t E, ptrdiff_t A);

/* linear.c: returns the bytes of scratch that the two ops need for rows of `in` elements in some panels. */
ptrdiff_t expert_scratch_bytes(ptrdiff_t in, ptrdiff_t panels, int threads);

/* linear.c: applies the gate and up matrices of each pair's expert, and op to the products. */
void expert_hidden(void *out, void *scratch, const void *x, const ExpertMatrix *gate,
                   const ExpertMatrix *up, const ExpertPairs *segments, const int32_t *pairs,
                   ptrdiff_t count, ptrdiff_t panels, ptrdiff_t T, ptrdiff_t A, ElementwiseOp op,
                   ElementType x_type, ElementType out_type, int threads);

/* linear.c: applies the down matrix of each pair's expert, and adds the weighted results. */
void expert_outputs(float *out, void *scratch, const void *hidden, const float *weights,
                    const ExpertMatrix *down, const ExpertPairs *segments, const int32_t *pairs,
                    ptrdiff_t count, ptrdiff_t panels, ptrdiff_t T, ptrdiff_t A, ElementType x_type,
                    int threads);

/* cffi: end */
