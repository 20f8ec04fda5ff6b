/*
 * Codes of block-quantized weights times many tokens of bfloat16, in tile registers: with AMX.
 *
 * tdpbf16ps multiplies a tile of 16 tokens by a tile of 16 weight rows, one group of 32 elements of
 * each: 16 x 16 sums of 32 products. Its order of additions is its own, and the same bits come of
 * it because every sum is exact:
 *   - a number q of x (integer_panel.h) has 16 bits, but at most 8 of them are significant, since x
 *     is bfloat16: q is a bfloat16;
 *   - a code of up to 6 bits is a bfloat16, and the sums of its products by q stay below 2^24
 *     (matrix_kind). One of 5 bits without a sign is made smaller by 16 for that; 16 times the sum
 *     of q is added again;
 *   - a code of 8 bits is the sum of two numbers, 16 * (code >> 4) and code & 15. The sums by the
 *     former are exact, as are those by the latter, and the instruction adds both sums with one
 *     rounding: the rounding of an integer to float32.
 *
 * A column of the tile of weights is a weight row, a to p, and each of its lines has two codes of
 * all rows, with which the numbers of a line of the tile of tokens are multiplied; x2 is number 2
 * of the first token, y2 of the second one:
 *
 *   weights, line 0    a0 a2     b0 b2     ...  p0 p2          tokens, line 0
 *            line 1    a4 a6     b4 b6     ...                   x0 x2  x4 x6  x8 x10  x12 x14
 *            line 4    a1 a3     b1 b3     ...                   x1 x3  x5 x7  ...     x13 x15
 *            line 5    a5 a7     ...                             x16 x18 ..    x29 x31
 *            line 8    a16 a18   ...                           tokens, line 1
 *            line 12   a17 a19   ...                             y0 y2  y4 y6  ...     y29 y31
 *
 *   sums,    line 0    x . a     x . b     ...  x . p
 *            line 1    y . a     y . b     ...  y . p
 *
 * For example with a = 1, 2, -3, 4, 0, ... and x = 10, 20, 30, 40, ...: the pairs of line 0 add
 * 10 - 90 and those of line 4 add 40 + 160, so that x . a is 120. Where the halves of a group have
 * scales of their own, lines 0 to 7 are one tile, and lines 8 to 15 the next.
 *
 * A line of the sums is a vector of 16 weight rows. It is scaled and added to the lane of its
 * group: lane = fma(sum, scale * xs, lane). All groups of a lane (g, g + 16, g + 32, ...) follow
 * one another, and the lanes follow in the order in which the tree adds them (lane_in_turn): so a
 * lane is a vector in a register, and at most four finished ones wait in memory for others, for
 * each token. xs is a power of two. Where weights have scales of float16 and no xs is too large or
 * too small, the numbers of a panel are q * xs, which changes no bit of a result and saves the
 * multiplication by xs (`scaled`).
 *
 * Two tiles of tokens times two of weights are a block, in whose memory the finished lanes wait.
 * While the sums of four groups of one of its tiles are made, those of the tile before are added.
 */
#pragma once

#ifndef CODES
#define CODES "isa/codes_avx512.h"
#endif
#include "isa/tiles_amx.h"
#include "products/few_tokens.h"

enum {
    /* A tile of products: tokens and weight rows. */
    TILE_TOKENS = 16,
    TILE_WEIGHTS = 16,
    /* Floats of a tile of sums. */
    TILE_SUMS = TILE_TOKENS * TILE_WEIGHTS,
    /* Sums of a tile that are made before they are scaled: those of one batch. */
    BATCH_SUMS = 4,
    /* Tiles of a block: two of tokens times two of weight rows. */
    BLOCK_TILES = 4,
    /* Tiles of lanes that wait in the tree, and one of the lane that is not finished. */
    WAITING = 4,
    UNFINISHED = WAITING,
    /* q of 16 bits times codes of this size: 512 * 32640 is below 2^24. */
    EXACT_SUM = 512
};

/* How the codes of a format are multiplied, and what is done with their sums. */
typedef struct MatrixKind {
    int parts;    /* of a group, with a scale each */
    int planes;   /* 2: a code is two numbers, 16 * (code >> 4) and code & 15 */
    int offset;   /* taken off each code, and added again times the sum of the numbers of x */
    int has_mins; /* 1: minima are added */
    int scaled;   /* 1: the numbers of x are times their scale already */
} MatrixKind;

