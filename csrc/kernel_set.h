/*
 * What one instruction set provides: the inner functions, each on one row, span or panel.
 *
 * Every isa_*.c file fills one KernelSet; the drivers (linear.c, softmax.c, ...) split the work
 * over threads and call through the set in use. None of these functions is threaded.
 */
#ifndef LLAMA_BOLTS_KERNEL_SET_H
#define LLAMA_BOLTS_KERNEL_SET_H

#include "kernels.h"

/* Lanes of every sum, most weight rows that one call takes, bytes of a cache line. */
enum { LANES = 16, CHUNK_ROWS = 64, LINE = 64 };

/* Where a tile finds its weights, widened to float32 or not. */
enum WeightSource {
    WEIGHTS_AS_STORED, /* in the weight's rows */
    WEIGHTS_KEPT_NOW,  /* there too, and their widened form is put into `widened` */
    WEIGHTS_WIDENED    /* in `widened` */
};

/* Bytes that will be read soon. */
typedef struct Ahead {
    const char *at;         /* the row that is next */
    ptrdiff_t stride, rows; /* bytes from row to row; rows that are left */
    ptrdiff_t bytes, done;  /* of a row; of the next one, those already asked for */
} Ahead;

/* Most places that a probe reads from side by side. */
enum { PROBE_STREAMS = 8 };

/* One stretch along `in` of some weight rows times a panel of tokens. */
typedef struct Stretch {
    const float *panel;      /* as pack_panel laid it out, for all of `in` */
    const float *next_panel; /* read after this one; NULL if none is known */
    int tokens;              /* 1..PANEL_TOKENS */
    ptrdiff_t in, start;     /* elements that the panel holds; where the stretch begins */
    const char *weight;      /* the stretch's first element of the first row */
    ptrdiff_t weight_stride; /* bytes from row to row */
    ptrdiff_t rows;          /* 1..CHUNK_ROWS */
    ptrdiff_t count;         /* elements along `in`; whole blocks unless it is the last stretch */
    int source;              /* of the weights */
    float *widened;          /* tile after tile: [rows of the tile] x whole blocks of the stretch */
    int first, last;         /* of the sum: begins at zero; ends in out */
    float *lanes;            /* [CHUNK_ROWS][PANEL_TOKENS][LANES]: the sums between two stretches */
    float *out;              /* [PANEL_TOKENS][CHUNK_ROWS] */
    Ahead ahead;             /* weights to ask for meanwhile */
} Stretch;

/* At most LANES blocks along `in` of some int8 rows times a panel of integers (int8.h). */
typedef struct Int8Stretch {
    const QuantizedWeight *weight;
    ptrdiff_t row, rows;        /* 1..CHUNK_ROWS */
    ptrdiff_t in, start, count; /* whole blocks */
    float *widened;             /* the set's own form of the weights */
    const float *panel;
    int tokens; /* 1..PANEL_TOKENS */
    float *lanes; /* [CHUNK_ROWS * PANEL_TOKENS * LANES]: the sums between two stretches */
    float *out;   /* [PANEL_TOKENS][CHUNK_ROWS]; written by the last stretch */
} Int8Stretch;

