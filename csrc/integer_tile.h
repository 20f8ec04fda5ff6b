/*
 * Formats that are expanded: codes times integers on vectors (ivec: integers in a vector).
 *
 * The codes of two bytes lie in a word. The odd one is the word shifted right by 8; the even one,
 * shifted left, is 2^8 times itself, and so is a pair's sum with x (below 2^31), which is shifted
 * back. Codes of 16 bits, which levels have (formats.h), come as even and odd ones. A 32-bit lane
 * of a vector so adds up four neighbouring codes.
 *
 * Codes of 4 to BYTE_BITS bits times few tokens stay bytes (takes_bytes), and the numbers of x are
 * cut into bytes: a number is 2^8 times its upper byte, which is signed, plus its lower one.
 */
#pragma once

#ifndef CODES
#define CODES "codes_avx2.h"
#endif
#include "formats.h"
#include "integer_rows.h"

enum {
    /* Codes that give a vector of block sums. */
    UNIT_CODES = VEC_LANES * GROUP,
    /* Vectors of a group of VEC_LANES widened rows: 8 of even codes, 8 of odd ones; and those of
     * the scales and minima of its parts, which follow them. */
    CODE_VECTORS = 16,
    /* Vectors of rows side by side in a tile: 12 sums, two weights, x and a product. */
    ROW_VECTORS = 2,
    /* Floats in which the sums of a vector of rows rest between two K blocks. */
    GROUP_LANES = LANES * PANEL_TOKENS * VEC_LANES
};

/* The same bits in lanes of other sizes; operators work on all of them. */
typedef int32_t int_lanes __attribute__((vector_size(sizeof(ivec))));
typedef int16_t short_lanes __attribute__((vector_size(sizeof(ivec))));
typedef int8_t byte_lanes __attribute__((vector_size(sizeof(ivec))));

INLINE ivec ivec_load(const void *p)
{
    ivec v;
    memcpy(&v, p, sizeof v);
    return v;
}

/* Two numbers of 16 bits, in every lane. */
INLINE ivec ivec_all_of(const int16_t *pair)
{
    int32_t both;
    memcpy(&both, pair, sizeof both);
    return (ivec)((int_lanes){0} + both);
}

INLINE ivec ivec_add(ivec a, ivec b) { return (ivec)((int_lanes)a + (int_lanes)b); }
INLINE vec ivec_to_float(ivec v) { return __builtin_convertvector((int_lanes)v, vec); }

/* Codes in the upper bytes of 16 bits: odd ones. Those in the lower bytes, times 2^8: even ones. */
INLINE ivec upper_codes(ivec codes) { return (ivec)((short_lanes)codes >> 8); }
INLINE ivec lower_codes_times_256(ivec codes) { return (ivec)((short_lanes)codes << 8); }

/* Keeps the compiler from adding several steps to one another first: it would spill them. */
#ifdef __APPLE__ /* whose clang takes no vectors of AVX-512 here */
#define forget_vector(v) ((void)0)
#else
#define forget_vector(v) __asm__("" : "+v"(v))
#endif

/* a's words 0 + 2 and 1 + 3 in each 16 bytes, with those of b between them; the same of pairs. */
INLINE ivec add_words(ivec a, ivec b) { return ivec_add(lower_words(a, b), upper_words(a, b)); }
INLINE ivec add_pairs(ivec a, ivec b) { return ivec_add(lower_pairs(a, b), upper_pairs(a, b)); }

/* ---- few tokens ---- */

/* Factors of VEC_LANES groups, times their steps where they have any. */
INLINE vec widen_factors(const uint64_t *factors, const uint64_t *steps, int has_steps, int part,
                         const ExpandedFormat f)
{
    const halves all = has_steps ? repeat_halves(*factors) : join_words(factors);
    if (f.scale_type == TYPE_FLOAT32) { /* one for two groups */
        float of_blocks[VEC_LANES / 2];
        memcpy(of_blocks, &all, sizeof of_blocks);
        return load_twice(of_blocks);
    }
    const vec wide = f.scale_type == TYPE_FLOAT16 ? widen_float16(all) : widen_bfloat16(all);
    return has_steps ? vec_multiply(wide, widen_steps(steps, f.parts, part)) : wide;
}

