/* Products of bfloat16 x with int8 weights, by way of integers: layouts, and the driver (int8.c). */
#ifndef LLAMA_BOLTS_INT8_H
#define LLAMA_BOLTS_INT8_H

#include "quantized.h"

enum {
    /* Elements along `in` whose blocks meet each of the 16 lanes of a sum once. */
    INT8_STRETCH = LANES * INT8_BLOCK,
    /* Tokens for which rows are read as for one, and no stretch is widened. */
    INT8_FEW = 4
};

/* Whether a product is done by integers: rows of whole blocks times bfloat16. */
static inline int takes_integers(int kind, const QuantizedWeight *weight, ptrdiff_t in)
{
    return weight->codes && weight->format == QUANTIZED_INT8 && kind == PRODUCT_BF16 && in > 0
           && in % INT8_BLOCK == 0;
}

/*
 * A panel of x as integers, zeros up to whole stretches behind it:
 *   numbers  [pairs of blocks][tokens][64]  of the first block its even elements and of the second
 *                                           one, then the odd elements of both
 *   scales   [tokens][blocks]
 */
static inline ptrdiff_t int8_padded(ptrdiff_t in)
{
    return ceil_div(in, INT8_STRETCH) * INT8_STRETCH;
}

static inline int16_t *int8_numbers(const float *panel, int tokens, ptrdiff_t block)
{
    return (int16_t *)panel + block / 2 * 64 * tokens + block % 2 * 16;
}

static inline float *int8_scales(const float *panel, ptrdiff_t in, int tokens, int token)
{
    float *scales = (float *)((int16_t *)panel + int8_padded(in) * tokens);
    return scales + token * (int8_padded(in) / INT8_BLOCK);
}

/* Computes out for o, whose panels hold integers; `widened` and `lanes` are as in product.c. */
void multiply_int8(const KernelSet *set, const Operands *o, float *widened, float *lanes);

#endif
