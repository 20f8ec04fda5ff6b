/*
 * The kernels of products with weights, which the driver (linear.c) calls, and the sizes that they
 * share. Each kernel runs on one thread.
 */
#pragma once
#include "kernels.h"

enum {
    CHUNK_ROWS = 128, /* maximum number of weight rows per call */
    K_BLOCK = 512,    /* elements per K block of widened or block-quantized weights */
    /* Elements of x that share a scale when x is converted to integers. */
    X_GROUP = 32,
    /* Elements along `in` whose groups add to each of the 16 lanes of a sum once. */
    INTEGER_K_BLOCK = LANES * X_GROUP,
    /* Maximum number of tokens for which codes are read row by row instead of being
     * widened in K blocks. */
    INTEGER_FEW = 4,
    /* Tile registers (matrix_tiles.h): tokens of a panel; the weight rows that are multiplied at a
     * time; and the bytes of the cache that the tiles of some rows may take. */
    MATRIX_TOKENS = 16,
    MATRIX_ROWS = 32,
    MATRIX_CACHE_BYTES = 1024 * 1024,
    /* Floats that a product in tile registers works in. */
    MATRIX_WORK = 13 * 1024
};

/* The form in which a product packs x and is computed. */
typedef enum Form {
    FORM_BFLOAT16,     /* panels of bfloat16, multiplied by bfloat16 */
    FORM_FLOAT32,      /* panels of float32, multiplied by float32 */
    FORM_INTEGERS,     /* panels of integers with scales, multiplied by codes (integer_panel.h) */
    FORM_FEW_INTEGERS, /* the same for at most INTEGER_FEW tokens, in the layout of one format */
    FORM_MATRIX        /* the same integers as bfloat16, in tile registers (matrix_tiles.h) */
} Form;

/* The number of plain forms, which come first. */
enum { PLAIN_FORMS = 2 };

/* The location of a tile's weights: as stored, or widened to the type in which the
 * product is computed. */
typedef enum WeightSource {
    WEIGHTS_AS_STORED, /* in the weight's rows */
    WEIGHTS_KEPT_NOW,  /* in the weight's rows; their widened form is also stored in `widened` */
    WEIGHTS_WIDENED    /* in `widened` */
} WeightSource;

/* A K block of a plain product: a part of `in` for some weight rows and one panel of tokens. */
typedef struct KBlock {
    float *out;              /* [PANEL_TOKENS][CHUNK_ROWS]; written by the last K block */
    float *lanes;            /* [CHUNK_ROWS][PANEL_TOKENS][LANES]: sums between two K blocks */
    float *widened;          /* for each tile: [part][step][row of the tile][VEC_LANES] */
    const float *panel;      /* packed, for all of `in` */
    const float *next_panel; /* the panel that is read next, or NULL */
    const char *weight;      /* first element of the K block in the first row */
    ptrdiff_t weight_stride; /* bytes between two rows */
    ptrdiff_t prefetch;      /* prefetch distance in bytes, at the start of a row */
    int prefetch_tokens; /* a panel of t tokens prefetches t / prefetch_tokens of a row's bytes */
    ptrdiff_t rows;      /* 1..CHUNK_ROWS */
    ptrdiff_t in;        /* elements per token in the panel */
    ptrdiff_t start;     /* where the K block begins, along `in` */
    ptrdiff_t count;     /* elements along `in`; a multiple of 32, except in the last K block */
    int tokens;          /* 1..PANEL_TOKENS */
    WeightSource source; /* location of the weights */
    int first;           /* 1: the sums start at zero instead of the values in `lanes` */
    int last;            /* 1: the sums are reduced and stored in `out` instead of `lanes` */
    int flushes;         /* 1: subnormal numbers count as zeros, to imitate vdpbf16ps; 0 for
                          * avx512bf16, which uses that instruction */
} KBlock;

/* A K block of a product with quantized weights: at most LANES groups along `in` of some weight
 * rows and of one panel of integers. */
