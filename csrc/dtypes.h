/* Element types and weight formats. Written by `python -m tools.write_dtypes` from the table in
 * src/ml/dtype.py: change that table, not this file. */
#pragma once

/* cffi: begin */

/* Types of elements, and formats of block-quantized weights: one range of numbers. */
typedef enum ElementType {
    TYPE_BFLOAT16 = 0,
    TYPE_FLOAT16 = 1,
    TYPE_FLOAT32 = 2,
    TYPE_FLOAT8_E4M3FN = 3,
    TYPE_FLOAT8_E5M2 = 4,
    TYPE_NF4 = 5,
    TYPE_NF4_DOUBLE = 6,
    TYPE_INT8_BLOCK = 7,
    TYPE_Q4_0 = 8,
    TYPE_Q4_1 = 9,
    TYPE_Q5_0 = 10,
    TYPE_Q5_1 = 11,
    TYPE_Q8_0 = 12,
    TYPE_Q2_K = 13,
    TYPE_Q3_K = 14,
    TYPE_Q4_K = 15,
    TYPE_Q5_K = 16,
    TYPE_Q6_K = 17,
    TYPE_IQ4_NL = 18,
    TYPE_IQ4_XS = 19,
    TYPE_MXFP4 = 20
} ElementType;

enum { TYPE_COUNT = 21 };

/* cffi: end */

/* clang-format off */

/* Plain types: ROW(name, type, bytes of an element). */
#define PLAIN_TYPES(ROW) \
    ROW(bfloat16, TYPE_BFLOAT16, 2) \
    ROW(float16, TYPE_FLOAT16, 2) \
    ROW(float32, TYPE_FLOAT32, 4) \
    ROW(float8_e4m3fn, TYPE_FLOAT8_E4M3FN, 1) \
    ROW(float8_e5m2, TYPE_FLOAT8_E5M2, 1)

/* Those of them that bfloat16 holds exactly: their products with bfloat16 run in bfloat16. */
#define PAIR_TYPES(ROW) \
    ROW(bfloat16, TYPE_BFLOAT16, 2) \
    ROW(float8_e4m3fn, TYPE_FLOAT8_E4M3FN, 1) \
    ROW(float8_e5m2, TYPE_FLOAT8_E5M2, 1)

/* Formats whose blocks become integers with a scale: ROW(name, type, elements of a block, bytes of
 * its codes, bytes of its scale: 0 where it is among those of the codes). Products with bfloat16
 * run on integers. */
#define BLOCK_TYPES(ROW) \
    ROW(nf4, TYPE_NF4, 64, 32, 4) \
    ROW(nf4_double, TYPE_NF4_DOUBLE, 64, 32, 1) \
    ROW(int8_block, TYPE_INT8_BLOCK, 32, 32, 2) \
    ROW(q4_0, TYPE_Q4_0, 32, 18, 0) \
    ROW(q4_1, TYPE_Q4_1, 32, 20, 0) \
    ROW(q5_0, TYPE_Q5_0, 32, 22, 0) \
    ROW(q5_1, TYPE_Q5_1, 32, 24, 0) \
    ROW(q8_0, TYPE_Q8_0, 32, 34, 0) \
    ROW(q2_k, TYPE_Q2_K, 256, 84, 0) \
    ROW(q3_k, TYPE_Q3_K, 256, 110, 0) \
    ROW(q4_k, TYPE_Q4_K, 256, 144, 0) \
    ROW(q5_k, TYPE_Q5_K, 256, 176, 0) \
    ROW(q6_k, TYPE_Q6_K, 256, 210, 0) \
    ROW(iq4_nl, TYPE_IQ4_NL, 32, 18, 0) \
    ROW(iq4_xs, TYPE_IQ4_XS, 256, 136, 0) \
    ROW(mxfp4, TYPE_MXFP4, 32, 17, 0)

/* clang-format on */
