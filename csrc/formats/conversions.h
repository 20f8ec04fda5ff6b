/* Quantization of blocks of any format, and their dequantization to plain types. */
#pragma once
#include "formats/format.h"
#include "rows/row_kernels.h"

/* Dequantizes a whole block, whose codes are indices into a table, to float32. */
INLINE void look_block_up(float *out, const uint8_t *codes, const float scale,
                          const ExpandedFormat f)
{
    const Table table = table_times(f.levels->exact, scale);
#pragma GCC unroll 4
    for (int step = 0; step < f.elements / LANES; step++, out += LANES, codes += LANES / 2)
#pragma GCC unroll 4
        for (int part = 0; part < VEC_PARTS; part++)
            vec_store(out + part * VEC_LANES, table_values(codes, table, part));
}

/* Dequantizes a whole block to float32. */
INLINE void dequantize_block(float *out, const uint8_t *codes, const Weight *weight,
                             ptrdiff_t block, const ExpandedFormat f)
{
    float room;
    Factors factors = {0};
    const char *const scales = scales_at(&room, weight, block, 1, f);
    if (f.levels) {
        look_block_up(out, codes, *(const float *)scales, f);
        return;
    }
    block_factors(&factors, 0, codes, scales, f);
    for (int g = 0; g < f.elements / GROUP; g++, out += GROUP) {
        int8_t numbers[GROUP];
        const group expanded = expand_group(codes, g, f);
        memcpy(numbers, &expanded, sizeof numbers);
        for (int part = 0; part < f.parts; part++) {
            const float scale = scale_of(&factors, g, part, f);
            const float minimum = minimum_of(&factors, g, part, f);
            for (int i = part * GROUP / f.parts; i < (part + 1) * GROUP / f.parts; i++)
                out[i] =
                    f.has_mins ? (float)numbers[i] * scale + minimum : (float)numbers[i] * scale;
        }
    }
}

/* A function that dequantizes a whole block of one format to float32. */
typedef void (*block_function)(float *out, const uint8_t *codes, const Weight *weight,
                               ptrdiff_t block);

/* out[i] = element first + i, rounded once to the type. `first` and `count` are arbitrary. */
INLINE void dequantize_blocks(void *out, const Weight *weight, ptrdiff_t first, ptrdiff_t count,
                              ElementType out_type, const ExpandedFormat f,
                              const block_function make_block)
{
    const ptrdiff_t elements = f.elements, code_bytes = f.code_bytes;
    for (ptrdiff_t done = 0, some; done < count; done += some) {
        const ptrdiff_t block = (first + done) / elements, offset = (first + done) % elements;
        const uint8_t *codes = (const uint8_t *)weight->data + block * code_bytes;
        some = min_size(elements - offset, count - done);
        if (out_type == TYPE_FLOAT32 && some == elements) {
            make_block((float *)out + done, codes, weight, block);
            continue;
        }
        uint8_t padded[MOST_BLOCK];
        float values[MOST_BLOCK];
        /* The last block may be short, unless it includes its scale. It is padded with zeros. */
        if (f.scale_bytes && offset + some < elements)
            codes = memcpy(memset(padded, 0, sizeof padded), codes,
                           (size_t)ceil_div((offset + some) * code_bytes, elements));
        make_block(values, codes, weight, block);
        narrow(output_at(out, out_type, done), values + offset, some, out_type);
    }
}

/* A function that converts elements of a weight to a plain type:
 * dequantize_blocks for one format. */
typedef void (*dequantize_function)(void *out, const Weight *weight, ptrdiff_t first,
                                    ptrdiff_t count, ElementType out_type);

/* Quantizes `count` elements to blocks, starting at block `first`. Returns the number of elements
 * that are not finite. */
INLINE ptrdiff_t quantize_blocks(void *codes, void *scales, const void *x, ptrdiff_t first,
                                 ptrdiff_t count, ElementType x_type, const ExpandedFormat f)
{
    ptrdiff_t refused = 0;
    for (ptrdiff_t done = 0, block = first; f.quantize && done < count;
         done += f.elements, block++) {
        const ptrdiff_t some = min_size(f.elements, count - done);
        float values[MOST_BLOCK] = {0};
        widen(values, element_at(x, x_type, block * f.elements), some, x_type);
        f.quantize((uint8_t *)codes + block * f.code_bytes, (char *)scales + block * f.scale_bytes,
                   values, some, &refused);
    }
    return refused;
}
