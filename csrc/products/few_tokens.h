/*
 * Products of codes of block-quantized weights and 1 to INTEGER_FEW bfloat16 tokens, with AVX2 and
 * AVX-512.
 *
 * Weights are streamed from memory once. Two rows are read at the same time, in units of VEC_LANES
 * groups (16 with AVX-512, 8 with AVX2). A unit is 8 vectors of codes, whose sums become one vector
 * with one group per lane. This vector contains all 16 lanes of the row's sum with AVX-512, and
 * half of them with AVX2. Codes of 4 to 6 bits are transposed as bytes (transposed_bytes.h). All
 * other codes, and short units at the end of a row, are multiplied as follows.
 *
 * With AVX2, a group of q8_0, codes c0 to c31, is one vector. A 16-bit word contains two codes, and
 * a pair is two words. multiply_pairs multiplies words and adds adjacent products to 32 bits:
 *
 *   as loaded        c0 c1 | c2 c3 | c4 c5 | c6 c7 | ...            16 words c[2j] + 256 * c[2j+1]
 *   words << 8       256c0   256c2 | 256c4   256c6 | ...            even codes, times 256
 *   even x           x0      x2    | x4      x6    | ...            numbers 0 to 15 of the panel
 *   products         256 (c0 x0 + c2 x2) | 256 (c4 x4 + c6 x6) | ...    then >> 8
 *   words >> 8       c1      c3    | c5      c7    | ...            odd codes
 *   odd x            x1      x3    | x5      x7    | ...            numbers 32 to 47
 *   products         c1 x1 + c3 x3 | c5 x5 + c7 x7 | ...
 *   added            lane j = c[4j] x[4j] + .. + c[4j+3] x[4j+3],   j = 0 .. 7
 *
 * For example, with codes 1, 2, -3, 4, 0, ... and x = 10, 20, 30, 40, ..., lane 0 is ((256 * 10 -
 * 768 * 30) >> 8) + (2 * 20 + 4 * 40) = -80 + 200 = 120. A tree adds the lanes of 8 such vectors, A
 * to H, one for each group, two vectors at a time. A0+2 is lane 0 + lane 2 of A, and A0..3 is the
 * sum of lanes 0 to 3:
 *
 *   add_words     A0+2   B0+2   A1+3   B1+3   | A4+6   B4+6   A5+7   B5+7      of A and B
 *   add_pairs     A0..3  B0..3  C0..3  D0..3  | A4..7  B4..7  C4..7  D4..7     of those and C, D
 *   join_blocks   A0..7  B0..7  C0..7  D0..7  | E0..7  F0..7  G0..7  H0..7     the 8 groups
 *
 * For formats whose half groups have separate scales, join_halves keeps the sums of the halves
 * separate. Then one multiplication computes all 8 factors scale * xs, and one fused step adds the
 * groups to their lanes: lane[g mod 16] = fma(float(sum), scale * xs, lane[g mod 16]). A further
 * step with the sum of the numbers of x adds the minimum.
 *
 * With AVX-512, a vector contains two groups, and 8 vectors contain 16 groups. The codes of formats
 * with levels (nf4) have 16 bits. Even and odd codes are in separate vectors, so no shifts are
 * needed.
 *
 * 8-bit integers are stored as bytes in the order of the codes. Four products are added at once
 * (byte_products), and the tree is the same. For formats with levels, 8-bit integers are stored in
 * 16-bit words.
 */
#pragma once

#ifndef CODES
#define CODES "isa/codes_avx2.h"
#endif
#include "products/transposed_bytes.h"

/* The kind of panel for few tokens of a format. */
INLINE PanelKind panel_of_few(const ExpandedFormat f, const Activations activations)
{
    if (activations == ACTIVATIONS_INT16)
        return PANEL_INT16;
    return f.levels ? PANEL_INT8_AS_INT16 : PANEL_INT8;
}

/* add_words adds words 0 + 2 and words 1 + 3 in each 16 bytes of a and of b, and alternates the
 * sums of a and b. add_pairs does the same with pairs of words. */
