/* The functions of codes_avx2.h in plain C. A vector contains all 16 lanes of a sum. */
#pragma once
#include "floats.h"

enum { VEC_LANES = 16, VEC_PARTS = 1 };

typedef struct PortableVector {
    float lane[LANES];
} vec;

INLINE void vec_store(float *x, vec v) { memcpy(x, &v, sizeof v); }

typedef vec Table;

INLINE Table table_times(const float values[16], float scale)
{
    Table table;
    for (int i = 0; i < 16; i++)
        table.lane[i] = values[i] * scale;
    return table;
}

/* The 16 elements in 8 bytes, in order. The first element of a byte is in its upper half. */
INLINE vec table_values(const uint8_t *codes, Table table, int part)
{
    (void)part;
    vec v;
    for (int i = 0; i < 8; i++) {
        v.lane[2 * i] = table.lane[codes[i] >> 4];
        v.lane[2 * i + 1] = table.lane[codes[i] & 15];
    }
    return v;
}

typedef struct PortableGroup {
    int8_t code[32];
} group;

/* codes_avx.h describes the following functions. */
INLINE group bit_field(group bytes, int from, int bits, int to)
{
    for (int i = 0; i < 32; i++)
        bytes.code[i] = (int8_t)(((uint8_t)bytes.code[i] >> from & ((1 << bits) - 1)) << to);
    return bytes;
}

INLINE group nibbles(const uint8_t *bytes)
{
    group codes;
    for (int i = 0; i < 32; i++)
        codes.code[i] = (int8_t)(bytes[i % 16] >> i / 16 * 4 & 15);
    return codes;
}

INLINE group spread_bits(uint32_t bits, int value)
{
    group codes;
    for (int i = 0; i < 32; i++)
        codes.code[i] = (int8_t)((int)(bits >> i & 1) * value);
    return codes;
}

INLINE group merge_codes(group lower, group upper, int offset)
{
    for (int i = 0; i < 32; i++)
        lower.code[i] = (int8_t)((lower.code[i] | upper.code[i]) - offset);
    return lower;
}

INLINE group look_up(group codes, const int8_t table[16])
{
    for (int i = 0; i < 32; i++)
        codes.code[i] = table[codes.code[i]];
    return codes;
}

/* The table entries of the codes in 16 bytes. The first code of a byte is in its upper half. */
INLINE void look_up_wide(int16_t codes[32], const uint8_t *bytes, const int16_t table[16])
{
    for (int i = 0; i < 16; i++) {
        codes[2 * i] = table[bytes[i] >> 4];
        codes[2 * i + 1] = table[bytes[i] & 15];
    }
}

/* Leaves the numbers of a group of x in the layout of integer_panel.h. */
INLINE void arrange_numbers(int16_t *numbers, const int have_8_bits)
{
    (void)numbers;
    (void)have_8_bits;
}
