/*
 * Formats of block-quantized weights, compiled once for each instruction set.
 *
 * A format consists of a row in the table of dtypes, and of `static const ExpandedFormat
 * NAME_format` in a header formats/FAMILY.h. It is written once for all instruction sets, based on
 * the operations in isa/codes_*.h, and specifies the positions of the bits of codes (fields), the
 * values of codes, and the location of scales. If the header of a format is missing, compilation
 * fails.
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
    GROUP = 32,         /* number of elements that are expanded at a time */
    MOST_BLOCK = 256,   /* maximum block size; a multiple of all block sizes */
    STEPS_OF_SCALE = 8, /* number of groups that share a scale if they have steps */
    PAIR_WORDS = 4      /* 8-byte words with two bytes for each of LANES groups */
};

/* A function that computes the codes and the scale of one block. x is padded with zeros. `refused`
 * counts elements that are not finite. */
typedef void (*quantize_function)(uint8_t *codes, void *scale, const float *x, ptrdiff_t count,
                                  ptrdiff_t *refused);

/*
 * The scales and minima of some groups, as a format stores them. Without steps, each group has its
 * own scale and minimum. With steps, eight groups share a scale, and the scale of group g is
 * scales[g / 8] * step. Steps are int8, in the order of the groups. If the halves of a group
 * differ, each group has two.
 */
typedef struct Factors {
    uint64_t scales[PAIR_WORDS], mins[PAIR_WORDS]; /* of the format's scale_type; initially 0 */
    uint64_t scale_steps[PAIR_WORDS], min_steps[PAIR_WORDS];
} Factors;

/* The exact values of the 4-bit codes, and the same values as integers in steps of 2^-11. */
typedef struct Levels {
    float exact[16];
    int16_t steps[16];
} Levels;
#define LEVEL_STEP (1.0f / 2048)

/*
 * The positions of the bits of a group's 32 codes. Examples for 4 bits, where c2 is code 2:
 *
 *             byte       0            1            2       ...     15
 *   NEIGHBOURS  upper    c0           c2           c4              c30
 *               lower    c1           c3           c5              c31
 *   HALVES      upper    c16          c17          c18             c31     16 bytes for each group
 *               lower    c0           c1           c2              c15
 *   SHARED      upper    c0 of g+1    c1 of g+1    c2 of g+1       ...     32 bytes for two groups
 *               lower    c0 of g      c1 of g      c2 of g         ...
 *
 * In general, 8 / bits groups share the 32 bytes of a SHARED field, and the first of them has the
 * lowest bits. The distance between these groups is `apart`:
 *
 *   4 bits, apart 1: groups 0 1 | 2 3 | 4 5 | 6 7        four runs of 32 bytes
 *   4 bits, apart 2: groups 0 2 | 1 3 | 4 6 | 5 7        (q6_k)
 *   2 bits, apart 1: groups 0 1 2 3 | 4 5 6 7            two runs
 *   1 bit,  apart 1: groups 0 1 2 3 4 5 6 7              one run
 *   8 bits         : groups 0 | 1 | ...                  32 bytes for each group
 *
 *   WORD                 32 bits for each group: bit i belongs to code i
 */
typedef enum Layout { NEIGHBOURS, HALVES, SHARED, WORD } Layout;

/* A field: some bits of each code of a block. */
typedef struct Field {
    Layout layout;
    int offset; /* position of the field in the block, in bytes */
    int bits;   /* bits per code; 0: no such field */
    int apart;  /* SHARED: distance between groups that share bytes */
    int to;     /* position of the lowest of these bits in a code */
} Field;

/* A format: how a block is expanded to groups of 32 integers and their factors. */
typedef struct ExpandedFormat {
    ptrdiff_t elements;    /* per block */
    ptrdiff_t code_bytes;  /* per block */
    ptrdiff_t scale_bytes; /* per block; 0: the code bytes include the scale */
    Field fields[2];       /* all bits of the codes, the lowest first */
    int less;              /* an integer is code - less, where less is a power of two or 0 */
    const int8_t *table;   /* an integer is table[code], with 16 entries; or NULL */
    const Levels *levels;  /* an integer is levels->steps[code] with 16 bits, and a block has two
                            * groups and a float32 scale; or NULL */
    /* Writes a block's factors, starting at group `at`. NULL if blocks have one group and begin
     * with their scale, followed by the minimum if there is one. */
    void (*factors)(Factors *factors, int at, const uint8_t *codes, const void *scale);
    ElementType scale_type;     /* type of Factors.scales and Factors.mins */
    int parts;                  /* parts of a group with separate factors: 1, or 2 halves */
    int has_steps;              /* 1: scales have steps */
    int has_mins;               /* 0: no minima; 1: minima; 2: minima with steps */
    quantize_function quantize; /* NULL: no tensor is quantized to the format */
} ExpandedFormat;

INLINE uint16_t half_at(const uint8_t *bytes)
{
    uint16_t half;
    memcpy(&half, bytes, sizeof half);
    return half;
}

/* Writes a 16-bit value to position `at` of an array of words, each of which
 * contains four values. */
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

/* The scale or minimum of group g. A float32 value is shared by two groups. */
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

/* The scale of one part of group g. It is exact, and so is the minimum. */
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

/* SHARED: the bytes that contain a field of group g of a block. */
INLINE const uint8_t *field_bytes(const uint8_t *block, int g, const Field field)
{
    const int sharing = 8 / field.bits * field.apart; /* groups in `apart` runs of bytes */
    return block + field.offset + (g / sharing * field.apart + g % field.apart) * GROUP;
}