INLINE ivec add_words(ivec a, ivec b) { return ivec_add(lower_words(a, b), upper_words(a, b)); }
INLINE ivec add_pairs(ivec a, ivec b) { return ivec_add(lower_pairs(a, b), upper_pairs(a, b)); }

/*
 * A unit: VEC_LANES groups of one row, or fewer at the end of the row. Vectors of codes without a
 * group are neither loaded nor multiplied. Lanes without a group get a scale of 0, so they add 0.
 */
typedef struct CodeUnit {
    ivec codes[8]; /* codes of VECTOR_GROUPS groups each; transposed bytes in a whole unit of a
                    * format that takes_bytes */
    ivec odd[8];   /* with levels: the odd codes; `codes` then contains the even codes */
    UnitFactors factors;
} CodeUnit;

/*
 * Sums of the products of four codes and four bytes of x. The first operand of a product of bytes
 * must be unsigned. So either 128 is added to the codes, and the products with 128 are subtracted
 * from the sum of the group, or the signs of the codes are moved to x. In that case, the sum of two
 * products is within 2 * 128 * 127, which fits into 16 bits.
 */
#ifdef ADDS_BYTES
enum { ADDED_TO_CODES = 128 };
INLINE ivec byte_products(ivec codes, ivec x)
{
    return add_bytes((ivec){0}, (ivec)((byte_lanes)codes ^ -128), x);
}
#else
enum { ADDED_TO_CODES = 0 };
INLINE ivec byte_products(ivec codes, ivec x)
{
    return widen_byte_sums(multiply_bytes(magnitudes(codes), with_signs_of(x, codes)), 1);
}
#endif

INLINE ivec code_products(const CodeUnit *u, int i, const char *x, const ExpandedFormat f,
                          const PanelKind kind)
{
    const ivec codes = u->codes[i], first = ivec_load(x);
    if (kind == PANEL_INT8)
        return byte_products(codes, first);
    const ivec second = ivec_load(x + 32 * (ptrdiff_t)sizeof(int16_t));
    if (f.levels)
        return ivec_add(multiply_pairs(codes, first), multiply_pairs(u->odd[i], second));
    const ivec even = multiply_pairs(lower_codes_times_256(codes), first);
    return ivec_add((ivec)((int_lanes)even >> 8), multiply_pairs(upper_codes(codes), second));
}

/* Loads the codes of some groups as 8-bit or 16-bit integers. */
INLINE void load_codes(CodeUnit *u, const uint8_t *codes, ptrdiff_t groups, const ExpandedFormat f)
{
#pragma GCC unroll 8
    for (int i = 0; i < 8; i++) {
        const int first = i * VECTOR_GROUPS;
        if (first >= groups)
            break;
        if (f.levels) {
            const WidePair pair = look_up_wide(codes + first / 2 * f.code_bytes, f.levels->steps);
            u->codes[i] = pair.even[first % 2];
            u->odd[i] = pair.odd[first % 2];
            continue;
        }
        group of_vector[VECTOR_GROUPS];
#pragma GCC unroll 2
        for (int g = 0; g < VECTOR_GROUPS; g++) {
            const int exists = g == 0 || f.elements > GROUP || first + g < groups;
            of_vector[g] = exists ? expand_at(codes, first + g, f) : of_vector[0];
        }
        u->codes[i] = join_groups(of_vector);
    }
}

/* Loads a unit of VEC_LANES groups. */
INLINE CodeUnit load_whole_unit(const uint8_t *codes, const char *scales, const ExpandedFormat f)
{
    CodeUnit u;
    if (takes_bytes(f))
        load_byte_codes(u.codes, codes, f);
    else if (f.scale_bytes && !f.levels)
#pragma GCC unroll 8
        for (int i = 0; i < 8; i++)
            u.codes[i] = ivec_load(codes + i * (ptrdiff_t)sizeof(ivec));
    else
        load_codes(&u, codes, VEC_LANES, f);
    load_whole_factors(&u.factors, codes, scales, f);
    return u;
}