INLINE int largest_code(const ExpandedFormat f)
{
    const int bits = f.fields[0].bits + f.fields[1].bits;
    int largest = f.less ? f.less : bits == 8 ? 128 : (1 << bits) - 1;
    for (int i = 0; f.table && i < 16; i++) {
        const int magnitude = f.table[i] < 0 ? -f.table[i] : f.table[i];
        largest = i == 0 || magnitude > largest ? magnitude : largest;
    }
    return largest;
}

INLINE MatrixKind matrix_kind(const ExpandedFormat f)
{
    const int largest = largest_code(f);
    const int is_exact = largest * (GROUP / f.parts) <= EXACT_SUM;
    const int offset = !is_exact && largest < 32 ? 16 : 0;
    return (MatrixKind){f.parts, is_exact || offset ? 1 : 2, offset, f.has_mins != 0, 0};
}

/* ---- places ---- */

/* The order in which the 16 lanes are finished: of each two that the tree adds, one follows the
 * other, and so on. */
INLINE int lane_in_turn(int turn)
{
    return (turn & 1) << 3 | (turn & 2) << 1 | (turn & 4) >> 1 | (turn & 8) >> 3;
}

/* Groups of a lane, at most; and the place of a group among those of all lanes, in their turn. */
INLINE ptrdiff_t lane_places(ptrdiff_t in) { return integer_padded(in) / INTEGER_K_BLOCK; }
INLINE ptrdiff_t group_place(ptrdiff_t index, ptrdiff_t in)
{
    return lane_in_turn((int)(index % LANES)) * lane_places(in) + index / LANES;
}

/* Bytes of the codes and factors of a group of TILE_WEIGHTS rows. */
INLINE ptrdiff_t place_bytes(const MatrixKind kind)
{
    const int factors = kind.parts * (1 + kind.has_mins);
    return kind.planes * TILE_BYTES + factors * TILE_WEIGHTS * (ptrdiff_t)sizeof(float);
}

/* ---- tokens ---- */

/* A panel: whether it is scaled; [places][TILE_TOKENS][GROUP] numbers; and of places and tokens the
 * scales, and the sums of the parts. */
enum { PANEL_HEAD = LINE / (int)sizeof(float), GROUP_FLOATS = GROUP / 2 };

INLINE float *panel_numbers(const float *panel) { return (float *)panel + PANEL_HEAD; }
INLINE float *panel_scales(const float *panel, ptrdiff_t in)
{
    return panel_numbers(panel) + lane_places(in) * LANES * TILE_TOKENS * GROUP_FLOATS;
}
INLINE float *panel_sums(const float *panel, ptrdiff_t in, int part)
{
    return panel_scales(panel, in) + (1 + part) * lane_places(in) * LANES * TILE_TOKENS;
}

INLINE uint16_t exact_bfloat16(float x) { return (uint16_t)(bits_of(x) >> 16); }

/* Lays a panel out with scaled numbers or with plain ones. Returns 0 if a scale does not allow the
 * former. */
INLINE int pack_tile(float *panel, const char *x, ptrdiff_t x_stride, int tokens, ptrdiff_t in,
                     const int scaled, const MatrixKind kind, const PanelKind integers)
{
    const int rows = (int)ceil_div(tokens, 4) * 4;
    int is_safe = 1;
    panel[0] = (float)scaled;
    for (int t = 0; t < rows; t++)
        for (ptrdiff_t g = 0; g < in / GROUP; g++) {
            const ptrdiff_t at = group_place(g, in) * TILE_TOKENS + t;
            uint16_t *numbers = (uint16_t *)(panel_numbers(panel) + at * GROUP_FLOATS);
            int16_t even[GROUP / 2], odd[GROUP / 2];
            float scale, sums[2];
            if (t >= tokens) {
                memset(numbers, 0, GROUP * sizeof(uint16_t));
                panel_scales(panel, in)[at] = 0.0f;
                panel_sums(panel, in, 0)[at] = panel_sums(panel, in, kind.parts - 1)[at] = 0.0f;
                continue;
            }
            quantize_group(even, odd, &scale, sums, 1, x + t * x_stride + g * GROUP * 2, integers);
            int is_zero = 1;
            for (int i = 0; i < GROUP / 2; i++)
                is_zero &= (even[i] | odd[i]) == 0;
            is_safe &= (scale >= 0x1p-60f && scale <= 0x1p60f) || (is_zero && scale <= 1.0f);
            const float factor = scaled ? scale : 1.0f;
            for (int half = 0; half < 2; half++)
                for (int i = 0; i < GROUP / 4; i++) {
                    const int from = half * (GROUP / 4) + i;
                    numbers[half * (GROUP / 2) + i] = exact_bfloat16((float)even[from] * factor);
                    numbers[half * (GROUP / 2) + GROUP / 4 + i] =
                        exact_bfloat16((float)odd[from] * factor);
                }
            panel_scales(panel, in)[at] = scaled ? 1.0f : scale;
            if (kind.parts == 2)
                panel_sums(panel, in, 1)[at] = sums[1] * factor;
            panel_sums(panel, in, 0)[at] = (kind.parts == 2 ? sums[0] : sums[0] + sums[1]) * factor;
        }
    return is_safe;
}