typedef struct KernelSet {
    /* Whether several panels read weights of a kind faster if the first one keeps them widened. */
    int (*keeps_widened)(int kind);

    /* Lays `count` elements of `tokens` rows out as a panel (row_kernels.h). */
    void (*pack_panel)(int kind, const char *x, ptrdiff_t x_stride, int tokens, ptrdiff_t count,
                       float *panel);

    /* Adds a stretch to the sums. */
    void (*multiply_stretch)(int kind, const Stretch *stretch);

    /* out[r] = x . weight row r, for up to CHUNK_ROWS rows and one token. */
    void (*multiply_row)(int kind, const char *x, const char *weight, ptrdiff_t weight_stride,
                         ptrdiff_t rows, ptrdiff_t in, float *out);

    /* quantized_rows.h, quantized_tile.h: blocks of codes and back. */
    ptrdiff_t (*quantize_span)(int format, const void *x, int x_type, ptrdiff_t first,
                               ptrdiff_t count, uint8_t *codes, void *scales);
    void (*dequantize_span)(const QuantizedWeight *weight, ptrdiff_t first, ptrdiff_t count,
                            void *out, int out_type);
    /* Elements [start, start + count) of some rows, at most 512, into Stretch's `widened`. */
    void (*widen_codes_stretch)(const QuantizedWeight *weight, ptrdiff_t row, ptrdiff_t rows,
                                ptrdiff_t in, ptrdiff_t start, ptrdiff_t count, float *widened);

    /* nf4_tile.h: one token, widened, in the order of lanes that its products take; and those. */
    void (*pack_nf4)(int kind, const char *x, ptrdiff_t in, float *lanes);
    void (*multiply_nf4)(const QuantizedWeight *weight, ptrdiff_t row, ptrdiff_t rows,
                         ptrdiff_t in, const float *lanes, float *out);

    /* int8_rows.h, int8_tile.h: int8 weights by integers. multiply_int8_rows takes up to INT8_FEW
     * tokens, the others up to a panel; out is [tokens][CHUNK_ROWS]. */
    void (*quantize_panel)(const char *x, ptrdiff_t x_stride, int tokens, ptrdiff_t in,
                           float *panel);
    void (*multiply_int8_rows)(const QuantizedWeight *weight, ptrdiff_t row, ptrdiff_t rows,
                               ptrdiff_t in, const float *panel, int tokens, float *out);
    void (*widen_int8_stretch)(const Int8Stretch *stretch);
    void (*multiply_int8_stretch)(const Int8Stretch *stretch);

    void (*softmax_row)(const void *x, int x_type, void *out, int out_type, ptrdiff_t n);
    void (*rms_norm_row)(const void *x, int x_type, const void *weight, int weight_type, void *out,
                         int out_type, float eps, ptrdiff_t D);
    void (*rotary_row)(const void *x, const float *frequencies, void *out, int type, int halves,
                       ptrdiff_t heads, ptrdiff_t h);
    void (*elementwise_span)(int op, const void *a, const void *b, void *out, int type,
                             ptrdiff_t n);
    ptrdiff_t (*argmax_row)(const void *x, int type, ptrdiff_t n);

    /* The machine's limits, for probe.c. */
    uint32_t (*read_span)(const char *bytes, ptrdiff_t count, int streams);
    ptrdiff_t (*multiply_add_chains)(int kind, const float *seeds, ptrdiff_t rounds,
                                     float *result);

    void (*convert_span)(const void *x, int x_type, void *out, int out_type, ptrdiff_t n);

    /* Lays a query out as one row of a panel (attention_rows.h). */
    void (*pack_query)(int type, const char *x, ptrdiff_t words, int rows, float *panel);
    /* scores[r][16 * g + l] = query of row r . key of lane l in group g. */
    void (*attention_scores)(int type, const float *panel, int rows, const char *keys,
                             ptrdiff_t groups, ptrdiff_t words, float *scores);
    /* The scores of one row and block become weights; the state gets their maximum and sum. */
    void (*attention_weights)(float *scores, ptrdiff_t count, float scale, float *state);
    /* mix[r] += sum over `count` positions s, in order, of weights[r][s] * values[s]. */
    void (*attention_mix)(int type, const float *weights, int rows, const char *values,
                          ptrdiff_t count, ptrdiff_t words, ptrdiff_t floats, float *mix);
    void (*attention_begin)(float *state, ptrdiff_t floats);
    void (*attention_merge)(float *state, const float *block, ptrdiff_t floats);
    void (*attention_finish)(int type, const float *state, ptrdiff_t h, void *out);
} KernelSet;

/* A set of the functions that the including file has compiled under these names. */
#define DEFINE_KERNEL_SET(name)              \
    const KernelSet name = {                 \
        .keeps_widened = keeps_widened,      \
        .pack_panel = pack_panel,            \
        .multiply_stretch = multiply_stretch,\
        .multiply_row = multiply_row,        \
        .quantize_span = quantize_span,      \
        .dequantize_span = dequantize_span,  \
        .widen_codes_stretch = widen_codes_stretch, \
        .pack_nf4 = pack_nf4,                \
        .multiply_nf4 = multiply_nf4,        \
        .quantize_panel = quantize_panel,    \
        .multiply_int8_rows = multiply_int8_rows, \
        .widen_int8_stretch = widen_int8_stretch, \
        .multiply_int8_stretch = multiply_int8_stretch, \
        .softmax_row = softmax_row,          \
        .rms_norm_row = rms_norm_row,        \
        .rotary_row = rotary_row,            \
        .elementwise_span = elementwise_span,\
        .argmax_row = argmax_row,            \
        .read_span = read_span,              \
        .multiply_add_chains = multiply_add_chains, \
        .convert_span = convert_span,        \
        .pack_query = pack_query,            \
        .attention_scores = attention_scores,\
        .attention_weights = attention_weights,\
        .attention_mix = attention_mix,      \
        .attention_begin = attention_begin,  \
        .attention_merge = attention_merge,  \
        .attention_finish = attention_finish,\
    }

/* The set in use (dispatch.c). */
const KernelSet *kernel_set(void);

extern const KernelSet kernel_set_portable;
extern const KernelSet kernel_set_avx2;
extern const KernelSet kernel_set_avx512;
extern const KernelSet kernel_set_avx512bf16;

/* Elements that one panel or lane block of a product holds along `in`. */
static inline ptrdiff_t product_block(int kind)
{
    return kind == PRODUCT_BF16 ? 32 : 16;
}

/* Bytes of one element of x and of the weight. */
static inline ptrdiff_t product_x_bytes(int kind)
{
    return kind == PRODUCT_BF16 || kind == PRODUCT_BF16_F32 ? 2 : 4;
}

static inline ptrdiff_t product_weight_bytes(int kind)
{
    return kind == PRODUCT_F32 || kind == PRODUCT_BF16_F32 ? 4 : 2;
}

static inline ptrdiff_t type_bytes(int type)
{
    return type == TYPE_F32 ? 4 : 2;
}

static inline ptrdiff_t ceil_div(ptrdiff_t a, ptrdiff_t b)
{
    return (a + b - 1) / b;
}

static inline ptrdiff_t min_size(ptrdiff_t a, ptrdiff_t b)
{
    return a < b ? a : b;
}

/* Scratch comes unaligned from Python; panels start at a cache line. */
static inline char *align_to_line(void *pointer)
{
    return (char *)(((uintptr_t)pointer + 63) & ~(uintptr_t)63);
}

#endif
