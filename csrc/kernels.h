/*
 * The whole C surface of llama-bolts: all that Python may call, and nothing else; and below it,
 * what the files of csrc share and Python does not see.
 *
 * Python (src/ml/ops) checks dtypes, shapes, layouts, byte lengths and overlaps; the kernels
 * compute and never allocate, print or exit. Letters of the legend: T new tokens, D model dim,
 * H query heads, K key/value heads, h head dim; and C, the positions that a cache holds. Tensors
 * are row-major and contiguous unless a stride is passed.
 *
 * Numeric contract, the same on every instruction set, for any number of threads or rows:
 *   - a product with a weight (linear) runs in 16 float32 lanes; for bfloat16, lane l takes, for
 *     each block of 32 elements, acc[l] = fma(x[2l], w[2l], fma(x[2l+1], w[2l+1], acc[l])), and for
 *     float32, acc[l] = fma(x[l], w[l], acc[l]) for each block of 16; the tail is padded by zeros;
 *   - the lanes are reduced as l + (l + 8), then + 4, then + 2, then + 1;
 *   - a product of two tensors (batched_matmul) cuts k into blocks of 256 that begin at multiples
 *     of 256; in a block it is one chain from 0, acc = fma(a[2i], b[2i], fma(a[2i+1], b[2i+1],
 *     acc)) for bfloat16, padded by a zero, and acc = fma(a[i], b[i], acc) for float32; the blocks
 *     are added in order to 0;
 *   - softmax: exp(x[i] - max), their sum in the 16 lanes, and each times 1 / sum;
 *   - attention has the bits of scores = batched_matmul(q, k), times scale, softmax over the
 *     visible positions, and batched_matmul(weights, v), all in float32, with finite keys and
 *     values;
 *   - every other sum has the same 16 lanes, reduced in the same order;
 *   - a product with bfloat16 x runs in bfloat16 where that holds the weight's elements (PAIR_TYPES
 *     in dtypes.h), else in float32, as all products with float32 x; each is widened exactly;
 *   - a product with a block format (BLOCK_TYPES) has the bits of the product with that weight
 *     dequantized to the type of x; but with rows of whole blocks and bfloat16 x, each group b of
 *     32 of x becomes integers q times a float32, xs, and
 *     lane[b mod 16] = fma(float32(sum of code * q), scale * xs, lane[b mod 16]), once for each
 *     half where these have scales of their own; then, with a minimum, the same of q alone. A code
 *     of nf4 is there its level in steps of 2^-11, rounded to nearest, and its scale 2^-11 times
 *     that of its block;
 *   - those integers have 16 bits, or 8 if the weight asks for it (Activations). With absmax the
 *     largest |x| of the group and all operations in float32, rounded to nearest even:
 *       16 bits: xs is the least power of two from 2^-126 on with |x| / xs <= 32767 after
 *                rounding, and q = rint(x / xs);
 *       8 bits:  xs = absmax / 127 and q = rint(x * (127 / absmax)), so |q| <= 127; where absmax
 *                is below 127 * 2^-126, xs and all q are 0;
 *     where an element is not finite, xs is a NaN;
 *   - a bias is added in float32 to the sum before it is rounded;
 *   - a result is rounded once, to nearest even; a NaN stays a (quiet) NaN.
 * The contract has one exception: products that run in bfloat16 treat subnormal inputs and
 * subnormal sums of lanes as zeros with AVX512-BF16 alone.
 *
 * Arguments: outputs, inputs, sizes, options. A tensor of no elements may be NULL.
 * The part between the two marks is read by cffi as it stands: declarations only.
 */
#pragma once
#include <stddef.h>
#include <stdint.h>
#include "dtypes.h"

/* cffi: begin */

/* Instruction sets, of each processor from the slowest to the fastest. */
typedef enum InstructionSet {
    ISA_PORTABLE = 0,
    ISA_AVX2 = 1,
    ISA_AVX512 = 2,
    ISA_AVX512BF16 = 3,
    ISA_NEON = 4,
    ISA_NEONDOT = 5,
    ISA_NEONBF16 = 6
} InstructionSet;

