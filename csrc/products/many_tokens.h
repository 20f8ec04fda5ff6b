/*
 * Products of codes of block-quantized weights and more than INTEGER_FEW bfloat16 tokens, with AVX2
 * and AVX-512.
 *
 * A K block of the chunk's rows is widened once (widen_rows_of_codes) and multiplied by all panels
 * of the group. Each weight row has its own lane, so lanes are never added to each other. Group g
 * of VEC_LANES rows becomes 16 vectors of pairs of 16-bit codes, followed by the scales. This is
 * the layout for rows 0 to 7 with AVX2, where a2 is code 2 of row 0, b2 of row 1, and h2 of row 7:
 *
 *   as loaded           v[0] = a0 a1 a2 a3 | a4 a5 a6 a7 | ... | a28 .. a31    bytes of row 0
 *                       v[1] = b0 b1 b2 b3 | b4 b5 b6 b7 | ...                 .. v[7] of row 7
 *   transpose_words     v[0] = a0 a1 a2 a3 | b0 b1 b2 b3 | ... | h0 h1 h2 h3   a row to a lane
 *                       v[1] = a4 a5 a6 a7 | b4 b5 b6 b7 | ...
 *   even codes          out[0] = a0 a2 | b0 b2 | ... | h0 h2                   16 bits each
 *                       out[1] = a4 a6 | b4 b6 | ...                           .. out[7]
 *   odd codes           out[8] = a1 a3 | b1 b3 | ... | h1 h3                   .. out[15]
 *   factors             out[16] = scale of a | of b | ... | of h               float32
 *                       out[17] = minimum of a | ...                           if there are minima
 *
 * (With two parts, out[16] and out[17] are the scales of the first and the second halves, and the
 * minima follow them. With AVX-512, v[i] initially contains rows i and i + 8.)
 *
 * A step of a tile multiplies a vector of pairs by one pair of x, which is the same in all lanes.
 * The panel of a token (integer_panel.h) contains the pairs of x in the same order: x0 x2, x4 x6,
 * ..., and 32 places later x1 x3, x5 x7, .... So sum += multiply_pairs(out[0], x0 x2) adds a0 x0 +
 * a2 x2 to lane 0, and b0 x0 + b2 x2 to lane 1. For example, with a = 1, 2, -3, 4, 0, ... and x =
 * 10, 20, 30, 40, ..., out[0] adds 10 - 90, out[8] adds 40 + 160, and lane 0 of the group's sum is
 * 120.
 *
 * With 8-bit integers, the transposed words are not widened: out[0] = a0 a1 a2 a3 | b0 b1 b2 b3 |
 * ..., out[1] = a4 a5 a6 a7 | .... A step multiplies a word of codes by a word of x, x0 x1 x2 x3,
 * so a group takes 8 steps. The codes must be unsigned bytes, so for example 128 is added to the
 * codes of q8_0. To compensate, the sum of a group starts with -128 times the sum of its q
 * (starts).
 *
 * 16 or 8 steps compute the exact sums of a group for VEC_LANES rows. Then each sum is scaled and
 * added to the chain of its row: lane[g mod 16] = fma(float(sum), scale * xs, lane[g mod 16]). The
 * 16 lanes of a tile's sums are stored in memory. Each of them is a vector of rows, so reducing the
 * lanes means adding vectors.
 */
#pragma once

#ifndef CODES
#define CODES "isa/codes_avx2.h"
#endif
#include "products/integer_panel.h"

enum {
    /* Vectors of rows that a tile processes at the same time. The registers contain 12 sums, two
     * weights, x and a product. */
    ROW_VECTORS = 2,
    /* Floats for the sums of one vector of rows between two K blocks. */
    GROUP_LANES = LANES * PANEL_TOKENS * VEC_LANES
};

/* Maximum number of bits of a code, as an unsigned byte, for which products with |q| <= 127 can be
 * added in 16 bits: 4 steps with one part (4 * 2 * 31 * 127), or 2 steps with two parts (2 * 2 * 63
 * * 127). */
INLINE int bits_in_16(const ExpandedFormat f) { return f.parts == 1 ? 5 : 6; }

/* The number that is added to the integers of a format to make them unsigned bytes. */
INLINE int added_to_codes(const ExpandedFormat f)
{
    return f.table || f.fields[0].bits == 8 ? 128 : f.less;
}

/* The kind of panel for many tokens of a format. 8-bit codes are multiplied as bytes only if one
 * instruction adds the products in 32 bits, because they do not fit into 16 bits. */