/*
 * Groups along one row: VEC_LANES, or fewer at its end. A vector of codes that has no group is
 * neither loaded nor multiplied, and lanes without a group get a scale of 0: they add 0.
 */
typedef struct Unit {
    ivec codes[8], odd[8];  /* odd: where codes have 16 bits, and those before are the even ones */
    vec scales[2], mins[2]; /* of the parts of the groups */
} Unit;

INLINE ivec code_products(const Unit *u, int i, const int16_t *x, const ExpandedFormat f)
{
    const ivec codes = u->codes[i];
    if (f.levels)
        return ivec_add(multiply_pairs(codes, ivec_load(x)),
                        multiply_pairs(u->odd[i], ivec_load(x + 32)));
    const ivec even = multiply_pairs(lower_codes_times_256(codes), ivec_load(x));
    return ivec_add((ivec)((int_lanes)even >> 8),
                    multiply_pairs(upper_codes(codes), ivec_load(x + 32)));
}

/* In each 16 bytes of four vectors: the words i of all become vector i. */
INLINE void transpose_in_lanes(ivec v[4])
{
    const ivec a = lower_words(v[0], v[1]), b = upper_words(v[0], v[1]);
    const ivec c = lower_words(v[2], v[3]), d = upper_words(v[2], v[3]);
    v[0] = lower_pairs(a, c), v[1] = upper_pairs(a, c);
    v[2] = lower_pairs(b, d), v[3] = upper_pairs(b, d);
}

#if BYTE_BITS > 4
/*
 * Adds the bits of the second field, whose 32 bytes are those of all 8 groups of a block or of 4 of
 * them; apart is 1. A vector of codes is of 4 groups and takes the bytes of these, transposed as
 * the codes are. Each word is then rotated, so that the bits of its group get to their place in a
 * code.
 */
INLINE void add_upper_bits(ivec codes[8], const uint8_t *first, const ExpandedFormat f)
{
    const Field above = f.fields[1];
    int left[2][VEC_LANES];
    ivec bits[4];
#pragma GCC unroll 4
    for (int v = 0; v < 4; v++) {
        const int g = v * VEC_LANES / 4;
        bits[v] = load_for_all(field_bytes(first + g / 8 * f.code_bytes, g % 8, above));
    }
    transpose_in_lanes(bits);
#pragma GCC unroll 16
    for (int g = 0; g < VEC_LANES; g++)
#pragma GCC unroll 2
        for (int half = 0; half < 2; half++) {
            const BytePlace place = byte_place(g, half * 4, f);
            left[place.vector / 4][place.word] = (above.to - field_from(g % 8, above)) & 31;
        }
#pragma GCC unroll 8
    for (int k = 0; k < 8; k++)
        codes[k] =
            or_rotated(codes[k], bits[k % 4], left[k / 4], ((1 << above.bits) - 1) << above.to);
}
#endif

/*
 * Codes as bytes: transposed, so that the words at one place in all vectors, or in four of them,
 * are those of one group, or of a half of it (byte_place). The first four vectors have the codes
 * whose lowest bits are in the lower halves of bytes, the others those of the upper halves.
 */
INLINE void load_byte_codes(ivec codes[8], const uint8_t *first, const ExpandedFormat f)
{
    const Field lowest = f.fields[0];
#pragma GCC unroll 4
    for (int v = 0; v < 4; v++) {
        const ptrdiff_t at = v * (ptrdiff_t)sizeof(ivec), in_block = f.elements / 2;
        codes[v] =
            lowest.apart
                ? ivec_load(first + at / in_block * f.code_bytes + lowest.offset + at % in_block)
                : join_neighbours(first + v * BYTE_LANES * f.code_bytes, f.code_bytes,
                                  lowest.offset);
    }
    transpose_in_lanes(codes);
#pragma GCC unroll 4
    for (int k = 0; k < 4; k++) {
        codes[4 + k] = (ivec)((byte_lanes)((short_lanes)codes[k] >> 4) & 15);
        codes[k] = (ivec)((byte_lanes)codes[k] & 15);
    }
#if BYTE_BITS > 4
    if (f.fields[1].bits)
        add_upper_bits(codes, first, f);
#endif
}

