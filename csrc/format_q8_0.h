/* q8_0 of ggml: a block of 34 bytes is a float16 scale d and 32 int8; an element is d * q. */
#pragma once
#include "formats.h"

INLINE group q8_0_expand(const uint8_t *block, int index)
{
    (void)index;
    return group_load(block + 2);
}

/* The scale at the beginning of a block of 32 elements. */
INLINE void first_half_is_scale(Factors *factors, int at, const uint8_t *block, const void *scale)
{
    (void)scale;
    factors->scales[at] = half_at(block);
}

static const ExpandedFormat q8_0_format = {
    BLOCK_SIZES(q8_0), q8_0_expand, first_half_is_scale, TYPE_FLOAT16, 1, 0, 0, NULL, NULL,
};
