/*
 * Formats of block-quantized weights, compiled once for each instruction set.
 *
 * A format is a row of the table of dtypes and a header format_NAME.h that ends with
 * `static const ExpandedFormat NAME_format`. It is written once, on the operations of codes_*.h,
 * and turns groups of 32 codes into integers: int8, or 16 bits where codes are places in a table.
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
    GROUP = 32,         /* elements that are expanded at a time */
    MOST_BLOCK = 256,   /* most elements of a block; a multiple of all numbers of them */
    STEPS_OF_SCALE = 8, /* groups whose scales are steps of one */
    PAIR_WORDS = 4,     /* words of 8 bytes that hold two bytes for each of LANES groups */
    NESTED_BLOCK = 256  /* blocks that share a scale of their scales */
};

/* Codes and scale of one block; x is padded by zeros, `refused` counts what is not finite. */
typedef void (*quantize_function)(uint8_t *codes, void *scale, const float *x, ptrdiff_t count,
                                  ptrdiff_t *refused);

/*
 * By what the codes of some groups are multiplied, and what is then added, as a format stores it:
 * scales and minima for each group; or, where there are steps, one for eight groups, and a scale is
 * scales[g / 8] * step. Steps are int8, in the order of the groups; a format whose halves of a
 * group differ has two for each.
 */
typedef struct Factors {
    uint64_t scales[PAIR_WORDS], mins[PAIR_WORDS]; /* of the format's scale_type; zeros at first */
    uint64_t scale_steps[PAIR_WORDS], min_steps[PAIR_WORDS];
} Factors;

/* Numbers that codes of 4 bits stand for; and the same as integers, in steps of 2^-11. */
typedef struct Levels {
    float exact[16];
    int16_t steps[16];
} Levels;
#define LEVEL_STEP (1.0f / 2048)

/*
 * Where some bits of each code of a block of 8 groups are: 32 bytes hold those of 8 / bits groups,
 * which are `apart` groups from one another, from the lowest bit on. In a block of one group apart
 * is 0: 16 bytes hold 4 bits of each code, those of the first 16 codes in their lower halves.
 */
typedef struct Field {
    int offset, bits; /* from the block to the first of those bytes; 0 bits: no such field */
    int apart, to;    /* to: the place of the lowest of these bits in a code */
} Field;

typedef struct ExpandedFormat {
    ptrdiff_t elements, code_bytes, scale_bytes; /* of a block; scale_bytes 0: among its codes */
    /* The codes of a block's group; NULL where there are fields, or levels. */
    group (*expand)(const uint8_t *codes, int index);
    /* Puts a block's factors in their places, from group `at` on. NULL where a block of one group
     * begins with its scale, and its minimum if it has one. */
    void (*factors)(Factors *factors, int at, const uint8_t *codes, const void *scale);
    ElementType scale_type;
    int parts;     /* of a group, with a step each: 1, or 2 where halves differ */
    int has_steps; /* whether a scale has a step */
    int has_mins;  /* 0: none; 1: minima; 2: minima with steps */
    /* What the codes of blocks of two groups stand for, whose scale is float32; else NULL. */
    const Levels *levels;
    quantize_function quantize; /* NULL where nothing is quantized to the format */
    /* All bits of the codes, the lowest first; products of few tokens may take the codes as bytes
     * then (takes_bytes). */
    Field fields[2];
    int less; /* taken off each of these codes: 0 or a power of two: sums times it are exact */
} ExpandedFormat;

INLINE uint16_t half_at(const uint8_t *bytes)
{
    uint16_t half;
    memcpy(&half, bytes, sizeof half);
    return half;
}

/* In words that hold four of them each: one of 16 bits at a place. */
INLINE void put_half(uint64_t *words, int at, uint16_t half)
{
    words[at / 4] |= (uint64_t)half << at % 4 * 16;
}

INLINE void block_factors(Factors *factors, int at, const uint8_t *codes, const void *scale,
                          const ExpandedFormat f)
{
    if (f.factors) {
        f.factors(factors, at, codes, scale);
        return;
    }
    put_half(factors->scales, at, half_at(codes));
    if (f.has_mins)
        put_half(factors->mins, at, half_at(codes + 2));
}