INLINE void pack_tiles(float *panel, const char *x, ptrdiff_t x_stride, int tokens, ptrdiff_t in,
                       const ExpandedFormat f)
{
    const MatrixKind kind = matrix_kind(f);
    if (f.scale_type != TYPE_FLOAT16
        || !pack_tile(panel, x, x_stride, tokens, in, 1, kind, PANEL_INT16))
        pack_tile(panel, x, x_stride, tokens, in, 0, kind, PANEL_INT16);
}

/* ---- weights ---- */

/* The bfloat16 that a code becomes, less the offset, by the code's lowest 5 or 6 bits; or the two
 * that a code of 8 bits becomes, by its upper and its lower half. */
typedef struct CodeTables {
    uint16_t first[64], second[32];
} CodeTables;

/* Whether codes are halves of bytes and nothing else, so that they are looked up as they are. */
INLINE int are_nibbles(const ExpandedFormat f)
{
    return f.fields[0].bits == 4 && f.fields[1].bits == 0 && f.fields[0].apart < 2;
}

/* What a code stands for, by its lowest bits, of which there are as many as `places` tells apart.
 */
INLINE int code_of_place(int place, int places, const ExpandedFormat f)
{
    if (are_nibbles(f))
        return f.table ? f.table[place % 16] : place % 16 - f.less;
    const int is_signed = f.less || f.table;
    return is_signed && place % places >= places / 2 ? place % places - places : place % places;
}

INLINE void fill_tables(CodeTables *tables, const MatrixKind kind, const ExpandedFormat f)
{
    const int bits = f.fields[0].bits + f.fields[1].bits;
    for (int i = 0; i < 64; i++) {
        const int code = code_of_place(i, bits == 6 ? 64 : 32, f);
        int first = code - kind.offset, second = i % 16;
        if (kind.planes == 2) { /* the place is half of a code, unless it is a nibble */
            const int upper = i % 16 < 8 ? i % 16 : i % 16 - 16;
            first = 16 * (are_nibbles(f) ? code >> 4 : upper);
            second = are_nibbles(f) ? code & 15 : second;
        }
        tables->first[i] = exact_bfloat16((float)first);
        tables->second[i % 32] = exact_bfloat16((float)second);
    }
}

/* The lower byte of each 16 bits, which is signed, as bfloat16: the upper half of a float32. */
INLINE ivec bfloat16_pairs(ivec bytes)
{
    const int_lanes words = (int_lanes)bytes;
    const ivec first = (ivec)ivec_to_float((ivec)(words << 24 >> 24));
    const ivec second = (ivec)ivec_to_float((ivec)(words << 8 >> 24));
    const int upper_half = -0x10000;
    return (ivec)(((int_lanes)first >> 16 & 0xFFFF) | ((int_lanes)second & upper_half));
}

/* A line of a tile: pairs of codes of TILE_WEIGHTS rows, by the lowest bits of each 16. */
INLINE void put_line(char *line, ivec codes, const CodeTables *tables, const MatrixKind kind,
                     const ExpandedFormat f)
{
    if (kind.planes == 1 && f.fields[0].bits == 8) {
        const ivec pairs = bfloat16_pairs(codes);
        memcpy(line, &pairs, sizeof pairs);
        return;
    }
    const int splits = kind.planes == 2 && !are_nibbles(f);
    const ivec places = splits ? (ivec)((short_lanes)codes >> 4) : codes;
    const ivec first = f.fields[0].bits + f.fields[1].bits == 6 ? look_up_64(places, tables->first)
                                                                : look_up_32(places, tables->first);
    memcpy(line, &first, sizeof first);
    if (kind.planes == 2) {
        const ivec second = look_up_32(codes, tables->second);
        memcpy(line + TILE_BYTES, &second, sizeof second);
    }
}