/* Loads a unit of fewer groups at the end of a row. */
INLINE CodeUnit load_short_unit(const uint8_t *codes, const char *scales, ptrdiff_t groups,
                                const ExpandedFormat f)
{
    CodeUnit u = {.codes = {{0}}}; /* with a loop of stores, gcc calls memset, which takes 30 ns */
    load_codes(&u, codes, groups, f);
    load_factors(&u.factors, codes, scales, groups * GROUP / f.elements, f);
    return u;
}

/* The part of a panel that has one token's integers for the groups of one unit (integer_panel.h).
 */
typedef struct XUnit {
    const char *integers;     /* integers of the first group, or transposed bytes */
    ptrdiff_t integers_apart; /* between two pairs of groups, in bytes; unused if transposed */
    ptrdiff_t sums_apart;     /* distance between the sums of the two halves of a group */
    const float *scales;      /* scales, starting with the first group */
    const float *sums;        /* sums, starting with the first half of the first group */
} XUnit;

INLINE XUnit unit_of_x(const float *panel, ptrdiff_t in, int tokens, int token, ptrdiff_t index,
                       const int transposed, const PanelKind kind)
{
    const ptrdiff_t bytes = integer_bytes(kind);
    const ptrdiff_t apart = (transposed ? UNIT_CODES : 64) * bytes; /* between two tokens */
    const char *first = integers_at(panel, kind, tokens, index);
    return (XUnit){.integers = first + token * apart,
                   .integers_apart = tokens * 64 * bytes,
                   .sums_apart = integer_padded(in) / GROUP,
                   .scales = integer_scales(panel, in, tokens, token) + index,
                   .sums = integer_sums(panel, in, tokens, token) + index};
}

/* The sums of the numbers of x over one part of each group. */
INLINE vec sums_of_x(XUnit x, int part, const ExpandedFormat f)
{
    const vec of_part = vec_load(x.sums + part * x.sums_apart);
    return f.parts == 1 ? vec_add(of_part, vec_load(x.sums + x.sums_apart)) : of_part;
}

/* Corrects sums of byte codes. Byte codes exceed the integers by `less`. */
INLINE void take_less(ivec sums[2], const int less, XUnit x, const ExpandedFormat f)
{
    if (!less)
        return;
#pragma GCC unroll 2
    for (int part = 0; part < f.parts; part++) {
        const vec too_much = (float)less * sums_of_x(x, part, f);
        sums[part] = (ivec)((int_lanes)sums[part] - __builtin_convertvector(too_much, int_lanes));
    }
}

/* Adds the exact sums of a unit's groups, multiplied by their scales, to the lanes,
 * and then the minima. */
INLINE vec add_scaled(vec lanes, const CodeUnit *u, const ivec *sums, XUnit x,
                      const ExpandedFormat f)
{
    const vec x_scales = vec_load(x.scales);
#pragma GCC unroll 2
    for (int part = 0; part < f.parts; part++)
        lanes = mac_float32(lanes, ivec_to_float(sums[part]),
                            vec_multiply(u->factors.scales[part], x_scales));
    if (!f.has_mins)
        return lanes;
#pragma GCC unroll 2
    for (int part = 0; part < f.parts; part++)
        lanes = mac_float32(lanes, sums_of_x(x, part, f),
                            vec_multiply(u->factors.mins[part], x_scales));
    return lanes;
}

/* Computes the exact sums of several groups: sums[0] has the sums of the first parts, sums[1] those
 * of the second parts. */