/* Codes of some groups as numbers of 8 or 16 bits. */
INLINE void load_codes(Unit *u, const uint8_t *codes, ptrdiff_t groups, const ExpandedFormat f)
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

/* Scales and minima of a unit of some blocks, one after the other. */
INLINE void load_factors(Unit *u, const uint8_t *codes, const char *scales, ptrdiff_t blocks,
                         const ExpandedFormat f)
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
        u->scales[part] = widen_factors(factors.scales, factors.scale_steps, f.has_steps, part, f);
        u->mins[part] = widen_factors(factors.mins, factors.min_steps, f.has_mins == 2, part, f);
    }
}

/* A unit of VEC_LANES groups. */
INLINE Unit load_whole_unit(const uint8_t *codes, const char *scales, const ExpandedFormat f)
{
    Unit u;
    if (takes_bytes(f))
        load_byte_codes(u.codes, codes, f);
    else if (f.scale_bytes && !f.levels)
#pragma GCC unroll 8
        for (int i = 0; i < 8; i++)
            u.codes[i] = ivec_load(codes + i * (ptrdiff_t)sizeof(ivec));
    else
        load_codes(&u, codes, VEC_LANES, f);
    if (f.scale_bytes) { /* side by side, as the codes are: vectors are loaded whole */
        u.scales[0] = f.levels ? vec_multiply(load_twice((const float *)scales),
                                              vec_all(&(float){LEVEL_STEP}))
                               : load_bfloat16(scales, 0, 0);
        return u;
    }
#ifdef GATHERS_HALVES
    if (!f.factors && f.scale_type == TYPE_FLOAT16 && GATHERS_HALVES(f.code_bytes)) {
        u.scales[0] = widen_float16(halves_apart(codes, f.code_bytes));
        u.mins[0] = widen_float16(halves_apart(codes + 2, f.code_bytes));
        return u;
    }
#endif
    load_factors(&u, codes, scales, UNIT_CODES / f.elements, f);
    return u;
}

/* A unit of fewer groups, which ends a row. */
INLINE Unit load_short_unit(const uint8_t *codes, const char *scales, ptrdiff_t groups,
                            const ExpandedFormat f)
{
    Unit u = {.codes = {{0}}}; /* memset would be called, or repeat a store: 30 ns */
    load_codes(&u, codes, groups, f);
    load_factors(&u, codes, scales, groups * GROUP / f.elements, f);
    return u;
}

/* What a panel has of one token for the groups of a unit (integers.h). */
typedef struct UnitOfX {
    const int16_t *numbers;  /* or their bytes */
    ptrdiff_t numbers_apart; /* between two pairs of groups; not of bytes */
    ptrdiff_t sums_apart;    /* between the sums of two halves of a group */
    const float *scales, *sums;
} UnitOfX;

INLINE UnitOfX unit_of_x(const float *panel, ptrdiff_t in, int tokens, int token, ptrdiff_t index,
                         const int are_bytes)
{
    const int apart = are_bytes ? UNIT_CODES : 64; /* from token to token */
    return (UnitOfX){.numbers = integer_numbers(panel, tokens, index) + token * apart,
                     .numbers_apart = tokens * 64,
                     .sums_apart = integer_padded(in) / GROUP,
                     .scales = integer_scales(panel, in, tokens, token) + index,
                     .sums = integer_sums(panel, in, tokens, token) + index};
}

/* The sums of the numbers of x of a part of each group. */
INLINE vec sums_of_x(UnitOfX x, int part, const ExpandedFormat f)
{
    const vec of_part = vec_load(x.sums + part * x.sums_apart);
    return f.parts == 1 ? vec_add(of_part, vec_load(x.sums + x.sums_apart)) : of_part;
}

