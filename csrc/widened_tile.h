/*
 * Formats that are widened: one token times a few rows of codes.
 *
 * A product is that of float32, 16 lanes and all, with the weight dequantized to float32. Lanes may
 * hold their elements in another order meanwhile, the same for x and the weights.
 */
#pragma once
#include "formats.h"

/* Rows that are multiplied side by side, at one block of theirs. */
typedef struct CodeRows {
    const Weight *weight;
    ptrdiff_t block, blocks;        /* the first row's block; how many a row has */
    const float *nested[CODE_ROWS]; /* nested: what the codes of each row's scales mean */
} CodeRows;

/* x in the order in which table_values gives the weights; `in` is whole lanes. */
static void pack_codes(float *panel, const char *x, ptrdiff_t x_stride, int tokens, ptrdiff_t in,
                       ElementType x_type)
{
    (void)x_stride, (void)tokens;
    float block[BLOCK] = {0};
    FOR_EACH_BLOCK (start, count, in) {
        widen(block, element_at(x, x_type, start), count, x_type);
        for (ptrdiff_t l = 0; l < count; l += VEC_LANES)
            vec_store(panel + start + l, to_code_order(vec_load(block + l)));
    }
}

/* Adds the products of one block of each row. */
INLINE void add_code_block(vec *sums, const float *x, const CodeRows *w, const WidenedFormat f,
                           const int rows)
{
    const uint8_t *codes = (const uint8_t *)w->weight->data + w->block * f.code_bytes;
    const uint8_t *scales = (const uint8_t *)w->weight->scales + w->block;
    Table tables[CODE_ROWS];
#pragma GCC unroll 4
    for (int r = 0; r < rows; r++)
        tables[r] = f.table(f.nested ? w->nested[r][scales[r * w->blocks]]
                                     : f.scale(w->weight, w->block + r * w->blocks));
#pragma GCC unroll 4
    for (int step = 0; step < f.elements / LANES; step++)
#pragma GCC unroll 4
        for (int part = 0; part < VEC_PARTS; part++) {
            const vec lanes = vec_load(x + step * LANES + part * VEC_LANES);
#pragma GCC unroll 4
            for (int r = 0; r < rows; r++) {
                const uint8_t *of_row = codes + r * w->blocks * f.code_bytes;
                vec *sum = sums + r * VEC_PARTS + part;
                *sum = mac_float32(*sum, lanes, f.values(of_row, step, part, tables[r]));
            }
        }
}

/*
 * Prefetches the blocks from `next` on, in the rows after these as far along as they are. These
 * follow one another in memory, while the rows are read side by side: so the processor sees one
 * stream.
 */
INLINE void prefetch_codes_of(const Weight *weight, ptrdiff_t next, const WidenedFormat f,
                              const int rows)
{
    const char *codes = (const char *)weight->data + next * f.code_bytes;
#pragma GCC unroll 4
    for (ptrdiff_t at = 0; at < rows * f.code_bytes; at += LINE)
        __builtin_prefetch(codes + at);
    __builtin_prefetch((const char *)weight->scales + next * f.scale_bytes);
}

/*
 * The scales that the codes of scales mean, in a table for each nested block that the rows meet.
 * Returns for how many blocks, at most `left`, these are the tables.
 */
INLINE ptrdiff_t nested_tables(CodeRows *w, float (*room)[256], ptrdiff_t left, const int rows)
{
    ptrdiff_t last = -1;
    for (int r = 0; r < rows; r++) {
        const ptrdiff_t at = w->block + r * w->blocks, nested = at / NESTED_BLOCK;
        left = min_size(left, (nested + 1) * NESTED_BLOCK - at);
        w->nested[r] = nested == last ? w->nested[r - 1] : room[r];
        for (int i = 0; nested != last && i < 256; i++)
            room[r][i] = w->weight->nested_code[i] * w->weight->nested_absmax[nested]
                         + w->weight->nested_offset;
        last = nested;
    }
    return left;
}

/* out[r] = x . row (row + r): x as pack_codes laid it out, rows of whole blocks. */
INLINE void multiply_code_rows(float *out, const float *x, const Weight *weight, ptrdiff_t row,
                               ptrdiff_t in, const WidenedFormat f, const int rows)
{
    const ptrdiff_t blocks = in / f.elements;
    float room[CODE_ROWS][256];
    vec sums[CODE_ROWS * VEC_PARTS];
#pragma GCC unroll 8
    for (int i = 0; i < rows * VEC_PARTS; i++)
        sums[i] = vec_zero();
    for (ptrdiff_t start = 0, count; start < blocks; start += count) {
        CodeRows w = {weight, row * blocks + start, blocks, {NULL}};
        ptrdiff_t next = w.block + rows * blocks;
        count = f.nested ? nested_tables(&w, room, blocks - start, rows) : blocks;
        for (ptrdiff_t i = 0; i < count; i++, w.block++, next += rows, x += f.elements) {
            prefetch_codes_of(weight, next, f, rows);
            add_code_block(sums, x, &w, f, rows);
        }
    }
#pragma GCC unroll 4
    for (int r = 0; r < rows; r++) {
#pragma GCC unroll 4
        for (int part = 0; part < VEC_PARTS; part++)
            sums[r * VEC_PARTS + part] = from_code_order(sums[r * VEC_PARTS + part]);
        out[r] = reduce_vectors(sums + r * VEC_PARTS);
    }
}

INLINE void multiply_any_codes(float *out, const float *x, const Weight *weight, ptrdiff_t row,
                               ptrdiff_t rows, ptrdiff_t in, const WidenedFormat f)
{
    ptrdiff_t r = 0;
    for (; r + CODE_ROWS <= rows; r += CODE_ROWS)
        multiply_code_rows(out + r, x, weight, row + r, in, f, CODE_ROWS);
    for (; r < rows; r++)
        multiply_code_rows(out + r, x, weight, row + r, in, f, 1);
}
