/* K blocks of block-quantized rows in plain C, dequantized to the type in which the
 * product is computed. */
#pragma once
#include "formats/conversions.h"
#include "products/product.h"

INLINE void widen_blocks(float *widened, const Weight *weight, ptrdiff_t row, ptrdiff_t rows,
                         ptrdiff_t in, ptrdiff_t start, ptrdiff_t count, Form form,
                         const ExpandedFormat f, const dequantize_function dequantize)
{
    const ElementType type = form == FORM_BFLOAT16 ? TYPE_BFLOAT16 : TYPE_FLOAT32;
    (void)f;
    for (ptrdiff_t r = 0; r < rows; r++)
        dequantize((char *)widened + r * K_BLOCK * type_bytes(type), weight, (row + r) * in + start,
                   count, type);
}