typedef struct IntegerKBlock {
    float *out;           /* [PANEL_TOKENS][CHUNK_ROWS]; written by the last K block */
    float *lanes;         /* [CHUNK_ROWS * PANEL_TOKENS * LANES]: sums between two K blocks */
    float *widened;       /* the weights, in a layout of the instruction set */
    const float *panel;   /* panel of integers (integer_panel.h), for all of `in` */
    const Weight *weight; /* [.., in] */
    ptrdiff_t row;        /* the first row of the weight */
    ptrdiff_t rows;       /* 1..CHUNK_ROWS */
    ptrdiff_t in;         /* elements of a row */
    ptrdiff_t start;      /* where the K block begins, along `in` */
    ptrdiff_t count;      /* elements along `in`; only whole groups */
    int tokens;           /* 1..PANEL_TOKENS */
} IntegerKBlock;

/* Elements per token in a panel of integers, padded to whole K blocks. */
static inline ptrdiff_t integer_padded(ptrdiff_t in)
{
    return ceil_div(in, INTEGER_K_BLOCK) * INTEGER_K_BLOCK;
}

/* Packs `in` elements of `tokens` rows of x as a panel of a form. */
typedef void (*pack_function)(float *panel, const char *x, ptrdiff_t x_stride, int tokens,
                              ptrdiff_t in, ElementType x_type);

/* Products in a plain form with weights of one plain type (tile.h). */
typedef struct PlainProduct {
    /* Adds a K block to the sums. */
    void (*multiply_k_block)(const KBlock *block);
    /* One token: out[r] = x . weight row r, for up to CHUNK_ROWS rows. */
    void (*multiply_row)(float *out, const char *x, const char *weight, ptrdiff_t weight_stride,
                         ptrdiff_t rows, ptrdiff_t in);
    /* 1: with several panels it is faster if the first one stores the widened weights. */
    int keeps_widened;
} PlainProduct;

/* Products of up to INTEGER_FEW bfloat16 tokens with codes of one format. x is converted to
 * integers of 16 or 8 bits (few_tokens.h). */
typedef struct FewTokens {
    pack_function pack;
    /* out[t][r] = the product of token t and weight row row + r. A row of out has
     * CHUNK_ROWS elements. */
    void (*multiply_rows)(float *out, const float *panel, const Weight *weight, ptrdiff_t row,
                          ptrdiff_t rows, ptrdiff_t in, int tokens);
} FewTokens;

/* Products of more than INTEGER_FEW bfloat16 tokens with codes of one format (many_tokens.h). */
typedef struct ManyTokens {
    pack_function pack;
    /* Writes the widened codes of a K block's rows to `widened`, once for all panels. */
    void (*widen)(const IntegerKBlock *block);
    /* Adds a K block, whose codes are in `widened`, to the sums of one panel. */
    void (*multiply)(const IntegerKBlock *block);
} ManyTokens;

/* All of `in` of a product with codes in tile registers. */
typedef struct MatrixBlock {
    float *out;             /* [2 * MATRIX_TOKENS][CHUNK_ROWS]: of two panels */
    float *work;            /* [MATRIX_WORK] */
    char *widened;          /* the rows as tiles */
    const float *panels[2]; /* of the tokens, as they were packed */
    const Weight *weight;   /* [.., in] */
    ptrdiff_t row;          /* the first of the weight's rows */
    ptrdiff_t rows;         /* 1..CHUNK_ROWS */
    ptrdiff_t in;           /* elements of a row: whole blocks */
    int tokens[2];          /* 1..MATRIX_TOKENS of the first panel, 0..MATRIX_TOKENS of the other */
} MatrixBlock;

/* Products of more tokens of bfloat16 with codes of one format, in tile registers. */
typedef struct MatrixProduct {
    pack_function pack;
    /* Tokens from which on these products are faster than ManyTokens. */
    ptrdiff_t (*fewest_tokens)(void);
    /* Weight rows that are best widened at a time, a multiple of MATRIX_ROWS. */
    ptrdiff_t (*most_rows)(ptrdiff_t in);
    /* Puts the codes of some rows into `widened`, once for all panels. */
    void (*widen)(const MatrixBlock *block);
    /* Multiplies them by one or two panels. */
    void (*multiply)(const MatrixBlock *block);
} MatrixProduct;

