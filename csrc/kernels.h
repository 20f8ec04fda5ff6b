/*
 * The whole C surface of llama-bolts: all that Python may call, and nothing else.
 *
 * Python (src/ml/native.py) checks dtypes, shapes, layouts, byte lengths and overlaps; the kernels
 * compute and never allocate, print or exit. Letters of the legend: T new tokens, D model dim,
 * H query heads, K key/value heads, h head dim; and C, the positions that a cache holds. Tensors
 * are row-major and contiguous unless a stride is passed.
 *
 * Numeric contract, the same on every instruction set, for any number of threads or rows:
 *   - a bfloat16 product runs in 16 float32 lanes; lane l takes, for each block of 32 elements,
 *     acc[l] = fma(x[2l], w[2l], fma(x[2l+1], w[2l+1], acc[l])); a float32 product runs in 16
 *     lanes, acc[l] = fma(x[l], w[l], acc[l]) for each block of 16; the tail is padded by zeros;
 *   - the lanes are folded as l + (l + 8), then + 4, then + 2, then + 1;
 *   - every other sum has the same 16 lanes and the same folding;
 *   - attention: a score is one chain along the head, acc = fma(q[2i], k[2i], fma(q[2i+1],
 *     k[2i+1], acc)) for bfloat16 and acc = fma(q[i], k[i], acc) for float32. Positions are
 *     cut into blocks of 256 that begin at multiples of 256. In a block, m is the scale times the
 *     largest visible score, p[s] = 2^fma(score[s], scale, -m), l the sum of p, and a[d] the chain
 *     fma(p[s], v[s, d], a[d]) along the visible positions. Blocks are merged in order, each of
 *     l and a as x * 2^(m - M) + x_block * 2^(m_block - M) with M the larger maximum. A power
 *     below 2^-125 is 0;
 *   - a product with an nf4 weight has the bits of the float32 product of x, widened, with that
 *     weight dequantised to float32;
 *   - one with an int8 weight has the bits of the product with that weight dequantised to the type
 *     of x; but with rows of whole blocks and bfloat16 x, each block b of 32 of x becomes integers q
 *     of 16 bits times a power of two, xs (int8_rows.h), and
 *     lane[b mod 16] = fma(float32(sum of code * q), scale * xs, lane[b mod 16]);
 *   - a result is rounded once, to nearest even; a NaN stays a (quiet) NaN.
 * AVX512-BF16 alone treats subnormal bfloat16 inputs and subnormal sums as zeros.
 *
 * The part between the two marks is read by cffi as it stands: declarations only.
 */
#ifndef LLAMA_BOLTS_KERNELS_H
#define LLAMA_BOLTS_KERNELS_H

#include <stddef.h>
#include <stdint.h>

/* cffi: begin */

/* Element types of buffers. */
enum ElementType { TYPE_BF16 = 0, TYPE_F16 = 1, TYPE_F32 = 2 };

/*
 * Products: the types of x (or a) and of the weight (or b). BF16_F32 is there for nf4 weights
 * alone: x is widened, and the product is that of float32.
 */
enum ProductKind {
    PRODUCT_BF16 = 0,
    PRODUCT_F32 = 1,
    PRODUCT_F32_F16 = 2,
    PRODUCT_BF16_F32 = 3
};

/* Instruction sets, from the slowest to the fastest. */
enum InstructionSet {
    ISA_PORTABLE = 0,
    ISA_AVX2 = 1,
    ISA_AVX512 = 2,
    ISA_AVX512BF16 = 3,
    ISA_COUNT = 4
};

/* Rows of x that a product takes side by side. */
enum { PANEL_TOKENS = 6 };

/* Element-by-element operations. */
enum ElementwiseOp { OP_ADD = 0, OP_MULTIPLY = 1, OP_SILU = 2, OP_SWIGLU = 3 };

/* dispatch.c: 1 when this build and this machine (processor and system) can run the set. */
int isa_available(int isa);
/* dispatch.c: makes the set the one in use; 1 on success, 0 when it is not available. */
int isa_select(int isa);
/* dispatch.c: the set in use. */
int isa_selected(void);

/* threads.c: the OpenMP version date (201511, ...), or 0 in a serial build. */
int openmp_version(void);
/* threads.c: the compiler's name and version. */
const char *compiler_version(void);

/* product.c: bytes of scratch that linear and batched_matmul need for rows of `in` elements. */
ptrdiff_t product_scratch_bytes(ptrdiff_t in, int threads);

/* How block-quantised weights are stored; blocks run over all elements in row-major order. */
enum QuantizedFormat { QUANTIZED_NF4 = 0, QUANTIZED_NF4_NESTED = 1, QUANTIZED_INT8 = 2 };

