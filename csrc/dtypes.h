/* Element types and weight formats. Written by `python -m tools.write_dtypes` from the table in
 * src/ml/dtype.py: change that table, not this file. */
#pragma once

/* cffi: begin */

/* Element types and formats of block-quantized weights, numbered together. */
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

/* Plain types: ROW(name, type, bytes per element). */
#define PLAIN_TYPES(ROW) \
    ROW(bfloat16, TYPE_BFLOAT16, 2) \
    ROW(float16, TYPE_FLOAT16, 2) \
    ROW(float32, TYPE_FLOAT32, 4) \
    ROW(float8_e4m3fn, TYPE_FLOAT8_E4M3FN, 1) \
    ROW(float8_e5m2, TYPE_FLOAT8_E5M2, 1)

/* Plain types whose values bfloat16 represents exactly: their products with
 * bfloat16 run in bfloat16. */
#define PAIR_TYPES(ROW) \
    ROW(bfloat16, TYPE_BFLOAT16, 2) \
    ROW(float8_e4m3fn, TYPE_FLOAT8_E4M3FN, 1) \
    ROW(float8_e5m2, TYPE_FLOAT8_E5M2, 1)

/* Block formats: ROW(name, type, elements, code bytes and scale bytes per block). The scale bytes
 * are 0 if the code bytes include the scale. Products of these formats with bfloat16 run on
 * integers. */
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

/* The sizes of the block formats as constants. */
enum { nf4_elements = 64, nf4_code_bytes = 32, nf4_scale_bytes = 4 };
enum { nf4_double_elements = 64, nf4_double_code_bytes = 32, nf4_double_scale_bytes = 1 };
enum { int8_block_elements = 32, int8_block_code_bytes = 32, int8_block_scale_bytes = 2 };
enum { q4_0_elements = 32, q4_0_code_bytes = 18, q4_0_scale_bytes = 0 };
enum { q4_1_elements = 32, q4_1_code_bytes = 20, q4_1_scale_bytes = 0 };
enum { q5_0_elements = 32, q5_0_code_bytes = 22, q5_0_scale_bytes = 0 };
enum { q5_1_elements = 32, q5_1_code_bytes = 24, q5_1_scale_bytes = 0 };
enum { q8_0_elements = 32, q8_0_code_bytes = 34, q8_0_scale_bytes = 0 };
enum { q2_k_elements = 256, q2_k_code_bytes = 84, q2_k_scale_bytes = 0 };
enum { q3_k_elements = 256, q3_k_code_bytes = 110, q3_k_scale_bytes = 0 };
enum { q4_k_elements = 256, q4_k_code_bytes = 144, q4_k_scale_bytes = 0 };
enum { q5_k_elements = 256, q5_k_code_bytes = 176, q5_k_scale_bytes = 0 };
enum { q6_k_elements = 256, q6_k_code_bytes = 210, q6_k_scale_bytes = 0 };
enum { iq4_nl_elements = 32, iq4_nl_code_bytes = 18, iq4_nl_scale_bytes = 0 };
enum { iq4_xs_elements = 256, iq4_xs_code_bytes = 136, iq4_xs_scale_bytes = 0 };
enum { mxfp4_elements = 32, mxfp4_code_bytes = 17, mxfp4_scale_bytes = 0 };
