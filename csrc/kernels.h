/*
 * The whole C surface of llama-bolts: every function that Python may call. The declarations below
 * the surface are shared by the files of csrc, and Python cannot see them.
 *
 * Python (src/ml/ops) checks dtypes, shapes, layouts, byte lengths and overlaps; the kernels
 * compute and never allocate, print or exit. Letters of the legend: T new tokens, D model dim, H
 * query heads, K key/value heads, h head dim. C is the number of positions in a cache. Tensors are
 * row-major and contiguous unless a stride is passed.
 *
 * Numeric contract, the same on every instruction set, for any number of threads or rows:
 *   - a product with a weight (linear) is summed in 16 float32 lanes. For bfloat16, lane l computes
 *     acc[l] = fma(x[2l], w[2l], fma(x[2l+1], w[2l+1], acc[l])) for each block of 32 elements. For
 *     float32, it computes acc[l] = fma(x[l], w[l], acc[l]) for each block of 16. The last block is
 *     padded with zeros;
 *   - the lanes are reduced as l + (l + 8), then + 4, then + 2, then + 1;
 *   - a product of two tensors (batched_matmul) divides k into blocks of 256, starting at multiples
 *     of 256. A block is one chain that starts from 0: acc = fma(a[2i], b[2i], fma(a[2i+1],
 *     b[2i+1], acc)) for bfloat16, padded with a zero, and acc = fma(a[i], b[i], acc) for float32.
 *     The sums of the blocks are added in order, starting from 0;
 *   - softmax computes exp(x[i] - max), sums them in the 16 lanes, and multiplies each by 1 / sum;
 *   - attention with finite keys and values has the bits of scores = batched_matmul(q, k), a
 *     multiplication by scale, softmax over the visible positions, and batched_matmul(weights, v),
 *     all in float32. Positions before a window are left out; their weights would be 0. With keys
 *     and values in q8_0, it has the bits of attention with queries, keys and values widened to
 *     float32;
 *   - every other sum has the same 16 lanes, reduced in the same order;
 *   - a product with bfloat16 x runs in bfloat16 if bfloat16 represents the weight's elements
 *     exactly (PAIR_TYPES in dtypes.h), otherwise in float32. A product with float32 x runs in
 *     float32. Elements are widened exactly;
 *   - a product with a block format (BLOCK_TYPES) has the bits of the product with that weight
 *     dequantized to the type of x, with one exception: if x is bfloat16 and rows consist of whole
 *     blocks, each group b of 32 elements of x becomes integers q times a float32 xs, and
 *     lane[b mod 16] = fma(float32(sum of code * q), scale * xs, lane[b mod 16]), once for each
 *     half of the group if the halves have separate scales. If the format has a minimum, a further
 *     step adds minimum * xs times the sum of q. A code of nf4 is replaced by its level in steps of
 *     2^-11, rounded to nearest, and its scale is 2^-11 times the scale of its block;
 *   - these integers have 16 bits, or 8 bits if the weight requires it (Activations). absmax is the
 *     largest |x| in the group. All operations are in float32, rounded to nearest even:
 *       16 bits: xs is the smallest power of two >= 2^-126 with |x| / xs <= 32767 after rounding,
 *                and q = rint(x / xs);
 *       8 bits:  xs = absmax / n and q = rint(r) with r = x * (n / absmax), so |q| <= 127. n is
 * 127, 126 or 125, whichever has the smallest E(n) / n^2, and the largest if some are equal. E(n)
 * is the sum of (r - q)^2: lane l adds the squares of elements 2l and 2l + 1. If absmax is below
 * 127 * 2^-126, xs and all q are 0; if an element is not finite, xs is a NaN;
 *   - a bias is added in float32 to the sum before it is rounded;
 *   - a result is rounded once, to nearest even; a NaN stays a (quiet) NaN.
 * The contract has one exception: with AVX512-BF16, products that run in bfloat16 treat subnormal
 * inputs and subnormal sums of lanes as zeros.
 *
 * Arguments: outputs, inputs, sizes, options. A tensor without elements may be NULL. cffi parses
 * the part between the two marks, so it contains only declarations.
 */
#pragma once
#include <stddef.h>
#include <stdint.h>
#include "dtypes.h"