/* A block-quantised weight; its formats are described in quantized_rows.h. */
typedef struct QuantizedWeight {
    const uint8_t *codes;       /* NF4: two to a byte; INT8: one signed byte each */
    const void *scales;         /* NF4: float32; NESTED: uint8; INT8: bfloat16; one per block */
    const float *nested_absmax; /* NESTED: one per 256 blocks; else NULL */
    const float *nested_code;   /* NESTED: [256]; else NULL */
    float nested_offset;
    int format;
} QuantizedWeight;

/* One weight of linear, and where its results go. */
typedef struct LinearPart {
    const void *weight; /* NULL where it is block-quantised */
    void *out;
    ptrdiff_t out_features;
    QuantizedWeight quantized;
} LinearPart;

/* linear.c: out[t, o] = sum over i of x[t, i] * weight[o, i] for each of some weights. */
void linear(const void *x, const LinearPart *parts, ptrdiff_t count, void *scratch, ptrdiff_t T,
            ptrdiff_t in_features, int kind, int out_type, int threads);

/* quantized.c: codes and scales of x; returns how many elements are not finite. NESTED has none. */
ptrdiff_t quantize(const void *x, int x_type, uint8_t *codes, void *scales, int format,
                   ptrdiff_t n, int threads);

/* quantized.c: out[t, :] = row rows[t] of a weight, or row t if rows is NULL. */
void dequantize(const QuantizedWeight *weight, const int32_t *rows, void *out, int out_type,
                ptrdiff_t T, ptrdiff_t columns, int threads);

/* matmul.c: out[b, i, j] = sum over l of a[b, i, l] * b[b, j, l]; strides in bytes. */
void batched_matmul(const void *a, ptrdiff_t a_batch_stride, ptrdiff_t a_row_stride, const void *b,
                    ptrdiff_t b_batch_stride, ptrdiff_t b_row_stride, void *out, void *scratch,
                    ptrdiff_t batches, ptrdiff_t m, ptrdiff_t n, ptrdiff_t k, int kind,
                    int out_type, int threads);

/* softmax.c: out[r, :] = exp(x[r, :] - max) / sum. */
void softmax(const void *x, int x_type, void *out, int out_type, ptrdiff_t rows, ptrdiff_t n,
             int threads);

/* rms_norm.c: out[r, :] = x[r, :] / sqrt(mean(x[r, :]^2) + eps) * weight. */
void rms_norm(const void *x, int x_type, const void *weight, int weight_type, void *out,
              int out_type, float eps, ptrdiff_t rows, ptrdiff_t D, int threads);

/* rotary.c: pairs (x[2i], x[2i+1]), or with halves (x[i], x[i + h/2]), of each head, as complex
 * numbers, times frequencies[t, i]; the results lie at 2i and 2i+1 either way. */
void rotary(const void *x, const float *frequencies, void *out, int type, int halves, ptrdiff_t T,
            ptrdiff_t heads, ptrdiff_t h, int threads);

/* elementwise.c: out[i] = op(a[i], b[i]); b is not read by OP_SILU. */
void elementwise(int op, const void *a, const void *b, void *out, int type, ptrdiff_t n,
                 int threads);

/* attention.c: bytes of scratch that attention needs for these sizes. */
ptrdiff_t attention_scratch_bytes(ptrdiff_t T, ptrdiff_t start_pos, ptrdiff_t H, ptrdiff_t K,
                                  ptrdiff_t h, int type, int threads);

/* attention.c: out[t, i] = sum of 2^z[s] * v[s] over sum of 2^z[s], z[s] = scale * xq[t, i] . k[s],
 * for s <= start_pos + t; with scale = log2(e) / sqrt(h), the softmax of the scores. */
void attention(const void *xq, const void *keys, const void *values, void *out, void *scratch,
               ptrdiff_t T, ptrdiff_t start_pos, ptrdiff_t H, ptrdiff_t K, ptrdiff_t h,
               ptrdiff_t C, int type, float scale, int threads);

/* write_cache.c: keys and values of T positions from start_pos on, into their places. */
void write_cache(const void *xk, const void *xv, void *keys, void *values, ptrdiff_t T,
                 ptrdiff_t start_pos, ptrdiff_t K, ptrdiff_t h, ptrdiff_t C, int type, int threads);

/* argmax.c: out[r] = index of the first maximum of x[r, :]; a NaN counts as the maximum. */
void argmax(const void *x, int type, int32_t *out, ptrdiff_t rows, ptrdiff_t n, int threads);

/* probe.c: the exclusive or of the 32-bit words of a buffer. */
uint32_t probe_read(const void *bytes, ptrdiff_t count, int streams, int threads);

/* probe.c: multiply-adds in registers; returns the operations done, 0 where none are timed. */
ptrdiff_t probe_multiply_add(int kind, ptrdiff_t rounds, float *result, int threads);

/* convert.c: out[i] = x[i] in another type. */
void convert(const void *x, int x_type, void *out, int out_type, ptrdiff_t n, int threads);

/* cffi: end */

#endif