INLINE PanelKind panel_of_many(const ExpandedFormat f, const Activations activations)
{
    if (activations == ACTIVATIONS_INT16)
        return PANEL_INT16;
    const int bits = added_to_codes(f) == 128 ? 8 : f.fields[0].bits + f.fields[1].bits;
    const int fits = bits <= bits_in_16(f) || adds_in_one_step();
    return f.levels || !fits ? PANEL_INT8_AS_INT16 : PANEL_INT8;
}

/* Packs a panel for the format. With bytes, the sums start with values that compensate for
 * `added_to_codes`. */
INLINE void pack_many(float *panel, const char *x, ptrdiff_t x_stride, int tokens, ptrdiff_t in,
                      const ExpandedFormat f, const Activations activations)
{
    const PanelKind kind = panel_of_many(f, activations);
    const ptrdiff_t apart = integer_padded(in) / X_GROUP;
    if (kind == PANEL_INT16)
        pack_numbers(panel, x, x_stride, tokens, in, PANEL_INT16);
    else if (kind == PANEL_INT8_AS_INT16)
        pack_numbers(panel, x, x_stride, tokens, in, PANEL_INT8_AS_INT16);
    else
        pack_numbers(panel, x, x_stride, tokens, in, PANEL_INT8);
    for (int t = 0; kind == PANEL_INT8 && t < tokens; t++) {
        const float *sums = integer_sums(panel, in, tokens, t);
        int32_t *starts = integer_starts(panel, in, tokens, t);
        for (ptrdiff_t g = 0; g < in / X_GROUP; g++) {
            const float first = sums[g], second = sums[apart + g];
            starts[g] = -added_to_codes(f) * (int32_t)(f.parts == 1 ? first + second : first);
            starts[apart + g] = -added_to_codes(f) * (int32_t)second;
        }
    }
}

/* Widens a block of two groups whose codes have 16 bits, in the same layout as widen_group. */
INLINE void widen_block_of_two(float *out, const uint8_t *const *rows, ptrdiff_t block,
                               ptrdiff_t floats, const ExpandedFormat f)
{
    WidePair pairs[VEC_LANES];
    for (int r = 0; r < VEC_LANES; r++)
        pairs[r] = look_up_wide(rows[r] + block * f.code_bytes, f.levels->steps);
    for (int g = 0; g < 2; g++, out += floats) {
        ivec even[8], odd[8];
#pragma GCC unroll 8
        for (int i = 0; i < 8; i++) {
            even[i] = wide_of_rows(pairs[i].even, pairs[i + VEC_LANES - 8].even, g);
            odd[i] = wide_of_rows(pairs[i].odd, pairs[i + VEC_LANES - 8].odd, g);
        }
        transpose_words(even);
        transpose_words(odd);
        memcpy(out, even, sizeof even);
        memcpy(out + 8 * VEC_LANES, odd, sizeof odd);
    }
}

/* Loads one group of VEC_LANES rows as words of four codes, with one lane per row. */
INLINE void transpose_group(ivec v[8], const uint8_t *const *rows, ptrdiff_t index,
                            const ExpandedFormat f)
{
#pragma GCC unroll 8
    for (int i = 0; i < 8; i++) {
        group groups[VECTOR_GROUPS];
#pragma GCC unroll 2
        for (int g = 0; g < VECTOR_GROUPS; g++)
            groups[g] = expand_at(rows[i + 8 * g], index, f);
        v[i] = join_groups(groups);
    }
    transpose_words(v);
}

/* Widens one group of VEC_LANES rows to pairs of even codes and pairs of odd codes,
 * with one lane per row. */
INLINE void widen_group(float *out, const uint8_t *const *rows, ptrdiff_t index,
                        const ExpandedFormat f)
{
    ivec v[8];
    transpose_group(v, rows, index, f);
#pragma GCC unroll 8
    for (int i = 0; i < 8; i++) {
        const ivec even = upper_codes(lower_codes_times_256(v[i])), odd = upper_codes(v[i]);
        memcpy(out + i * VEC_LANES, &even, sizeof even);
        memcpy(out + (8 + i) * VEC_LANES, &odd, sizeof odd);
    }
}