/* Bytes of codes 4 * i to 4 * i + 3 of a group, or such codes in one half of each byte, from bit
 * `from` of each 16 bits on. */
INLINE void put_two_lines(char *tile, int i, ivec bytes, const int from, const CodeTables *tables,
                          const MatrixKind kind, const ExpandedFormat f)
{
    char *line = tile + (i / 4 * 8 + i % 4) * TILE_LINE;
    put_line(line, (ivec)((short_lanes)bytes >> from), tables, kind, f);
    put_line(line + 4 * TILE_LINE, (ivec)((short_lanes)bytes >> (8 + from)), tables, kind, f);
}

/* One group of TILE_WEIGHTS rows: a row to a column of the tile, pairs of codes to its lines. */
INLINE void put_group(char *tile, const uint8_t *const *rows, ptrdiff_t index,
                      const CodeTables *tables, const MatrixKind kind, const ExpandedFormat f)
{
    ivec v[8];
#pragma GCC unroll 8
    for (int i = 0; i < 8; i++) {
        const group groups[2] = {expand_at(rows[i], index, f), expand_at(rows[i + 8], index, f)};
        v[i] = join_groups(groups);
    }
    transpose_words(v);
#pragma GCC unroll 8
    for (int i = 0; i < 8; i++)
        put_two_lines(tile, i, v[i], 0, tables, kind, f);
}

/* The same of codes in HALVES of 16 bytes. */
INLINE void put_halves(char *tile, const uint8_t *const *rows, ptrdiff_t index,
                       const CodeTables *tables, const MatrixKind kind, const ExpandedFormat f)
{
    const ptrdiff_t groups = f.elements / GROUP;
    const ptrdiff_t at =
        index / groups * f.code_bytes + f.fields[0].offset + index % groups * (GROUP / 2);
    ivec v[4];
#pragma GCC unroll 4
    for (int i = 0; i < 4; i++)
        v[i] = join_quarters(rows[i] + at, rows[i + 4] + at, rows[i + 8] + at, rows[i + 12] + at);
    transpose_in_lanes(v);
#pragma GCC unroll 4
    for (int i = 0; i < 4; i++) {
        put_two_lines(tile, i, v[i], 0, tables, kind, f);
        put_two_lines(tile, 4 + i, v[i], 4, tables, kind, f);
    }
}

/* Two groups whose codes share bytes. */
INLINE void put_shared(char *tile, char *next, const uint8_t *const *rows, ptrdiff_t index,
                       const CodeTables *tables, const MatrixKind kind, const ExpandedFormat f)
{
    const ptrdiff_t groups = f.elements / GROUP;
    const ptrdiff_t at =
        index / groups * f.code_bytes + f.fields[0].offset + index % groups / 2 * GROUP;
    ivec v[8];
#pragma GCC unroll 8
    for (int i = 0; i < 8; i++) {
        const group bytes[2] = {group_load(rows[i] + at), group_load(rows[i + 8] + at)};
        v[i] = join_groups(bytes);
    }
    transpose_words(v);
#pragma GCC unroll 8
    for (int i = 0; i < 8; i++) {
        put_two_lines(tile, i, v[i], 0, tables, kind, f);
        put_two_lines(next, i, v[i], 4, tables, kind, f);
    }
}

/* The codes of some groups from group `first` on. */
INLINE void put_groups(char *tiles, const uint8_t *const *rows, ptrdiff_t first, ptrdiff_t groups,
                       ptrdiff_t in, const CodeTables *tables, const MatrixKind kind,
                       const ExpandedFormat f)
{
    const ptrdiff_t apart = place_bytes(kind);
    for (ptrdiff_t g = first; g < first + groups; g++) {
        char *tile = tiles + group_place(g, in) * apart;
        if (are_nibbles(f) && f.fields[0].layout == HALVES)
            put_halves(tile, rows, g, tables, kind, f);
        else if (are_nibbles(f) && f.fields[0].layout == SHARED) {
            put_shared(tile, tiles + group_place(g + 1, in) * apart, rows, g, tables, kind, f);
            g++;
        } else
            put_group(tile, rows, g, tables, kind, f);
    }
}