/* SHARED: the position of the lowest bit of group g in each of those bytes. */
INLINE int field_from(int g, const Field field)
{
    return g / field.apart % (8 / field.bits) * field.bits;
}

/* The bits of a field of group g, at their position in the codes. NEIGHBOURS are returned
 * unchanged, because look_up_wide extracts their codes. */
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

/* The integers of group `index` of some blocks. */
INLINE group expand_at(const uint8_t *codes, ptrdiff_t index, const ExpandedFormat f)
{
    const ptrdiff_t groups = f.elements / GROUP;
    return expand_group(codes + index / groups * f.code_bytes, (int)(index % groups), f);
}

/* The value of a scale that is stored as an 8-bit code. */
INLINE float nested_scale(const Weight *weight, ptrdiff_t block)
{
    const uint8_t code = ((const uint8_t *)weight->scales)[block];
    return weight->nested_code[code] * weight->nested_absmax[block / NESTED_BLOCK]
           + weight->nested_offset;
}

/* The location of the scales of some blocks: in the weight, or in `room` if they
 * are decoded from codes. */
INLINE const char *scales_at(float *room, const Weight *weight, ptrdiff_t block, ptrdiff_t count,
                             const ExpandedFormat f)
{
    for (ptrdiff_t b = 0; f.scale_bytes == 1 && b < count; b++)
        room[b] = nested_scale(weight, block + b);
    return f.scale_bytes == 1 ? (const char *)room
                              : (const char *)weight->scales + block * f.scale_bytes;
}

/* Bytes between two scales at that location. */
INLINE ptrdiff_t scales_apart(const ExpandedFormat f)
{
    return f.scale_bytes == 1 ? (ptrdiff_t)sizeof(float) : f.scale_bytes;
}

/* The largest magnitude. Also counts elements that are not finite. count is a multiple of LANES. */
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
 * Writes a block's float16 scale before its codes. Returns the factor for the elements: the
 * reciprocal of the scale, or 0 if the reciprocal is not finite. Counts scales that exceed float16.
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

#ifdef UNIT_CODES
/*
 * The factors of a unit of VEC_LANES groups as vectors, with AVX2 and AVX-512. A product of few
 * tokens uses them as they are loaded, with one lane for each group of a row. A product of many
 * tokens transposes those of VEC_LANES rows, so that a vector contains the scales of one group,
 * with one lane for each row.
 */

/* The scales and minima of the first and second parts of the groups of a unit, one lane per group.
 * Lanes without a group contain 0. */
typedef struct UnitFactors {
    vec scales[2];
    vec mins[2];
} UnitFactors;

/* The factors of VEC_LANES groups, multiplied by their steps if they have any. */
INLINE vec widen_factors(const uint64_t *factors, const uint64_t *steps, int has_steps, int part,
                         const ExpandedFormat f)
{
    const halves all = has_steps ? repeat_halves(*factors) : join_words(factors);
    if (f.scale_type == TYPE_FLOAT32) { /* one factor for two groups */
        float of_blocks[VEC_LANES / 2];
        memcpy(of_blocks, &all, sizeof of_blocks);
        return load_twice(of_blocks);
    }
    const vec wide = f.scale_type == TYPE_FLOAT16 ? widen_float16(all) : widen_bfloat16(all);
    return has_steps ? vec_multiply(wide, widen_steps(steps, f.parts, part)) : wide;
}

/* Loads the scales and minima of a unit that consists of some consecutive blocks. */
INLINE void load_factors(UnitFactors *unit, const uint8_t *codes, const char *scales,
                         ptrdiff_t blocks, const ExpandedFormat f)
{
    Factors factors = {0};
#pragma GCC unroll 16
    for (int b = 0; b < UNIT_CODES / f.elements; b++) {
        if (b >= blocks)
            break;
        block_factors(&factors, (int)(b * f.elements / GROUP), codes + b * f.code_bytes,
                      scales + b * scales_apart(f), f);
    }
#pragma GCC unroll 2
    for (int part = 0; part < f.parts; part++) {
        unit->scales[part] =
            widen_factors(factors.scales, factors.scale_steps, f.has_steps, part, f);
        unit->mins[part] = widen_factors(factors.mins, factors.min_steps, f.has_mins == 2, part, f);
    }
}

/* Loads the factors of VEC_LANES groups. */
INLINE void load_whole_factors(UnitFactors *unit, const uint8_t *codes, const char *scales,
                               const ExpandedFormat f)
{
    if (f.scale_bytes) { /* scales and codes are contiguous, so whole vectors are loaded */
        halves of_groups;
        memcpy(&of_groups, scales, sizeof of_groups);
        unit->scales[0] = f.levels ? vec_multiply(load_twice((const float *)scales),
                                                  vec_all(&(float){LEVEL_STEP}))
                                   : widen_bfloat16(of_groups);
        return;
    }
#ifdef GATHERS_HALVES
    if (!f.factors && f.scale_type == TYPE_FLOAT16 && GATHERS_HALVES(f.code_bytes)) {
        unit->scales[0] = widen_float16(halves_apart(codes, f.code_bytes));
        unit->mins[0] = widen_float16(halves_apart(codes + 2, f.code_bytes));
        return;
    }
#endif
    load_factors(unit, codes, scales, UNIT_CODES / f.elements, f);
}
#endif