/* cffi: begin */

/* Instruction sets, from the slowest to the fastest for each processor architecture. */
typedef enum InstructionSet {
    ISA_PORTABLE = 0,
    ISA_AVX2 = 1,
    ISA_AVX512 = 2,
    ISA_AVX512BF16 = 3,
    ISA_NEON = 4,
    ISA_NEONDOT = 5,
    ISA_NEONBF16 = 6,
    ISA_AVX512AMX = 7 /* avx512bf16 with products of many tokens in tile registers */
} InstructionSet;

enum {
    /* Rows of x that a product processes together. */
    PANEL_TOKENS = 6,
    /* Elements per block of a sum, and positions per block of a cache. Blocks begin
     * at multiples of this. */
    ATTENTION_BLOCK = 256,
    /* Lanes of every other sum, and positions of a cache whose keys are interleaved. */
    LANES = 16,
    /* Bytes per cache line. */
    LINE = 64,
    /* NF4_DOUBLE: blocks that share a scale of their scales, and the number of 8-bit codes. */
    NESTED_BLOCK = 256,
    NESTED_CODES = 256,
    /* Maximum number of pairs of a segment of experts. */
    EXPERT_PAIRS = 132,
    /* Number of values of Activations. */
    ACTIVATIONS_COUNT = 2,
    /* Maximum number of streams that probe_read reads at the same time. */
    PROBE_STREAMS = 8,
    /* Maximum number of threads that run an op: the caller and its workers. */
    MOST_THREADS = 256
};

/* Elementwise operations. */
typedef enum ElementwiseOp {
    OP_ADD = 0,
    OP_MULTIPLY = 1,
    OP_SILU = 2,
    OP_SWIGLU = 3,
    OP_GEGLU = 4,
    OP_CLAMPED_SWIGLU = 5
} ElementwiseOp;

/* How a thread waits. WAITING_ADAPTIVE spins for a time that depends on how busy the processors
 * are, and then sleeps. WAITING_ACTIVE spins without end, and WAITING_PASSIVE sleeps at once. */
typedef enum Waiting { WAITING_ADAPTIVE = 0, WAITING_ACTIVE = 1, WAITING_PASSIVE = 2 } Waiting;

/* Whether a product with a block format rounds bfloat16 x to integers of 16 bits or of 8 bits. */
typedef enum Activations { ACTIVATIONS_INT16 = 0, ACTIVATIONS_INT8 = 1 } Activations;

/* A weight [rows, in]. Blocks are formed over all elements in row-major order. */
typedef struct Weight {
    const void *data;           /* the elements, or the codes of the blocks */
    const void *scales;         /* one for each block; NULL if the weight is plain */
    const float *nested_absmax; /* NF4_DOUBLE: one for each 256 blocks; otherwise NULL */
    const float *nested_code;   /* NF4_DOUBLE: [256]; otherwise NULL */
    float nested_offset;
    ElementType type;
    Activations activations; /* for products with bfloat16 x; not used if the weight is plain */
} Weight;

/* One weight of linear, its bias, and the location of its results. */
typedef struct LinearPart {
    void *out;        /* [T, rows] */
    Weight weight;    /* [rows, in] */
    const void *bias; /* [rows], or NULL */
    ptrdiff_t rows;
    ElementType bias_type;
} LinearPart;

/* The same matrix of all experts. */
typedef struct ExpertMatrix {
    const Weight *weights;     /* [E], each [rows, in], all of one type */
    const void *const *biases; /* [E], each [rows], or NULL */
    ptrdiff_t rows, in;
    ElementType bias_type;
} ExpertMatrix;

/* A segment of the pairs of a token and one of its A experts: pair t * A + a is token t with its
 * expert of index a. Python sorts the pairs by expert. */
typedef struct ExpertPairs {
    ptrdiff_t expert;
    ptrdiff_t first; /* the index of the first pair in this order */
    ptrdiff_t count; /* 1..EXPERT_PAIRS */
    ptrdiff_t panel; /* the index of the first panel of six rows */
} ExpertPairs;

