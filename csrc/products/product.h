/*
 * The kernels of products with weights, as the driver (linear.c) calls them, and the sizes that
 * both share. None of these kernels is threaded.
 */
#pragma once
#include "kernels.h"

enum {
    CHUNK_ROWS = 128, /* weight rows that one call takes, at most */
    K_BLOCK = 512,    /* elements of a K block of weights that are kept widened, or have blocks */
    /* Elements of x that share a scale when x becomes integers. */
    X_GROUP = 32,
    /* Elements along `in` whose groups meet each of the 16 lanes of a sum once. */
    INTEGER_K_BLOCK = LANES * X_GROUP,
    /* Tokens for which the codes of a format are read row by row, and no K block is widened. */
    INTEGER_FEW = 4
};

/* How a product takes x, and in what it runs. */
typedef enum Form {
    FORM_BFLOAT16,    /* panels of bfloat16, multiplied by bfloat16 */
    FORM_FLOAT32,     /* panels of float32, multiplied by float32 */
    FORM_INTEGERS,    /* panels of integers with scales, multiplied by codes (integer_panel.h) */
    FORM_FEW_INTEGERS /* the same of at most INTEGER_FEW tokens, laid out for one format */
} Form;

/* The plain forms come first. */
enum { PLAIN_FORMS = 2 };

/* Where a tile finds its weights: as stored, or widened to the type in which the product runs. */
typedef enum WeightSource {
    WEIGHTS_AS_STORED, /* in the weight's rows */
    WEIGHTS_KEPT_NOW,  /* there too, and their widened form is put into `widened` */
    WEIGHTS_WIDENED    /* in `widened` */
} WeightSource;

/* A K block of a plain product: a part of `in`, of some weight rows and one panel of tokens. */
typedef struct KBlock {
    float *out;              /* [PANEL_TOKENS][CHUNK_ROWS]; written by the last K block */
    float *lanes;            /* [CHUNK_ROWS][PANEL_TOKENS][LANES]: the sums between two K blocks */
    float *widened;          /* tile after tile: [part][step][row of the tile][VEC_LANES] */
    const float *panel;      /* as it was packed, for all of `in` */
    const float *next_panel; /* read after this one, or NULL */
    const char *weight;      /* the K block's first element of the first row */
    ptrdiff_t weight_stride; /* bytes from row to row */
    ptrdiff_t prefetch; /* bytes from where a row is read to where it is prefetched, at its start */
    int prefetch_tokens; /* a panel of t tokens prefetches t / prefetch_tokens of a row's bytes */
    ptrdiff_t rows;      /* 1..CHUNK_ROWS */
    ptrdiff_t in;        /* elements that the panel holds */
    ptrdiff_t start;     /* where the K block begins, along `in` */
    ptrdiff_t count;     /* elements along `in`; a multiple of 32 unless it is the last K block */
    int tokens;          /* 1..PANEL_TOKENS */
    WeightSource source; /* where the weights are */
    int first;           /* 1: the sums begin at zero, and not in `lanes` */
    int last;            /* 1: the sums end in `out`, reduced, and not in `lanes` */
    int flushes;         /* 1: subnormal numbers count as zeros, to imitate vdpbf16ps; 0 for
                          * avx512bf16, whose instruction does so anyway */
} KBlock;

/* A K block of a product with codes: at most LANES groups along `in`, and a panel of integers. */
typedef struct IntegerKBlock {
    float *out;           /* [PANEL_TOKENS][CHUNK_ROWS]; written by the last K block */
    float *lanes;         /* [CHUNK_ROWS * PANEL_TOKENS * LANES]: the sums between two K blocks */
    float *widened;       /* the set's own form of the weights */
    const float *panel;   /* of integers (integer_panel.h), for all of `in` */
    const Weight *weight; /* [.., in] */
    ptrdiff_t row;        /* the first of the weight's rows */
    ptrdiff_t rows;       /* 1..CHUNK_ROWS */
    ptrdiff_t in;         /* elements of a row */
    ptrdiff_t start;      /* where the K block begins, along `in` */
    ptrdiff_t count;      /* elements along `in`: whole groups */
    int tokens;           /* 1..PANEL_TOKENS */
} IntegerKBlock;