/* Adds the exact sums of a unit's groups to the lanes, times their scales; and their minima. */
INLINE vec add_scaled(vec lanes, const Unit *u, const ivec *sums, UnitOfX x, const ExpandedFormat f)
{
    const vec x_scales = vec_load(x.scales);
#pragma GCC unroll 2
    for (int part = 0; part < f.parts; part++)
        lanes =
            mac_float32(lanes, ivec_to_float(sums[part]), vec_multiply(u->scales[part], x_scales));
    if (!f.has_mins)
        return lanes;
#pragma GCC unroll 2
    for (int part = 0; part < f.parts; part++)
        lanes = mac_float32(lanes, sums_of_x(x, part, f), vec_multiply(u->mins[part], x_scales));
    return lanes;
}

/* The exact sums of some groups: a vector of the first parts of groups, one of the others. */
INLINE void sum_groups(ivec sums[2], const Unit *u, UnitOfX x, ptrdiff_t groups,
                       const ExpandedFormat f)
{
    ivec pairs[4] = {{0}}; /* of vectors of products */
#pragma GCC unroll 4
    for (int i = 0; i < 4; i++) {
        ivec products[2] = {{0}};
        if (2 * i * VECTOR_GROUPS >= groups)
            break;
#pragma GCC unroll 2
        for (int j = 0; j < 2; j++) {
            const int first = (2 * i + j) * VECTOR_GROUPS;
            const int16_t *numbers = x.numbers + first / 2 * x.numbers_apart + first % 2 * 16;
            if (first < groups)
                products[j] = code_products(u, 2 * i + j, numbers, f);
        }
        pairs[i] = add_words(products[0], products[1]);
    }
    const ivec a = add_pairs(pairs[0], pairs[1]);
    const ivec b = groups > VEC_LANES / 2 ? add_pairs(pairs[2], pairs[3]) : (ivec){0};
    sums[0] = f.parts == 1 ? join_blocks(a, b) : join_halves(a, b, 0);
    sums[1] = join_halves(a, b, 1);
}

#ifdef ADDS_BYTES
#define BYTES_IN_16_BITS 0
#else
#define BYTES_IN_16_BITS 1
INLINE ivec add_bytes(ivec sum, ivec is_unsigned, ivec is_signed)
{
    return (ivec)((short_lanes)sum + (short_lanes)multiply_bytes(is_unsigned, is_signed));
}
#endif

/* Sums of products by the upper bytes of x, times 2^8, and by the lower ones. */
INLINE ivec join_byte_sums(ivec upper, ivec lower)
{
    if (!BYTES_IN_16_BITS)
        return ivec_add((ivec)((int_lanes)upper << 8), lower);
    return ivec_add(multiply_pairs(upper, (ivec)((short_lanes){0} + 256)),
                    multiply_pairs(lower, (ivec)((short_lanes){0} + 1)));
}

/* Sums that are at the places of words of codes, in the order of the groups. Where two groups share
 * bytes, those of each have come to a half of the vector. */
INLINE ivec order_sums(ivec sums, const ExpandedFormat f)
{
    int places[VEC_LANES];
#pragma GCC unroll 16
    for (int g = 0; g < VEC_LANES; g++) {
        const BytePlace place = byte_place(g, 0, f);
        const int half = place.vector / 4 * (VEC_LANES / 2);
        places[g] = f.fields[0].apart ? half + place.word / 8 * 4 + place.word % 4 : place.word;
    }
    return order_words(sums, places);
}

/* The same as sum_groups of a whole unit for codes that are bytes, of several rows, which read x
 * once. A sum of 16 bits holds that of four pairs of codes of 4 bits times 255; two of 5 bits, or
 * one of 6. What codes have too much, `less`, is taken off their sums. */