/* The product of the matrix A of an adapter and some tokens. */
typedef struct LowRankProduct {
    const void *a;   /* [rank, in] */
    ptrdiff_t rank;  /* rows of A */
    ptrdiff_t first; /* the place of the first token's number in `rows` */
    ptrdiff_t count; /* tokens */
    ptrdiff_t low;   /* where its results [count, rank] begin in `low` */
    ElementType a_type;
} LowRankProduct;

/* The change of some tokens of a result by the matrix B of an adapter. */
typedef struct LowRankChange {
    const void *b;   /* [rank, columns], B by columns */
    ptrdiff_t rank;  /* columns of B */
    ptrdiff_t first; /* the place of the first token's number in `rows` */
    ptrdiff_t count; /* tokens */
    ptrdiff_t low;   /* where the products [count, rank] with A begin in `low` */
    float factor;
    ElementType b_type;
} LowRankChange;

/* A result that changes, and its changes in the order in which they are added. */
typedef struct LowRankResult {
    float *out;             /* [T, columns] */
    void *rounded;          /* [T, columns], the changed result in another type, or NULL */
    ptrdiff_t columns;      /* elements per token */
    ptrdiff_t first_change; /* the first of its changes */
    ptrdiff_t changes;      /* their number */
    ElementType rounded_type;
} LowRankResult;

/* dispatch.c: isa_available returns whether this build and this machine can run an instruction set.
 * isa_select also selects the set in that case. */
int isa_available(InstructionSet isa);
int isa_select(InstructionSet isa);
InstructionSet isa_selected(void);
/* dispatch.c: the name and version of the compiler. */
const char *compiler_version(void);
/* threads.c: threading returns "OpenMP", "pthreads" or "serial". openmp_version returns the date of
 * the OpenMP specification (201511, ...), or 0 without OpenMP. */
const char *threading(void);
int openmp_version(void);
/* threads.c: sets how threads wait for each other from now on. */
void choose_waiting(Waiting waiting);

/* bus_error.c: from now on, if a page of a mapped file cannot be read, the process prints one line
 * and exits with code 3. */
void exit_on_bus_error(void);

/* memory.c: from now on, malloc keeps up to 128 MiB of freed memory. This only has
 * an effect with glibc. */
void keep_freed_memory(void);

/* linear.c: returns the bytes of scratch that linear needs for rows of `in` elements. */
ptrdiff_t product_scratch_bytes(ptrdiff_t in, int threads);

/* linear.c: multiplies x by each of several weights that have the same type and the same
 * activations. */
void linear(const LinearPart *parts, void *scratch, const void *x, ptrdiff_t count, ptrdiff_t T,
            ptrdiff_t in, ElementType x_type, ElementType out_type, int threads);

/* linear.c: returns the bytes of scratch that the two ops on experts need, for rows of `in`
 * elements in some panels. */
ptrdiff_t expert_scratch_bytes(ptrdiff_t in, ptrdiff_t panels, int threads);

/* linear.c: applies the gate and up matrices of each pair's expert, and op to the products. */
void expert_hidden(void *out, void *scratch, const void *x, const ExpertMatrix *gate,
                   const ExpertMatrix *up, const ExpertPairs *segments, const int32_t *pairs,
                   ptrdiff_t count, ptrdiff_t panels, ptrdiff_t T, ptrdiff_t A, ElementwiseOp op,
                   ElementType x_type, ElementType out_type, int threads);

/* linear.c: applies the down matrix of each pair's expert, and adds the weighted results. */
void expert_outputs(float *out, void *scratch, const void *hidden, const float *weights,
                    const ExpertMatrix *down, const ExpertPairs *segments, const int32_t *pairs,
                    ptrdiff_t count, ptrdiff_t panels, ptrdiff_t T, ptrdiff_t A, ElementType x_type,
                    int threads);

/* linear_reference.c: linear for float32 with plain loops, for tests and readers. */
void linear_reference(float *out, const float *x, const float *weight, const float *bias,
                      ptrdiff_t T, ptrdiff_t in, ptrdiff_t rows);

/* q4_k_reference.c: multiplies bfloat16 x by a q4_k weight, with the bits of linear. */
void q4_k_reference(float *out, const uint16_t *x, const uint8_t *weight, ptrdiff_t T, ptrdiff_t in,
                    ptrdiff_t rows, Activations activations);