INLINE void sum_groups(ivec sums[2], const CodeUnit *u, XUnit x, ptrdiff_t groups,
                       const ExpandedFormat f, const PanelKind kind)
{
    ivec pairs[4] = {{0}}; /* of pairs of vectors of products */
#pragma GCC unroll 4
    for (int i = 0; i < 4; i++) {
        ivec products[2] = {{0}};
        if (2 * i * VECTOR_GROUPS >= groups)
            break;
#pragma GCC unroll 2
        for (int j = 0; j < 2; j++) {
            const int first = (2 * i + j) * VECTOR_GROUPS;
            const char *integers = x.integers + first / 2 * x.integers_apart + first % 2 * 32;
            if (first < groups)
                products[j] = code_products(u, 2 * i + j, integers, f, kind);
        }
        pairs[i] = add_words(products[0], products[1]);
    }
    const ivec a = add_pairs(pairs[0], pairs[1]);
    const ivec b = groups > VEC_LANES / 2 ? add_pairs(pairs[2], pairs[3]) : (ivec){0};
    sums[0] = f.parts == 1 ? join_blocks(a, b) : join_halves(a, b, 0);
    sums[1] = join_halves(a, b, 1);
    if (kind == PANEL_INT8)
        take_less(sums, ADDED_TO_CODES, x, f);
}

/* Rows that are read at the same time. */
typedef struct Streams {
    const Weight *weight;
    const float *panel;
    ptrdiff_t in;                  /* elements per row */
    ptrdiff_t distance;            /* distance of the prefetched codes, in bytes */
    PrefetchInto into;             /* the cache that they are prefetched into */
    const uint8_t *codes[STREAMS]; /* codes of the next unit of each row */
    const char *scales[STREAMS];   /* scales of the next unit, unless the codes include them */
} Streams;

/* The 16 lanes of the sum of each row and token. */
typedef vec StreamSums[STREAMS][INTEGER_FEW][VEC_PARTS];

/* Adds the unit that begins at group `index`. A whole unit has VEC_LANES groups. */
INLINE void add_unit(StreamSums sums, Streams *s, ptrdiff_t index, const int whole,
                     ptrdiff_t groups, const ptrdiff_t rows, const int tokens,
                     const ExpandedFormat f, const PanelKind kind)
{
    const int transposed = whole && takes_bytes(f);
    /* The vector of the 16 lanes that the unit's groups are added to. */
    const int part = (int)(index / VEC_LANES % VEC_PARTS);
    const ptrdiff_t blocks = groups * GROUP / f.elements;
    const ptrdiff_t code_bytes = blocks * f.code_bytes, scale_bytes = blocks * f.scale_bytes;
    float room[VEC_LANES];
    CodeUnit units[STREAMS]; /* with one row, the second unit is not used */
#pragma GCC unroll 2
    for (ptrdiff_t r = 0; r < rows; r++) {
        const uint8_t *codes = s->codes[r];
        const char *scales = s->scales[r];
        if (f.scale_bytes == 1)
            scales =
                scales_at(room, s->weight, scales - (const char *)s->weight->scales, blocks, f);
        prefetch_span(codes + s->distance, code_bytes, s->into);
        prefetch_span(s->scales[r] + s->distance * f.scale_bytes / f.code_bytes, scale_bytes,
                      s->into);
        s->codes[r] += code_bytes, s->scales[r] += scale_bytes;
        units[r] =
            whole ? load_whole_unit(codes, scales, f) : load_short_unit(codes, scales, groups, f);
        for (int t = 0; !transposed && t < tokens; t++) {
            const XUnit x = unit_of_x(s->panel, s->in, tokens, t, index, transposed, kind);
            ivec exact[2];
            vec *const lanes = &sums[r][t][part];
            sum_groups(exact, units + r, x, groups, f, kind);
            *lanes = add_scaled(*lanes, units + r, exact, x, f);
        }
    }
    for (int t = 0; transposed && t < tokens; t++) {
        const XUnit x = unit_of_x(s->panel, s->in, tokens, t, index, transposed, kind);
        const ivec *codes[STREAMS] = {units[0].codes, units[STREAMS - 1].codes};
        ivec exact[STREAMS][2];
        sum_byte_codes(exact, codes, rows, x.integers, f, kind);
#pragma GCC unroll 2
        for (ptrdiff_t r = 0; r < rows; r++) {
            take_less(exact[r], f.less, x, f);
            sums[r][t][part] = add_scaled(sums[r][t][part], units + r, exact[r], x, f);
        }
    }
}