/* Converts one group of VEC_LANES rows to words of unsigned bytes, with one lane per row. */
INLINE void widen_group_to_bytes(float *out, const uint8_t *const *rows, ptrdiff_t index,
                                 const ExpandedFormat f)
{
    ExpandedFormat as_stored = f; /* codes from which `less` is not subtracted */
    as_stored.less = 0;
    ivec v[8];
    transpose_group(v, rows, index, as_stored);
#pragma GCC unroll 8
    for (int i = 0; i < 8; i++) {
        if (added_to_codes(f) == 128)
            v[i] = (ivec)((byte_lanes)v[i] ^ -128);
        memcpy(out + i * VEC_LANES, v + i, sizeof v[i]);
    }
}

/* Number of code vectors in a group of VEC_LANES widened rows: 8 of words of bytes, or 8 of pairs
 * of even codes and 8 of pairs of odd codes. The vectors of the scales and minima of the group's
 * parts follow them. */
INLINE int code_vectors(const PanelKind kind) { return kind == PANEL_INT8 ? 8 : 16; }

/* Floats per group of VEC_LANES widened rows. */
INLINE ptrdiff_t wide_floats(int vectors, int parts, int has_mins)
{
    return (vectors + parts * (has_mins ? 2 : 1)) * VEC_LANES;
}

/* VEC_LANES rows of a K block. Vectors beyond the last row of a chunk repeat that row. */
typedef struct RowsOfBlocks {
    const Weight *weight;
    const uint8_t *codes[VEC_LANES];
    ptrdiff_t blocks[VEC_LANES]; /* numbers of the first blocks */
} RowsOfBlocks;

/* Writes the scales and minima of up to VEC_LANES groups: those of a group in one vector for each
 * of its parts, with one lane for each row. */
INLINE void widen_unit_factors(float *out, ptrdiff_t floats, const RowsOfBlocks *rows,
                               ptrdiff_t first, const ptrdiff_t groups, const ExpandedFormat f)
{
    const ptrdiff_t block = first / (f.elements / GROUP), blocks = groups * GROUP / f.elements;
    ivec of_rows[4][VEC_LANES];
    for (int r = 0; r < VEC_LANES; r++) {
        const uint8_t *codes = rows->codes[r] + block * f.code_bytes;
        float room[VEC_LANES];
        const char *scales = scales_at(room, rows->weight, rows->blocks[r] + block, blocks, f);
        UnitFactors unit;
        if (groups == VEC_LANES)
            load_whole_factors(&unit, codes, scales, f);
        else
            load_factors(&unit, codes, scales, blocks, f);
#pragma GCC unroll 2
        for (int part = 0; part < f.parts; part++) {
            of_rows[part][r] = (ivec)unit.scales[part];
            of_rows[f.parts + part][r] = (ivec)unit.mins[part];
        }
    }
    for (int i = 0; i < f.parts * (f.has_mins ? 2 : 1); i++) {
        transpose_square(of_rows[i]);
#pragma GCC unroll 16
        for (int g = 0; g < VEC_LANES; g++)
            if (g < groups)
                memcpy(out + g * floats + i * VEC_LANES, &of_rows[i][g], sizeof(ivec));
    }
}

/*
 * Widens a K block to [rows / VEC_LANES][groups][wide_floats], which a tile reads. The results of
 * vectors beyond the last row are not used.
 */
INLINE void widen_rows(const IntegerKBlock *k, const ExpandedFormat f, const PanelKind kind)
{
    const ptrdiff_t blocks = k->count / f.elements, groups = k->count / GROUP;
    const ptrdiff_t floats = wide_floats(code_vectors(kind), f.parts, f.has_mins);
    const ptrdiff_t row_blocks = k->in / f.elements, row_bytes = row_blocks * f.code_bytes;
    const ptrdiff_t row_scales = row_blocks * f.scale_bytes, bytes = blocks * f.code_bytes;
    const uint8_t *codes = (const uint8_t *)k->weight->data + k->row * row_bytes
                           + k->start / f.elements * f.code_bytes;
    float *out = k->widened;
    /* The first K block of all rows is prefetched at once, and each later K block while the one
     * before it is laid out. */
    for (ptrdiff_t r = 0; k->start == 0 && r < k->rows; r++) {
        prefetch_span(codes + r * row_bytes, bytes, INTO_L2);
        prefetch_span((const char *)k->weight->scales + (k->row + r) * row_scales, row_scales,
                      INTO_L2);
    }
    for (ptrdiff_t first = 0; first < k->rows; first += VEC_LANES) {
        RowsOfBlocks rows = {.weight = k->weight};
        for (int r = 0; r < VEC_LANES; r++) {
            const ptrdiff_t row = min_size(first + r, k->rows - 1);
            rows.codes[r] = codes + row * row_bytes;
            rows.blocks[r] = ((k->row + row) * k->in + k->start) / f.elements;
            prefetch_span(rows.codes[r] + bytes, bytes, INTO_L2);
        }
        float *factors = out + code_vectors(kind) * VEC_LANES;
        ptrdiff_t whole = 0; /* groups in whole units */
        for (; whole + VEC_LANES <= groups; whole += VEC_LANES)
            widen_unit_factors(factors + whole * floats, floats, &rows, whole, VEC_LANES, f);
        if (whole < groups)
            widen_unit_factors(factors + whole * floats, floats, &rows, whole, groups - whole, f);
        for (ptrdiff_t b = 0; f.levels && b < blocks; b++, out += 2 * floats)
            widen_block_of_two(out, rows.codes, b, floats, f);
        for (ptrdiff_t g = 0; !f.levels && g < groups; g++, out += floats)
            if (kind == PANEL_INT8)
                widen_group_to_bytes(out, rows.codes, g, f);
            else
                widen_group(out, rows.codes, g, f);
    }
}

