/*
 * int8 weights on vectors: one token times a few rows of codes, and spans dequantised to bfloat16.
 * A quantized_*.h header defines before this one what differs between vectors: int8_words,
 * int8_values, vec_multiply, vec_subtract, vec_all_of, vec_negative_multiply_add and join_pairs.
 *
 * A weight is rounded to bfloat16 before it is multiplied, so the sums have the bits of the product
 * with the dequantised weight. Where no scale is extreme, three operations on floats round to 8
 * bits: p = w * (2^16 + 1), d = p - w, p - d (G. W. Veltkamp; ties to even for this constant, which
 * tests try for all mantissas).
 */
#ifndef LLAMA_BOLTS_QUANTIZED_TILE_H
#define LLAMA_BOLTS_QUANTIZED_TILE_H

enum {
    /* Rows side by side: several chains of sums, and several streams from memory. */
    CODE_ROWS = 4,
    STRETCH_SCALES = QUANTIZED_STRETCH / INT8_BLOCK
};

#define SPLITTER 65537.0f

/* Rows of codes and of scales, one after the other. */
typedef struct CodeRows {
    const uint8_t *codes;
    const void *scales; /* bfloat16 */
    ptrdiff_t in;
} CodeRows;

/* ---- rounding ---- */

/* Powers of two, or 0: a code times such a scale is a bfloat16 as it is. */
INLINE int are_powers(const uint16_t *scales, ptrdiff_t count)
{
    uint16_t mantissas = 0;
    for (ptrdiff_t i = 0; i < count; i++)
        mantissas |= scales[i] & 0x7Fu;
    return mantissas == 0;
}

INLINE int are_usual_bf16(const uint16_t *scales, ptrdiff_t count)
{
    uint16_t largest = 0, least = 0xFFFFu;
    for (ptrdiff_t i = 0; i < count; i++) {
        const uint16_t magnitude = scales[i] & 0x7FFFu, below = (uint16_t)(magnitude - 1);
        largest = magnitude > largest ? magnitude : largest;
        least = below < least ? below : least;
    }
    return largest <= 0x7180u && least >= 0x0D80u - 1;
}

/*
 * int8_values gives an odd element times 2^8, as it lies in the upper byte of a 16-bit word, and an
 * even one times 2^24, shifted to the uppermost byte of 32 bits. The scales take that back.
 */
typedef struct Int8Scales {
    float odd[STRETCH_SCALES], even[STRETCH_SCALES];
    float odd_split[STRETCH_SCALES], even_split[STRETCH_SCALES]; /* times SPLITTER */
} Int8Scales;

INLINE void spread_scales(const uint16_t *restrict scales, ptrdiff_t count,
                          Int8Scales *restrict spread)
{
    for (ptrdiff_t b = 0; b < count; b++) {
        const float scale = bf16_to_f32(scales[b]);
        spread->odd[b] = scale * 0x1p-8f;
        spread->even[b] = scale * 0x1p-24f;
        spread->odd_split[b] = scale * (0x1p-8f * SPLITTER);
        spread->even_split[b] = scale * (0x1p-24f * SPLITTER);
    }
}

