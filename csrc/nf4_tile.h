/*
 * nf4 weights on vectors: one token times a few rows of codes, and blocks dequantised to float32.
 * A nf4_*.h header defines before this one what differs between vectors: NF4_ROWS, Nf4Table,
 * nf4_table, nf4_values, to_nf4_order and from_nf4_order.
 *
 * A product is that of float32, 16 lanes and all, with the weight dequantised to float32. Lanes may
 * hold their elements in another order meanwhile, the same for x and the weights.
 */
#ifndef LLAMA_BOLTS_NF4_TILE_H
#define LLAMA_BOLTS_NF4_TILE_H

enum { NF4_BYTES = NF4_BLOCK / 2 }; /* of the codes of a block */

/* Rows that are multiplied side by side, from one block of theirs on. */
typedef struct Nf4Rows {
    const uint8_t *codes;
    const void *scales;
    ptrdiff_t blocks;               /* of a row */
    const float *nested[NF4_ROWS]; /* NESTED: what the codes of each row's scales mean */
} Nf4Rows;

/* lanes[i] = x[i], in the order in which nf4_values gives the weights; in is whole blocks. */
static void pack_nf4(int kind, const char *x, ptrdiff_t in, float *lanes)
{
    const int type = kind == PRODUCT_F32 ? TYPE_F32 : TYPE_BF16;
    float block[NF4_BLOCK];
    for (ptrdiff_t i = 0; i < in; i += NF4_BLOCK) {
        widen(element_at(x, type, i), type, NF4_BLOCK, block);
        for (ptrdiff_t l = 0; l < NF4_BLOCK; l += VEC_LANES)
            vec_store(lanes + i + l, to_nf4_order(vec_load(block + l)));
    }
}

INLINE const float *nf4_scale(const int nested, const Nf4Rows *w, int r, ptrdiff_t block)
{
    const ptrdiff_t at = r * w->blocks + block;
    return nested ? w->nested[r] + ((const uint8_t *)w->scales)[at] : (const float *)w->scales + at;
}

/* Adds the products of one block of each row. */
INLINE void add_nf4_block(const int nested, const int rows, const Nf4Rows *w, ptrdiff_t block,
                          const float *x, vec *sums)
{
    Nf4Table tables[NF4_ROWS];
#pragma GCC unroll 4
    for (int r = 0; r < rows; r++)
        tables[r] = nf4_table(nf4_scale(nested, w, r, block));
#pragma GCC unroll 4
    for (int step = 0; step < NF4_BLOCK / LANES; step++)
#pragma GCC unroll 2
        for (int part = 0; part < VEC_PARTS; part++) {
            const vec lanes = vec_load(x + block * NF4_BLOCK + step * LANES + part * VEC_LANES);
#pragma GCC unroll 4
            for (int r = 0; r < rows; r++) {
                const uint8_t *codes = w->codes + (r * w->blocks + block) * NF4_BYTES;
                vec *sum = sums + r * VEC_PARTS + part;
                *sum = mac_f32(*sum, lanes, nf4_values(codes + step * LANES / 2, tables[r], part));
            }
        }
}

/*
 * Asks for the part of the rows after these that is as far along as they are. The parts follow one
 * another in memory, while the rows are read side by side: so the processor sees one stream.
 */
INLINE void prefetch_nf4(const int nested, const int rows, const Nf4Rows *w, ptrdiff_t block)
{
    const ptrdiff_t next = rows * (w->blocks + block);
#pragma GCC unroll 4
    for (ptrdiff_t at = 0; at < rows * NF4_BYTES; at += LINE)
        __builtin_prefetch(w->codes + next * NF4_BYTES + at);
    __builtin_prefetch((const char *)w->scales + next * (nested ? 1 : (ptrdiff_t)sizeof(float)));
}

/*
 * The scales that the codes of scales mean, in a table for each nested block that the rows meet.
 * Returns for how many blocks, at most `left`, these are the tables.
 */
INLINE ptrdiff_t nested_tables(const int rows, const QuantizedWeight *weight, ptrdiff_t first,
                               ptrdiff_t left, Nf4Rows *w, float (*room)[256])
{
    ptrdiff_t last = -1;
    for (int r = 0; r < rows; r++) {
        const ptrdiff_t at = first + r * w->blocks, group = at / NESTED_BLOCK;
        left = min_size(left, (group + 1) * NESTED_BLOCK - at);
        w->nested[r] = group == last ? w->nested[r - 1] : room[r];
        for (int i = 0; group != last && i < 256; i++)
            room[r][i] = weight->nested_code[i] * weight->nested_absmax[group]
                         + weight->nested_offset;
        last = group;
    }
    return left;
}