/* Those of activations of 16 bits, by the weight's type; NULL for plain types, and for formats that
 * have none. */
typedef struct MatrixKernels {
    const MatrixProduct *products[TYPE_COUNT];
} MatrixKernels;

/* Writes elements [start, start + count), at most K_BLOCK, of some rows of blocks to KBlock.widened
 * for a plain form. */
typedef void (*widen_function)(float *widened, const Weight *weight, ptrdiff_t row, ptrdiff_t rows,
                               ptrdiff_t in, ptrdiff_t start, ptrdiff_t count, Form form);

/* The kernels of an instruction set for products with weights, by form or by the weight's
 * activations, and by the type of the weight. */
typedef struct ProductKernels {
    pack_function pack[PLAIN_FORMS];
    PlainProduct plain[PLAIN_FORMS][TYPE_COUNT];
    /* Adds a K block whose weights are widened. */
    void (*multiply_widened[PLAIN_FORMS])(const KBlock *block);
    /* For block formats; NULL for plain types. */
    const widen_function *widen;
    const FewTokens *few[ACTIVATIONS_COUNT][TYPE_COUNT];
    const ManyTokens *many[ACTIVATIONS_COUNT][TYPE_COUNT];
} ProductKernels;

/* Calls a function whose first argument, from 1 to PANEL_TOKENS, is a constant. */
#define WITH_CONSTANT(function, number, ...)      \
    switch (number) {                             \
    case 1: function(1, __VA_ARGS__); break;      \
    case 2: function(2, __VA_ARGS__); break;      \
    case 3: function(3, __VA_ARGS__); break;      \
    case 4: function(4, __VA_ARGS__); break;      \
    case 5: function(5, __VA_ARGS__); break;      \
    default: function(PANEL_TOKENS, __VA_ARGS__); \
    }

enum {
    /*
     * For one token: the number of streams that a thread reads at the same time, and the prefetch
     * distance of each stream in bytes. On Intel's Cascade Lake and Emerald Rapids, two long
     * streams are as fast as a plain read of eight streams. Adjacent rows, which end after a few
     * thousand bytes, reach 0.8 of that speed, and one stream without prefetching 0.7.
     */
    STREAMS = 2,
    PREFETCH_STREAM = 2048
};

/*
 * For one token: the cache into which weights are prefetched. AMD's Zen 4 (family 19h) is 1.08 to
 * 1.25 times as fast with L2, and an Intel Xeon with AMX is 1.04 times as fast with L1. Zen 5
 * prefetches weights into L1 as data that is read once. Products are then as fast as with L1 and
 * 1.04 to 1.06 times as fast as with L2, and the weights do not evict the code that runs between
 * two products from L2.
 */
typedef enum PrefetchInto { INTO_L2, INTO_L1, INTO_L1_ONCE } PrefetchInto;

INLINE PrefetchInto prefetch_into(void)
{
#ifdef __x86_64__
    if (__builtin_cpu_is("amd") && !__builtin_cpu_is("amdfam17h"))
        return __builtin_cpu_is("amdfam19h") ? INTO_L2 : INTO_L1_ONCE;
    return INTO_L1;
#else
    return INTO_L2;
#endif
}

INLINE void prefetch_span(const void *weights, ptrdiff_t bytes, PrefetchInto into)
{
#pragma GCC unroll 16
    for (ptrdiff_t at = 0; at < bytes; at += LINE)
        switch (into) { /* the last argument must be a constant */
        case INTO_L2: __builtin_prefetch((const char *)weights + at, 0, 2); break;
        case INTO_L1: __builtin_prefetch((const char *)weights + at, 0, 3); break;
        case INTO_L1_ONCE: __builtin_prefetch((const char *)weights + at, 0, 0); break;
        }
}