INLINE void sum_byte_codes(ivec (*sums)[2], const Unit *units, const ptrdiff_t rows, UnitOfX x,
                           const ExpandedFormat f)
{
    const int most = BYTES_IN_16_BITS ? 4 >> f.fields[1].bits : 4;
    ivec all[STREAMS][2] = {{{0}}}, by_upper[STREAMS], by_lower[STREAMS];
#pragma GCC unroll 8
    for (int k = 0; k < 8; k++) {
        ivec upper = ivec_load(x.numbers + k * 2 * VEC_LANES);
        ivec lower = ivec_load(x.numbers + (8 + k) * 2 * VEC_LANES);
        if (VEC_PARTS == 1) { /* there are registers for it: else they are loaded for each row */
            forget_vector(upper);
            forget_vector(lower);
        }
#pragma GCC unroll 2
        for (ptrdiff_t r = 0; r < rows; r++) {
            const ivec codes = units[r].codes[k];
            if (k % most == 0)
                by_upper[r] = by_lower[r] = (ivec){0};
            by_upper[r] = add_bytes(by_upper[r], codes, upper);
            by_lower[r] = add_bytes(by_lower[r], lower, codes);
            if (k % most == most - 1)
                all[r][k / 4] = ivec_add(all[r][k / 4], join_byte_sums(by_upper[r], by_lower[r]));
        }
    }
#pragma GCC unroll 2
    for (ptrdiff_t r = 0; r < rows; r++) {
        const int shared = f.fields[0].apart != 0;
        const ivec first = shared ? lower_halves(all[r][0], all[r][1]) : all[r][0];
        const ivec second = shared ? upper_halves(all[r][0], all[r][1]) : all[r][1];
        sums[r][0] = order_sums(f.parts == 1 ? ivec_add(first, second) : first, f);
        sums[r][1] = order_sums(second, f);
        if (f.less == 0)
            continue;
#pragma GCC unroll 2
        for (int part = 0; part < f.parts; part++) {
            const vec too_much = (float)f.less * sums_of_x(x, part, f);
            sums[r][part] =
                (ivec)((int_lanes)sums[r][part] - __builtin_convertvector(too_much, int_lanes));
        }
    }
}

/* Some rows that are read side by side, and what their lanes have added up to. */
typedef struct Streams {
    const Weight *weight;
    const float *panel;
    ptrdiff_t in;
    ptrdiff_t distance; /* bytes from where codes are read to where they are prefetched */
    PrefetchInto into;
    const uint8_t *codes[STREAMS]; /* of the next unit */
    const char *scales[STREAMS];
} Streams;

/* What the lanes of some rows have added up to. */
typedef vec StreamSums[STREAMS][INTEGER_FEW][VEC_PARTS];

/* Adds the unit that begins at group `index`: VEC_LANES groups if it is whole. */
INLINE void add_unit(StreamSums sums, Streams *s, ptrdiff_t index, const int whole,
                     ptrdiff_t groups, const ptrdiff_t rows, const int tokens,
                     const ExpandedFormat f)
{
    const int are_bytes = whole && takes_bytes(f);
    const int part = (int)(index / VEC_LANES % VEC_PARTS);
    const ptrdiff_t blocks = groups * GROUP / f.elements;
    const ptrdiff_t code_bytes = blocks * f.code_bytes, scale_bytes = blocks * f.scale_bytes;
    float room[VEC_LANES];
    Unit units[STREAMS];
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
        for (int t = 0; !are_bytes && t < tokens; t++) {
            const UnitOfX x = unit_of_x(s->panel, s->in, tokens, t, index, are_bytes);
            ivec exact[2];
            vec *const lanes = &sums[r][t][part];
            sum_groups(exact, units + r, x, groups, f);
            *lanes = add_scaled(*lanes, units + r, exact, x, f);
        }
    }
    for (int t = 0; are_bytes && t < tokens; t++) {
        const UnitOfX x = unit_of_x(s->panel, s->in, tokens, t, index, are_bytes);
        ivec exact[STREAMS][2];
        sum_byte_codes(exact, units, rows, x, f);
#pragma GCC unroll 2
        for (ptrdiff_t r = 0; r < rows; r++)
            sums[r][t][part] = add_scaled(sums[r][t][part], units + r, exact[r], x, f);
    }
}