/* matmul.c: returns the bytes of scratch that batched_matmul needs. */
ptrdiff_t matmul_scratch_bytes(int threads);

/* matmul.c: multiplies a by b transposed for each member of a batch. Strides are in bytes; a_stride
 * and b_stride are the strides along k. */
void batched_matmul(void *out, void *scratch, const void *a, const void *b, ptrdiff_t batches,
                    ptrdiff_t m, ptrdiff_t n, ptrdiff_t k, ptrdiff_t a_batch_stride,
                    ptrdiff_t a_row_stride, ptrdiff_t a_stride, ptrdiff_t b_batch_stride,
                    ptrdiff_t b_row_stride, ptrdiff_t b_stride, ElementType type,
                    ElementType out_type, int threads);

/* rows.c: computes the codes and scales of x. Returns the number of elements
 * that are not finite. */
ptrdiff_t quantize(void *codes, void *scales, const void *x, ptrdiff_t n, ElementType x_type,
                   ElementType type, int threads);

/* rows.c: copies row ids[t] of a table, or row t if ids is NULL, to row t of out. Returns 0 if the
 * table has all rows. */
ptrdiff_t get_rows(void *out, const Weight *table, const int32_t *ids, ptrdiff_t T, ptrdiff_t V,
                   ptrdiff_t D, ElementType out_type, int threads);

/* rows.c: computes the softmax of each row. */
void softmax(void *out, const void *x, ptrdiff_t rows, ptrdiff_t n, ElementType x_type,
             ElementType out_type, int threads);

/* rows.c: chooses the experts of each token with the largest logits, and gathers their values. */
void choose_experts(int32_t *experts, float *chosen, const float *logits, const float *values,
                    ptrdiff_t T, ptrdiff_t E, ptrdiff_t A);

/* rows.c: scales each row to a root mean square of 1, and multiplies it by weight. */
void rms_norm(void *out, const void *x, const void *weight, ptrdiff_t rows, ptrdiff_t D, float eps,
              ElementType x_type, ElementType weight_type, ElementType out_type, int threads);

/* rms_norm_reference.c: rms_norm for float32, with the same bits, for tests and readers. */
void rms_norm_reference(float *out, const float *x, const float *weight, ptrdiff_t rows,
                        ptrdiff_t D, float eps);

/* rows.c: multiplies the pairs of each head, as complex numbers, by frequencies[t, pair]. */
void rotary(void *out, const void *x, const void *frequencies, ptrdiff_t T, ptrdiff_t heads,
            ptrdiff_t h, int halves, ElementType type, int threads);

/* rotary_reference.c: rotary for float32, with the same bits. */
void rotary_reference(float *out, const float *x, const float *frequencies, ptrdiff_t T,
                      ptrdiff_t heads, ptrdiff_t h, int halves);

/* rows.c: applies op to a and b, or only to a if op is OP_SILU. */
void elementwise(void *out, const void *a, const void *b, ptrdiff_t n, ElementwiseOp op,
                 ElementType type, int threads);

/* rows.c: limits each element to the range from -cap to cap. */
void soft_cap(void *out, const void *x, ptrdiff_t n, float cap, ElementType type, int threads);

/* low_rank.c: computes products of the matrices A of adapters and tokens. */
void low_rank_products(float *low, const void *x, const ptrdiff_t *rows,
                       const LowRankProduct *products, ptrdiff_t count, ptrdiff_t in,
                       ElementType x_type, int threads);

/* low_rank.c: adds the products of the matrices B of adapters and `low` to results of T tokens. */
void add_low_rank_changes(const LowRankResult *results, ptrdiff_t count,
                          const LowRankChange *changes, const float *low, const ptrdiff_t *rows,
                          ptrdiff_t T, int threads);

/* attention.c: returns the bytes of scratch that attention needs for these sizes. */
ptrdiff_t attention_scratch_bytes(ptrdiff_t T, ptrdiff_t start_pos, ptrdiff_t H, ptrdiff_t K,
                                  ptrdiff_t h, ptrdiff_t window, ElementType cache_type,
                                  int threads);

/* attention.c: computes the attention of queries over a cache. The usual scale is 1 / sqrt(h). A
 * window, sinks or a soft cap are optional: 0 or NULL. */
