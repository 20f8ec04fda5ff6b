/*
 * nf4 weights on vectors: one token times a few rows of codes, and spans dequantised to
 * bfloat16. A quantized_*.h header defines before this one what differs between vectors:
 * nf4_values, vec_multiply, vec_subtract, vec_all_of, round_to_bf16 and join_pairs.
 *
 * A weight is rounded to bfloat16 before it is multiplied, so the sums have the bits of the product
 * with the dequantised weight. That is done to the 16 values of a block's table. Where no
 * scale is extreme, three operations on floats round to 8 bits: p = w * (2^16 + 1), d = p - w,
 * p - d (G. W. Veltkamp; ties to even for this constant, which tests try for all mantissas).
 */
#ifndef LLAMA_BOLTS_QUANTIZED_TILE_H
#define LLAMA_BOLTS_QUANTIZED_TILE_H

enum {
    /* Rows side by side: several chains of sums, and several streams from memory. */
    CODE_ROWS = 4,
    /* Blocks of nf4 in a row, at most, whose nested scales are written out. */
    MOST_SCALES = 512,
    STRETCH_SCALES = QUANTIZED_STRETCH / NF4_BLOCK
};

#define SPLITTER 65537.0f

/* Rows of codes and of scales, one after the other. */
typedef struct CodeRows {
    const uint8_t *codes;
    const float *scales;
    ptrdiff_t in;
} CodeRows;

/* ---- rounding ---- */

/* Whether rounding by SPLITTER neither overflows nor meets subnormal numbers: 0, or 2^-100 to
 * 2^100. Taking 1 off makes 0 the largest number. */
INLINE int are_usual(const float *scales, ptrdiff_t count)
{
    uint32_t largest = 0, least = 0xFFFFFFFFu;
    for (ptrdiff_t i = 0; i < count; i++) {
        const uint32_t magnitude = bits_of(scales[i]) & 0x7FFFFFFFu;
        largest = magnitude > largest ? magnitude : largest;
        least = magnitude - 1 < least ? magnitude - 1 : least;
    }
    return largest <= 0x71800000u && least >= 0x0D800000u - 1;
}

/* The values of the 16 codes of a block. */
INLINE Nf4Table nf4_scaled(float scale)
{
    Nf4Table table;
#pragma GCC unroll 2
    for (int part = 0; part < VEC_PARTS; part++)
        table.values[part] =
            vec_multiply(vec_load(nf4_code + part * VEC_LANES), vec_all_of(scale));
    return table;
}

INLINE Nf4Table nf4_split(float scale)
{
    Nf4Table table = nf4_scaled(scale);
#pragma GCC unroll 2
    for (int part = 0; part < VEC_PARTS; part++) {
        const vec w = table.values[part], p = vec_multiply(w, vec_all_of(SPLITTER));
        table.values[part] = vec_subtract(p, vec_subtract(p, w));
    }
    return table;
}

/* ---- one token ---- */

/* The sums of a row and a vector of x, for one block of 32; odd and even are w's two phases. */
INLINE vec add_phases(vec sum, const char *x, vec odd, vec even, int part)
{
    if (BF16_PHASES == 1)
        return mac_bf16(sum, load_bf16(x, 0, part), join_pairs(odd, even));
    sum = mac_bf16(sum, load_bf16(x, 0, part), odd);
    return mac_bf16(sum, load_bf16(x, BF16_PHASES - 1, part), even);
}

INLINE void add_nf4_block(const int rows, const CodeRows *w, ptrdiff_t start, const char *x,
                          vec *sums)
{
    const uint8_t *codes = w->codes + start / 2;
    const float *scales = w->scales + start / NF4_BLOCK;
    Nf4Table tables[CODE_ROWS];
#pragma GCC unroll 4
    for (int r = 0; r < rows; r++)
        tables[r] = nf4_split(scales[r * (w->in / NF4_BLOCK)]);
#pragma GCC unroll 2
    for (int half = 0; half < 2; half++)
#pragma GCC unroll 2
        for (int part = 0; part < VEC_PARTS; part++)
#pragma GCC unroll 4
            for (int r = 0; r < rows; r++) {
                const uint8_t *at = codes + r * (w->in / 2) + 16 * half;
                vec *sum = sums + r * VEC_PARTS + part;
                *sum = add_phases(*sum, x + start * 2 + 64 * half,
                                  nf4_values(at, tables[r], 0, part),
                                  nf4_values(at, tables[r], 1, part), part);
            }
}

/*
 * Asks for a part of the rows that come after these. The parts follow one another in memory, while
 * the rows are read side by side: so the processor sees one stream.
 */