/* `rows` rows from row `row` on, each of them `apart` rows behind the one before. */
INLINE void multiply_code_streams(float *out, const float *panel, const Weight *weight,
                                  ptrdiff_t row, const ptrdiff_t rows, ptrdiff_t apart,
                                  ptrdiff_t in, const int tokens, const ExpandedFormat f)
{
    const PrefetchInto into = prefetch_into();
    /* Measured on Zen 4: 4 KB from two distant rows, but 8 KB from rows side by side, in which
     * codes of few bits are read: with Q6_K these are 1.09 times as fast, with Q8_0 0.83 times. */
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
        add_unit(sums, &s, index, 1, VEC_LANES, rows, tokens, f);
    if (whole < groups)
        add_unit(sums, &s, whole, 0, groups - whole, rows, tokens, f);
    for (ptrdiff_t r = 0; r < rows; r++)
        for (int t = 0; t < tokens; t++)
            out[t * CHUNK_ROWS + r * apart] = reduce_vectors(sums[r][t]);
}

_Static_assert(STREAMS == 2, "a row that is left over is done alone");
INLINE void multiply_expanded_rows(float *out, const float *panel, const Weight *weight,
                                   ptrdiff_t row, ptrdiff_t rows, ptrdiff_t in, int tokens,
                                   const ExpandedFormat f)
{
    const int joined = prefetch_into() == INTO_L2 && takes_bytes(f);
    const ptrdiff_t apart = joined ? 1 : ceil_div(rows, STREAMS);
    for (ptrdiff_t r = 0; r < rows; r += (r + 1) % apart ? 1 : apart + 1) {
        if (r + apart >= rows)
            multiply_code_streams(out + r, panel, weight, row + r, 1, apart, in, tokens, f);
        else if (tokens == 1)
            multiply_code_streams(out + r, panel, weight, row + r, STREAMS, apart, in, 1, f);
        else
            multiply_code_streams(out + r, panel, weight, row + r, STREAMS, apart, in, tokens, f);
    }
}

/* ---- many tokens ---- */

/* Of eight vectors, word i of all in the i-th: rows that began as vectors become lanes. */
INLINE void transpose_words(ivec v[8])
{
    transpose_in_lanes(v);
    transpose_in_lanes(v + 4);
#pragma GCC unroll 4
    for (int i = 0; i < 4; i++) {
        const ivec first = v[i], second = v[i + 4];
        v[i] = lower_quarters(first, second);
        v[i + 4] = upper_quarters(first, second);
    }
}

/* A block of two groups, whose codes have 16 bits: as widen_group does each of them. */
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

/* One group of VEC_LANES rows: pairs of even and of odd codes, a row to a lane. */
INLINE void widen_group(float *out, const uint8_t *const *rows, ptrdiff_t index,
                        const ExpandedFormat f)
{
    ivec v[8];
#pragma GCC unroll 8
    for (int i = 0; i < 8; i++) {
        group groups[VECTOR_GROUPS];
#pragma GCC unroll 2
        for (int g = 0; g < VECTOR_GROUPS; g++)
            groups[g] = expand_at(rows[i + 8 * g], index, f);
        v[i] = join_groups(groups);
    }
    transpose_words(v);
#pragma GCC unroll 8
    for (int i = 0; i < 8; i++) {
        const ivec even = upper_codes(lower_codes_times_256(v[i])), odd = upper_codes(v[i]);
        memcpy(out + i * VEC_LANES, &even, sizeof even);
        memcpy(out + (8 + i) * VEC_LANES, &odd, sizeof odd);
    }
}

/* Floats of a group of VEC_LANES widened rows. */
INLINE ptrdiff_t wide_floats(int parts, int has_mins)
{
    return (CODE_VECTORS + parts * (has_mins ? 2 : 1)) * VEC_LANES;
}

