/* Block-quantised weights: sizes of the formats, and what the products ask for (quantized.c). */
#ifndef LLAMA_BOLTS_QUANTIZED_H
#define LLAMA_BOLTS_QUANTIZED_H

#include "product.h"

enum {
    /* Elements of a block, and blocks that share a scale of their scales. */
    NF4_BLOCK = 64,
    INT8_BLOCK = 32,
    MOST_BLOCK = 64,
    NESTED_BLOCK = 256,
    /* Elements along `in` that are dequantised at a time: whole blocks of every format. */
    QUANTIZED_STRETCH = 512,
    QUANTIZED_BYTES = CHUNK_ROWS * QUANTIZED_STRETCH * (int)sizeof(float)
};

static inline ptrdiff_t quantized_block(int format)
{
    return format == QUANTIZED_INT8 ? INT8_BLOCK : NF4_BLOCK;
}

/* Bytes of the codes of `count` elements; even for nf4. */
static inline ptrdiff_t code_bytes(int format, ptrdiff_t count)
{
    return format == QUANTIZED_INT8 ? count : count / 2;
}

/* Whether one token is multiplied by codes of nf4 as they are, and is laid out by pack_nf4. */
static inline int reads_nf4_lanes(const QuantizedWeight *weight, ptrdiff_t in)
{
    return weight->codes && weight->format != QUANTIZED_INT8 && in % NF4_BLOCK == 0;
}

/* Whether even one token is packed: for rows that are dequantised first, or for int8.h. */
static inline int reads_panel(const QuantizedWeight *weight, ptrdiff_t in)
{
    return weight->codes && !reads_nf4_lanes(weight, in);
}

/* Elements [start, start + count) of the rows of o, as rows of x's type that lie side by side. */
void dequantize_stretch(const KernelSet *set, const Operands *o, ptrdiff_t start, ptrdiff_t count,
                        char *out);

#endif
