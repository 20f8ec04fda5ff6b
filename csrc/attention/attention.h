/* The kernels of attention and matmul, and the sizes and layouts that the drivers use too. */
#pragma once
#include "kernels.h"

/* The number of 4-byte words for n adjacent elements. A word is a pair of
 * bfloat16 or one float32. */
static inline ptrdiff_t element_words(ElementType type, ptrdiff_t n)
{
    return ceil_div(n * type_bytes(type), 4);
}

/* Floats in one phase of a weighted sum, padded to whole lanes. bfloat16 has a phase for odd
 * elements and a phase for even elements. */
static inline ptrdiff_t sum_phase(ElementType type, ptrdiff_t h)
{
    return ceil_div(element_words(type, h), LANES) * LANES;
}

/* Floats in the weighted sum of a row: [phase][lane of a word], odd elements first. */
static inline ptrdiff_t sum_floats(ElementType type, ptrdiff_t h)
{
    return (type == TYPE_BFLOAT16 ? 2 : 1) * sum_phase(type, h);
}

/*
 * The bytes of a key or value of a head in a cache. In q8_0, 32 adjacent elements of a position are
 * a block, and an element is its int8 code times the float16 scale of the block. 16 positions of a
 * head in q8_0 are a group with these parts:
 *
 *   keys    codes [h][16], scales [h/32][16]
 *   values  codes [16][h], scales [h/32][16]
 */
static inline ptrdiff_t position_bytes(ElementType cache_type, ptrdiff_t h)
{
    if (cache_type == TYPE_Q8_0)
        return h / q8_0_elements * q8_0_code_bytes;
    return h * type_bytes(cache_type);
}

/* The type in which attention multiplies the queries by the elements of a cache. */
static inline ElementType product_type(ElementType cache_type)
{
    return cache_type == TYPE_Q8_0 ? TYPE_FLOAT32 : cache_type;
}

/* Kernels of an instruction set for attention and matmul (attention_rows.h, attention_tile.h). */
typedef struct AttentionKernels {
    /* Packs words as one row of a panel of `rows` rows. */
    void (*pack_chains)(float *panel, const char *x, ptrdiff_t words, int rows, ElementType type);
    /* sums[r][16 * g + l] = the chain of row r with lane l of group g, over at most one block of
     * elements. A row of sums has ATTENTION_BLOCK elements. */
    void (*multiply_chains)(float *sums, const float *panel, const char *columns, int rows,
                            ptrdiff_t groups, ptrdiff_t words, ptrdiff_t group_words,
                            ElementType type);
    /* scores[s] = cap * tanh(scores[s] * scale / cap). */
    void (*cap_scores)(float *scores, ptrdiff_t count, float scale, float cap);
    /* Updates `largest`, one maximum per lane, with a row's scores in a block. */
    void (*raise_largest)(float *scores, float *largest, ptrdiff_t count);
    /* scores[s] = exp(scores[s] * scale - maximum). Also adds the results to
     * the lanes of their sum. */
    void (*exponentiate)(float *scores, float *sums, ptrdiff_t count, float scale, float maximum);
    /* weights[s] *= factor. */
    void (*normalize_row)(float *weights, ptrdiff_t count, float factor);
    /* sums[r] += sum over `count` positions s, in order, of weights[r][s] * values[s]. */
    void (*sum_values)(float *sums, const float *weights, const char *values, int rows,
                       ptrdiff_t count, ptrdiff_t words, ptrdiff_t floats, ElementType type);
    /* multiply_chains for keys in q8_0, which begin with a whole group. The chains have the
     * elements [first, end), of at most one block of elements. */
    void (*multiply_codes)(float *sums, const float *panel, const char *keys, int rows,
                           ptrdiff_t groups, ptrdiff_t first, ptrdiff_t end, ptrdiff_t h);
    /* sum_values for the values in q8_0 at positions [first, end) of a block. */
    void (*sum_codes)(float *sums, const float *weights, const char *values, int rows,
                      ptrdiff_t first, ptrdiff_t end, ptrdiff_t h, ptrdiff_t floats);
    /* Widens a query to float32. */
    void (*widen_query)(float *out, const char *query, ptrdiff_t h, ElementType type);
    /* Rounds the weighted sum of a row of values of `type` to the type of the result. */
    void (*finish_row)(void *out, const float *sums, ptrdiff_t h, ElementType type,
                       ElementType out_type);
} AttentionKernels;