/* The scales and minima of a block, in the places of its row. */
INLINE void widen_block_factors(float *out, const uint8_t *codes, const char *scale,
                                const ExpandedFormat f)
{
    Factors factors = {0};
    block_factors(&factors, 0, codes, scale, f);
    for (int g = 0; g < f.elements / GROUP; g++, out += wide_floats(f.parts, f.has_mins))
        for (int part = 0; part < f.parts; part++) {
            out[(CODE_VECTORS + part) * VEC_LANES] = scale_of(&factors, g, part, f);
            if (f.has_mins)
                out[(CODE_VECTORS + f.parts + part) * VEC_LANES] = minimum_of(&factors, g, part, f);
        }
}

/*
 * [rows / VEC_LANES][groups][wide_floats]: what a tile reads. Past the last row it is repeated;
 * nobody reads those results.
 */
INLINE void widen_expanded(const IntegerKBlock *k, const ExpandedFormat f)
{
    const ptrdiff_t blocks = k->count / f.elements, block_groups = f.elements / GROUP;
    const ptrdiff_t floats = wide_floats(f.parts, f.has_mins);
    const ptrdiff_t row_blocks = k->in / f.elements, row_bytes = row_blocks * f.code_bytes;
    const ptrdiff_t row_scales = row_blocks * f.scale_bytes, bytes = blocks * f.code_bytes;
    const uint8_t *codes = (const uint8_t *)k->weight->data + k->row * row_bytes
                           + k->start / f.elements * f.code_bytes;
    float *out = k->widened;
    /* The first K block of all rows is fetched at once; each later one during the one before. */
    for (ptrdiff_t r = 0; k->start == 0 && r < k->rows; r++) {
        prefetch_span(codes + r * row_bytes, bytes, INTO_L2);
        prefetch_span((const char *)k->weight->scales + (k->row + r) * row_scales, row_scales,
                      INTO_L2);
    }
    for (ptrdiff_t first = 0; first < k->rows; first += VEC_LANES) {
        const uint8_t *rows[VEC_LANES];
        for (int r = 0; r < VEC_LANES; r++) {
            const ptrdiff_t row = min_size(first + r, k->rows - 1);
            const ptrdiff_t block = ((k->row + row) * k->in + k->start) / f.elements;
            float room;
            rows[r] = codes + row * row_bytes;
            prefetch_span(rows[r] + bytes, bytes, INTO_L2);
            for (ptrdiff_t b = 0; b < blocks; b++)
                widen_block_factors(out + b * block_groups * floats + r, rows[r] + b * f.code_bytes,
                                    scales_at(&room, k->weight, block + b, 1, f), f);
        }
        for (ptrdiff_t b = 0; f.levels && b < blocks; b++, out += 2 * floats)
            widen_block_of_two(out, rows, b, floats, f);
        for (ptrdiff_t g = 0; !f.levels && g < blocks * block_groups; g++, out += floats)
            widen_group(out, rows, g, f);
    }
}

/* How a tile multiplies, and what it knows of the format. */
typedef struct TileKind {
    int one_step, parts;
} TileKind;

/* Adds up the exact products of a part of one group of all rows and tokens. A step multiplies a
 * pair of codes of each row by one of each token. */