enum {
    /* Rows of x that a product takes side by side. */
    PANEL_TOKENS = 6,
    /* Elements of a block of a sum, and positions of a block of a cache; blocks begin at
     * multiples of it. */
    ATTENTION_BLOCK = 256,
    /* Lanes of every other sum; and positions of a cache whose keys lie side by side. */
    LANES = 16,
    /* Bytes of a cache line. */
    LINE = 64,
    /* NF4_DOUBLE: blocks that share a scale of their scales, and values of a code of 8 bits. */
    NESTED_BLOCK = 256,
    NESTED_CODES = 256,
    /* Values of Activations. */
    ACTIVATIONS_COUNT = 2,
    /* Places that probe_read reads from side by side, at most. */
    PROBE_STREAMS = 8,
    /* Threads that take part in an op, at most: the caller and its workers. */
    MOST_THREADS = 256
};

/* Element-by-element operations. */
typedef enum ElementwiseOp {
    OP_ADD = 0,
    OP_MULTIPLY = 1,
    OP_SILU = 2,
    OP_SWIGLU = 3
} ElementwiseOp;

/* A waiting thread spins for a time that depends on how busy the processors are, and then sleeps;
 * or it spins without end; or it sleeps at once. */
typedef enum Waiting { WAITING_ADAPTIVE = 0, WAITING_ACTIVE = 1, WAITING_PASSIVE = 2 } Waiting;

/* How a product with a weight of a block format rounds bfloat16 x: to integers of 16 or 8 bits. */
typedef enum Activations { ACTIVATIONS_INT16 = 0, ACTIVATIONS_INT8 = 1 } Activations;

/* A weight [rows, in]; blocks of elements run over all of them in row-major order. */
typedef struct Weight {
    const void *data;           /* elements, or the codes of blocks */
    const void *scales;         /* of blocks; NULL where the weight is plain */
    const float *nested_absmax; /* NF4_DOUBLE: one for each 256 blocks; else NULL */
    const float *nested_code;   /* NF4_DOUBLE: [256]; else NULL */
    float nested_offset;
    ElementType type;
    Activations activations; /* of its products with bfloat16 x; not read where it is plain */
} Weight;

/* One weight of linear, what is added to its products, and where the results go. */
typedef struct LinearPart {
    void *out;        /* [T, rows] */
    Weight weight;    /* [rows, in] */
    const void *bias; /* [rows], or NULL */
    ptrdiff_t rows;
    ElementType bias_type;
} LinearPart;

/* dispatch.c: whether this build and this machine can run the set; takes it into use if so. */
int isa_available(InstructionSet isa);
int isa_select(InstructionSet isa);
InstructionSet isa_selected(void);
/* dispatch.c: the compiler's name. */
const char *compiler_version(void);
/* threads.c: "OpenMP", "pthreads", or "serial"; the date of OpenMP (201511, ...), or 0 without. */
const char *threading(void);
int openmp_version(void);
/* threads.c: sets how threads wait for one another from now on. */
void choose_waiting(Waiting waiting);

/* From now on a page that a mapped file cannot give ends the process: one line, exit code 3. */
void exit_on_bus_error(void);

/* memory.c: from now on malloc keeps up to 128 MiB of what is freed; with glibc alone. */
void keep_freed_memory(void);

/* linear.c: bytes of scratch that linear needs for rows of `in` elements. */
ptrdiff_t product_scratch_bytes(ptrdiff_t in, int threads);

/* linear.c: x times each of some weights of one type, with the same activations. */
void linear(const LinearPart *parts, void *scratch, const void *x, ptrdiff_t count, ptrdiff_t T,
            ptrdiff_t in, ElementType x_type, ElementType out_type, int threads);

/* linear_reference.c: the same of float32, in plain order, for tests and readers. */
void linear_reference(float *out, const float *x, const float *weight, const float *bias,
                      ptrdiff_t T, ptrdiff_t in, ptrdiff_t rows);

/* q4_k_reference.c: bfloat16 x times a q4_k weight, with the bits of linear. */
void q4_k_reference(float *out, const uint16_t *x, const uint8_t *weight, ptrdiff_t T, ptrdiff_t in,
                    ptrdiff_t rows, Activations activations);

/* matmul.c: bytes of scratch that batched_matmul needs. */
ptrdiff_t matmul_scratch_bytes(int threads);

/* matmul.c: a times b transposed, for each of a batch; strides in bytes, along k the last one. */
void batched_matmul(void *out, void *scratch, const void *a, const void *b, ptrdiff_t batches,
                    ptrdiff_t m, ptrdiff_t n, ptrdiff_t k, ptrdiff_t a_batch_stride,
                    ptrdiff_t a_row_stride, ptrdiff_t a_stride, ptrdiff_t b_batch_stride,
                    ptrdiff_t b_row_stride, ptrdiff_t b_stride, ElementType type,
                    ElementType out_type, int threads);