INLINE void widen_rows_of_codes(const IntegerKBlock *k, const ExpandedFormat f,
                                const Activations activations)
{
    if (panel_of_many(f, activations) == PANEL_INT8)
        widen_rows(k, f, PANEL_INT8);
    else
        widen_rows(k, f, PANEL_INT16);
}

/* The variant of a tile. */
typedef struct TileKind {
    int one_step;    /* 1: one instruction multiplies and adds */
    int parts;       /* parts of a group */
    PanelKind panel; /* bytes, or 16-bit numbers */
} TileKind;

/* The part of a panel for one group, starting with the first token. */
typedef struct GroupOfX {
    const char *integers;
    const float *scales;   /* at a distance of `apart` between tokens */
    const float *sums;     /* sums of halves, at a distance of `apart` between halves, and of
                            * twice that between tokens */
    const int32_t *starts; /* like sums, for bytes */
    ptrdiff_t apart;
} GroupOfX;

/* Computes the exact sums of one part of a group for all rows and tokens. A step multiplies a pair
 * of codes of each row by one pair of each token. */
INLINE void add_up_part(const TileKind kind, const int groups, const int tokens, const int part,
                        const float *w, ptrdiff_t group_floats, const char *integers, ivec *sums)
{
    const int16_t *x = (const int16_t *)integers;
    const int steps = 8 / kind.parts;
#pragma GCC unroll 12
    for (int i = 0; i < groups * tokens; i++)
        sums[i] = (ivec){0};
    /* This loop is unrolled, because a loop of 8 iterations is 20 % slower: its end is
     * mispredicted. */
    for (int half = 0; half < 2; half++)
#pragma GCC unroll 8
        for (int step = part * steps; step < (part + 1) * steps; step++) {
            ivec weights[ROW_VECTORS];
#pragma GCC unroll 2
            for (int g = 0; g < groups; g++)
                weights[g] = ivec_load(w + (half * 8 + step) * VEC_LANES + g * group_floats);
#pragma GCC unroll 6
            for (int t = 0; t < tokens; t++) {
                const ivec pair = ivec_all_of(x + half * 32 + 2 * step + t * 64);
#pragma GCC unroll 2
                for (int g = 0; g < groups; g++) {
                    ivec *sum = sums + t * groups + g;
                    *sum = add_products(kind.one_step, *sum, weights[g], pair);
                    forget_vector(*sum);
                }
            }
        }
}

/* Computes the exact sums of one part of a group with words of four bytes. Without an instruction
 * that adds their products in 32 bits, the products of some steps are first added in 16 bits
 * (bits_in_16). */
