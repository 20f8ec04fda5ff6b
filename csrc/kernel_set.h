/*
 * What one instruction set provides: the inner functions, each on one row, span or panel.
 *
 * Every isa_*.c file fills one KernelSet; the drivers (linear.c, softmax.c, ...) split the work
 * over threads and call through the set in use. None of these functions is threaded.
 */
#pragma once
#include "kernels.h"

#define INLINE static inline __attribute__((always_inline))

enum {
    LANES = 16,        /* of every sum */
    CHUNK_ROWS = 128,  /* weight rows that one call takes, at most */
    LINE = 64,         /* bytes of a cache line */
    K_BLOCK = 512,     /* elements of a K block of weights that are kept widened, or have blocks */
    PROBE_STREAMS = 8, /* places that a probe reads from side by side, at most */
    /* Elements below which a second thread costs more than it brings (a region: about 1 us). */
    ELEMENTS_PER_THREAD = 16384
};

/* How a product takes x, and in what it runs. */
typedef enum Form {
    FORM_BFLOAT16,    /* panels of bfloat16, multiplied by bfloat16 */
    FORM_FLOAT32,     /* panels of float32, multiplied by float32 */
    FORM_INTEGERS,    /* panels of integers with scales, multiplied by codes (integers.h) */
    FORM_FEW_INTEGERS /* the same of few tokens, laid out as a format wants them */
} Form;

/* Forms that KernelSet.pack has, and those of plain products. They come first. */
enum { PACKED_FORMS = 3, PLAIN_FORMS = 2 };

/* Where a tile finds its weights, widened to what the product runs in or not. */
typedef enum WeightSource {
    WEIGHTS_AS_STORED, /* in the weight's rows */
    WEIGHTS_KEPT_NOW,  /* there too, and their widened form is put into `widened` */
    WEIGHTS_WIDENED    /* in `widened` */
} WeightSource;

/* A K block: a part of `in`, here of some weight rows and a panel of tokens. */
typedef struct KBlock {
    float *out;              /* [PANEL_TOKENS][CHUNK_ROWS] */
    float *lanes;            /* [CHUNK_ROWS][PANEL_TOKENS][LANES]: the sums between two K blocks */
    float *widened;          /* tile after tile: [rows of the tile] x the K block in whole steps */
    const float *panel;      /* as it was packed, for all of `in` */
    const float *next_panel; /* read after this one, or NULL */
    const char *weight;      /* the K block's first element of the first row */
    ptrdiff_t weight_stride; /* bytes from row to row */
    ptrdiff_t prefetch;  /* bytes from where a row is read to where it is prefetched, at first */
    int prefetch_tokens; /* over which prefetching is spread: a panel's tokens / these of a row */
    ptrdiff_t rows;      /* 1..CHUNK_ROWS */
    ptrdiff_t in, start; /* elements that the panel holds; where the K block begins */
    ptrdiff_t count;     /* elements along `in`; whole steps unless it is the last K block */
    int tokens;          /* 1..PANEL_TOKENS */
    WeightSource source;
    int first, last; /* of the sum: begins at zero; ends in out */
    int flushes;     /* subnormal numbers count as zeros, as vdpbf16ps has it */
} KBlock;

/* At most LANES groups along `in` of some rows of codes, and a panel of integers (integers.h). */
typedef struct IntegerKBlock {
    float *out;     /* [PANEL_TOKENS][CHUNK_ROWS]; written by the last K block */
    float *lanes;   /* [CHUNK_ROWS * PANEL_TOKENS * LANES]: the sums between two K blocks */
    float *widened; /* the set's own form of the weights */
    const float *panel;
    const Weight *weight;
    ptrdiff_t row, rows;        /* 1..CHUNK_ROWS */
    ptrdiff_t in, start, count; /* whole groups */
    int tokens;                 /* 1..PANEL_TOKENS */
} IntegerKBlock;

/* Products of a form with weights of one plain type. */
typedef struct PlainProduct {
    /* Adds a K block to the sums. */
    void (*multiply_k_block)(const KBlock *block);
    /* out[r] = x . weight row r, for up to CHUNK_ROWS rows and one token. */
    void (*multiply_row)(float *out, const char *x, const char *weight, ptrdiff_t weight_stride,
                         ptrdiff_t rows, ptrdiff_t in);
    /* Whether several panels read the weights faster if the first one keeps them widened. */
    int keeps_widened;
} PlainProduct;

/* Lays `in` elements of `tokens` rows of x out as a panel of a form. */
typedef void (*pack_function)(float *panel, const char *x, ptrdiff_t x_stride, int tokens,
                              ptrdiff_t in, ElementType x_type);