INLINE void add_up_part(const TileKind kind, const int groups, const int tokens, const int part,
                        const float *w, ptrdiff_t group_floats, const int16_t *x, ivec *sums)
{
    const int steps = 8 / kind.parts;
#pragma GCC unroll 12
    for (int i = 0; i < groups * tokens; i++)
        sums[i] = (ivec){0};
    /* A loop of 8 rounds costs a fifth: its end is not foreseen. */
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

/* One group of all rows and tokens, onto its lane of the products' sums: its parts, then minima. */
INLINE void tile_group(const TileKind kind, const int groups, const int tokens, const int first,
                       const int has_mins, const float *w, ptrdiff_t group_floats, const int16_t *x,
                       const float *x_scales, const float *x_sums, ptrdiff_t x_apart, float *lane)
{
    vec totals[ROW_VECTORS * PANEL_TOKENS];
#pragma GCC unroll 2
    for (int part = 0; part < kind.parts; part++) {
        ivec sums[ROW_VECTORS * PANEL_TOKENS];
        add_up_part(kind, groups, tokens, part, w, group_floats, x, sums);
#pragma GCC unroll 2
        for (int g = 0; g < groups; g++) {
            const vec scales = vec_load(w + g * group_floats + (CODE_VECTORS + part) * VEC_LANES);
#pragma GCC unroll 6
            for (int t = 0; t < tokens; t++) {
                const int i = t * groups + g;
                const float *at = lane + g * GROUP_LANES + t * VEC_LANES;
                if (part == 0)
                    totals[i] = first ? vec_zero() : vec_load(at);
                totals[i] = mac_float32(totals[i], ivec_to_float(sums[i]),
                                        vec_multiply(scales, vec_all(x_scales + t * x_apart)));
            }
        }
    }
    if (has_mins)
#pragma GCC unroll 2
        for (int part = 0; part < kind.parts; part++)
#pragma GCC unroll 2
            for (int g = 0; g < groups; g++) {
                const int place = CODE_VECTORS + kind.parts + part;
                const vec mins = vec_load(w + g * group_floats + place * VEC_LANES);
#pragma GCC unroll 6
                for (int t = 0; t < tokens; t++) {
                    const float *of_x = x_sums + 2 * t * x_apart;
                    const float sum =
                        kind.parts == 1 ? of_x[0] + of_x[x_apart] : of_x[part * x_apart];
                    vec *total = totals + t * groups + g;
                    *total = mac_float32(*total, vec_all(&sum),
                                         vec_multiply(mins, vec_all(x_scales + t * x_apart)));
                }
            }
#pragma GCC unroll 2
    for (int g = 0; g < groups; g++)
#pragma GCC unroll 6
        for (int t = 0; t < tokens; t++)
            vec_store(lane + g * GROUP_LANES + t * VEC_LANES, totals[t * groups + g]);
}

/* The lanes of a sum are vectors of rows here, so that reducing them is adding vectors. */
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

/* Some vectors of rows; lanes are [rows / VEC_LANES][LANES][PANEL_TOKENS][VEC_LANES]. */
INLINE void integer_tile(const TileKind kind, const int groups, const int tokens,
                         const IntegerKBlock *k, ptrdiff_t vector, int has_mins)
{
    const ptrdiff_t floats = wide_floats(kind.parts, has_mins);
    const ptrdiff_t blocks = k->count / GROUP, group_floats = blocks * floats;
    const float *w = k->widened + vector * group_floats;
    const float *x_scales = integer_scales(k->panel, k->in, tokens, 0);
    const float *x_sums = integer_sums(k->panel, k->in, tokens, 0);
    const ptrdiff_t x_apart = integer_padded(k->in) / GROUP;
    float *lanes = k->lanes + vector * GROUP_LANES;
    for (ptrdiff_t b = 0; b < blocks; b++, w += floats) {
        const ptrdiff_t block = k->start / GROUP + b;
        const int16_t *x = integer_numbers(k->panel, tokens, block);
        float *lane = lanes + b * PANEL_TOKENS * VEC_LANES;
        tile_group(kind, groups, tokens, k->start == 0, has_mins, w, group_floats, x,
                   x_scales + block, x_sums + block, x_apart, lane);
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

/* What was widened is the same for all formats with as many parts. */
#define MULTIPLY_WIDENED(name, parts)                                                \
    static __attribute__((noinline)) void name(const IntegerKBlock *k, int has_mins) \
    {                                                                                \
        if (adds_in_one_step())                                                      \
            integer_any_tokens((TileKind){1, parts}, k, has_mins);                   \
        else                                                                         \
            integer_any_tokens((TileKind){0, parts}, k, has_mins);                   \
    }
MULTIPLY_WIDENED(multiply_groups, 1)
MULTIPLY_WIDENED(multiply_halves, 2)

INLINE void multiply_expanded_k_block(const IntegerKBlock *k, const ExpandedFormat f)
{
    if (f.parts == 2)
        multiply_halves(k, f.has_mins);
    else
        multiply_groups(k, f.has_mins);
}