INLINE void add_up_bytes(const TileKind kind, const int groups, const int tokens, const int part,
                         const float *w, ptrdiff_t group_floats, const GroupOfX *x, ivec *sums)
{
    const int steps = 8 / kind.parts, most = kind.one_step ? steps : kind.parts == 1 ? 4 : 2;
    ivec of_16_bits[ROW_VECTORS * PANEL_TOKENS];
#pragma GCC unroll 6
    for (int t = 0; t < tokens; t++) {
        const int32_t start = x->starts[(2 * t + part) * x->apart];
#pragma GCC unroll 2
        for (int g = 0; g < groups; g++)
            sums[t * groups + g] = (ivec)((int_lanes){0} + start);
    }
#pragma GCC unroll 8
    for (int step = 0; step < steps; step++) {
        ivec weights[ROW_VECTORS];
#pragma GCC unroll 2
        for (int g = 0; g < groups; g++)
            weights[g] = ivec_load(w + (part * steps + step) * VEC_LANES + g * group_floats);
#pragma GCC unroll 6
        for (int t = 0; t < tokens; t++) {
            const ivec word = ivec_all_of(x->integers + t * 64 + (part * steps + step) * 4);
#pragma GCC unroll 2
            for (int g = 0; g < groups; g++) {
                ivec *sum = sums + t * groups + g, *small = of_16_bits + t * groups + g;
                if (kind.one_step) {
                    *sum = add_byte_products(*sum, weights[g], word);
                    forget_vector(*sum);
                    continue;
                }
                const ivec products = multiply_bytes(weights[g], word);
                *small =
                    step % most ? (ivec)((short_lanes)*small + (short_lanes)products) : products;
                forget_vector(*small);
                if (step % most == most - 1)
                    *sum = ivec_add(*sum, multiply_pairs(*small, (ivec)((short_lanes){0} + 1)));
            }
        }
    }
}

/* Adds one group of all rows and tokens to its lane of the sums: first the products of its parts,
 * then the minima. */
INLINE void tile_group(const TileKind kind, const int groups, const int tokens, const int first,
                       const int has_mins, const float *w, ptrdiff_t group_floats,
                       const GroupOfX *x, float *lane)
{
    const int vectors = code_vectors(kind.panel);
    vec totals[ROW_VECTORS * PANEL_TOKENS];
#pragma GCC unroll 2
    for (int part = 0; part < kind.parts; part++) {
        ivec sums[ROW_VECTORS * PANEL_TOKENS];
        if (kind.panel == PANEL_INT8)
            add_up_bytes(kind, groups, tokens, part, w, group_floats, x, sums);
        else
            add_up_part(kind, groups, tokens, part, w, group_floats, x->integers, sums);
#pragma GCC unroll 2
        for (int g = 0; g < groups; g++) {
            const vec scales = vec_load(w + g * group_floats + (vectors + part) * VEC_LANES);
#pragma GCC unroll 6
            for (int t = 0; t < tokens; t++) {
                const int i = t * groups + g;
                const float *at = lane + g * GROUP_LANES + t * VEC_LANES;
                if (part == 0)
                    totals[i] = first ? vec_zero() : vec_load(at);
                totals[i] = mac_float32(totals[i], ivec_to_float(sums[i]),
                                        vec_multiply(scales, vec_all(x->scales + t * x->apart)));
            }
        }
    }
    if (has_mins)
#pragma GCC unroll 2
        for (int part = 0; part < kind.parts; part++)
#pragma GCC unroll 2
            for (int g = 0; g < groups; g++) {
                const int place = vectors + kind.parts + part;
                const vec mins = vec_load(w + g * group_floats + place * VEC_LANES);
#pragma GCC unroll 6
                for (int t = 0; t < tokens; t++) {
                    const float *of_x = x->sums + 2 * t * x->apart;
                    const float sum =
                        kind.parts == 1 ? of_x[0] + of_x[x->apart] : of_x[part * x->apart];
                    vec *total = totals + t * groups + g;
                    *total = mac_float32(*total, vec_all(&sum),
                                         vec_multiply(mins, vec_all(x->scales + t * x->apart)));
                }
            }
#pragma GCC unroll 2
    for (int g = 0; g < groups; g++)
#pragma GCC unroll 6
        for (int t = 0; t < tokens; t++)
            vec_store(lane + g * GROUP_LANES + t * VEC_LANES, totals[t * groups + g]);
}

/* Reduces the lanes of sums. Each lane is a vector of rows, so vectors are added. */
INLINE void reduce_rows_of_lanes(const int tokens, const float *lanes, float *out)
{
    for (int t = 0; t < tokens; t++) {
        vec v[LANES];
#pragma GCC unroll 16
        for (int l = 0; l < LANES; l++)
            v[l] = vec_load(lanes + (l * PANEL_TOKENS + t) * VEC_LANES);
#pragma GCC unroll 4
        for (int width = LANES / 2; width > 0; width /= 2)
#pragma GCC unroll 8
            for (int l = 0; l < width; l++)
                v[l] = vec_add(v[l], v[l + width]);
        vec_store(out + t * CHUNK_ROWS, v[0]);
    }
}

