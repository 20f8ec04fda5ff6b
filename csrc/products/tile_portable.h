/* Products in plain C, for all machines: one weight row at a time, with 16 lanes per token. */
#pragma once
#include "products/product.h"
#include "rows/row_kernels.h"

/* A form, and the type of the elements that are widened for it. */
typedef struct PortableProduct {
    Form form;
    ElementType type; /* type of the elements that are widened */
} PortableProduct;

enum { PAIR_PHASES = 2 };

/* The number of steps per block of LANES words, and of elements per block. */
INLINE int phases_of(const PortableProduct p) { return p.form == FORM_BFLOAT16 ? PAIR_PHASES : 1; }
INLINE ptrdiff_t elements_of(const PortableProduct p) { return LANES * phases_of(p); }

/* A product of two bfloat16 is exact in float32, so a multiplication and an addition give the bits
 * of a fused multiply-add. */
INLINE float multiply_add_pairs(float a, float b, float c)
{
#ifdef __FP_FAST_FMAF
    return fmaf(a, b, c);
#else
    return a * b + c;
#endif
}

/* Widens the 16 lanes of one phase of a block. Elements after `count` are zeros. Phase 0 contains
 * the odd element of each pair, phase 1 the even element. */
INLINE void widen_block(float *restrict lanes, const char *block, ptrdiff_t count, int phase,
                        const PortableProduct p)
{
    float all[2 * LANES] = {0};
    widen(all, block, count, p.type);
    for (int l = 0; l < LANES; l++)
        lanes[l] = p.form == FORM_BFLOAT16 ? all[2 * l + 1 - phase] : all[l];
}

static inline void add_products(float *restrict acc, const float *restrict x,
                                const float *restrict w, Form form)
{
    if (form == FORM_BFLOAT16)
        for (int l = 0; l < LANES; l++)
            acc[l] = multiply_add_pairs(x[l], w[l], acc[l]);
    else
        for (int l = 0; l < LANES; l++)
            acc[l] = fused_multiply_add(x[l], w[l], acc[l]);
}

/* Packs a panel [block][phase][token][LANES], padded with zeros. */
INLINE void pack_plain(float *panel, const char *x, ptrdiff_t x_stride, int tokens, ptrdiff_t in,
                       const PortableProduct p)
{
    for (ptrdiff_t start = 0; start < in; start += elements_of(p))
        for (int phase = 0; phase < phases_of(p); phase++)
            for (int t = 0; t < tokens; t++, panel += LANES)
                widen_block(panel, x + t * x_stride + start * type_bytes(p.type),
                            min_size(elements_of(p), in - start), phase, p);
}

/* The functions below have the same names as in tile.h. */
INLINE PortableProduct pair_product(ElementType type)
{
    return (PortableProduct){FORM_BFLOAT16, type};
}

INLINE PortableProduct single_product(ElementType type)
{
    return (PortableProduct){FORM_FLOAT32, type};
}

static inline void pack_bfloat16(float *panel, const char *x, ptrdiff_t x_stride, int tokens,
                                 ptrdiff_t in, ElementType x_type)
{
    pack_plain(panel, x, x_stride, tokens, in, (PortableProduct){FORM_BFLOAT16, x_type});
}

static inline void pack_float32(float *panel, const char *x, ptrdiff_t x_stride, int tokens,
                                ptrdiff_t in, ElementType x_type)
{
    pack_plain(panel, x, x_stride, tokens, in, (PortableProduct){FORM_FLOAT32, x_type});
}

INLINE void row_times_panel(const PortableProduct p, const KBlock *k, ptrdiff_t row, const char *w)
{
    const ptrdiff_t block = elements_of(p), bytes = type_bytes(p.type);
    const float *x = k->panel + k->start / block * phases_of(p) * k->tokens * LANES;
    float *acc = k->lanes + row * PANEL_TOKENS * LANES, lanes[LANES];
    if (k->first)
        memset(acc, 0, sizeof(float) * (size_t)k->tokens * LANES);
    for (ptrdiff_t start = 0; start < k->count; start += block)
        for (int phase = 0; phase < phases_of(p); phase++) {
            widen_block(lanes, w + start * bytes, min_size(block, k->count - start), phase, p);
            for (int t = 0; t < k->tokens; t++, x += LANES)
                add_products(acc + t * LANES, x, lanes, p.form);
        }
    for (int t = 0; k->last && t < k->tokens; t++)
        k->out[t * CHUNK_ROWS + row] = reduce_lanes(acc + t * LANES);
}

INLINE void multiply_k_block(const PortableProduct p, const int keeps, const KBlock *k)
{
    (void)keeps;
    for (ptrdiff_t row = 0; row < k->rows; row++)
        row_times_panel(p, k, row, k->weight + row * k->weight_stride);
}

/* Multiplies rows that dequantize_span has written, in the type in which the
 * product is computed. */
INLINE void multiply_widened(const PortableProduct p, const KBlock *k)
{
    for (ptrdiff_t row = 0; row < k->rows; row++)
        row_times_panel(p, k, row, (const char *)k->widened + row * K_BLOCK * type_bytes(p.type));
}

INLINE void multiply_rows(float *out, const char *x, const char *weight, ptrdiff_t weight_stride,
                          ptrdiff_t rows, ptrdiff_t in, const PortableProduct p)
{
    const PortableProduct of_x = {p.form, p.form == FORM_BFLOAT16 ? TYPE_BFLOAT16 : TYPE_FLOAT32};
    float x_lanes[LANES], w_lanes[LANES];
    for (ptrdiff_t r = 0; r < rows; r++, weight += weight_stride) {
        float acc[LANES] = {0};
        for (ptrdiff_t start = 0; start < in; start += elements_of(p))
            for (int phase = 0; phase < phases_of(p); phase++) {
                const ptrdiff_t count = min_size(elements_of(p), in - start);
                widen_block(x_lanes, x + start * type_bytes(of_x.type), count, phase, of_x);
                widen_block(w_lanes, weight + start * type_bytes(p.type), count, phase, p);
                add_products(acc, x_lanes, w_lanes, p.form);
            }
        out[r] = reduce_lanes(acc);
    }
}