void attention(void *out, void *scratch, const void *xq, const void *keys, const void *values,
               const ptrdiff_t *blocks, const float *sinks, ptrdiff_t T, ptrdiff_t start_pos,
               ptrdiff_t H, ptrdiff_t K, ptrdiff_t h, ptrdiff_t C, ptrdiff_t window, float scale,
               float soft_cap, ElementType type, ElementType cache_type, int threads);

/* attention_reference.c: attention for float32, with the same bits. Keys and values
 * are stored by position. */
void attention_reference(float *out, float *p, const float *xq, const float *keys,
                         const float *values, const float *sinks, ptrdiff_t T, ptrdiff_t start_pos,
                         ptrdiff_t H, ptrdiff_t K, ptrdiff_t h, ptrdiff_t window, float scale,
                         float soft_cap);

/* rows.c: writes the keys and values of T positions, starting at start_pos. */
void write_cache(void *keys, void *values, const void *xk, const void *xv, const ptrdiff_t *blocks,
                 ptrdiff_t T, ptrdiff_t start_pos, ptrdiff_t K, ptrdiff_t h, ptrdiff_t C,
                 ElementType type, ElementType cache_type, int threads);

/* rows.c: returns the index of each row's first maximum. */
void argmax(int32_t *out, const void *x, ptrdiff_t rows, ptrdiff_t n, ElementType type,
            int threads);

/* rows.c: converts x to another type. */
void convert(void *out, const void *x, ptrdiff_t n, ElementType x_type, ElementType out_type,
             int threads);

/* probe.c: returns the exclusive or of the 32-bit words of a buffer. */
uint32_t probe_read(const void *bytes, ptrdiff_t count, int streams, int threads);

/* probe.c: runs multiply-adds in registers. Returns the number of operations, or 0 if the
 * instruction set has no vectors. */
ptrdiff_t probe_multiply_add(float *result, ptrdiff_t rounds, ElementType type, int threads);

/* cffi: end */

#define INLINE static inline __attribute__((always_inline))

/* Compilers that know Intel's AMX, on the system that this code can ask for tile registers. */
#if defined(__x86_64__) && defined(__linux__)
#if (defined(__clang__) && __clang_major__ >= 12) || (!defined(__clang__) && __GNUC__ >= 11)
#define HAS_AMX
#endif
#endif

enum {
    /* Minimum number of elements per thread: fewer are not worth the microsecond that opening a
     * parallel region takes. */
    ELEMENTS_PER_THREAD = 16384,
    /* Rows of the matrices A and B^T of an adapter, and tokens, whose products are computed
     * together. */
    LOW_RANK_ROWS = 4,
    LOW_RANK_TOKENS = 8,
    /* Elements of a result that a thread changes at a time. */
    LOW_RANK_SPAN = 512
};

/* The kernels of one block format that work on spans of elements. */
typedef struct FormatConversions {
    /* Writes the codes and scales of blocks, starting at block `first`. Returns how many of the
     * `count` elements are not finite. NULL if no tensor is quantized to the format. */
    ptrdiff_t (*quantize_span)(void *codes, void *scales, const void *x, ptrdiff_t first,
                               ptrdiff_t count, ElementType x_type);
    /* out[i] = element first + i, rounded once to out_type. `first` and `count` are arbitrary. */
    void (*dequantize_span)(void *out, const Weight *weight, ptrdiff_t first, ptrdiff_t count,
                            ElementType out_type);
} FormatConversions;

/* The kernels of an instruction set that work on one row or one span of elements
 * (rows/row_kernels.h). */
