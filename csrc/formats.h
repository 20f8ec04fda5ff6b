/*
 * Formats of block-quantized weights, compiled once for each instruction set.
 *
 * A format is a row of the table of dtypes and a header format_NAME.h that ends with
 * `static const ... NAME_format`. It is written once, on the operations of codes_*.h:
 *   - a format that is expanded (EXPANDED_TYPES) turns groups of 32 codes into int8;
 *   - one that is widened (WIDENED_TYPES) turns them into float32.
 * A header that is missing, or lacks its NAME_format, does not compile.
 */
#pragma once
#include "row_kernels.h"

#ifndef CODES
#define CODES "codes_portable.h"
#endif
#include CODES

INLINE group group_load(const uint8_t *codes)
{
    group loaded;
    memcpy(&loaded, codes, sizeof loaded);
    return loaded;
}

enum {
    GROUP = 32,        /* elements that are expanded at a time */
    MOST_BLOCK = 64,   /* most elements of a block; a multiple of all numbers of them */
    NESTED_BLOCK = 256 /* blocks that share a scale of their scales */
};

/* Codes and scale of one block; x is padded by zeros, `refused` counts what is not finite. */
typedef void (*quantize_function)(uint8_t *codes, void *scale, const float *x, ptrdiff_t count,
                                  ptrdiff_t *refused);

typedef struct ExpandedFormat {
    ptrdiff_t elements, code_bytes, scale_bytes; /* of a block */
    /* The codes of a block's group. */
    group (*expand)(const uint8_t *codes, int index);
    /* What they are multiplied by; the block's scale is beside its codes, or in `scale`. */
    float (*scale)(const uint8_t *codes, const void *scale, int index);
    /* The scales of VEC_LANES groups, where codes are int8 already and both are side by side, so
     * that vectors are loaded whole; else NULL. */
    vec (*scales)(const void *scales);
    quantize_function quantize; /* NULL where nothing is quantized to the format */
} ExpandedFormat;

typedef struct WidenedFormat {
    ptrdiff_t elements, code_bytes, scale_bytes;
    /* What the codes of a block mean. */
    Table (*table)(float scale);
    /* A part of its LANES elements from step * LANES on, in the order of to_code_order. */
    vec (*values)(const uint8_t *codes, int step, int part, Table table);
    float (*scale)(const Weight *weight, ptrdiff_t block);
    int nested; /* whether scales are codes of 8 bits: code[c] * absmax + offset */
    quantize_function quantize;
} WidenedFormat;

/* Codes and scale of the group `index` of some blocks. */
INLINE group expand_at(const uint8_t *codes, ptrdiff_t index, const ExpandedFormat f)
{
    const ptrdiff_t groups = f.elements / GROUP;
    return f.expand(codes + index / groups * f.code_bytes, (int)(index % groups));
}

INLINE float scale_at(const uint8_t *codes, const char *scales, ptrdiff_t index,
                      const ExpandedFormat f)
{
    const ptrdiff_t groups = f.elements / GROUP, block = index / groups;
    return f.scale(codes + block * f.code_bytes, scales + block * f.scale_bytes,
                   (int)(index % groups));
}

/* The sizes of a row in the table of dtypes. */
#define BLOCK_SIZES(name) name##_elements, name##_code_bytes, name##_scale_bytes

/* The largest magnitude, and how many elements are not finite; count is whole lanes. */
INLINE float block_absmax(const float *restrict x, ptrdiff_t count, ptrdiff_t *refused)
{
    float lanes[LANES] = {0};
    uint32_t bad = 0;
    for (ptrdiff_t i = 0; i < count; i += LANES)
        for (int l = 0; l < LANES; l++) {
            const uint32_t magnitude = bits_of(x[i + l]) & 0x7FFFFFFFu;
            bad += magnitude >= 0x7F800000u;
            lanes[l] = float_of(magnitude) > lanes[l] ? float_of(magnitude) : lanes[l];
        }
    for (int l = 1; l < LANES; l++)
        lanes[0] = lanes[l] > lanes[0] ? lanes[l] : lanes[0];
    *refused += bad;
    return lanes[0];
}