/* rows.c: codes and scales of x; returns how many elements are not finite. */
ptrdiff_t quantize(void *codes, void *scales, const void *x, ptrdiff_t n, ElementType x_type,
                   ElementType type, int threads);

/* rows.c: rows ids[t] of a table, or t if ids is NULL; returns 0 if all of them are there. */
ptrdiff_t get_rows(void *out, const Weight *table, const int32_t *ids, ptrdiff_t T, ptrdiff_t V,
                   ptrdiff_t D, ElementType out_type, int threads);

/* rows.c: softmax of each row. */
void softmax(void *out, const void *x, ptrdiff_t rows, ptrdiff_t n, ElementType x_type,
             ElementType out_type, int threads);

/* rows.c: rows scaled to a root mean square of 1, times weight. */
void rms_norm(void *out, const void *x, const void *weight, ptrdiff_t rows, ptrdiff_t D, float eps,
              ElementType x_type, ElementType weight_type, ElementType out_type, int threads);

/* rms_norm_reference.c: the same of float32 with the same bits, for tests and readers. */
void rms_norm_reference(float *out, const float *x, const float *weight, ptrdiff_t rows,
                        ptrdiff_t D, float eps);

/* rows.c: pairs of each head as complex numbers, times frequencies[t, pair]. */
void rotary(void *out, const void *x, const void *frequencies, ptrdiff_t T, ptrdiff_t heads,
            ptrdiff_t h, int halves, ElementType type, int threads);

/* rotary_reference.c: the same of float32 with the same bits. */
void rotary_reference(float *out, const float *x, const float *frequencies, ptrdiff_t T,
                      ptrdiff_t heads, ptrdiff_t h, int halves);

/* rows.c: op of a, and of b but for OP_SILU. */
void elementwise(void *out, const void *a, const void *b, ptrdiff_t n, ElementwiseOp op,
                 ElementType type, int threads);

/* attention.c: bytes of scratch that attention needs for these sizes. */
ptrdiff_t attention_scratch_bytes(ptrdiff_t T, ptrdiff_t start_pos, ptrdiff_t H, ptrdiff_t K,
                                  ptrdiff_t h, ElementType type, int threads);

/* attention.c: queries over a cache; scale is 1 / sqrt(h), as for a softmax. */
void attention(void *out, void *scratch, const void *xq, const void *keys, const void *values,
               const ptrdiff_t *blocks, ptrdiff_t T, ptrdiff_t start_pos, ptrdiff_t H, ptrdiff_t K,
               ptrdiff_t h, ptrdiff_t C, float scale, ElementType type, int threads);

/* attention_reference.c: the same of float32 with the same bits; keys and values by position. */
void attention_reference(float *out, float *p, const float *xq, const float *keys,
                         const float *values, ptrdiff_t T, ptrdiff_t start_pos, ptrdiff_t H,
                         ptrdiff_t K, ptrdiff_t h, float scale);

/* rows.c: keys and values of T positions from start_pos on. */
void write_cache(void *keys, void *values, const void *xk, const void *xv, const ptrdiff_t *blocks,
                 ptrdiff_t T, ptrdiff_t start_pos, ptrdiff_t K, ptrdiff_t h, ptrdiff_t C,
                 ElementType type, int threads);

/* rows.c: the index of each row's first maximum. */
void argmax(int32_t *out, const void *x, ptrdiff_t rows, ptrdiff_t n, ElementType type,
            int threads);

/* rows.c: x in another type. */
void convert(void *out, const void *x, ptrdiff_t n, ElementType x_type, ElementType out_type,
             int threads);

/* probe.c: the exclusive or of the 32-bit words of a buffer. */
uint32_t probe_read(const void *bytes, ptrdiff_t count, int streams, int threads);

/* probe.c: multiply-adds in registers; returns the operations done, 0 where none are timed. */
ptrdiff_t probe_multiply_add(float *result, ptrdiff_t rounds, ElementType type, int threads);

/* cffi: end */

#define INLINE static inline __attribute__((always_inline))

enum {
    /* Fewest elements of a thread: to open a region takes about a microsecond. */
    ELEMENTS_PER_THREAD = 16384
};