typedef struct RowKernels {
    void (*softmax_row)(void *out, const void *x, ptrdiff_t n, ElementType x_type,
                        ElementType out_type);
    void (*rms_norm_row)(void *out, const void *x, const void *weight, ptrdiff_t D, float eps,
                         ElementType x_type, ElementType weight_type, ElementType out_type);
    void (*rotary_row)(void *out, const void *x, const float *frequencies, ptrdiff_t heads,
                       ptrdiff_t h, int halves, ElementType type);
    void (*elementwise_span)(void *out, const void *a, const void *b, ptrdiff_t n, ElementwiseOp op,
                             ElementType type);
    void (*soft_cap_span)(void *out, const void *x, ptrdiff_t n, float cap, ElementType type);
    ptrdiff_t (*argmax_row)(const void *x, ptrdiff_t n, ElementType type);
    void (*convert_span)(void *out, const void *x, ptrdiff_t n, ElementType x_type,
                         ElementType out_type);
    void (*low_rank_products)(float *low, ptrdiff_t stride, const void *x, const ptrdiff_t *rows,
                              ptrdiff_t tokens, const void *a, ptrdiff_t a_rows, ptrdiff_t in,
                              ElementType x_type, ElementType a_type);
    void (*add_low_rank_changes)(float *out, ptrdiff_t columns, const ptrdiff_t *rows,
                                 ptrdiff_t tokens, const float *low, ptrdiff_t rank, float factor,
                                 const void *b, ptrdiff_t n, ElementType b_type);
    const FormatConversions *formats; /* [TYPE_COUNT]; zeros for plain types */
} RowKernels;

/* All kernels of an instruction set. The drivers split the work of an op over threads and call
 * these kernels, which run on one thread. */
typedef struct KernelSet {
    const RowKernels *rows;
    const struct ProductKernels *products;    /* products/product.h */
    const struct AttentionKernels *attention; /* attention/attention.h */
    const struct ProbeKernels *probe;         /* probe.h */
    const struct MatrixKernels *matrix;       /* products/product.h; or NULL */
} KernelSet;

/* dispatch.c: kernel_set returns the instruction set in use. kernel_set_of_many returns the set
 * that multiplies many bfloat16 tokens instead. The bits are the same, because with KBlock.flushes
 * it treats subnormal numbers in the same way. */
const KernelSet *kernel_set(void);
const KernelSet *kernel_set_of_many(void);

static inline ptrdiff_t ceil_div(ptrdiff_t a, ptrdiff_t b) { return (a + b - 1) / b; }
static inline ptrdiff_t min_size(ptrdiff_t a, ptrdiff_t b) { return a < b ? a : b; }

/* Bytes per element of a plain type. */
static inline ptrdiff_t type_bytes(ElementType type)
{
#define BYTES(name, number, bytes) [number] = bytes,
    static const uint8_t sizes[TYPE_COUNT] = { PLAIN_TYPES(BYTES) };
    return sizes[type];
}

/* Elements per block of a format, or 0 for a plain type. */
static inline ptrdiff_t block_elements(ElementType type)
{
#define ELEMENTS(name, number, elements, codes, scale) [number] = elements,
    static const uint16_t sizes[TYPE_COUNT] = { BLOCK_TYPES(ELEMENTS) };
    return sizes[type];
}

/* Aligns scratch from Python, which may be unaligned, to a cache line, where panels begin. */
static inline char *align_to_line(void *pointer)
{
    return (char *)(((uintptr_t)pointer + 63) & ~(uintptr_t)63);
}

/* The number of threads for `work` units if each thread should have at least `share` units. */
static inline int threads_for(ptrdiff_t work, ptrdiff_t share, int threads)
{
    const ptrdiff_t useful = work / share;
    return useful < 1 ? 1 : useful < threads ? (int)useful : threads;
}

/* Functions that run several units of an op's work, or one unit. `thread` is the number of the
 * thread, below the number of threads. */
typedef void (*range_function)(void *work, ptrdiff_t first, ptrdiff_t count, int thread);
typedef void (*unit_function)(void *work, ptrdiff_t unit, int thread);

/* How the units of an op are divided among threads. */
typedef struct Shares {
    ptrdiff_t smallest; /* minimum number of units that a thread takes at a time, near the end */
    ptrdiff_t largest;  /* maximum number of units that a thread takes at a time */
    int spans;          /* spans of adjacent units; a thread finishes its own before it helps */
} Shares;

/* threads.c: runs units [0, count), which threads take as they become free. */
void run_ranges(void *work, range_function run, ptrdiff_t count, Shares shares, int threads);

/* threads.c: runs units [0, count) with a function of one unit. Threads take
 * `chunk` units at a time. */
void run_units(void *work, unit_function run, ptrdiff_t count, ptrdiff_t chunk, int threads);