/* Multiplies `rows` rows, starting at row `row`, at a distance of `apart` rows. */
INLINE void multiply_code_streams(float *out, const float *panel, const Weight *weight,
                                  ptrdiff_t row, const ptrdiff_t rows, ptrdiff_t apart,
                                  ptrdiff_t in, const int tokens, const ExpandedFormat f,
                                  const PanelKind kind)
{
    const PrefetchInto into = prefetch_into();
    /* Measured on Zen 4: the best prefetch distance is 4 KB for two distant rows, and 8 KB for the
     * adjacent rows of formats that are multiplied as bytes. Compared with
     * two distant rows, adjacent rows are read 1.09 times as fast with Q6_K, but 0.83 times as fast
     * with Q8_0. */
    const ptrdiff_t distance = PREFETCH_STREAM * (into != INTO_L2 ? 1 : takes_bytes(f) ? 4 : 2);
    const ptrdiff_t groups = in / GROUP, whole = groups / VEC_LANES * VEC_LANES;
    StreamSums sums;
#pragma GCC unroll 32
    for (int i = 0; i < STREAMS * INTEGER_FEW * VEC_PARTS; i++)
        (&sums[0][0][0])[i] = vec_zero();
    Streams s = {.weight = weight, .panel = panel, .in = in, .distance = distance, .into = into};
#pragma GCC unroll 2
    for (ptrdiff_t r = 0; r < rows; r++) {
        const ptrdiff_t block = (row + r * apart) * (in / f.elements);
        s.codes[r] = (const uint8_t *)weight->data + block * f.code_bytes;
        s.scales[r] = (const char *)weight->scales + block * f.scale_bytes;
    }
    for (ptrdiff_t index = 0; index < whole; index += VEC_LANES)
        add_unit(sums, &s, index, 1, VEC_LANES, rows, tokens, f, kind);
    if (whole < groups)
        add_unit(sums, &s, whole, 0, groups - whole, rows, tokens, f, kind);
    for (ptrdiff_t r = 0; r < rows; r++)
        for (int t = 0; t < tokens; t++)
            out[t * CHUNK_ROWS + r * apart] = reduce_vectors(sums[r][t]);
}

_Static_assert(STREAMS == 2, "a row that is left over is done alone");
INLINE void multiply_few_rows(float *out, const float *panel, const Weight *weight, ptrdiff_t row,
                              ptrdiff_t rows, ptrdiff_t in, int tokens, const ExpandedFormat f,
                              const Activations activations)
{
    const PanelKind kind = panel_of_few(f, activations);
    const int joined = prefetch_into() == INTO_L2 && takes_bytes(f);
    const ptrdiff_t apart = joined ? 1 : ceil_div(rows, STREAMS);
    /* r is the first row of a pair: 0 .. apart - 1, or 0, 2, 4 .. if pairs
     * consist of adjacent rows. */
    for (ptrdiff_t r = 0; r < rows; r += (r + 1) % apart ? 1 : apart + 1) {
        if (r + apart >= rows)
            multiply_code_streams(out + r, panel, weight, row + r, 1, apart, in, tokens, f, kind);
        else if (tokens == 1)
            multiply_code_streams(out + r, panel, weight, row + r, STREAMS, apart, in, 1, f, kind);
        else
            multiply_code_streams(out + r, panel, weight, row + r, STREAMS, apart, in, tokens, f,
                                  kind);
    }
}

/* Packs a panel for the format. Whole units become transposed bytes if takes_bytes(f) is 1. */
INLINE void pack_few(float *panel, const char *x, ptrdiff_t x_stride, int tokens, ptrdiff_t in,
                     const ExpandedFormat f, const Activations activations)
{
    const PanelKind kind = panel_of_few(f, activations);
    const ptrdiff_t whole = in / X_GROUP / VEC_LANES * VEC_LANES;
    pack_groups(panel, x, x_stride, tokens, in, takes_bytes(f) ? whole : 0,
                kind == PANEL_INT8 ? put_bytes : put_upper_and_lower, f, kind);
}
