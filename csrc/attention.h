/* The sizes and layouts that attention, matmul and their inner functions share. */
#pragma once
#include "kernel_set.h"

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