/* What is done with one format of block-quantized weights; NULL where it has no use for it. */
typedef struct BlockFormat {
    /* Codes and scales of blocks from block `first` on; how many elements are not finite. */
    ptrdiff_t (*quantize_span)(void *codes, void *scales, const void *x, ptrdiff_t first,
                               ptrdiff_t count, ElementType x_type);
    /* out[i] = element first + i, rounded once to the type; any first, any count. */
    void (*dequantize_span)(void *out, const Weight *weight, ptrdiff_t first, ptrdiff_t count,
                            ElementType out_type);
    /* Elements [start, start + count) of some rows, at most K_BLOCK, into KBlock's `widened`. */
    void (*widen_k_block)(float *widened, const Weight *weight, ptrdiff_t row, ptrdiff_t rows,
                          ptrdiff_t in, ptrdiff_t start, ptrdiff_t count, Form form);
    /* FORM_FEW_INTEGERS: a panel of up to INTEGER_FEW tokens; and from that, out[t][r]. */
    pack_function pack_few;
    void (*multiply_integer_rows)(float *out, const float *panel, const Weight *weight,
                                  ptrdiff_t row, ptrdiff_t rows, ptrdiff_t in, int tokens);
    /* FORM_INTEGERS: the K block's rows into `widened`. */
    void (*widen_integers)(const IntegerKBlock *block);
    /* Adds a K block that widen_integers has seen to the sums. */
    void (*multiply_integers)(const IntegerKBlock *block);
} BlockFormat;

typedef struct KernelSet {
    /* By the weight's type. */
    PlainProduct products[PLAIN_FORMS][TYPE_COUNT];
    BlockFormat formats[TYPE_COUNT];

    /* Adds a K block whose weights are widened. */
    void (*multiply_widened[PLAIN_FORMS])(const KBlock *block);

    pack_function pack[PACKED_FORMS]; /* few integers: pack_few of the format */

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

    /* The machine's limits, for probe.c. */
    uint32_t (*read_span)(const char *bytes, ptrdiff_t count, int streams);
    ptrdiff_t (*multiply_add_chains)(float *result, const float *seeds, ptrdiff_t rounds,
                                     ElementType type);

    /* Attention and matmul (attention_rows.h): lays words out as one row of a panel. */
    void (*pack_chains)(float *panel, const char *x, ptrdiff_t words, int rows, ElementType type);
    /* sums[r][16 * g + l] = the chain of row r with lane l of group g, along at most a block of
     * elements; a row of sums has ATTENTION_BLOCK places. */
    void (*multiply_chains)(float *sums, const float *panel, const char *columns, int rows,
                            ptrdiff_t groups, ptrdiff_t words, ptrdiff_t group_words,
                            ElementType type);
    /* Attention: raises `largest`, a maximum per lane, to a row's scores of a block. */
    void (*raise_largest)(float *scores, float *largest, ptrdiff_t count);
    /* scores[s] = exp(scores[s] * scale - maximum), added to the lanes of their sum. */
    void (*exponentiate)(float *scores, float *sums, ptrdiff_t count, float scale, float maximum);
    void (*normalize_row)(float *weights, ptrdiff_t count, float factor);
    /* sums[r] += sum over `count` positions s, in order, of weights[r][s] * values[s]. */
    void (*sum_values)(float *sums, const float *weights, const char *values, int rows,
                       ptrdiff_t count, ptrdiff_t words, ptrdiff_t floats, ElementType type);
    void (*finish_row)(void *out, const float *sums, ptrdiff_t h, ElementType type);
} KernelSet;

/* The set in use (dispatch.c); and the one that multiplies many tokens of bfloat16 in its place:
 * with the same bits, as KBlock.flushes makes it treat subnormal numbers in the same way. */
const KernelSet *kernel_set(void);
const KernelSet *kernel_set_of_many(void);

extern const KernelSet kernel_set_portable, kernel_set_avx2;
extern const KernelSet kernel_set_avx512, kernel_set_avx512bf16;
extern const KernelSet kernel_set_neon, kernel_set_neondot, kernel_set_neonbf16;

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

/* The same as constants. */
#define SIZES(name, number, elements, codes, scale) \
    enum { name##_elements = elements, name##_code_bytes = codes, name##_scale_bytes = scale };
BLOCK_TYPES(SIZES)

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

/* How units are shared out: how many a thread takes at a time, fewer towards the end; and into how
 * many spans of neighbours they are cut, of which each thread takes its own before it helps. */
typedef struct Shares {
    ptrdiff_t smallest, largest;
    int spans;
} Shares;

/* threads.c: runs units [0, count), which threads take as they become free. */
void run_ranges(void *work, range_function run, ptrdiff_t count, Shares shares, int threads);

/* The same for a function of one unit; threads take `chunk` units at a time. */
void run_units(void *work, unit_function run, ptrdiff_t count, ptrdiff_t chunk, int threads);
