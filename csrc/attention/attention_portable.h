/* The sums of products of attention and matmul in plain C, for all machines: 16 columns at a time.
 */
#pragma once
#include "attention/attention_rows.h"
#include "products/tile_portable.h"

static inline void raise_lanes(const float *restrict scores, ptrdiff_t padded,
                               float *restrict largest)
{
    for (ptrdiff_t s = 0; s < padded; s += LANES)
        for (int l = 0; l < LANES; l++)
            largest[l] = scores[s + l] > largest[l] ? scores[s + l] : largest[l];
}

static inline void add_lanes(const float *restrict scores, ptrdiff_t padded, float *restrict sums)
{
    for (ptrdiff_t s = 0; s < padded; s += LANES)
        for (int l = 0; l < LANES; l++)
            sums[l] += scores[s + l];
}

static void raise_largest(float *scores, float *largest, ptrdiff_t count)
{
    raise_row(scores, largest, count, raise_lanes);
}

static void exponentiate(float *scores, float *sums, ptrdiff_t count, float scale, float maximum)
{
    exponentiate_row(scores, sums, count, scale, maximum, add_lanes);
}

static void pack_chains(float *panel, const char *x, ptrdiff_t words, int rows, ElementType type)
{
    pack_words(panel, x, words, rows, type == TYPE_BFLOAT16 ? 2 : 1);
}

INLINE PortableProduct product_of(ElementType type)
{
    return (PortableProduct){type == TYPE_BFLOAT16 ? FORM_BFLOAT16 : FORM_FLOAT32, type};
}

/* Multiplies one group of 16 columns by all rows. The lanes of a word are widened once. */
INLINE void chain_group(float *restrict sums, const float *panel, const char *columns, int rows,
                        ptrdiff_t words, ElementType type)
{
    const PortableProduct p = product_of(type);
    float acc[PANEL_TOKENS][LANES] = {{0}}, lanes[LANES];
    for (ptrdiff_t w = 0; w < words; w++, columns += 64)
        for (int phase = 0; phase < phases_of(p); phase++, panel += rows) {
            widen_block(lanes, columns, elements_of(p), phase, p);
            for (int r = 0; r < rows; r++) {
                float same[LANES];
                for (int l = 0; l < LANES; l++)
                    same[l] = panel[r];
                add_products(acc[r], same, lanes, p.form);
            }
        }
    for (int r = 0; r < rows; r++)
        memcpy(sums + r * ATTENTION_BLOCK, acc[r], sizeof acc[r]);
}

static void multiply_chains(float *sums, const float *panel, const char *columns, int rows,
                            ptrdiff_t groups, ptrdiff_t words, ptrdiff_t group_words,
                            ElementType type)
{
    for (ptrdiff_t group = 0; group < groups; group++, columns += group_words * 64, sums += LANES)
        if (type == TYPE_BFLOAT16)
            chain_group(sums, panel, columns, rows, words, TYPE_BFLOAT16);
        else
            chain_group(sums, panel, columns, rows, words, TYPE_FLOAT32);
}

static void sum_values(float *sums, const float *weights, const char *values, int rows,
                       ptrdiff_t count, ptrdiff_t words, ptrdiff_t floats, ElementType type)
{
    const PortableProduct p = product_of(type);
    const ptrdiff_t phase_floats = ceil_div(words, LANES) * LANES;
    float lanes[LANES];
    for (ptrdiff_t s = 0; s < count; s++, values += words * 4)
        for (ptrdiff_t w = 0; w < words; w += LANES)
            for (int phase = 0; phase < phases_of(p); phase++) {
                const ptrdiff_t elements = min_size(LANES, words - w) * phases_of(p);
                widen_block(lanes, values + w * 4, elements, phase, p);
                for (int r = 0; r < rows; r++) {
                    const float weight = weights[r * ATTENTION_BLOCK + s];
                    float *acc = sums + r * floats + phase * phase_floats + w;
                    for (int l = 0; l < LANES; l++)
                        acc[l] = fused_multiply_add(weight, lanes[l], acc[l]);
                }
            }
}

/* The elements of 16 codes with a scale each. The products are exact. */
INLINE void widen_codes(float *lanes, const char *codes, const float *scales)
{
    for (int l = 0; l < LANES; l++)
        lanes[l] = (float)(int8_t)codes[l] * scales[l];
}

/* Widens the 16 scales of a block of elements in a group. */
INLINE void widen_scales(float *scales, const char *group, ptrdiff_t element, ptrdiff_t h)
{
    uint16_t halves[LANES];
    memcpy(halves, group + LANES * h + element / q8_0_elements * (ptrdiff_t)sizeof halves,
           sizeof halves);
    for (int l = 0; l < LANES; l++)
        scales[l] = float16_to_float32(halves[l]);
}

static void multiply_codes(float *sums, const float *panel, const char *keys, int rows,
                           ptrdiff_t groups, ptrdiff_t first, ptrdiff_t end, ptrdiff_t h)
{
    for (; groups > 0; groups--, keys += LANES * position_bytes(TYPE_Q8_0, h), sums += LANES) {
        float acc[PANEL_TOKENS][LANES] = {{0}}, scales[LANES], lanes[LANES];
        for (ptrdiff_t i = first; i < end; i++) {
            if (i % q8_0_elements == 0)
                widen_scales(scales, keys, i, h);
            widen_codes(lanes, keys + i * LANES, scales);
            for (int r = 0; r < rows; r++)
                for (int l = 0; l < LANES; l++)
                    acc[r][l] =
                        fused_multiply_add(panel[(i - first) * rows + r], lanes[l], acc[r][l]);
        }
        for (int r = 0; r < rows; r++)
            memcpy(sums + r * ATTENTION_BLOCK, acc[r], sizeof acc[r]);
    }
}

static void sum_codes(float *sums, const float *weights, const char *values, int rows,
                      ptrdiff_t first, ptrdiff_t end, ptrdiff_t h, ptrdiff_t floats)
{
    for (ptrdiff_t s = first; s < end; s++) {
        const char *group = values + s / LANES * LANES * position_bytes(TYPE_Q8_0, h);
        for (ptrdiff_t i = 0; i < h; i += LANES) {
            float scales[LANES], same[LANES], lanes[LANES];
            widen_scales(scales, group, i, h);
            for (int l = 0; l < LANES; l++)
                same[l] = scales[s % LANES];
            widen_codes(lanes, group + s % LANES * h + i, same);
            for (int r = 0; r < rows; r++) {
                float *acc = sums + r * floats + i;
                for (int l = 0; l < LANES; l++)
                    acc[l] = fused_multiply_add(weights[r * ATTENTION_BLOCK + s], lanes[l], acc[l]);
            }
        }
    }
}