/* Where some rows of blocks are. */
typedef struct BlockRows {
    const uint8_t *codes[TILE_WEIGHTS];
    const char *scales[TILE_WEIGHTS]; /* the first of each row; not of scales that are codes */
} BlockRows;

/* The scales and minima of the groups of all lanes, or of fewer at the end of a row: those of a
 * group in a vector, behind its codes. */
INLINE void put_factors(char *tiles, const BlockRows *rows, ptrdiff_t first, ptrdiff_t groups,
                        ptrdiff_t in, const MatrixKind kind, const ExpandedFormat f)
{
    ivec of_rows[4][TILE_WEIGHTS];
    const ptrdiff_t block = first / (f.elements / GROUP), blocks = groups * GROUP / f.elements;
    for (int r = 0; r < TILE_WEIGHTS; r++) {
        const uint8_t *codes = rows->codes[r] + block * f.code_bytes;
        const char *scales = rows->scales[r] + block * f.scale_bytes;
        UnitFactors unit;
        if (groups == LANES)
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
        for (int g = 0; g < LANES; g++) {
            char *tile = tiles + group_place(first + g, in) * place_bytes(kind);
            if (g < groups)
                memcpy(tile + kind.planes * TILE_BYTES + i * TILE_LINE, &of_rows[i][g],
                       sizeof(ivec));
        }
    }
}

/* [rows / TILE_WEIGHTS][places][place_bytes], up to whole blocks of rows; those past the last row
 * repeat it, and nobody reads their results. */
INLINE void put_rows_into_tiles(const MatrixBlock *k, const ExpandedFormat f)
{
    const MatrixKind kind = matrix_kind(f);
    const ptrdiff_t row_blocks = k->in / f.elements, groups = k->in / GROUP;
    const ptrdiff_t tile_bytes = lane_places(k->in) * LANES * place_bytes(kind);
    CodeTables tables;
    fill_tables(&tables, kind, f);
    char *tiles = k->widened;
    for (ptrdiff_t first = 0; first < ceil_div(k->rows, MATRIX_ROWS) * MATRIX_ROWS;
         first += TILE_WEIGHTS, tiles += tile_bytes) {
        BlockRows rows;
        for (int r = 0; r < TILE_WEIGHTS; r++) {
            const ptrdiff_t block = (k->row + min_size(first + r, k->rows - 1)) * row_blocks;
            rows.codes[r] = (const uint8_t *)k->weight->data + block * f.code_bytes;
            rows.scales[r] = (const char *)k->weight->scales + block * f.scale_bytes;
        }
        for (ptrdiff_t g = 0; g < groups; g += LANES) {
            const ptrdiff_t some = min_size(LANES, groups - g);
            put_factors(tiles, &rows, g, some, k->in, kind, f);
            put_groups(tiles, rows.codes, g, some, k->in, &tables, kind, f);
        }
    }
}

/* Tokens from which on a product is faster than in vector registers (a Xeon of model 167). */
INLINE ptrdiff_t fewest_tokens(const ExpandedFormat f)
{
    const MatrixKind kind = matrix_kind(f);
    if (kind.planes == 2)
        return 32;
    return kind.parts == 2 ? INTEGER_FEW + 3 : INTEGER_FEW + 1;
}

/* Weight rows whose tiles fit the L2 cache next to those of the tokens. */
INLINE ptrdiff_t rows_in_cache(ptrdiff_t in, const ExpandedFormat f)
{
    const MatrixKind kind = matrix_kind(f);
    const ptrdiff_t bytes = 2 * lane_places(in) * LANES * place_bytes(kind);
    const ptrdiff_t blocks = min_size(MATRIX_CACHE_BYTES / bytes, CHUNK_ROWS / MATRIX_ROWS);
    return (blocks < 1 ? 1 : blocks) * MATRIX_ROWS;
}

/* ---- products ---- */

/* Up to BATCH_SUMS sums of groups of one lane, or of their parts, in a row. */
typedef struct TileBatch {
    ptrdiff_t place; /* of the first group */
    int sums;        /* 0 in a lane without groups */
    int begins;      /* 1: the lane begins at zero */
    int merges;      /* the last of its lane: sums of lanes that are added to it; -1 in others */
} TileBatch;