INLINE void prefetch_codes(const uint8_t *codes, ptrdiff_t bytes)
{
    for (ptrdiff_t at = 0; at < bytes; at += LINE)
        __builtin_prefetch(codes + at);
}

INLINE void multiply_nf4_rows(const int rows, const CodeRows *w, const char *x, float *out)
{
    vec sums[CODE_ROWS * VEC_PARTS];
#pragma GCC unroll 8
    for (int i = 0; i < rows * VEC_PARTS; i++)
        sums[i] = vec_zero();
    for (ptrdiff_t start = 0; start < w->in; start += QUANTIZED_STRETCH) {
        const ptrdiff_t count = min_size(QUANTIZED_STRETCH, w->in - start);
        for (ptrdiff_t at = start; at < start + count; at += NF4_BLOCK) {
            prefetch_codes(w->codes + rows * (w->in + at) / 2, rows * NF4_BLOCK / 2);
            add_nf4_block(rows, w, at, x, sums);
        }
    }
#pragma GCC unroll 4
    for (int r = 0; r < rows; r++)
        out[r] = fold_vectors(sums + r * VEC_PARTS);
}

/* The same for scales of any size, by way of the dequantised weight. */
static void multiply_any_row(const QuantizedWeight *w, ptrdiff_t row, ptrdiff_t in, const char *x,
                             float *out)
{
    uint16_t weight[QUANTIZED_STRETCH];
    vec sums[VEC_PARTS];
    for (int part = 0; part < VEC_PARTS; part++)
        sums[part] = vec_zero();
    for (ptrdiff_t start = 0; start < in; start += QUANTIZED_STRETCH) {
        const ptrdiff_t count = min_size(QUANTIZED_STRETCH, in - start);
        dequantize_any(w, row * in + start, count, weight, TYPE_BF16);
        for (ptrdiff_t at = 0; at < count * 2; at += 64)
            for (int phase = 0; phase < BF16_PHASES; phase++)
                for (int part = 0; part < VEC_PARTS; part++)
                    sums[part] =
                        mac_bf16(sums[part], load_bf16(x + start * 2 + at, phase, part),
                                 load_bf16((const char *)weight + at, phase, part));
    }
    *out = fold_vectors(sums);
}

/* Some rows; 0 if their scales are such that rounding by SPLITTER would not be right. */
INLINE int multiply_code_rows(const int rows, const QuantizedWeight *w, ptrdiff_t row,
                              ptrdiff_t in, const char *x, float *out)
{
    const ptrdiff_t size = quantized_block(w->format), blocks = rows * in / size;
    CodeRows c = {w->codes + code_bytes(w->format, row * in), NULL, in};
    float room[CODE_ROWS * MOST_SCALES];
    c.scales = (const float *)w->scales + row * in / size;
    if (w->format == QUANTIZED_NF4_NESTED) {
        if (in / size > MOST_SCALES)
            return 0;
        expand_scales(w, row * in / size, blocks, room);
        c.scales = room;
    }
    if (!are_usual(c.scales, blocks))
        return 0;
    multiply_nf4_rows(rows, &c, x, out);
    return 1;
}

/* out[r] = x . row (row + r): bfloat16 x, nf4 rows of whole blocks. */
static void multiply_codes(const QuantizedWeight *w, ptrdiff_t row, ptrdiff_t rows, ptrdiff_t in,
                           const char *x, float *out)
{
    ptrdiff_t r = 0;
    while (r < rows)
        if (r + CODE_ROWS <= rows && multiply_code_rows(CODE_ROWS, w, row + r, in, x, out + r))
            r += CODE_ROWS;
        else if (multiply_code_rows(1, w, row + r, in, x, out + r))
            r++;
        else
            multiply_any_row(w, row + r, in, x, out + r), r++;
}

/* ---- dequantising to bfloat16 ---- */

/*
 * Where blocks of 32 elements go: side by side as bfloat16, or, widened, as tile.h keeps them, in
 * steps of one vector for each of some rows.
 */
typedef struct Sink {
    char *out;
    ptrdiff_t block, phase, part; /* bytes from one to the next */
} Sink;

INLINE void put_block(const int widens, Sink to, ptrdiff_t block, int part, vec odd, vec even)
{
    float *out = (float *)(to.out + block * to.block + part * to.part);
    if (widens) {
        vec_store(out, odd);
        vec_store(out + to.phase / (ptrdiff_t)sizeof(float), even);
    } else {
        vec_store(out, join_pairs(odd, even));
    }
}

