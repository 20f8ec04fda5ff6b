/*
 * int8 weights by integers on vectors. An int8_*.h header defines before this one what differs
 * between vectors (ivec: integers in a vector).
 *
 * The codes of two bytes lie in a word. The odd one is the word shifted right by 8; the even one,
 * shifted left, is 2^8 times itself, and so is a pair's sum with x (below 2^31), which is shifted
 * back. A 32-bit lane of a vector so adds up four neighbouring codes.
 */
#ifndef LLAMA_BOLTS_INT8_TILE_H
#define LLAMA_BOLTS_INT8_TILE_H

enum {
    /*
     * Places in memory that a thread reads from in turn, and bytes that are asked for ahead of each.
     * On Intel's Cascade Lake two long streams come as fast as a plain read of eight; rows side by
     * side, which end after some thousand bytes, reach 0.8 of that.
     */
    INT8_STREAMS = 2,
    INT8_AHEAD = 2048,
    /* Codes that give a vector of block sums. */
    UNIT_CODES = VEC_LANES * INT8_BLOCK,
    /* Vectors of a block of VEC_LANES widened rows: 8 of even codes, 8 of odd ones, scales. */
    WIDE_VECTORS = 17,
    WIDE_FLOATS = WIDE_VECTORS * VEC_LANES,
    /* Vectors of rows side by side in a tile: 12 sums, two weights, x and a product. */
    INT8_GROUPS = 2
};

/* Asks for what is read soon. */
INLINE void prefetch_codes(const uint8_t *codes, ptrdiff_t bytes)
{
    for (ptrdiff_t at = 0; at < bytes; at += LINE)
        __builtin_prefetch(codes + at);
}

/* ---- few tokens ---- */

INLINE ivec int8_products(ivec codes, const int16_t *x)
{
    const ivec even = multiply_pairs(lower_codes_times_256(codes), ivec_load(x));
    return ivec_add(divide_by_256(even), multiply_pairs(upper_codes(codes), ivec_load(x + 32)));
}

/* a's words 0 + 2 and 1 + 3 in each 16 bytes, with those of b between them. */
INLINE ivec add_words(ivec a, ivec b)
{
    return ivec_add(lower_words(a, b), upper_words(a, b));
}

INLINE ivec add_pairs(ivec a, ivec b)
{
    return ivec_add(lower_pairs(a, b), upper_pairs(a, b));
}

/* VEC_LANES blocks along one row, and x's numbers and scales for them, of one token. */
typedef struct Int8Unit {
    const uint8_t *codes;
    const uint16_t *scales;
    const int16_t *x;
    ptrdiff_t x_apart;
    const float *x_scales;
} Int8Unit;

/* Adds a unit's blocks to as many lanes of the sum. */
INLINE vec int8_add_unit(vec lanes, Int8Unit u)
{
    ivec p[8];
#pragma GCC unroll 8
    for (int i = 0; i < 8; i++)
        p[i] = int8_products(ivec_load(u.codes + i * (4 * VEC_LANES)),
                             numbers_of(u.x, u.x_apart, i));
    const ivec a = add_pairs(add_words(p[0], p[1]), add_words(p[2], p[3]));
    const ivec b = add_pairs(add_words(p[4], p[5]), add_words(p[6], p[7]));
    const vec scale = vec_multiply(vec_load_bf16(u.scales), vec_load(u.x_scales));
    return mac_f32(lanes, ivec_to_float(join_blocks(a, b)), scale);
}

/* The same where only the first `count` codes are the row's; zeros stand for the others. */
static vec int8_add_tail(vec lanes, Int8Unit u, ptrdiff_t count)
{
    uint8_t padded[UNIT_CODES] = {0};
    uint16_t padded_scales[VEC_LANES] = {0};
    memcpy(padded, u.codes, (size_t)count);
    memcpy(padded_scales, u.scales, (size_t)(count / INT8_BLOCK) * sizeof *u.scales);
    u.codes = padded;
    u.scales = padded_scales;
    return int8_add_unit(lanes, u);
}

/* `rows` rows, each of them `apart` rows behind the one before. */
INLINE void int8_some_rows(const uint8_t *codes, const uint16_t *scales, ptrdiff_t rows,
                           ptrdiff_t apart, ptrdiff_t in, const float *panel, const int tokens,
                           float *out)
{
    vec sums[INT8_STREAMS][INT8_FEW][VEC_PARTS];
    for (int i = 0; i < INT8_STREAMS * INT8_FEW * VEC_PARTS; i++)
        (&sums[0][0][0])[i] = vec_zero();
    for (ptrdiff_t at = 0; at < in; at += UNIT_CODES) {
        const ptrdiff_t block = at / INT8_BLOCK, count = min_size(UNIT_CODES, in - at);
        const int part = (int)(at / UNIT_CODES % VEC_PARTS);
        for (ptrdiff_t r = 0; r < rows; r++) {
            const ptrdiff_t first = r * apart * in + at;
            prefetch_codes(codes + first + INT8_AHEAD, count);
            for (int t = 0; t < tokens; t++) {
                const Int8Unit unit = {codes + first, scales + first / INT8_BLOCK,
                                       int8_numbers(panel, tokens, block) + t * 64, tokens * 64,
                                       int8_scales(panel, in, tokens, t) + block};
                vec *sum = &sums[r][t][part];
                *sum = count == UNIT_CODES ? int8_add_unit(*sum, unit)
                                           : int8_add_tail(*sum, unit, count);
            }
        }
    }
    for (ptrdiff_t r = 0; r < rows; r++)
        for (int t = 0; t < tokens; t++)
            out[t * CHUNK_ROWS + r * apart] = fold_vectors(sums[r][t]);
}

