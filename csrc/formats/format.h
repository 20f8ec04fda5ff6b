/*
 * Formats of block-quantized weights, compiled once for each instruction set.
 *
 * A format is a row of the table of dtypes and a header formats/FAMILY.h with
 * `static const ExpandedFormat NAME_format`. It is written once, on the operations of
 * isa/codes_*.h: it says where the bits of codes are (fields), what the codes stand for, and where
 * scales are. A format that is missing does not compile.
 */
#pragma once
#include "floats.h"

#ifndef CODES
#define CODES "isa/codes_portable.h"
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
    PAIR_WORDS = 4      /* words of 8 bytes that hold two bytes for each of LANES groups */
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
 * How the bits of the codes of a group of 32 lie in bytes. Examples of 4 bits, where c2 is code 2:
 *
 *             byte       0            1            2       ...     15
 *   NEIGHBOURS  upper    c0           c2           c4              c30
 *               lower    c1           c3           c5              c31
 *   HALVES      upper    c16          c17          c18             c31     16 bytes for each group
 *               lower    c0           c1           c2              c15
 *   SHARED      upper    c0 of g+1    c1 of g+1    c2 of g+1       ...     32 bytes for two groups
 *               lower    c0 of g      c1 of g      c2 of g         ...
 *
 * In general 8 / bits groups share the 32 bytes of a field that is SHARED: the first of them has
 * the lowest bits. They are `apart` groups from one another:
 *
 *   4 bits, apart 1: groups 0 1 | 2 3 | 4 5 | 6 7        four runs of 32 bytes
 *   4 bits, apart 2: groups 0 2 | 1 3 | 4 6 | 5 7        (q6_k)
 *   2 bits, apart 1: groups 0 1 2 3 | 4 5 6 7            two runs
 *   1 bit,  apart 1: groups 0 1 2 3 4 5 6 7              one run
 *   8 bits         : groups 0 | 1 | ...                  32 bytes for each group
 *
 *   WORD                 32 bits for each group: bit i is that of code i
 */
typedef enum Layout { NEIGHBOURS, HALVES, SHARED, WORD } Layout;

/* Some bits of each code of a block. */
typedef struct Field {
    Layout layout;
    int offset; /* bytes from the block to the field */
    int bits;   /* of each code; 0: there is no such field */
    int apart;  /* SHARED: from one of the groups that share bytes to the next */
    int to;     /* place of the lowest of these bits in a code */
} Field;

/* A format: how a block becomes groups of 32 integers and their factors. */
typedef struct ExpandedFormat {
    ptrdiff_t elements;    /* of a block */
    ptrdiff_t code_bytes;  /* of a block */
    ptrdiff_t scale_bytes; /* of a block; 0: its scale is among the bytes of its codes */
    Field fields[2];       /* all bits of the codes, the lowest first */
    int less;              /* an integer is its code - less; a power of two, or 0 */
    const int8_t *table;   /* or table[code], of 16 entries; else NULL */
    const Levels *levels;  /* or levels->steps[code], of 16 bits: the block has two groups, whose
                            * scale is float32; else NULL */
    /* Puts a block's factors in their places, from group `at` on. NULL if a block of one group
     * begins with its scale, and its minimum if it has one. */
    void (*factors)(Factors *factors, int at, const uint8_t *codes, const void *scale);
    ElementType scale_type;     /* of Factors.scales and Factors.mins */
    int parts;                  /* of a group, with a factor each: 1, or 2 where halves differ */
    int has_steps;              /* 1: a scale has a step */
    int has_mins;               /* 0: no minima; 1: minima; 2: minima with steps */
    quantize_function quantize; /* NULL if nothing is quantized to the format */
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

/* SHARED: the bytes that hold a field of group g of a block. */
INLINE const uint8_t *field_bytes(const uint8_t *block, int g, const Field field)
{
    const int sharing = 8 / field.bits * field.apart; /* groups of `apart` runs of bytes */
    return block + field.offset + (g / sharing * field.apart + g % field.apart) * GROUP;
}

/* SHARED: the lowest bit of group g in each of those bytes. */
INLINE int field_from(int g, const Field field)
{
    return g / field.apart % (8 / field.bits) * field.bits;
}

/* The bits of a field of group g, at their place in the codes. NEIGHBOURS are looked up as they are
 * (look_up_wide), since their integers have 16 bits. */
INLINE group field_of_group(const uint8_t *block, int g, const Field field)
{
    const uint8_t *bytes = block + field.offset;
    uint32_t word;
    switch (field.layout) {
    case NEIGHBOURS: break;
    case HALVES: return nibbles(bytes + g * GROUP / 2);
    case SHARED:
        if (field.bits == 8)
            return group_load(field_bytes(block, g, field));
        return bit_field(group_load(field_bytes(block, g, field)), field_from(g, field), field.bits,
                         field.to);
    case WORD: memcpy(&word, bytes + g * 4, sizeof word); return spread_bits(word, 1 << field.to);
    }
    return group_load(bytes);
}

/* The integers of group g of a block. */
INLINE group expand_group(const uint8_t *block, int g, const ExpandedFormat f)
{
    const group first = field_of_group(block, g, f.fields[0]);
    if (f.table)
        return look_up(first, f.table);
    if (f.fields[1].bits)
        return merge_codes(first, field_of_group(block, g, f.fields[1]), f.less);
    return f.less ? merge_codes(first, first, f.less) : first;
}

/* The same of the group `index` of some blocks. */
INLINE group expand_at(const uint8_t *codes, ptrdiff_t index, const ExpandedFormat f)
{
    const ptrdiff_t groups = f.elements / GROUP;
    return expand_group(codes + index / groups * f.code_bytes, (int)(index % groups), f);
}

/* The value of a scale that is a code of 8 bits. */
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
