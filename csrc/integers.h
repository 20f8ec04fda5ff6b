/* Products of bfloat16 x with codes, by way of integers: the layout of a panel of x. */
#pragma once
#include "product.h"

enum {
    /* Elements of x that share a scale, as many as a format expands at a time. */
    X_GROUP = 32,
    /* Elements along `in` whose groups meet each of the 16 lanes of a sum once. */
    INTEGER_K_BLOCK = LANES * X_GROUP,
    /* Tokens for which rows are read as for one, and no K block is widened. */
    INTEGER_FEW = 4
};

/*
 * A panel of x as integers, zeros up to whole K blocks behind it:
 *   numbers  [pairs of groups][tokens][64]  of the first group its even elements and of the second
 *                                           one, then the odd elements of both
 *   scales   [tokens][groups]
 *   sums     [tokens][2][groups] of the numbers of the two halves of a group, as float32
 *
 * A panel of few tokens has bytes in the place of numbers for a format whose codes are multiplied
 * as bytes (takes_bytes):
 *   bytes    [units][tokens][upper, lower][8 vectors][lanes][4]
 * A unit is as many groups as a vector has lanes of 32 bits. A lane has the bytes of four numbers;
 * the same lane of all 8 vectors, or of 4 of them, those of one group, or of a half (byte_place).
 */
static inline ptrdiff_t integer_padded(ptrdiff_t in)
{
    return ceil_div(in, INTEGER_K_BLOCK) * INTEGER_K_BLOCK;
}

static inline int16_t *integer_numbers(const float *panel, int tokens, ptrdiff_t index)
{
    return (int16_t *)panel + index / 2 * 64 * tokens + index % 2 * 16;
}

static inline float *integer_scales(const float *panel, ptrdiff_t in, int tokens, int token)
{
    float *scales = (float *)((int16_t *)panel + integer_padded(in) * tokens);
    return scales + token * (integer_padded(in) / X_GROUP);
}

static inline float *integer_sums(const float *panel, ptrdiff_t in, int tokens, int token)
{
    return integer_scales(panel, in, tokens, tokens + 2 * token);
}

/* Computes out for o, whose panels hold integers; `widened` and `lanes` are as in product.c. */
void multiply_integers(const KernelSet *set, const Operands *o, float *widened, float *lanes);