/* Where a block of tiles finds its operands. */
typedef struct TileBlock {
    const char *tokens[2];  /* numbers of the panels */
    const char *weights[2]; /* of both tiles of rows */
    const float *scales[2]; /* of the panels */
    const float *sums[2];   /* of the numbers of x */
    ptrdiff_t sums_apart;   /* from the sums of first parts to those of second parts */
    int rows[2];            /* tokens of each panel, up to a multiple of 4 */
    float *out;             /* [2 * TILE_TOKENS][CHUNK_ROWS] */
    float *buffers;         /* [2][BATCH_SUMS][TILE_SUMS] */
    float *waiting;         /* [WAITING + 1][BLOCK_TILES][TILE_SUMS] */
} TileBlock;

/* The sums of a batch of one tile, which are to be scaled and added. */
typedef struct TileJob {
    const float *sums;    /* [count][TILE_SUMS] */
    const float *factors; /* of the first group of the weights */
    const float *scales;  /* of the first group of the tokens */
    const float *x_sums;  /* the same of the sums of numbers */
    ptrdiff_t x_sums_apart;
    float *waiting;  /* of the tile, in that place for all tiles of a block */
    float *to;       /* where the lanes go */
    ptrdiff_t apart; /* from one token to the next there */
    TileBatch batch;
    int rows; /* tokens, up to a multiple of 4; 0: there is nothing to be added */
} TileJob;

INLINE TileJob job_of(const TileBlock *block, const TileBatch *batch, int panel, int tile,
                      int buffer, const MatrixKind kind)
{
    const ptrdiff_t apart = BLOCK_TILES * TILE_SUMS;
    float *waiting = block->waiting + (2 * panel + tile) * TILE_SUMS;
    TileJob job = {.sums = block->buffers + buffer * BATCH_SUMS * TILE_SUMS,
                   .factors =
                       (const float *)(block->weights[tile] + batch->place * place_bytes(kind)
                                       + kind.planes * TILE_BYTES),
                   .scales = block->scales[panel] + batch->place * TILE_TOKENS,
                   .x_sums = block->sums[panel] + batch->place * TILE_TOKENS,
                   .x_sums_apart = block->sums_apart,
                   .waiting = waiting,
                   .to = waiting + (batch->merges < 0 ? UNFINISHED : batch->merges) * apart,
                   .apart = TILE_WEIGHTS,
                   .batch = *batch,
                   .rows = block->rows[panel]};
    if (batch->merges == WAITING) {
        job.to = block->out + panel * TILE_TOKENS * CHUNK_ROWS + tile * TILE_WEIGHTS;
        job.apart = CHUNK_ROWS;
    }
    return job;
}

/* Tokens r to r + 3: adds the sums of a batch to the lane, and a finished lane to those that wait
 * for it. */
INLINE void add_sums(const TileJob *job, int r, const MatrixKind kind, const int count)
{
    const ptrdiff_t waiting_apart = BLOCK_TILES * TILE_SUMS, at = r * TILE_WEIGHTS;
    const vec offset = vec_all(&(float){(float)kind.offset});
    vec totals[4];
#pragma GCC unroll 4
    for (int i = 0; i < 4; i++)
        totals[i] =
            job->batch.begins
                ? vec_zero()
                : vec_load(job->waiting + UNFINISHED * waiting_apart + at + i * TILE_WEIGHTS);
#pragma GCC unroll 4
    for (int s = 0; s < count; s++) {
        const int g = s / kind.parts, part = s % kind.parts;
        const float *factors = job->factors + g * place_bytes(kind) / (ptrdiff_t)sizeof(float);
        const float *scales = job->scales + g * TILE_TOKENS + r;
        const float *x_sums = job->x_sums + g * TILE_TOKENS + r;
        const vec of_weights = vec_load(factors + part * TILE_WEIGHTS);
#pragma GCC unroll 4
        for (int i = 0; i < 4; i++) {
            const vec scale =
                kind.scaled ? of_weights : vec_multiply(of_weights, vec_all(scales + i));
            vec sum = vec_load(job->sums + s * TILE_SUMS + at + i * TILE_WEIGHTS);
            if (kind.offset)
                sum = mac_float32(sum, vec_all(x_sums + i), offset);
            totals[i] = mac_float32(totals[i], sum, scale);
        }
        if (!kind.has_mins || part < kind.parts - 1)
            continue;
#pragma GCC unroll 2
        for (int p = 0; p < kind.parts; p++) {
            const vec mins = vec_load(factors + (kind.parts + p) * TILE_WEIGHTS);
#pragma GCC unroll 4
            for (int i = 0; i < 4; i++) {
                const vec minimum = kind.scaled ? mins : vec_multiply(mins, vec_all(scales + i));
                const float *x_sum = x_sums + p * job->x_sums_apart + i;
                totals[i] = mac_float32(totals[i], vec_all(x_sum), minimum);
            }
        }
    }
    for (int level = 0; level < job->batch.merges; level++)
#pragma GCC unroll 4
        for (int i = 0; i < 4; i++)
            totals[i] = vec_add(
                vec_load(job->waiting + level * waiting_apart + at + i * TILE_WEIGHTS), totals[i]);
#pragma GCC unroll 4
    for (int i = 0; i < 4; i++)
        vec_store(job->to + (r + i) * job->apart, totals[i]);
}