INLINE void put_nf4_block(const int widens, const uint8_t *codes, float scale, Sink to,
                          ptrdiff_t block)
{
    Nf4Table table = nf4_scaled(scale);
#pragma GCC unroll 2
    for (int part = 0; part < VEC_PARTS; part++)
        table.values[part] = round_to_bf16(table.values[part]);
#pragma GCC unroll 2
    for (int half = 0; half < 2; half++)
#pragma GCC unroll 2
        for (int part = 0; part < VEC_PARTS; part++)
            put_block(widens, to, 2 * block + half, part,
                      nf4_values(codes + 16 * half, table, 0, part),
                      nf4_values(codes + 16 * half, table, 1, part));
}

/* Whole blocks, a stretch of them at most. */
INLINE void put_blocks(const int widens, const QuantizedWeight *w, ptrdiff_t first,
                       ptrdiff_t count, Sink to)
{
    const uint8_t *codes = w->codes + code_bytes(w->format, first);
    float scales[STRETCH_SCALES];
    expand_scales(w, first / NF4_BLOCK, count / NF4_BLOCK, scales);
    for (ptrdiff_t b = 0; b < count / NF4_BLOCK; b++, codes += NF4_BLOCK / 2)
        put_nf4_block(widens, codes, scales[b], to, b);
}

static void blocks_to_bf16(const QuantizedWeight *w, ptrdiff_t first, ptrdiff_t count, char *out)
{
    for (ptrdiff_t done = 0; done < count; done += QUANTIZED_STRETCH) {
        const ptrdiff_t some = min_size(QUANTIZED_STRETCH, count - done);
        const Sink to = {out + done * 2, 64, 0, 4 * VEC_LANES};
        put_blocks(0, w, first + done, some, to);
    }
}

/* out[i] = element first + i, rounded once to the type; any first, any count. */
static void dequantize_span(const QuantizedWeight *w, ptrdiff_t first, ptrdiff_t count, void *out,
                            int out_type)
{
    const ptrdiff_t size = quantized_block(w->format);
    const ptrdiff_t head = min_size(count, (size - first % size) % size);
    const int is_fast = out_type == TYPE_BF16 && w->format != QUANTIZED_INT8;
    const ptrdiff_t whole = is_fast ? (count - head) / size * size : 0;
    dequantize_any(w, first, head, out, out_type);
    blocks_to_bf16(w, first + head, whole, (char *)out + head * 2);
    dequantize_any(w, first + head + whole, count - head - whole,
                   output_at(out, out_type, head + whole), out_type);
}

/* A stretch of one row, widened; elements after the last one are zeros. */
static void widen_row(const QuantizedWeight *w, ptrdiff_t first, ptrdiff_t count, Sink to)
{
    uint16_t weight[QUANTIZED_STRETCH];
    memset(weight + count / 32 * 32, 0, (size_t)(ceil_div(count, 32) - count / 32) * 64);
    dequantize_span(w, first, count, weight, TYPE_BF16);
    for (ptrdiff_t block = 0; block < ceil_div(count, 32); block++)
        for (int part = 0; part < VEC_PARTS; part++) {
            const char *pairs = (const char *)(weight + block * 32);
            put_block(1, to, block, part, load_bf16(pairs, 0, part),
                      load_bf16(pairs, BF16_PHASES - 1, part));
        }
}

/*
 * A stretch of some rows of bfloat16 as tile.h keeps weights widened: tile after tile, and in one
 * part after part, step after step, row after row. The next stretch is asked for meanwhile.
 */
static void widen_codes_stretch(const QuantizedWeight *w, ptrdiff_t row, ptrdiff_t rows,
                                ptrdiff_t in, ptrdiff_t start, ptrdiff_t count, float *widened)
{
    const ptrdiff_t size = quantized_block(w->format), vector = 4 * VEC_LANES;
    const ptrdiff_t steps = ceil_div(count, 32) * BF16_PHASES;
    const int has_whole_blocks = in % size == 0 && start % size == 0 && count % size == 0;
    for (ptrdiff_t r = 0; r < rows; r++) {
        const ptrdiff_t tile = r / TILE_ROWS * TILE_ROWS, first = (row + r) * in + start;
        const ptrdiff_t side = tile + TILE_ROWS <= rows ? TILE_ROWS : 1;
        const ptrdiff_t place = side == 1 ? 0 : r - tile;
        char *out = (char *)(widened + (r - place) * steps * LANES) + place * vector;
        const Sink to = {out, BF16_PHASES * side * vector, side * vector, steps * side * vector};
        prefetch_codes(w->codes + code_bytes(w->format, first + count),
                       code_bytes(w->format, count));
        if (has_whole_blocks)
            put_blocks(1, w, first, count, to);
        else
            widen_row(w, first, count, to);
    }
}

#endif