/* The kernels of one format of block-quantized weights that work on spans of elements. */
typedef struct FormatConversions {
    /* Writes the codes and scales of blocks from block `first` on; returns how many of the `count`
     * elements are not finite. NULL if nothing is quantized to the format. */
    ptrdiff_t (*quantize_span)(void *codes, void *scales, const void *x, ptrdiff_t first,
                               ptrdiff_t count, ElementType x_type);
    /* out[i] = element first + i, rounded once to out_type; for any first and any count. */
    void (*dequantize_span)(void *out, const Weight *weight, ptrdiff_t first, ptrdiff_t count,
                            ElementType out_type);
} FormatConversions;

/* The kernels of an instruction set on one row or one span of elements (rows/row_kernels.h). */
typedef struct RowKernels {
    void (*softmax_row)(void *out, const void *x, ptrdiff_t n, ElementType x_type,
                        ElementType out_type);
    void (*rms_norm_row)(void *out, const void *x, const void *weight, ptrdiff_t D, float eps,
                         ElementType x_type, ElementType weight_type, ElementType out_type);
    void (*rotary_row)(void *out, const void *x, const float *frequencies, ptrdiff_t heads,
                       ptrdiff_t h, int halves, ElementType type);
    void (*elementwise_span)(void *out, const void *a, const void *b, ptrdiff_t n, ElementwiseOp op,
                             ElementType type);
    ptrdiff_t (*argmax_row)(const void *x, ptrdiff_t n, ElementType type);
    void (*convert_span)(void *out, const void *x, ptrdiff_t n, ElementType x_type,
                         ElementType out_type);
    const FormatConversions *formats; /* [TYPE_COUNT]; zeros for plain types */
} RowKernels;

/* All kernels of an instruction set. The drivers split the work of an op over threads and call
 * these; none of these splits work itself. */
typedef struct KernelSet {
    const RowKernels *rows;
    const struct ProductKernels *products;    /* products/product.h */
    const struct AttentionKernels *attention; /* attention/attention.h */
    const struct ProbeKernels *probe;         /* probe.h */
} KernelSet;

/* dispatch.c: the set in use; and the set whose products multiply many tokens of bfloat16 instead,
 * with the same bits, because KBlock.flushes makes it treat subnormal numbers in the same way. */
const KernelSet *kernel_set(void);
const KernelSet *kernel_set_of_many(void);

static inline ptrdiff_t ceil_div(ptrdiff_t a, ptrdiff_t b) { return (a + b - 1) / b; }
static inline ptrdiff_t min_size(ptrdiff_t a, ptrdiff_t b) { return a < b ? a : b; }

/* Bytes of an element of a plain type. */
static inline ptrdiff_t type_bytes(ElementType type)
{
#define BYTES(name, number, bytes) [number] = bytes,
    static const uint8_t sizes[TYPE_COUNT] = { PLAIN_TYPES(BYTES) };
    return sizes[type];
}

/* Elements of a block of a format; 0 for a plain type. */
static inline ptrdiff_t block_elements(ElementType type)
{
#define ELEMENTS(name, number, elements, codes, scale) [number] = elements,
    static const uint16_t sizes[TYPE_COUNT] = { BLOCK_TYPES(ELEMENTS) };
    return sizes[type];
}

/* Scratch comes unaligned from Python; panels start at a cache line. */
static inline char *align_to_line(void *pointer)
{
    return (char *)(((uintptr_t)pointer + 63) & ~(uintptr_t)63);
}

/* Threads for `work` units of which each thread should have at least `share`. */
static inline int threads_for(ptrdiff_t work, ptrdiff_t share, int threads)
{
    const ptrdiff_t useful = work / share;
    return useful < 1 ? 1 : useful < threads ? (int)useful : threads;
}

/* Runs some units of an op's work, or one; `thread` is below the number of threads. */
typedef void (*range_function)(void *work, ptrdiff_t first, ptrdiff_t count, int thread);
typedef void (*unit_function)(void *work, ptrdiff_t unit, int thread);

/* How the units of an op are shared out. */
typedef struct Shares {
    ptrdiff_t smallest; /* fewest units that a thread takes at a time, near the end */
    ptrdiff_t largest;  /* most units that a thread takes at a time */
    int spans;          /* parts of neighbouring units; a thread ends its own before it helps */
} Shares;

/* threads.c: runs units [0, count), which threads take as they become free. */
void run_ranges(void *work, range_function run, ptrdiff_t count, Shares shares, int threads);

/* The same for a function of one unit; threads take `chunk` units at a time. */
void run_units(void *work, unit_function run, ptrdiff_t count, ptrdiff_t chunk, int threads);
