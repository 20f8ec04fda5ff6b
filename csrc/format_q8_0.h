/* q8_0 of ggml: a block of 32 elements d * q is d in float16, and q as int8. */
#pragma once
#include "formats.h"

INLINE group q8_0_expand(const uint8_t *block, int index)
{
    (void)index;
    return group_load(block + 2);
}

static const ExpandedFormat q8_0_format = {
    BLOCK_SIZES(q8_0), q8_0_expand, scale_first, TYPE_FLOAT16, 1, 0, 0, NULL, NULL,
};