static void multiply_int8_rows(const QuantizedWeight *w, ptrdiff_t row, ptrdiff_t rows,
                               ptrdiff_t in, const float *panel, int tokens, float *out)
{
    const ptrdiff_t apart = ceil_div(rows, INT8_STREAMS);
    for (ptrdiff_t r = 0; r < apart; r++) {
        const uint8_t *codes = w->codes + (row + r) * in;
        const uint16_t *scales = (const uint16_t *)w->scales + (row + r) * in / INT8_BLOCK;
        const ptrdiff_t some = ceil_div(rows - r, apart);
        if (tokens == 1)
            int8_some_rows(codes, scales, some, apart, in, panel, 1, out + r);
        else
            int8_some_rows(codes, scales, some, apart, in, panel, tokens, out + r);
    }
}

/* ---- many tokens ---- */

/* Keeps the compiler from adding several steps to one another first: it would have to spill them. */
#define forget_vector(v) __asm__("" : "+v"(v))

/* Of eight vectors, word i of all in the i-th: rows that began as vectors become lanes. */
INLINE void transpose_words(ivec v[8])
{
    ivec w[8];
#pragma GCC unroll 2
    for (int i = 0; i < 8; i += 4) {
        const ivec a = lower_words(v[i], v[i + 1]), b = upper_words(v[i], v[i + 1]);
        const ivec c = lower_words(v[i + 2], v[i + 3]), d = upper_words(v[i + 2], v[i + 3]);
        w[i] = lower_pairs(a, c), w[i + 1] = upper_pairs(a, c);
        w[i + 2] = lower_pairs(b, d), w[i + 3] = upper_pairs(b, d);
    }
#pragma GCC unroll 4
    for (int i = 0; i < 4; i++) {
        v[i] = lower_quarters(w[i], w[i + 4]);
        v[i + 4] = upper_quarters(w[i], w[i + 4]);
    }
}

/* One block of VEC_LANES rows: pairs of even and of odd codes, a row to a lane. */
INLINE void int8_widen_block(const uint8_t *const *rows, ptrdiff_t at, float *out)
{
    ivec v[8];
#pragma GCC unroll 8
    for (int i = 0; i < 8; i++)
        v[i] = load_rows(rows, i, at);
    transpose_words(v);
#pragma GCC unroll 8
    for (int i = 0; i < 8; i++) {
        ivec_store(out + i * VEC_LANES, upper_codes(lower_codes_times_256(v[i])));
        ivec_store(out + (8 + i) * VEC_LANES, upper_codes(v[i]));
    }
}

/*
 * [rows / VEC_LANES][blocks][WIDE_VECTORS]: what a tile reads. Past the last row it is repeated;
 * nobody reads those results.
 */
static void widen_int8_stretch(const Int8Stretch *s)
{
    const ptrdiff_t blocks = s->count / INT8_BLOCK;
    float *out = s->widened;
    for (ptrdiff_t first = 0; first < s->rows; first += VEC_LANES) {
        const uint8_t *rows[VEC_LANES];
        const uint16_t *scales[VEC_LANES];
        for (int r = 0; r < VEC_LANES; r++) {
            const ptrdiff_t at = (s->row + min_size(first + r, s->rows - 1)) * s->in + s->start;
            rows[r] = s->weight->codes + at;
            scales[r] = (const uint16_t *)s->weight->scales + at / INT8_BLOCK;
            prefetch_codes(rows[r] + s->count, s->count);
        }
        for (ptrdiff_t b = 0; b < blocks; b++, out += WIDE_FLOATS) {
            int8_widen_block(rows, b * INT8_BLOCK, out);
            for (int r = 0; r < VEC_LANES; r++)
                out[16 * VEC_LANES + r] = bf16_to_f32(scales[r][b]);
        }
    }
}