INLINE void add_some_sums(const TileJob *job, int r, const MatrixKind kind)
{
    if (r >= job->rows)
        return;
    if (job->batch.sums == BATCH_SUMS)
        add_sums(job, r, kind, BATCH_SUMS);
    else
        add_sums(job, r, kind, job->batch.sums);
}

/* Loads sum s of a batch's tokens into the register of that number. */
#define LOAD_TOKENS(s)                                                 \
    if (s < batch->sums)                                               \
    TILE_LOAD(s, tokens + (batch->place + s / kind.parts) * TILE_BYTES \
                     + s % kind.parts * (TILE_LINE / 2))

INLINE void load_tokens(const char *tokens, const TileBatch *batch, const MatrixKind kind)
{
    LOAD_TOKENS(0);
    LOAD_TOKENS(1);
    LOAD_TOKENS(2);
    LOAD_TOKENS(3);
}

/* Multiplies them by those of a tile of weights, of which registers 4 and 5 hold two in turn, into
 * register 6 or 7. Meanwhile four tokens of the job before are added. */
#define SUM_TILE(s, w, sum)                                                              \
    if (s < batch->sums) {                                                               \
        const char *from = weights + (batch->place + s / kind.parts) * place_bytes(kind) \
                           + s % kind.parts * (TILE_BYTES / 2);                          \
        TILE_LOAD(w, from);                                                              \
        TILE_ZERO(sum);                                                                  \
        TILE_MULTIPLY(sum, s, w);                                                        \
        if (kind.planes == 2) {                                                          \
            TILE_LOAD(w, from + TILE_BYTES);                                             \
            TILE_MULTIPLY(sum, s, w);                                                    \
        }                                                                                \
        TILE_STORE(sum, sums + s * TILE_SUMS);                                           \
    }                                                                                    \
    add_some_sums(before, 4 * s, kind)

INLINE void sum_tile(float *sums, const char *weights, const TileBatch *batch,
                     const TileJob *before, const MatrixKind kind)
{
    SUM_TILE(0, 4, 6);
    SUM_TILE(1, 5, 7);
    SUM_TILE(2, 4, 6);
    SUM_TILE(3, 5, 7);
}

/* All of `in`, for two tiles of weight rows times one or two of tokens. The sums of each tile are
 * added while those of the next one are made. */
INLINE void multiply_tile_block(const TileBlock *block, ptrdiff_t in, const MatrixKind kind,
                                const int panels)
{
    const ptrdiff_t groups = in / GROUP, batch_groups = BATCH_SUMS / kind.parts;
    TileJob before = {.rows = 0};
    int buffer = 0;
    for (int turn = 0; turn < LANES; turn++) {
        const int lane = lane_in_turn(turn);
        const ptrdiff_t of_lane = lane < groups ? ceil_div(groups - lane, LANES) : 0;
        for (ptrdiff_t first = 0; first == 0 || first < of_lane; first += batch_groups) {
            const ptrdiff_t count = min_size(batch_groups, of_lane - first);
            const int is_last = first + count == of_lane;
            const TileBatch batch = {turn * lane_places(in) + first, (int)count * kind.parts,
                                     first == 0, is_last ? __builtin_ctz(~(unsigned)turn) : -1};
            for (int panel = 0; panel < panels; panel++) {
                load_tokens(block->tokens[panel], &batch, kind);
                for (int tile = 0; tile < 2; tile++, buffer = 1 - buffer) {
                    const TileJob job = job_of(block, &batch, panel, tile, buffer, kind);
                    sum_tile(block->buffers + buffer * BATCH_SUMS * TILE_SUMS, block->weights[tile],
                             &batch, &before, kind);
                    before = job;
                }
            }
        }
    }
    for (int r = 0; r < TILE_TOKENS; r += 4)
        add_some_sums(&before, r, kind);
}