INLINE vec int8_split(const int rounds, vec words, int phase, const float *scale,
                      const float *split)
{
    const vec q = int8_values(words, phase);
    if (!rounds)
        return vec_multiply(q, vec_all_of(*scale));
    const vec p = vec_multiply(q, vec_all_of(*split));
    return vec_subtract(p, vec_negative_multiply_add(q, vec_all_of(*scale), p));
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

INLINE void add_int8_block(const int rounds, const int rows, const CodeRows *w, ptrdiff_t start,
                           const char *x, const Int8Scales *spread, ptrdiff_t block, vec *sums)
{
    const uint8_t *codes = w->codes + start;
#pragma GCC unroll 2
    for (int part = 0; part < VEC_PARTS; part++)
#pragma GCC unroll 4
        for (int r = 0; r < rows; r++) {
            const Int8Scales *s = spread + r;
            const vec words = int8_words(codes + r * w->in, part);
            const vec odd = int8_split(rounds, words, 0, s->odd + block, s->odd_split + block);
            const vec even = int8_split(rounds, words, 1, s->even + block, s->even_split + block);
            vec *sum = sums + r * VEC_PARTS + part;
            *sum = add_phases(*sum, x + start * 2, odd, even, part);
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

INLINE void multiply_int8_rows(const int rounds, const int rows, const CodeRows *w, const char *x,
                               float *out)
{
    Int8Scales spread[CODE_ROWS];
    vec sums[CODE_ROWS * VEC_PARTS];
#pragma GCC unroll 8
    for (int i = 0; i < rows * VEC_PARTS; i++)
        sums[i] = vec_zero();
    for (ptrdiff_t start = 0; start < w->in; start += QUANTIZED_STRETCH) {
        const ptrdiff_t count = min_size(QUANTIZED_STRETCH, w->in - start);
        const uint16_t *scales = (const uint16_t *)w->scales + start / INT8_BLOCK;
        for (int r = 0; r < rows; r++, scales += w->in / INT8_BLOCK)
            if (count == QUANTIZED_STRETCH)
                spread_scales(scales, STRETCH_SCALES, spread + r);
            else
                spread_scales(scales, count / INT8_BLOCK, spread + r);
        for (ptrdiff_t block = 0; block < count / INT8_BLOCK; block++) {
            const ptrdiff_t at = start + block * INT8_BLOCK;
            prefetch_codes(w->codes + rows * (w->in + at), rows * INT8_BLOCK);
            add_int8_block(rounds, rows, w, at, x, spread, block, sums);
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
    const uint16_t *scales = (const uint16_t *)w->scales + row * in / INT8_BLOCK;
    const CodeRows c = {w->codes + row * in, scales, in};
    if (!are_usual_bf16(scales, rows * in / INT8_BLOCK))
        return 0;
    if (are_powers(scales, rows * in / INT8_BLOCK))
        multiply_int8_rows(0, rows, &c, x, out);
    else
        multiply_int8_rows(1, rows, &c, x, out);
    return 1;
}

/* out[r] = x . row (row + r): bfloat16 x, rows of whole blocks. */
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

/* At most STRETCH_SCALES blocks of usual scales. */
INLINE void put_int8_blocks(const int widens, const int rounds, const uint8_t *codes,
                            const uint16_t *scales, ptrdiff_t blocks, Sink to)
{
    Int8Scales s;
    spread_scales(scales, blocks, &s);
    for (ptrdiff_t b = 0; b < blocks; b++, codes += INT8_BLOCK)
#pragma GCC unroll 2
        for (int part = 0; part < VEC_PARTS; part++) {
            const vec words = int8_words(codes, part);
            put_block(widens, to, b, part,
                      int8_split(rounds, words, 0, s.odd + b, s.odd_split + b),
                      int8_split(rounds, words, 1, s.even + b, s.even_split + b));
        }
}

/* Whole blocks, a stretch of them at most; 0 if their scales are not usual. */
INLINE int put_blocks(const int widens, const QuantizedWeight *w, ptrdiff_t first,
                      ptrdiff_t count, Sink to)
{
    const uint8_t *codes = w->codes + first;
    const uint16_t *scales = (const uint16_t *)w->scales + first / INT8_BLOCK;
    if (!are_usual_bf16(scales, count / INT8_BLOCK))
        return 0;
    if (are_powers(scales, count / INT8_BLOCK))
        put_int8_blocks(widens, 0, codes, scales, count / INT8_BLOCK, to);
    else
        put_int8_blocks(widens, 1, codes, scales, count / INT8_BLOCK, to);
    return 1;
}

static void blocks_to_bf16(const QuantizedWeight *w, ptrdiff_t first, ptrdiff_t count, char *out)
{
    for (ptrdiff_t done = 0; done < count; done += QUANTIZED_STRETCH) {
        const ptrdiff_t some = min_size(QUANTIZED_STRETCH, count - done);
        const Sink to = {out + done * 2, 64, 0, 4 * VEC_LANES};
        if (!put_blocks(0, w, first + done, some, to))
            dequantize_any(w, first + done, some, to.out, TYPE_BF16);
    }
}

/* out[i] = element first + i, rounded once to the type; any first, any count. */
static void dequantize_span(const QuantizedWeight *w, ptrdiff_t first, ptrdiff_t count, void *out,
                            int out_type)
{
    if (w->format != QUANTIZED_INT8) {
        dequantize_nf4(w, first, count, out, out_type);
        return;
    }
    const ptrdiff_t size = INT8_BLOCK;
    const ptrdiff_t head = min_size(count, (size - first % size) % size);
    const ptrdiff_t whole = out_type == TYPE_BF16 ? (count - head) / size * size : 0;
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
    if (w->format != QUANTIZED_INT8) {
        widen_nf4_stretch(w, row, rows, in, start, count, widened);
        return;
    }
    const ptrdiff_t size = INT8_BLOCK, vector = 4 * VEC_LANES;
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
        if (!(has_whole_blocks && put_blocks(1, w, first, count, to)))
            widen_row(w, first, count, to);
    }
}

#endif