/* Multiplies some vectors of rows. lanes are [rows / VEC_LANES][LANES][PANEL_TOKENS][VEC_LANES]. */
INLINE void integer_tile(const TileKind kind, const int groups, const int tokens,
                         const IntegerKBlock *k, ptrdiff_t vector, int has_mins)
{
    const ptrdiff_t floats = wide_floats(code_vectors(kind.panel), kind.parts, has_mins);
    const ptrdiff_t blocks = k->count / GROUP, group_floats = blocks * floats;
    const float *w = k->widened + vector * group_floats;
    const float *x_scales = integer_scales(k->panel, k->in, tokens, 0);
    const float *x_sums = integer_sums(k->panel, k->in, tokens, 0);
    const int32_t *x_starts = integer_starts(k->panel, k->in, tokens, 0);
    float *lanes = k->lanes + vector * GROUP_LANES;
    for (ptrdiff_t b = 0; b < blocks; b++, w += floats) {
        const ptrdiff_t block = k->start / GROUP + b;
        const GroupOfX x = {.integers = integers_at(k->panel, kind.panel, tokens, block),
                            .scales = x_scales + block,
                            .sums = x_sums + block,
                            .starts = x_starts + block,
                            .apart = integer_padded(k->in) / GROUP};
        float *lane = lanes + b * PANEL_TOKENS * VEC_LANES;
        tile_group(kind, groups, tokens, k->start == 0, has_mins, w, group_floats, &x, lane);
    }
    for (int g = 0; g < groups; g++) {
        float *of_group = lanes + g * GROUP_LANES;
        if (k->start == 0)
            memset(of_group + blocks * PANEL_TOKENS * VEC_LANES, 0,
                   (size_t)((LANES - blocks) * PANEL_TOKENS * VEC_LANES) * sizeof(float));
        if (k->start + k->count == k->in)
            reduce_rows_of_lanes(tokens, of_group, k->out + (vector + g) * VEC_LANES);
    }
}

INLINE void integer_row_vectors(const int tokens, const TileKind kind, const IntegerKBlock *k,
                                int has_mins)
{
    const ptrdiff_t groups = ceil_div(k->rows, VEC_LANES);
    ptrdiff_t vector = 0;
    for (; vector + ROW_VECTORS <= groups; vector += ROW_VECTORS)
        integer_tile(kind, ROW_VECTORS, tokens, k, vector, has_mins);
    for (; vector < groups; vector++)
        integer_tile(kind, 1, tokens, k, vector, has_mins);
}

INLINE void integer_any_tokens(const TileKind kind, const IntegerKBlock *k, int has_mins)
{
    WITH_CONSTANT(integer_row_vectors, k->tokens, kind, k, has_mins);
}

/*
 * The tiles of all formats with the same number of parts, because their widened codes have the same
 * layout. The tiles are compiled once per instruction set, in a separate unit, and their names end
 * with the name of the set.
 */
#ifndef MULTIPLY_GROUPS
#define MULTIPLY_GROUPS multiply_groups_avx2
#define MULTIPLY_HALVES multiply_halves_avx2
#define MULTIPLY_BYTE_GROUPS multiply_byte_groups_avx2
#define MULTIPLY_BYTE_HALVES multiply_byte_halves_avx2
#endif
void MULTIPLY_GROUPS(const IntegerKBlock *k, int has_mins);
void MULTIPLY_HALVES(const IntegerKBlock *k, int has_mins);
void MULTIPLY_BYTE_GROUPS(const IntegerKBlock *k, int has_mins);
void MULTIPLY_BYTE_HALVES(const IntegerKBlock *k, int has_mins);

INLINE void multiply_parts(const IntegerKBlock *k, int has_mins, const int parts,
                           const PanelKind panel)
{
    if (adds_in_one_step())
        integer_any_tokens((TileKind){1, parts, panel}, k, has_mins);
    else
        integer_any_tokens((TileKind){0, parts, panel}, k, has_mins);
}

/* Adds a K block, which widen_rows_of_codes has widened, to the sums of one panel. */
INLINE void multiply_many_rows(const IntegerKBlock *k, const ExpandedFormat f,
                               const Activations activations)
{
    const int are_bytes = panel_of_many(f, activations) == PANEL_INT8;
    if (are_bytes && f.parts == 2)
        MULTIPLY_BYTE_HALVES(k, f.has_mins);
    else if (are_bytes)
        MULTIPLY_BYTE_GROUPS(k, f.has_mins);
    else if (f.parts == 2)
        MULTIPLY_HALVES(k, f.has_mins);
    else
        MULTIPLY_GROUPS(k, f.has_mins);
}