/* Rows of both operands: weights and tokens that a register holds, by the number of parts. */
INLINE TileSizes tile_sizes(int tokens, const MatrixKind kind)
{
    TileSizes sizes = {.palette = 1};
    for (int tile = 0; tile < 8; tile++) {
        const int is_weights = tile == 4 || tile == 5;
        sizes.row_bytes[tile] = (uint16_t)(tile < 4 ? TILE_LINE / kind.parts : TILE_LINE);
        sizes.rows[tile] = (uint8_t)(is_weights ? TILE_TOKENS / kind.parts : tokens);
    }
    return sizes;
}

INLINE void multiply_in_tiles_of(const MatrixBlock *k, const MatrixKind kind, const int panels)
{
    const ptrdiff_t tile_bytes = lane_places(k->in) * LANES * place_bytes(kind);
    TileBlock block = {.sums_apart = lane_places(k->in) * LANES * TILE_TOKENS,
                       .buffers = k->work,
                       .waiting = k->work + 2 * BATCH_SUMS * TILE_SUMS};
    for (int p = 0; p < 2; p++) {
        const float *panel = k->panels[p < panels ? p : 0];
        block.tokens[p] = (const char *)panel_numbers(panel);
        block.scales[p] = panel_scales(panel, k->in);
        block.sums[p] = panel_sums(panel, k->in, 0);
        block.rows[p] = (int)ceil_div(k->tokens[p < panels ? p : 0], 4) * 4;
    }
    const TileSizes sizes = tile_sizes(block.rows[0], kind);
    TILES_BEGIN(sizes);
    for (ptrdiff_t row = 0; row < k->rows; row += MATRIX_ROWS) {
        for (int tile = 0; tile < 2; tile++)
            block.weights[tile] = k->widened + (row / TILE_WEIGHTS + tile) * tile_bytes;
        block.out = k->out + row;
        multiply_tile_block(&block, k->in, kind, panels);
    }
    TILES_END();
}

INLINE void multiply_any_panels(const MatrixBlock *k, const MatrixKind kind)
{
    if (k->tokens[1])
        multiply_in_tiles_of(k, kind, 2);
    else
        multiply_in_tiles_of(k, kind, 1);
}

INLINE void multiply_in_tiles(const MatrixBlock *k, const int parts, const int planes,
                              const int offset, const int has_mins)
{
    const int panels = k->tokens[1] ? 2 : 1;
    if (k->panels[0][0] > 0.0f && k->panels[panels - 1][0] > 0.0f)
        multiply_any_panels(k, (MatrixKind){parts, planes, offset, has_mins, 1});
    else
        multiply_any_panels(k, (MatrixKind){parts, planes, offset, has_mins, 0});
}

/* Compiled once, in the unit tiles_of_codes: tiles of all formats of a kind look the same. */
void multiply_tiles(const MatrixBlock *k, MatrixKind kind);

INLINE void multiply_any_kind(const MatrixBlock *k, const MatrixKind kind)
{
    const int places[] = {kind.parts == 2, kind.planes == 2, kind.offset != 0, kind.has_mins};
    switch (places[0] << 3 | places[1] << 2 | places[2] << 1 | places[3]) {
    case 0: multiply_in_tiles(k, 1, 1, 0, 0); break;
    case 1: multiply_in_tiles(k, 1, 1, 0, 1); break;
    case 3: multiply_in_tiles(k, 1, 1, 16, 1); break;
    case 4: multiply_in_tiles(k, 1, 2, 0, 0); break;
    case 8: multiply_in_tiles(k, 2, 1, 0, 0); break;
    case 9: multiply_in_tiles(k, 2, 1, 0, 1); break;
    default: multiply_in_tiles(k, kind.parts, kind.planes, kind.offset, kind.has_mins);
    }
}
