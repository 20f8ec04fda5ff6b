/*
 * The functions that work on one row or span, in plain C, compiled once for each instruction set.
 *
 * Values are converted to blocks of float32, so that a formula is written once for all dtypes. Sums
 * are computed in 16 lanes and reduced in one fixed order; all other operations are elementwise.
 * Both can be vectorised without changing a bit.
 */
#pragma once
#include <string.h>
#include "floats.h"

/* Elements that are processed at a time: a multiple of LANES, few enough to
 * stay in the L1 cache. */
enum { BLOCK = 256 };

/* Loops over blocks of BLOCK elements. The last block of a row may have fewer. */
#define FOR_EACH_BLOCK(start, count, n)                                                          \
    for (ptrdiff_t start = 0, count; start < (n) && ((count = min_size(BLOCK, (n) - start)), 1); \
         start += BLOCK)

static inline const void *element_at(const void *x, ElementType type, ptrdiff_t index)
{
    return (const char *)x + index * type_bytes(type);
}

static inline void *output_at(void *x, ElementType type, ptrdiff_t index)
{
    return (char *)x + index * type_bytes(type);
}

#define CHECK(name, number, bytes) \
    _Static_assert(sizeof(name##_bits) == bytes, #name " in dtypes.h");
PLAIN_TYPES(CHECK)

/* One case for each plain type. Block formats are not included, because
 * dequantize_span widens them. */
#define NO_ELEMENTS(name, number, elements, codes, scale) case number:
#define SWITCH_TYPE(type, ROW)   \
    switch (type) {              \
        PLAIN_TYPES(ROW)         \
        BLOCK_TYPES(NO_ELEMENTS) \
        break;                   \
    }

/* y[0..n) = x[0..n) as float32, which is exact. */
static inline void widen(float *restrict y, const void *x, ptrdiff_t n, ElementType type)
{
#define WIDEN(name, number, bytes)                                 \
    case number:                                                   \
        for (ptrdiff_t i = 0; i < n; i++)                          \
            y[i] = name##_to_float32(((const name##_bits *)x)[i]); \
        break;
    SWITCH_TYPE(type, WIDEN)
}

/* y[0..n) = x[0..n) rounded once to the type. This function is too long to be
 * inlined at each call. */
static __attribute__((noinline, unused)) void narrow(void *y, const float *restrict x, ptrdiff_t n,
                                                     ElementType type)
{
#define NARROW(name, number, bytes)                          \
    case number:                                             \
        for (ptrdiff_t i = 0; i < n; i++)                    \
            ((name##_bits *)y)[i] = float32_to_##name(x[i]); \
        break;
    SWITCH_TYPE(type, NARROW)
}

/* Widens a block and pads it to whole lanes. Returns the number of elements
 * including the padding. */
static inline ptrdiff_t widen_lanes(float *restrict block, const void *x, ptrdiff_t start,
                                    ptrdiff_t count, float padding, ElementType type)
{
    const ptrdiff_t padded = ceil_div(count, LANES) * LANES;
    widen(block, element_at(x, type, start), count, type);
    for (ptrdiff_t i = count; i < padded; i++)
        block[i] = padding;
    return padded;
}

/* The maximum of the elements that are not NaN. (A NaN reappears in exp.) */
static inline float row_maximum(const void *x, ptrdiff_t n, ElementType type)
{
    float block[BLOCK], lanes[LANES];
    for (int l = 0; l < LANES; l++)
        lanes[l] = -INFINITY;
    FOR_EACH_BLOCK (start, count, n) {
        const ptrdiff_t padded = widen_lanes(block, x, start, count, -INFINITY, type);
        for (ptrdiff_t i = 0; i < padded; i += LANES)
            for (int l = 0; l < LANES; l++)
                lanes[l] = block[i + l] > lanes[l] ? block[i + l] : lanes[l];
    }
    return largest_lane(lanes);
}

/* block[i] = exp(x[i] - maximum), padded with zeros. */
static inline ptrdiff_t exp_block(float *restrict block, const void *x, ptrdiff_t start,
                                  ptrdiff_t count, float maximum, ElementType type)
{
    const ptrdiff_t padded = widen_lanes(block, x, start, count, -INFINITY, type);
    for (ptrdiff_t i = 0; i < padded; i++)
        block[i] = exp_f32(block[i] - maximum);
    return padded;
}

/* The factor for the exponentials of a row, given the 16 lanes of their sum. */
static inline float softmax_factor(float lanes[LANES]) { return 1.0f / reduce_lanes(lanes); }

/* The exponentials are computed twice instead of being stored, so no scratch is
 * needed and x may be out. */
static inline void softmax_row(void *out, const void *x, ptrdiff_t n, ElementType x_type,
                               ElementType out_type)
{
    const float maximum = row_maximum(x, n, x_type);
    float block[BLOCK], lanes[LANES] = {0};
    FOR_EACH_BLOCK (start, count, n) {
        const ptrdiff_t padded = exp_block(block, x, start, count, maximum, x_type);
        for (ptrdiff_t i = 0; i < padded; i += LANES)
            for (int l = 0; l < LANES; l++)
                lanes[l] += block[i + l];
    }
    const float factor = softmax_factor(lanes);
    FOR_EACH_BLOCK (start, count, n) {
        exp_block(block, x, start, count, maximum, x_type);
        for (ptrdiff_t i = 0; i < count; i++)
            block[i] = block[i] * factor;
        narrow(output_at(out, out_type, start), block, count, out_type);
    }
}

static inline void rms_norm_row(void *out, const void *x, const void *weight, ptrdiff_t D,
                                float eps, ElementType x_type, ElementType weight_type,
                                ElementType out_type)
{
    float block[BLOCK], factors[BLOCK], lanes[LANES] = {0};
    FOR_EACH_BLOCK (start, count, D) {
        const ptrdiff_t padded = widen_lanes(block, x, start, count, 0.0f, x_type);
        for (ptrdiff_t i = 0; i < padded; i += LANES)
            for (int l = 0; l < LANES; l++)
                lanes[l] += block[i + l] * block[i + l];
    }
    const float scale = 1.0f / sqrtf(reduce_lanes(lanes) / (float)D + eps);
    FOR_EACH_BLOCK (start, count, D) {
        widen(block, element_at(x, x_type, start), count, x_type);
        widen(factors, element_at(weight, weight_type, start), count, weight_type);
        for (ptrdiff_t i = 0; i < count; i++)
            block[i] = block[i] * scale * factors[i];
        narrow(output_at(out, out_type, start), block, count, out_type);
    }
}

/* Widens pairs that are half a head apart, and places them next to each other. count is even. */
static inline void widen_halves(float *restrict block, const void *x, ptrdiff_t half,
                                ptrdiff_t count, ElementType type)
{
    float first[BLOCK / 2], second[BLOCK / 2];
    widen(first, x, count / 2, type);
    widen(second, element_at(x, type, half), count / 2, type);
    for (ptrdiff_t i = 0; i < count / 2; i++) {
        block[2 * i] = first[i];
        block[2 * i + 1] = second[i];
    }
}

/* (a + ib)(c + is) = (ac - bs) + i(as + bc) for each pair of all heads of one token. */
static inline void rotary_row(void *out, const void *x, const float *frequencies, ptrdiff_t heads,
                              ptrdiff_t h, int in_halves, ElementType type)
{
    float block[BLOCK], rotated[BLOCK];
    for (ptrdiff_t head = 0; head < heads; head++)
        FOR_EACH_BLOCK (start, count, h) {
            const float *f = frequencies + start;
            const ptrdiff_t at = head * h + start;
            if (in_halves)
                widen_halves(block, element_at(x, type, head * h + start / 2), h / 2, count, type);
            else
                widen(block, element_at(x, type, at), count, type);
            /* Two loops, because gcc would combine a difference and a sum in one loop
             * into a fused fmaddsub. */
            for (ptrdiff_t i = 0; i < count; i += 2)
                rotated[i] = block[i] * f[i] - block[i + 1] * f[i + 1];
            for (ptrdiff_t i = 0; i < count; i += 2)
                rotated[i + 1] = block[i] * f[i + 1] + block[i + 1] * f[i];
            narrow(output_at(out, type, at), rotated, count, type);
        }
}

static inline void apply(float *restrict a, const float *restrict b, ptrdiff_t n, ElementwiseOp op)
{
    switch (op) {
    case OP_ADD:
        for (ptrdiff_t i = 0; i < n; i++)
            a[i] = a[i] + b[i];
        break;
    case OP_MULTIPLY:
        for (ptrdiff_t i = 0; i < n; i++)
            a[i] = a[i] * b[i];
        break;
    case OP_SILU:
        for (ptrdiff_t i = 0; i < n; i++)
            a[i] = silu_f32(a[i]);
        break;
    case OP_SWIGLU:
        for (ptrdiff_t i = 0; i < n; i++)
            a[i] = silu_f32(a[i]) * b[i];
        break;
    case OP_GEGLU:
        for (ptrdiff_t i = 0; i < n; i++)
            a[i] = gelu_f32(a[i]) * b[i];
        break;
    case OP_CLAMPED_SWIGLU:
        for (ptrdiff_t i = 0; i < n; i++)
            a[i] = clamped_swiglu_f32(a[i], b[i]);
        break;
    }
}

static inline void elementwise_span(void *out, const void *a, const void *b, ptrdiff_t n,
                                    ElementwiseOp op, ElementType type)
{
    float left[BLOCK], right[BLOCK];
    FOR_EACH_BLOCK (start, count, n) {
        widen(left, element_at(a, type, start), count, type);
        if (op != OP_SILU)
            widen(right, element_at(b, type, start), count, type);
        apply(left, right, count, op);
        narrow(output_at(out, type, start), left, count, type);
    }
}

static inline void convert_span(void *out, const void *x, ptrdiff_t n, ElementType x_type,
                                ElementType out_type)
{
    float block[BLOCK];
    FOR_EACH_BLOCK (start, count, n) {
        widen(block, element_at(x, x_type, start), count, x_type);
        narrow(output_at(out, out_type, start), block, count, out_type);
    }
}

static inline void soft_cap_span(void *out, const void *x, ptrdiff_t n, float cap, ElementType type)
{
    float block[BLOCK];
    FOR_EACH_BLOCK (start, count, n) {
        widen(block, element_at(x, type, start), count, type);
        for (ptrdiff_t i = 0; i < count; i++)
            block[i] = soft_cap_f32(block[i], cap);
        narrow(output_at(out, type, start), block, count, type);
    }
}

/* Returns 1 if the padded block contains a NaN or a number above the best one. */
static inline int any_better(const float *restrict block, ptrdiff_t padded, float best)
{
    int better = 0;
    for (ptrdiff_t i = 0; i < padded; i++)
        better |= !(block[i] <= best);
    return better;
}

/* Blocks without a larger number are skipped. The first NaN ends the search. */
static inline ptrdiff_t argmax_row(const void *x, ptrdiff_t n, ElementType type)
{
    float block[BLOCK];
    float best = -INFINITY;
    ptrdiff_t index = 0;
    FOR_EACH_BLOCK (start, count, n) {
        const ptrdiff_t padded = widen_lanes(block, x, start, count, -INFINITY, type);
        if (!any_better(block, padded, best))
            continue;
        for (ptrdiff_t i = 0; i < count; i++) {
            if (block[i] <= best)
                continue;
            index = start + i;
            best = block[i];
            if (best != best)
                return index;
        }
    }
    return index;
}

/* The lanes of a sum. gcc keeps them in registers, which it does not do with arrays. */
typedef float FloatLanes __attribute__((vector_size(LANES * sizeof(float)), aligned(4), may_alias));

/* Elements [start, start + count) of a row as whole lanes of float32: in the row itself if that is
 * possible, and otherwise in the block. */
static inline const float *lanes_of_row(float *restrict block, const void *row, ptrdiff_t start,
                                        ptrdiff_t count, ElementType type)
{
    if (type == TYPE_FLOAT32 && count % LANES == 0)
        return (const float *)row + start;
    widen_lanes(block, row, start, count, 0.0f, type);
    return block;
}

/* low[t * stride + r] = sum over i of x[rows[t], i] * a[r, i], in 16 lanes, for at most
 * LOW_RANK_TOKENS tokens and LOW_RANK_ROWS rows of A. */
static inline void low_rank_products_span(float *low, ptrdiff_t stride, const void *x,
                                          const ptrdiff_t *rows, ptrdiff_t tokens, const void *a,
                                          ptrdiff_t a_rows, ptrdiff_t in, ElementType x_type,
                                          ElementType a_type)
{
    FloatLanes sums[LOW_RANK_TOKENS][LOW_RANK_ROWS] = {{{0}}};
    float a_blocks[LOW_RANK_ROWS][BLOCK] = {{0}}, x_block[BLOCK];
    FOR_EACH_BLOCK (start, count, in) {
        const float *of_a[LOW_RANK_ROWS];
        for (int r = 0; r < LOW_RANK_ROWS; r++) {
            /* Rows that do not exist are zeros. */
            of_a[r] = a_blocks[r];
            if (r < a_rows)
                of_a[r] =
                    lanes_of_row(a_blocks[r], element_at(a, a_type, r * in), start, count, a_type);
        }
        for (ptrdiff_t t = 0; t < tokens; t++) {
            const void *token = element_at(x, x_type, rows[t] * in);
            const float *of_x = lanes_of_row(x_block, token, start, count, x_type);
            FloatLanes of_token[LOW_RANK_ROWS];
            memcpy(of_token, sums[t], sizeof of_token);
            for (ptrdiff_t i = 0; i < count; i += LANES)
                for (int r = 0; r < LOW_RANK_ROWS; r++)
                    of_token[r] +=
                        *(const FloatLanes *)(of_a[r] + i) * *(const FloatLanes *)(of_x + i);
            memcpy(sums[t], of_token, sizeof of_token);
        }
    }
    for (ptrdiff_t t = 0; t < tokens; t++)
        for (ptrdiff_t r = 0; r < a_rows; r++) {
            float lanes[LANES];
            memcpy(lanes, &sums[t][r], sizeof lanes);
            low[t * stride + r] = reduce_lanes(lanes);
        }
}

/* sums[o] += factor * low[i] * b[i][o] for each i < rows in this order, and whole lanes of
 * columns. */
static inline void add_scaled_rows(float *sums, const float *const *b, const float *low, int rows,
                                   float factor, ptrdiff_t columns)
{
    float scaled[LOW_RANK_ROWS];
    for (int i = 0; i < rows; i++)
        scaled[i] = factor * low[i];
    if (rows == LOW_RANK_ROWS) {
        for (ptrdiff_t o = 0; o < columns; o += LANES) {
            FloatLanes sum = *(const FloatLanes *)(sums + o);
            for (int i = 0; i < LOW_RANK_ROWS; i++)
                sum += scaled[i] * *(const FloatLanes *)(b[i] + o);
            *(FloatLanes *)(sums + o) = sum;
        }
        return;
    }
    for (int i = 0; i < rows; i++)
        for (ptrdiff_t o = 0; o < columns; o += LANES)
            *(FloatLanes *)(sums + o) += scaled[i] * *(const FloatLanes *)(b[i] + o);
}

/* out[rows[t] * columns + o] += sum over r of factor * low[t, r] * b[r * columns + o], for n <=
 * LOW_RANK_SPAN columns and at most LOW_RANK_TOKENS tokens. Several rows of B are read side by
 * side, so that a sum is loaded and stored once for them. */
static inline void low_rank_changes_span(float *out, ptrdiff_t columns, const ptrdiff_t *rows,
                                         ptrdiff_t tokens, const float *low, ptrdiff_t rank,
                                         float factor, const void *b, ptrdiff_t n,
                                         ElementType b_type)
{
    float sums[LOW_RANK_TOKENS][LOW_RANK_SPAN], b_blocks[LOW_RANK_ROWS][BLOCK];
    for (ptrdiff_t t = 0; t < tokens; t++)
        memset(sums[t], 0, (size_t)ceil_div(n, LANES) * sizeof(FloatLanes));
    for (ptrdiff_t r = 0; r < rank; r += LOW_RANK_ROWS) {
        const int together = (int)min_size(LOW_RANK_ROWS, rank - r);
        FOR_EACH_BLOCK (start, count, n) {
            const float *of_b[LOW_RANK_ROWS];
            for (int i = 0; i < together; i++)
                of_b[i] = lanes_of_row(b_blocks[i], element_at(b, b_type, (r + i) * columns), start,
                                       count, b_type);
            for (ptrdiff_t t = 0; t < tokens; t++)
                add_scaled_rows(sums[t] + start, of_b, low + t * rank + r, together, factor, count);
        }
    }
    for (ptrdiff_t t = 0; t < tokens; t++) {
        float *result = out + rows[t] * columns;
        for (ptrdiff_t o = 0; o < n; o++)
            result[o] += sums[t][o];
    }
}
