/* The kernels of attention and matmul, and the sizes and layouts that they share with the drivers.
 */
#pragma once
#include "kernels.h"

/* Words of 4 bytes that hold n neighbouring elements: pairs of bfloat16, or one float32 each. */
static inline ptrdiff_t element_words(ElementType type, ptrdiff_t n)
{
    return ceil_div(n * type_bytes(type), 4);
}

/* Floats of one phase of a weighted sum, whole lanes; bfloat16 has an odd and an even one. */
static inline ptrdiff_t sum_phase(ElementType type, ptrdiff_t h)
{
    return ceil_div(element_words(type, h), LANES) * LANES;
}

/* Floats of the weighted sum of a row: [phase][lane of a word], odd elements first. */
static inline ptrdiff_t sum_floats(ElementType type, ptrdiff_t h)
{
    return (type == TYPE_BFLOAT16 ? 2 : 1) * sum_phase(type, h);
}

/* The kernels of an instruction set for attention and matmul (attention_rows.h, attention_tile.h).
 */
typedef struct AttentionKernels {
    /* Lays words out as one row of a panel of `rows` rows. */
    void (*pack_chains)(float *panel, const char *x, ptrdiff_t words, int rows, ElementType type);
    /* sums[r][16 * g + l] = the chain of row r with lane l of group g, along at most a block of
     * elements; a row of sums has ATTENTION_BLOCK places. */
    void (*multiply_chains)(float *sums, const float *panel, const char *columns, int rows,
                            ptrdiff_t groups, ptrdiff_t words, ptrdiff_t group_words,
                            ElementType type);
    /* Raises `largest`, a maximum per lane, to a row's scores of a block. */
    void (*raise_largest)(float *scores, float *largest, ptrdiff_t count);
    /* scores[s] = exp(scores[s] * scale - maximum), added to the lanes of their sum. */
    void (*exponentiate)(float *scores, float *sums, ptrdiff_t count, float scale, float maximum);
    /* weights[s] *= factor. */
    void (*normalize_row)(float *weights, ptrdiff_t count, float factor);
    /* sums[r] += sum over `count` positions s, in order, of weights[r][s] * values[s]. */
    void (*sum_values)(float *sums, const float *weights, const char *values, int rows,
                       ptrdiff_t count, ptrdiff_t words, ptrdiff_t floats, ElementType type);
    /* Rounds the weighted sum of a row. */
    void (*finish_row)(void *out, const float *sums, ptrdiff_t h, ElementType type);
} AttentionKernels;
