/* The sizes and layouts that attention's drivers and inner functions share. */
#pragma once
#include "kernel_set.h"

enum {
    /* Where a row's state holds its largest score and the sum of its weights. */
    STATE_MAXIMUM = 0,
    STATE_SUM = 1,
    /* ... and where the weighted sum of values begins: [phase][lane of a word]. */
    STATE_VALUES = LANES
};

/* Words of 4 bytes in one head of one position: pairs of bfloat16, or one float32 each. */
static inline ptrdiff_t head_words(ElementType type, ptrdiff_t h)
{
    return h * type_bytes(type) / 4;
}

/* Floats of one phase of a weighted sum, whole lanes; bfloat16 has an odd and an even one. */
static inline ptrdiff_t sum_phase(ElementType type, ptrdiff_t h)
{
    return ceil_div(head_words(type, h), LANES) * LANES;
}

/* Floats of a row's state. */
static inline ptrdiff_t state_floats(ElementType type, ptrdiff_t h)
{
    return STATE_VALUES + (type == TYPE_BFLOAT16 ? 2 : 1) * sum_phase(type, h);
}