/* A scale or minimum of group g; one of float32 is that of two groups. */
INLINE float factor_at(const uint64_t *words, int g, const ExpandedFormat f)
{
    const int place = f.has_steps ? g / STEPS_OF_SCALE : g;
    const uint16_t half = (uint16_t)(words[place / 4] >> place % 4 * 16);
    if (f.scale_type == TYPE_FLOAT32)
        return float_of((uint32_t)(words[g / 4] >> g / 2 % 2 * 32));
    return f.scale_type == TYPE_FLOAT16 ? float16_to_float32(half) : bfloat16_to_float32(half);
}

INLINE float step_at(const uint64_t *steps, int index)
{
    return (float)(int8_t)(steps[index / 8] >> index % 8 * 8);
}

/* What the codes of a part of group g are multiplied by; exact, as are minima. */
INLINE float scale_of(const Factors *factors, int g, int part, const ExpandedFormat f)
{
    const float scale = factor_at(factors->scales, g, f);
    return f.has_steps ? scale * step_at(factors->scale_steps, g * f.parts + part) : scale;
}

INLINE float minimum_of(const Factors *factors, int g, int part, const ExpandedFormat f)
{
    const float minimum = factor_at(factors->mins, g, f);
    return f.has_mins == 2 ? minimum * step_at(factors->min_steps, g * f.parts + part) : minimum;
}

/* The bytes that hold a field of group g of a block, and the lowest bit of that group's there. */
INLINE const uint8_t *field_bytes(const uint8_t *block, int g, const Field field)
{
    const int shared = 8 / field.bits * field.apart; /* groups of the same `apart` runs of bytes */
    return block + field.offset + (g / shared * field.apart + g % field.apart) * GROUP;
}

INLINE int field_from(int g, const Field field)
{
    return g / field.apart % (8 / field.bits) * field.bits;
}

INLINE group field_of_group(const uint8_t *block, int g, const Field field)
{
    if (field.apart == 0)
        return nibbles(block + field.offset);
    return bit_field(group_load(field_bytes(block, g, field)), field_from(g, field), field.bits,
                     field.to);
}

/* Codes of group g of a block. */
INLINE group expand_group(const uint8_t *block, int g, const ExpandedFormat f)
{
    if (f.expand)
        return f.expand(block, g);
    const group first = field_of_group(block, g, f.fields[0]);
    return merge_codes(first, f.fields[1].bits ? field_of_group(block, g, f.fields[1]) : first,
                       f.less);
}

/* The same of the group `index` of some blocks. */
INLINE group expand_at(const uint8_t *codes, ptrdiff_t index, const ExpandedFormat f)
{
    const ptrdiff_t groups = f.elements / GROUP;
    return expand_group(codes + index / groups * f.code_bytes, (int)(index % groups), f);
}

/* A scale that is a code of 8 bits: what that means. */
INLINE float nested_scale(const Weight *weight, ptrdiff_t block)
{
    const uint8_t code = ((const uint8_t *)weight->scales)[block];
    return weight->nested_code[code] * weight->nested_absmax[block / NESTED_BLOCK]
           + weight->nested_offset;
}

/* Where the scales of some blocks are: among the weight's, or in `room` if they are codes. */
INLINE const char *scales_at(float *room, const Weight *weight, ptrdiff_t block, ptrdiff_t count,
                             const ExpandedFormat f)
{
    for (ptrdiff_t b = 0; f.scale_bytes == 1 && b < count; b++)
        room[b] = nested_scale(weight, block + b);
    return f.scale_bytes == 1 ? (const char *)room
                              : (const char *)weight->scales + block * f.scale_bytes;
}

/* Bytes from one of those scales to the next. */
INLINE ptrdiff_t scales_apart(const ExpandedFormat f)
{
    return f.scale_bytes == 1 ? (ptrdiff_t)sizeof(float) : f.scale_bytes;
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

/*
 * Puts a block's scale of float16 before its codes, and returns by what elements are multiplied:
 * the reciprocal, or 0 where there is none. A scale that float16 cannot hold is counted.
 */
INLINE float put_scale(uint8_t *block, float scale, ptrdiff_t *refused)
{
    const uint16_t half = float32_to_float16(scale);
    const int is_finite = (half & 0x7C00) != 0x7C00;
    const float factor = 1.0f / scale;
    memcpy(block, &half, sizeof half);
    *refused += isfinite(scale) && !is_finite;
    return is_finite && isfinite(factor) ? factor : 0.0f;
}