INLINE void multiply_nf4_rows(const int nested, const int rows, const QuantizedWeight *weight,
                              ptrdiff_t row, ptrdiff_t in, const float *x, float *out)
{
    const ptrdiff_t blocks = in / NF4_BLOCK, scale_bytes = nested ? 1 : sizeof(float);
    float room[NF4_ROWS][256];
    vec sums[NF4_ROWS * VEC_PARTS];
#pragma GCC unroll 8
    for (int i = 0; i < rows * VEC_PARTS; i++)
        sums[i] = vec_zero();
    for (ptrdiff_t start = 0, count; start < blocks; start += count) {
        const ptrdiff_t first = row * blocks + start;
        Nf4Rows w = {weight->codes + first * NF4_BYTES,
                     (const char *)weight->scales + first * scale_bytes, blocks, {NULL}};
        count = blocks - start;
        if (nested)
            count = nested_tables(rows, weight, first, count, &w, room);
        for (ptrdiff_t block = 0; block < count; block++) {
            prefetch_nf4(nested, rows, &w, block);
            add_nf4_block(nested, rows, &w, block, x + start * NF4_BLOCK, sums);
        }
    }
#pragma GCC unroll 8
    for (int i = 0; i < rows * VEC_PARTS; i++)
        sums[i] = from_nf4_order(sums[i]);
#pragma GCC unroll 4
    for (int r = 0; r < rows; r++)
        out[r] = fold_vectors(sums + r * VEC_PARTS);
}

INLINE void multiply_any_nf4(const int nested, const QuantizedWeight *w, ptrdiff_t row,
                             ptrdiff_t rows, ptrdiff_t in, const float *x, float *out)
{
    ptrdiff_t r = 0;
    for (; r + NF4_ROWS <= rows; r += NF4_ROWS)
        multiply_nf4_rows(nested, NF4_ROWS, w, row + r, in, x, out + r);
    for (; r < rows; r++)
        multiply_nf4_rows(nested, 1, w, row + r, in, x, out + r);
}

/* out[r] = x . row (row + r): x as pack_nf4 laid it out, rows of whole blocks. */
static void multiply_nf4(const QuantizedWeight *w, ptrdiff_t row, ptrdiff_t rows, ptrdiff_t in,
                         const float *x, float *out)
{
    if (w->format == QUANTIZED_NF4_NESTED)
        multiply_any_nf4(1, w, row, rows, in, x, out);
    else
        multiply_any_nf4(0, w, row, rows, in, x, out);
}

/* Whole blocks, a stretch of them at most. */
static void widen_nf4_blocks(const QuantizedWeight *w, ptrdiff_t first, ptrdiff_t count, float *out)
{
    const uint8_t *codes = w->codes + first / 2;
    float scales[QUANTIZED_STRETCH / NF4_BLOCK];
    expand_scales(w, first / NF4_BLOCK, count / NF4_BLOCK, scales);
    for (ptrdiff_t b = 0; b < count / NF4_BLOCK; b++) {
        const Nf4Table table = nf4_table(scales + b);
#pragma GCC unroll 4
        for (int step = 0; step < NF4_BLOCK / LANES; step++, codes += LANES / 2, out += LANES)
#pragma GCC unroll 2
            for (int part = 0; part < VEC_PARTS; part++)
                vec_store(out + part * VEC_LANES, from_nf4_order(nf4_values(codes, table, part)));
    }
}

/* out[i] = element first + i, rounded once to the type; any first, any count. */
static void dequantize_nf4(const QuantizedWeight *w, ptrdiff_t first, ptrdiff_t count, void *out,
                           int out_type)
{
    const ptrdiff_t head = min_size(count, (NF4_BLOCK - first % NF4_BLOCK) % NF4_BLOCK);
    const ptrdiff_t end = head + (count - head) / NF4_BLOCK * NF4_BLOCK;
    float room[QUANTIZED_STRETCH];
    dequantize_any(w, first, head, out, out_type);
    for (ptrdiff_t done = head, some; done < end; done += some) {
        some = min_size(QUANTIZED_STRETCH, end - done);
        float *wide = out_type == TYPE_F32 ? (float *)out + done : room;
        widen_nf4_blocks(w, first + done, some, wide);
        if (wide == room)
            narrow(room, some, output_at(out, out_type, done), out_type);
    }
    dequantize_any(w, first + end, count - end, output_at(out, out_type, end), out_type);
}

/*
 * A stretch of some rows as tile.h keeps weights widened: tile after tile, and in one part after
 * part, step after step, row after row; the last step is padded by zeros.
 */
static void widen_nf4_stretch(const QuantizedWeight *w, ptrdiff_t row, ptrdiff_t rows,
                              ptrdiff_t in, ptrdiff_t start, ptrdiff_t count, float *widened)
{
    const ptrdiff_t steps = ceil_div(count, LANES);
    float room[QUANTIZED_STRETCH];
    memset(room + count, 0, (size_t)(steps * LANES - count) * sizeof(float));
    for (ptrdiff_t r = 0; r < rows; r++) {
        const ptrdiff_t tile = r / TILE_ROWS * TILE_ROWS, first = (row + r) * in + start;
        const ptrdiff_t side = tile + TILE_ROWS <= rows ? TILE_ROWS : 1;
        const ptrdiff_t place = side == 1 ? 0 : r - tile;
        float *out = widened + (r - place) * steps * LANES + place * VEC_LANES;
        for (ptrdiff_t at = 0; at < count / 2; at += LINE)
            __builtin_prefetch(w->codes + (first + count) / 2 + at);
        dequantize_nf4(w, first, count, room, TYPE_F32);
        for (int part = 0; part < VEC_PARTS; part++)
            for (ptrdiff_t step = 0; step < steps; step++, out += side * VEC_LANES)
                vec_store(out, vec_load(room + step * LANES + part * VEC_LANES));
    }
}

#endif