/* One step of a block: a pair of codes of each row, and of each token. */
INLINE void int8_step(const int one_step, const int groups, const int tokens, const float *w,
                      ptrdiff_t group_floats, const int16_t *x, ivec *sums)
{
    ivec weights[INT8_GROUPS];
#pragma GCC unroll 2
    for (int g = 0; g < groups; g++)
        weights[g] = ivec_load(w + g * group_floats);
#pragma GCC unroll 6
    for (int t = 0; t < tokens; t++) {
        const ivec pair = ivec_all_of(x + t * 64);
#pragma GCC unroll 2
        for (int g = 0; g < groups; g++) {
            ivec *sum = sums + t * groups + g;
            *sum = add_products(one_step, *sum, weights[g], pair);
            forget_vector(*sum);
        }
    }
}

/* The exact sums of one block, onto its lane of the products' sums. */
INLINE void int8_tile_block(const int one_step, const int groups, const int tokens,
                            const int first, const float *w, ptrdiff_t group_floats,
                            const int16_t *x, const float *x_scales, ptrdiff_t x_apart,
                            float *lane)
{
    enum { GROUP_LANES = LANES * PANEL_TOKENS * VEC_LANES };
    ivec sums[INT8_GROUPS * PANEL_TOKENS];
#pragma GCC unroll 12
    for (int i = 0; i < groups * tokens; i++)
        sums[i] = (ivec){0};
    /* A loop of 8 rounds costs a fifth: its end is not foreseen. */
    for (int half = 0; half < 2; half++)
#pragma GCC unroll 8
        for (int k = 0; k < 8; k++)
            int8_step(one_step, groups, tokens, w + (half * 8 + k) * VEC_LANES, group_floats,
                      x + half * 32 + 2 * k, sums);
#pragma GCC unroll 2
    for (int g = 0; g < groups; g++) {
        const vec scales = vec_load(w + g * group_floats + 16 * VEC_LANES);
#pragma GCC unroll 6
        for (int t = 0; t < tokens; t++) {
            float *at = lane + g * GROUP_LANES + t * VEC_LANES;
            vec_store(at, mac_f32(first ? vec_zero() : vec_load(at),
                                  ivec_to_float(sums[t * groups + g]),
                                  vec_multiply(scales, vec_all(x_scales + t * x_apart))));
        }
    }
}

/* The lanes of a sum are vectors of rows here, so that folding them is adding vectors. */
INLINE void int8_fold(const int tokens, const float *lanes, float *out)
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
INLINE void int8_tile(const int one_step, const int groups, const int tokens,
                      const Int8Stretch *s, ptrdiff_t group)
{
    enum { GROUP_LANES = LANES * PANEL_TOKENS * VEC_LANES };
    const ptrdiff_t blocks = s->count / INT8_BLOCK, group_floats = blocks * WIDE_FLOATS;
    const float *w = s->widened + group * group_floats;
    const float *x_scales = int8_scales(s->panel, s->in, tokens, 0);
    const ptrdiff_t x_apart = int8_padded(s->in) / INT8_BLOCK;
    float *lanes = s->lanes + group * GROUP_LANES;
    for (ptrdiff_t b = 0; b < blocks; b++, w += WIDE_FLOATS) {
        const ptrdiff_t block = s->start / INT8_BLOCK + b;
        const int16_t *x = int8_numbers(s->panel, tokens, block);
        float *lane = lanes + b * PANEL_TOKENS * VEC_LANES;
        int8_tile_block(one_step, groups, tokens, s->start == 0, w, group_floats, x,
                        x_scales + block, x_apart, lane);
    }
    for (int g = 0; g < groups; g++) {
        float *of_group = lanes + g * GROUP_LANES;
        if (s->start == 0)
            memset(of_group + blocks * PANEL_TOKENS * VEC_LANES, 0,
                   (size_t)((LANES - blocks) * PANEL_TOKENS * VEC_LANES) * sizeof(float));
        if (s->start + s->count == s->in)
            int8_fold(tokens, of_group, s->out + (group + g) * VEC_LANES);
    }
}

INLINE void int8_all_groups(const int one_step, const int tokens, const Int8Stretch *s)
{
    const ptrdiff_t groups = ceil_div(s->rows, VEC_LANES);
    ptrdiff_t group = 0;
    for (; group + INT8_GROUPS <= groups; group += INT8_GROUPS)
        int8_tile(one_step, INT8_GROUPS, tokens, s, group);
    for (; group < groups; group++)
        int8_tile(one_step, 1, tokens, s, group);
}

INLINE void int8_any_tokens(const int one_step, const Int8Stretch *s)
{
    switch (s->tokens) {
    case 1: int8_all_groups(one_step, 1, s); break;
    case 2: int8_all_groups(one_step, 2, s); break;
    case 3: int8_all_groups(one_step, 3, s); break;
    case 4: int8_all_groups(one_step, 4, s); break;
    case 5: int8_all_groups(one_step, 5, s); break;
    default: int8_all_groups(one_step, 6, s); break;
    }
}

static void multiply_int8_stretch(const Int8Stretch *s)
{
    if (adds_in_one_step())
        int8_any_tokens(1, s);
    else
        int8_any_tokens(0, s);
}

#endif