/* Elements that a panel of integers has for each token: whole K blocks. */
static inline ptrdiff_t integer_padded(ptrdiff_t in)
{
    return ceil_div(in, INTEGER_K_BLOCK) * INTEGER_K_BLOCK;
}

/* Lays `in` elements of `tokens` rows of x out as a panel of a form. */
typedef void (*pack_function)(float *panel, const char *x, ptrdiff_t x_stride, int tokens,
                              ptrdiff_t in, ElementType x_type);

/* Products of a plain form with weights of one plain type (tile.h). */
typedef struct PlainProduct {
    /* Adds a K block to the sums. */
    void (*multiply_k_block)(const KBlock *block);
    /* One token: out[r] = x . weight row r, for up to CHUNK_ROWS rows. */
    void (*multiply_row)(float *out, const char *x, const char *weight, ptrdiff_t weight_stride,
                         ptrdiff_t rows, ptrdiff_t in);
    /* 1: several panels read the weights faster if the first one keeps them widened. */
    int keeps_widened;
} PlainProduct;

/* Products of up to INTEGER_FEW tokens of bfloat16 with codes of one format, x as integers of 16
 * or of 8 bits (few_tokens.h). */
typedef struct FewTokens {
    pack_function pack;
    /* out[t][r] = the product of token t and weight row row + r; a row of out is CHUNK_ROWS. */
    void (*multiply_rows)(float *out, const float *panel, const Weight *weight, ptrdiff_t row,
                          ptrdiff_t rows, ptrdiff_t in, int tokens);
} FewTokens;

/* The same of more tokens (many_tokens.h). */
typedef struct ManyTokens {
    pack_function pack;
    /* Puts the codes of a K block's rows into `widened`, once for all panels. */
    void (*widen)(const IntegerKBlock *block);
    /* Adds a K block, whose codes are in `widened`, to the sums of one panel. */
    void (*multiply)(const IntegerKBlock *block);
} ManyTokens;

/* Puts elements [start, start + count) of some rows of blocks, at most K_BLOCK of each, into
 * KBlock.widened, for a plain form. */
typedef void (*widen_function)(float *widened, const Weight *weight, ptrdiff_t row, ptrdiff_t rows,
                               ptrdiff_t in, ptrdiff_t start, ptrdiff_t count, Form form);

/* The kernels of an instruction set for products with weights; by form or by the weight's
 * activations, and by its type. */
typedef struct ProductKernels {
    pack_function pack[PLAIN_FORMS];
    PlainProduct plain[PLAIN_FORMS][TYPE_COUNT];
    /* Adds a K block whose weights are widened. */
    void (*multiply_widened[PLAIN_FORMS])(const KBlock *block);
    /* Of block formats; NULL for plain types. */
    const widen_function *widen;
    const FewTokens *few[ACTIVATIONS_COUNT][TYPE_COUNT];
    const ManyTokens *many[ACTIVATIONS_COUNT][TYPE_COUNT];
} ProductKernels;

/* Calls a function with a number from 1 to PANEL_TOKENS as a constant, and other arguments. */
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
     * One token: places in memory that a thread reads from in turn, and the bytes from where each
     * is read to where it is prefetched. On Intel's Cascade Lake and Emerald Rapids two long
     * streams come as fast as a plain read of eight; rows side by side, which end after some
     * thousand bytes, reach 0.8 of that, and one stream without prefetching 0.7.
     */
    STREAMS = 2,
    PREFETCH_STREAM = 2048
};

/*
 * One token: the cache into which weights are prefetched. AMD's Zen 4 (family 19h) is 1.08 to 1.25
 * times as fast with L2, an Intel Xeon with AMX 1.04 times with L1. Zen 5 takes them into L1 as
 * data that is read once: the products are as fast as with L1, 1.04 to 1.06 times as fast as with
 * L2, and the weights do not drive the code that runs between two products out of L2.
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
        switch (into) { /* the last argument has to be a constant */
        case INTO_L2: __builtin_prefetch((const char *)weights + at, 0, 2); break;
        case INTO_L1: __builtin_prefetch((const char *)weights + at, 0, 3); break;
        case INTO_L1_ONCE: __builtin_prefetch((const char *)weights + at, 0, 0); break;
        }
}
