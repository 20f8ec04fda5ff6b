/*
 * Block-quantised weights on vectors: one token times a few rows of codes, and spans dequantised to
 * bfloat16. A quantized_*.h header defines before this one what differs between vectors:
 * nf4_values, int8_words, int8_values, vec_multiply, vec_subtract, vec_all_of,
 * vec_negative_multiply_add, round_to_bf16, join_pairs and store_pairs.
 *
 * A weight is rounded to bfloat16 before it is multiplied, so the sums have the bits of the product
 * with the dequantised weight. For nf4 that is done to the 16 values of a block's table. Where no
 * scale is extreme, three operations on floats round to 8 bits: p = w * (2^16 + 1), d = p - w,
 * p - d (G. W. Veltkamp; ties to even for this constant, which tests try for all mantissas).
 */
#ifndef LLAMA_BOLTS_QUANTIZED_TILE_H
#define LLAMA_BOLTS_QUANTIZED_TILE_H

/* Rows side by side: several chains of sums, and several streams from memory. */
enum { CODE_ROWS = 4, STRETCH_SCALES = QUANTIZED_STRETCH / INT8_BLOCK };

#define SPLITTER 65537.0f

/* Whether rounding by SPLITTER neither overflows nor meets subnormal numbers. */
INLINE int are_usual(const float *scales, int count)
{
    const uint32_t low = 0x0D800000u /* 2^-100 */, high = 0x71800000u /* 2^100 */;
    uint32_t unusual = 0;
    for (int i = 0; i < count; i++) {
        const uint32_t magnitude = bits_of(scales[i]) & 0x7FFFFFFFu;
        unusual |= (magnitude != 0) & (magnitude - low > high - low);
    }
    return !unusual;
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

/* The sums of a row and a vector of x, for one block of 32; odd and even are w's two phases. */
INLINE vec add_phases(vec sum, const char *x, vec odd, vec even, int part)
{
    if (BF16_PHASES == 1)
        return mac_bf16(sum, load_bf16(x, 0, part), join_pairs(odd, even));
    sum = mac_bf16(sum, load_bf16(x, 0, part), odd);
    return mac_bf16(sum, load_bf16(x, BF16_PHASES - 1, part), even);
}

/* ---- one token ---- */

/* What some rows are multiplied by in one stretch. */
typedef struct CodeRows {
    const QuantizedWeight *weight;
    ptrdiff_t first, in; /* element of the first row; from row to row */
    ptrdiff_t count;     /* elements of the stretch: whole blocks */
} CodeRows;

INLINE void add_nf4_stretch(const int rows, const CodeRows *c, const char *x,
                            float (*scales)[STRETCH_SCALES], vec *sums)
{
    const uint8_t *codes = c->weight->codes + c->first / 2;
    for (ptrdiff_t b = 0; b < c->count / NF4_BLOCK; b++, codes += NF4_BLOCK / 2, x += 128) {
        Nf4Table tables[CODE_ROWS];
#pragma GCC unroll 4
        for (int r = 0; r < rows; r++)
            tables[r] = nf4_split(scales[r][b]);
#pragma GCC unroll 2
        for (int half = 0; half < 2; half++)
#pragma GCC unroll 2
            for (int part = 0; part < VEC_PARTS; part++)
#pragma GCC unroll 4
                for (int r = 0; r < rows; r++) {
                    const uint8_t *at = codes + r * c->in / 2 + 16 * half;
                    vec *sum = sums + r * VEC_PARTS + part;
                    *sum = add_phases(*sum, x + 64 * half, nf4_values(at, tables[r], 0, part),
                                      nf4_values(at, tables[r], 1, part), part);
                }
    }
}

/*
 * An odd element lies in the upper byte of a 16-bit word, an even one is shifted to the uppermost
 * byte of 32 bits: both are multiples of the code by a power of two that the scale takes back.
 */
INLINE vec int8_split(vec words, float scale, int phase)
{
    const float factor = phase == 0 ? 0x1p-8f : 0x1p-24f;
    const vec q = int8_values(words, phase), s = vec_all_of(scale * factor);
    const vec p = vec_multiply(q, vec_all_of(scale * factor * SPLITTER));
    return vec_subtract(p, vec_negative_multiply_add(q, s, p));
}

INLINE void add_int8_stretch(const int rows, const CodeRows *c, const char *x,
                             float (*scales)[STRETCH_SCALES], vec *sums)
{
    const uint8_t *codes = c->weight->codes + c->first;
    for (ptrdiff_t b = 0; b < c->count / INT8_BLOCK; b++, codes += INT8_BLOCK, x += 64)
#pragma GCC unroll 2
        for (int part = 0; part < VEC_PARTS; part++)
#pragma GCC unroll 4
            for (int r = 0; r < rows; r++) {
                const vec words = int8_words(codes + r * c->in, part);
                vec *sum = sums + r * VEC_PARTS + part;
                *sum = add_phases(*sum, x, int8_split(words, scales[r][b], 0),
                                  int8_split(words, scales[r][b], 1), part);
            }
}

/* The same for scales of any size, by way of the dequantised weight. */
static void add_any_stretch(const int rows, const CodeRows *c, const char *x, vec *sums)
{
    uint16_t weight[QUANTIZED_STRETCH];
    for (int r = 0; r < rows; r++) {
        dequantize_any(c->weight, c->first + r * c->in, c->count, weight, TYPE_BF16);
        for (ptrdiff_t at = 0; at < c->count * 2; at += 64)
            for (int phase = 0; phase < BF16_PHASES; phase++)
                for (int part = 0; part < VEC_PARTS; part++) {
                    vec *sum = sums + r * VEC_PARTS + part;
                    *sum = mac_bf16(*sum, load_bf16(x + at, phase, part),
                                    load_bf16((const char *)weight + at, phase, part));
                }
    }
}

INLINE void multiply_code_rows(const int rows, const QuantizedWeight *w, ptrdiff_t row,
                               ptrdiff_t in, const char *x, float *out)
{
    const ptrdiff_t size = quantized_block(w->format);
    vec sums[CODE_ROWS * VEC_PARTS];
#pragma GCC unroll 8
    for (int i = 0; i < rows * VEC_PARTS; i++)
        sums[i] = vec_zero();
    for (ptrdiff_t start = 0; start < in; start += QUANTIZED_STRETCH) {
        const CodeRows c = {w, row * in + start, in, min_size(QUANTIZED_STRETCH, in - start)};
        float scales[CODE_ROWS][STRETCH_SCALES];
        int usual = 1;
        for (int r = 0; r < rows; r++) {
            expand_scales(w, (c.first + r * in) / size, c.count / size, scales[r]);
            usual &= are_usual(scales[r], (int)(c.count / size));
        }
        if (!usual)
            add_any_stretch(rows, &c, x + start * 2, sums);
        else if (w->format == QUANTIZED_INT8)
            add_int8_stretch(rows, &c, x + start * 2, scales, sums);
        else
            add_nf4_stretch(rows, &c, x + start * 2, scales, sums);
    }
    for (int r = 0; r < rows; r++)
        out[r] = fold_vectors(sums + r * VEC_PARTS);
}

/* out[r] = x . row (row + r): bfloat16 x, rows of whole blocks. */
static void multiply_codes(const QuantizedWeight *w, ptrdiff_t row, ptrdiff_t rows, ptrdiff_t in,
                           const char *x, float *out)
{
    ptrdiff_t r = 0;
    for (; r + CODE_ROWS <= rows; r += CODE_ROWS)
        multiply_code_rows(CODE_ROWS, w, row + r, in, x, out + r);
    for (; r < rows; r++)
        multiply_code_rows(1, w, row + r, in, x, out + r);
}

/* ---- dequantising to bfloat16 ---- */

INLINE void nf4_block_to_bf16(const uint8_t *codes, float scale, char *out)
{
    const Nf4Table table = nf4_scaled(scale);
#pragma GCC unroll 2
    for (int half = 0; half < 2; half++)
#pragma GCC unroll 2
        for (int part = 0; part < VEC_PARTS; part++)
            store_pairs(out + 64 * half, part,
                        join_pairs(round_to_bf16(nf4_values(codes + 16 * half, table, 0, part)),
                                   round_to_bf16(nf4_values(codes + 16 * half, table, 1, part))));
}

INLINE void int8_block_to_bf16(const uint8_t *codes, float scale, char *out)
{
#pragma GCC unroll 2
    for (int part = 0; part < VEC_PARTS; part++) {
        const vec words = int8_words(codes, part);
        const vec odd = vec_multiply(int8_values(words, 0), vec_all_of(scale * 0x1p-8f));
        const vec even = vec_multiply(int8_values(words, 1), vec_all_of(scale * 0x1p-24f));
        store_pairs(out, part, join_pairs(round_to_bf16(odd), round_to_bf16(even)));
    }
}

INLINE void block_to_bf16(const QuantizedWeight *w, ptrdiff_t first, float scale, char *out)
{
    const uint8_t *codes = w->codes + code_bytes(w->format, first);
    if (w->format == QUANTIZED_INT8)
        int8_block_to_bf16(codes, scale, out);
    else
        nf4_block_to_bf16(codes, scale, out);
}

/* Whole blocks. */
static void blocks_to_bf16(const QuantizedWeight *w, ptrdiff_t first, ptrdiff_t count, char *out)
{
    const ptrdiff_t size = quantized_block(w->format);
    while (count > 0) {
        const ptrdiff_t some = min_size(STRETCH_SCALES * size, count);
        float scales[STRETCH_SCALES];
        expand_scales(w, first / size, some / size, scales);
        if (!are_usual(scales, (int)(some / size)))
            dequantize_any(w, first, some, out, TYPE_BF16);
        else
            for (ptrdiff_t at = 0; at < some; at += size)
                block_to_bf16(w, first + at, scales[at / size], out + at * 2);
        first += some, count -= some, out += some * 2;
    }
}

/* out[i] = element first + i, rounded once to the type; any first, any count. */
static void dequantize_span(const QuantizedWeight *w, ptrdiff_t first, ptrdiff_t count, void *out,
                            int out_type)
{
    const ptrdiff_t size = quantized_block(w->format);
    const ptrdiff_t head = min_size(count, (size - first % size) % size);
    const ptrdiff_t whole = out_type == TYPE_BF16 ? (count - head) / size * size : 0;
    dequantize_any(w, first, head, out, out_type);
    blocks_to_bf16(w, first + head, whole, (char *)out + head * 2);
    dequantize_any(w, first + head + whole, count - head - whole,
                   output_at(out, out_type, head + whole), out_type);
}

#endif
