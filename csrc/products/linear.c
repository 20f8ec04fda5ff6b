/*
 * The driver for products with weights: out = x . weight, summed over the `in` elements of each
 * row.
 *
 * The work is divided, from the outside to the inside, into
 *   - passes: as many tokens as fit into the scratch, packed into panels of six tokens;
 *   - chunks, which threads take: up to 128 weight rows times a group of tokens. In threads.c, a
 *     unit is one weight row times one group;
 *   - K blocks: parts of `in`. All rows of the chunk and all panels of the group are multiplied in
 *     one K block before the next one begins, so that data that is used again stays in a cache;
 *   - tiles: 4 weight rows x 6 tokens (2 x 6 with AVX2) in registers (tile.h).
 *
 * A chunk is computed in one of four ways (multiply, multiply_plain):
 *   - one token with a plain weight is not packed: weights are streamed from memory, a few rows at
 *     a time;
 *   - few tokens with a plain weight: their panels stay in the L2 cache, and weights are streamed
 *     from memory, four whole rows at a time. These rows are far apart, so that a thread reads four
 *     long streams;
 *   - many tokens with a plain weight, or float32 x with a block format: the K block of a panel is
 *     in the L1 cache while it is multiplied by all weight rows of the chunk. If the instruction
 *     set has to widen the weights, the first panel stores the widened weights in the L2 cache for
 *     the other panels of the group. avx512bf16 does not widen bfloat16 weights;
 *   - bfloat16 x with a block format uses integers. For few tokens, each row is read once
 *     (few_tokens.h). For more tokens, a K block of the rows is rearranged for all panels
 *     (many_tokens.h). With tile registers, whole rows are rearranged for panels of up to 16 tokens
 *     (matrix_tiles.h).
 *
 * Products of more than one panel may be computed by another instruction set with the same bits
 * (kernel_set_of_many in dispatch.c): on Intel, avx512 replaces avx512bf16.
 *
 * Between two K blocks, the 16 lanes of each sum are stored in scratch and not reduced, so the
 * division into K blocks does not change any bit.
 */
#include <string.h>
#include "products/product.h"

enum {
    /* Maximum number of tokens in a group. */
    GROUP_TOKENS = 43 * PANEL_TOKENS,
    /* Minimum number of rows that a thread takes. */
    FEWEST_ROWS = 8,
    /* Number of multiply-adds for which another thread pays off. */
    PRODUCTS_PER_THREAD = 128 * 1024,
    /* Maximum size of a K block of one weight row. The K block of a panel then fits into the L1
     * cache, and the K block of a chunk into the L2 cache. */
    K_BLOCK_BYTES = 4 * 1024,
    /* Number of tokens from which on a group has enough panels to benefit from
     * storing widened weights. */
    KEPT_TOKENS = 8 * PANEL_TOKENS,
    /* Maximum number of tokens that count as few, if each panel widens the weights again and if no
     * panel widens them, and the maximum size of their panels. */
    FEW_WIDENING = 4 * PANEL_TOKENS,
    FEW_TOKENS = 8 * PANEL_TOKENS,
    FEW_BYTES = 2 * 1024 * 1024,
    /* Number of streams from which a thread then reads weights, and the prefetch distance of a
     * single panel in each stream, in bytes. With several panels, each panel prefetches a part of
     * the next rows. */
    FEW_STREAMS = 4,
    FEW_PREFETCH = 2048,
    /* Number of tokens in a group if K blocks are short, so that the sums between two K blocks fit
     * into the L2 cache. */
    RESTING_TOKENS = 22 * PANEL_TOKENS,
    /* Space for the panels of an op: as many tokens as fit, but at least one panel per thread. */
    PANELS_BYTES = 8 * 1024 * 1024,
    /* Space for one thread: a widened K block of a chunk, and the lanes of its
     * sums between K blocks. */
    WIDENED_BYTES = CHUNK_ROWS * K_BLOCK * (int)sizeof(float),
    PANEL_LANES = CHUNK_ROWS * PANEL_TOKENS * LANES,
    LANES_BYTES = GROUP_TOKENS / PANEL_TOKENS * PANEL_LANES * (int)sizeof(float),
    THREAD_BYTES = WIDENED_BYTES + LANES_BYTES,
    /* Tile registers: the longest rows that are taken. */
    MATRIX_MOST_IN = 64 * 1024
};

/* ---- scratch ---- */

/* Distance between two panels, in floats. */
static ptrdiff_t panel_room(ptrdiff_t in)
{
    /* Integers (integer_panel.h) take 19 / 8 bytes per element of whole K blocks. */
    const ptrdiff_t floats = ceil_div(in, 32) * 32, integers = integer_padded(in) * 19 / 8 / 4;
    return (floats < integers ? integers : floats) * PANEL_TOKENS;
}

/* The same of panels in tile registers (matrix_tiles.h): a line, and for each of 16 tokens the same
 * 19 / 8 bytes. */
static ptrdiff_t matrix_panel_room(ptrdiff_t in)
{
    return (LINE + integer_padded(in) * 19 / 8 * MATRIX_TOKENS) / (ptrdiff_t)sizeof(float);
}

/* Room of a thread: at least for the rows that tile registers multiply at a time, each element of
 * which takes at most 5 bytes there. */
static ptrdiff_t thread_bytes(ptrdiff_t in)
{
    const ptrdiff_t work = MATRIX_WORK * (ptrdiff_t)sizeof(float);
    const ptrdiff_t matrix = in > MATRIX_MOST_IN ? 0 : work + MATRIX_ROWS * integer_padded(in) * 5;
    return matrix < THREAD_BYTES ? THREAD_BYTES : matrix;
}

static ptrdiff_t panels_bytes(ptrdiff_t in, int threads)
{
    const ptrdiff_t least = threads * panel_room(in) * (ptrdiff_t)sizeof(float);
    return least < PANELS_BYTES ? PANELS_BYTES : least;
}

ptrdiff_t product_scratch_bytes(ptrdiff_t in, int threads)
{
    return LINE + panels_bytes(in, threads) + (ptrdiff_t)threads * thread_bytes(in);
}

/* ---- one unit, on one thread ---- */

/* A unit: some rows of one weight times one group of tokens. */
typedef struct Operands {
    const KernelSet *set;    /* whose kernels are used */
    char *out;               /* [tokens, rows] of out_type; the rows of a token are contiguous */
    ptrdiff_t out_stride;    /* bytes between two tokens */
    const char *x;           /* [tokens, in] */
    float *panels;           /* the same tokens, packed; not used if reads_rows */
    ptrdiff_t panel_tokens;  /* tokens per panel; the last panel may have fewer */
    const Weight *weight;    /* [.., in] */
    ptrdiff_t weight_stride; /* bytes between two rows of a plain weight */
    ptrdiff_t row;           /* the first row of the weight */
    ptrdiff_t rows;          /* at most CHUNK_ROWS */
    const void *bias;        /* [rows of the weight], or NULL */
    ptrdiff_t tokens;        /* at most GROUP_TOKENS */
    ptrdiff_t in;            /* elements of a row */
    Form form;
    ElementType x_type, out_type, bias_type;
    int flushes;    /* KBlock.flushes */
    float *widened; /* scratch of the thread: a widened K block */
    float *lanes;   /* scratch of the thread: the lanes of sums between two K blocks */
} Operands;

/* The form of a product, given the number of tokens, the types of x and the weight, and
 * the length of a row. */
static Form product_form(ptrdiff_t tokens, ElementType x_type, ElementType weight_type,
                         ptrdiff_t in)
{
    const int bfloat16 = x_type == TYPE_BFLOAT16;
    const Form plain = bfloat16 ? FORM_BFLOAT16 : FORM_FLOAT32;
    const Form integers = tokens <= INTEGER_FEW ? FORM_FEW_INTEGERS : FORM_INTEGERS;
#define PAIR_ROW(name, type, bytes) [type] = 1,
    static const uint8_t in_pairs[TYPE_COUNT] = { PAIR_TYPES(PAIR_ROW) };
    const ptrdiff_t elements = block_elements(weight_type);
    if (elements == 0)
        return in_pairs[weight_type] ? plain : FORM_FLOAT32;
    return bfloat16 && in % elements == 0 ? integers : plain;
}

/* The products of a block format in tile registers; NULL if there are none. */
static const MatrixProduct *matrix_product(const KernelSet *set, const Weight *weight)
{
    /* With activations of 8 bits, tile registers have only 0.6 to 1.1 of the speed of vectors. */
    if (set->matrix == NULL || weight->activations != ACTIVATIONS_INT16)
        return NULL;
    return set->matrix->products[weight->type];
}

/* Whether tile registers multiply some tokens of x by a weight. */
static int takes_tiles(const KernelSet *set, ptrdiff_t tokens, ElementType x_type,
                       const Weight *weight, ptrdiff_t in)
{
    if (in == 0 || in > MATRIX_MOST_IN
        || product_form(tokens, x_type, weight->type, in) != FORM_INTEGERS)
        return 0;
    const MatrixProduct *product = matrix_product(set, weight);
    return product && tokens >= product->fewest_tokens();
}

/* Whether a product reads its only token directly, which requires a plain
 * weight and the type of x. */
static int reads_rows(ptrdiff_t tokens, ElementType x_type, ElementType weight_type, Form form)
{
    const ElementType type = form == FORM_BFLOAT16 ? TYPE_BFLOAT16 : TYPE_FLOAT32;
    const int is_plain = form == FORM_BFLOAT16 || form == FORM_FLOAT32;
    return tokens == 1 && is_plain && block_elements(weight_type) == 0 && x_type == type;
}

/* Whether weights are widened, by the first panel or before it, in short K blocks. */
static int widens(const KernelSet *set, ElementType weight_type, Form form)
{
    return block_elements(weight_type) || set->products->plain[form][weight_type].keeps_widened;
}

/* Adds the bias to sums [tokens][CHUNK_ROWS], and rounds them to the results of some tokens. */
static void store_rows(const Operands *o, ptrdiff_t first_token, ptrdiff_t tokens, float *sums)
{
    const RowKernels *kernels = o->set->rows;
    float bias[CHUNK_ROWS];
    if (o->bias)
        kernels->convert_span(bias, (const char *)o->bias + o->row * type_bytes(o->bias_type),
                              o->rows, o->bias_type, TYPE_FLOAT32);
    for (ptrdiff_t t = 0; t < tokens; t++) {
        for (ptrdiff_t r = 0; o->bias && r < o->rows; r++)
            sums[t * CHUNK_ROWS + r] += bias[r];
        kernels->convert_span(o->out + (first_token + t) * o->out_stride, sums + t * CHUNK_ROWS,
                              o->rows, TYPE_FLOAT32, o->out_type);
    }
}

/* The first row of the chunk in a plain weight. */
static const char *plain_rows(const Operands *o)
{
    return (const char *)o->weight->data + o->row * o->weight_stride;
}

/* A K block that covers all of `in`, for some rows of the chunk and the panel
 * that begins at a token. */
static KBlock whole_k_block(const Operands *o, ptrdiff_t token, ptrdiff_t row, ptrdiff_t rows)
{
    return (KBlock){.panel = o->panels + token / PANEL_TOKENS * panel_room(o->in),
                    .weight = plain_rows(o) + row * o->weight_stride,
                    .weight_stride = o->weight_stride,
                    .rows = rows,
                    .in = o->in,
                    .count = o->in,
                    .tokens = (int)min_size(PANEL_TOKENS, o->tokens - token),
                    .prefetch_tokens = (int)min_size(PANEL_TOKENS, o->tokens - token),
                    .source = WEIGHTS_AS_STORED,
                    .first = 1,
                    .last = 1,
                    .flushes = o->flushes};
}

static void multiply_one(const Operands *o, const PlainProduct *product)
{
    float sums[CHUNK_ROWS];
    product->multiply_row(sums, o->x, plain_rows(o), o->weight_stride, o->rows, o->in);
    store_rows(o, 0, 1, sums);
}

static void multiply_few(const Operands *o, const PlainProduct *product)
{
    float sums[FEW_TOKENS * CHUNK_ROWS], of_tile[PANEL_TOKENS * CHUNK_ROWS];
    const ptrdiff_t apart = ceil_div(o->rows, FEW_STREAMS);
    for (ptrdiff_t row = 0; row < apart; row++)
        for (ptrdiff_t token = 0; token < o->tokens; token += PANEL_TOKENS) {
            KBlock k = whole_k_block(o, token, row, ceil_div(o->rows - row, apart));
            k.weight_stride = apart * o->weight_stride;
            k.prefetch = FEW_PREFETCH;
            if (o->tokens > PANEL_TOKENS) {
                k.prefetch = o->weight_stride + o->weight_stride * token / o->tokens;
                k.prefetch_tokens = (int)o->tokens;
            }
            k.lanes = o->lanes; /* not used, because this is the only K block */
            k.out = of_tile;
            product->multiply_k_block(&k);
            for (ptrdiff_t t = 0; t < k.tokens; t++)
                for (ptrdiff_t r = 0; r < k.rows; r++)
                    sums[(token + t) * CHUNK_ROWS + row + r * apart] = of_tile[t * CHUNK_ROWS + r];
        }
    store_rows(o, 0, o->tokens, sums);
}

/* The size of K blocks, and the location of their weights. */
typedef struct KBlockPlan {
    ptrdiff_t step; /* elements per K block */
    int block;      /* 1: weights are block-quantized, and are widened before the first panel */
    int keep;       /* 1: the first panel stores widened plain weights */
} KBlockPlan;

/* Multiplies elements [start, start + step) along `in` for the panel that begins at a token. */
static void multiply_panel(const Operands *o, const KBlockPlan *plan, ptrdiff_t token,
                           ptrdiff_t start)
{
    const ProductKernels *kernels = o->set->products;
    const ptrdiff_t panel_lanes = o->in > plan->step ? PANEL_LANES : 0;
    float sums[PANEL_TOKENS * CHUNK_ROWS];
    KBlock k = whole_k_block(o, token, 0, o->rows);
    k.start = start;
    k.weight += start * type_bytes(o->weight->type);
    k.count = min_size(plan->step, o->in - start);
    k.first = start == 0;
    k.last = start + k.count == o->in;
    if (token + PANEL_TOKENS < o->tokens)
        k.next_panel = k.panel + panel_room(o->in);
    if (plan->block || plan->keep)
        k.source = token || plan->block ? WEIGHTS_WIDENED : WEIGHTS_KEPT_NOW;
    k.prefetch = token ? 0 : FEW_STREAMS * o->weight_stride; /* the rows of the next tile */
    k.widened = o->widened;
    k.lanes = o->lanes + token / PANEL_TOKENS * panel_lanes;
    k.out = sums;
    if (k.source == WEIGHTS_WIDENED)
        kernels->multiply_widened[o->form](&k);
    else
        kernels->plain[o->form][o->weight->type].multiply_k_block(&k);
    if (k.last)
        store_rows(o, token, k.tokens, sums);
}

static void multiply_many(const Operands *o)
{
    const ProductKernels *kernels = o->set->products;
    const ElementType type = o->weight->type;
    /* An 8-bit element takes at least 2 bytes in a panel. */
    const ptrdiff_t bytes = type_bytes(type) == 1 ? 2 : type_bytes(type);
    const int block = block_elements(type) != 0;
    const int keep =
        !block && o->tokens >= KEPT_TOKENS && kernels->plain[o->form][type].keeps_widened;
    const ptrdiff_t most = block || keep ? K_BLOCK : K_BLOCK_BYTES / bytes;
    const ptrdiff_t step = ceil_div(ceil_div(o->in, ceil_div(o->in, most)), 32) * 32;
    const KBlockPlan plan = {step, block, keep};
    for (ptrdiff_t start = 0; start < o->in; start += step) {
        if (block)
            kernels->widen[type](o->widened, o->weight, o->row, o->rows, o->in, start,
                                 min_size(step, o->in - start), o->form);
        for (ptrdiff_t token = 0; token < o->tokens; token += PANEL_TOKENS)
            multiply_panel(o, &plan, token, start);
    }
}

static void multiply_plain(const Operands *o)
{
    const ElementType type = o->weight->type;
    const PlainProduct *product = &o->set->products->plain[o->form][type];
    const ptrdiff_t most = widens(o->set, type, o->form) ? FEW_WIDENING : FEW_TOKENS;
    /* 4 bytes per element; panels of bfloat16 pairs take half of that. */
    const int few = o->tokens <= most && o->tokens * o->in * 4 <= FEW_BYTES;
    if (reads_rows(o->tokens, o->x_type, type, o->form))
        multiply_one(o, product);
    else if (few && block_elements(type) == 0)
        multiply_few(o, product);
    else
        multiply_many(o);
}

static void multiply_few_integers(const Operands *o)
{
    float sums[PANEL_TOKENS * CHUNK_ROWS];
    const FewTokens *product = o->set->products->few[o->weight->activations][o->weight->type];
    product->multiply_rows(sums, o->panels, o->weight, o->row, o->rows, o->in, (int)o->tokens);
    store_rows(o, 0, o->tokens, sums);
}

static void multiply_many_integers(const Operands *o)
{
    const ManyTokens *product = o->set->products->many[o->weight->activations][o->weight->type];
    float sums[PANEL_TOKENS * CHUNK_ROWS];
    IntegerKBlock k = {.out = sums,
                       .widened = o->widened,
                       .weight = o->weight,
                       .row = o->row,
                       .rows = o->rows,
                       .in = o->in};
    for (; k.start < o->in; k.start += INTEGER_K_BLOCK) {
        k.count = min_size(INTEGER_K_BLOCK, o->in - k.start);
        product->widen(&k);
        for (ptrdiff_t token = 0; token < o->tokens; token += PANEL_TOKENS) {
            k.panel = o->panels + token / PANEL_TOKENS * panel_room(o->in);
            k.tokens = (int)min_size(PANEL_TOKENS, o->tokens - token);
            k.lanes = o->lanes + token / PANEL_TOKENS * PANEL_LANES;
            product->multiply(&k);
            if (k.start + k.count == o->in)
                store_rows(o, token, k.tokens, sums);
        }
    }
}

static void multiply_matrix(const Operands *o)
{
    const MatrixProduct *product = matrix_product(o->set, o->weight);
    float sums[2 * MATRIX_TOKENS * CHUNK_ROWS];
    MatrixBlock k = {.out = sums,
                     .work = o->widened,
                     .widened = (char *)(o->widened + MATRIX_WORK),
                     .weight = o->weight,
                     .row = o->row,
                     .rows = o->rows,
                     .in = o->in};
    product->widen(&k);
    for (ptrdiff_t token = 0; token < o->tokens; token += 2 * o->panel_tokens) {
        for (ptrdiff_t p = 0; p < 2; p++) {
            const ptrdiff_t first = token + p * o->panel_tokens;
            const ptrdiff_t left = o->tokens - first;
            k.panels[p] = o->panels + first / o->panel_tokens * matrix_panel_room(o->in);
            k.tokens[p] = left < 0 ? 0 : (int)min_size(o->panel_tokens, left);
        }
        product->multiply(&k);
        store_rows(o, token, k.tokens[0], sums);
        store_rows(o, token + k.tokens[0], k.tokens[1], sums + MATRIX_TOKENS * CHUNK_ROWS);
    }
}

/* Stores zeros, which are the sums over zero elements. */
static void store_zeros(const Operands *o)
{
    for (ptrdiff_t token = 0; token < o->tokens; token += PANEL_TOKENS) {
        float sums[PANEL_TOKENS * CHUNK_ROWS] = {0};
        store_rows(o, token, min_size(PANEL_TOKENS, o->tokens - token), sums);
    }
}

static void multiply(const Operands *o)
{
    if (o->in == 0) {
        store_zeros(o);
        return;
    }
    switch (o->form) {
    case FORM_BFLOAT16:
    case FORM_FLOAT32: multiply_plain(o); break;
    case FORM_INTEGERS: multiply_many_integers(o); break;
    case FORM_FEW_INTEGERS: multiply_few_integers(o); break;
    case FORM_MATRIX: multiply_matrix(o); break;
    }
}

/* ---- all units, on all threads ---- */

/* One pass over all weights for as many tokens as fit into the scratch, and the
 * division of its work. */
typedef struct LinearPass {
    const KernelSet *set;
    const LinearPart *parts; /* the weights of the op and their results */
    ptrdiff_t units;         /* units of the rows of all weights */
    ptrdiff_t unit_rows;     /* rows per unit: 1, or the rows of a block of tile registers */
    const char *x;           /* [tokens, in] */
    ptrdiff_t first;         /* the first token of the pass */
    ptrdiff_t tokens;        /* tokens in the pass */
    ptrdiff_t in;            /* elements of a row */
    ptrdiff_t groups;        /* groups of tokens */
    ptrdiff_t group_tokens;  /* tokens per group; the last group may have fewer */
    ptrdiff_t most_rows;     /* maximum number of rows that a unit should have */
    ptrdiff_t panel_tokens;  /* tokens per panel; the last panel may have fewer */
    ptrdiff_t panel_floats;  /* floats from one panel to the next */
    float *panels;           /* scratch: the packed tokens */
    char *threads;           /* scratch: thread_bytes(in) for each thread */
    Form form;
    ElementType x_type, out_type;
    int flushes; /* 1: `set` runs instead of avx512bf16 and flushes as it does (KBlock.flushes) */
} LinearPass;

/* Some rows of one weight, for one group of tokens. */
typedef struct RowRange {
    ptrdiff_t group, row, rows;
    const LinearPart *part;
} RowRange;

/* The number of tokens per part if tokens are divided almost equally into parts of whole panels. */
static ptrdiff_t even_part(ptrdiff_t tokens, ptrdiff_t most, ptrdiff_t panel_tokens)
{
    return ceil_div(ceil_div(tokens, ceil_div(tokens, most)), panel_tokens) * panel_tokens;
}

/* Units of a weight's rows. */
static ptrdiff_t units_of(const LinearPass *pass, const LinearPart *part)
{
    return ceil_div(part->rows, pass->unit_rows);
}

/* In tile registers: nearly equal panels, and all tokens in one group. */
static void cut_matrix_units(LinearPass *pass)
{
    const MatrixProduct *product = matrix_product(pass->set, &pass->parts->weight);
    const ptrdiff_t panels = ceil_div(pass->tokens, MATRIX_TOKENS);
    pass->panel_tokens = ceil_div(pass->tokens, panels);
    pass->group_tokens = pass->tokens;
    pass->groups = 1;
    pass->most_rows = product->most_rows(pass->in);
}

/* Divides the tokens of the pass into groups, and chooses the best number of rows per unit. */
static void cut_units(LinearPass *pass)
{
    const ElementType type = pass->parts->weight.type;
    if (pass->form == FORM_MATRIX) {
        cut_matrix_units(pass);
        return;
    }
    const int rests = pass->in * type_bytes(type) > K_BLOCK_BYTES;
    ptrdiff_t tokens = GROUP_TOKENS;
    pass->most_rows = CHUNK_ROWS / 2;
    if (widens(pass->set, type, pass->form))
        tokens = RESTING_TOKENS;
    else if (pass->tokens > FEW_TOKENS && !rests)
        pass->most_rows = CHUNK_ROWS;
    pass->group_tokens = even_part(pass->tokens, tokens, PANEL_TOKENS);
    pass->groups = ceil_div(pass->tokens, pass->group_tokens);
}

/* The function that packs panels for a product of some form with a weight. */
static pack_function packer(const KernelSet *set, const Weight *weight, Form form)
{
    const ProductKernels *kernels = set->products;
    switch (form) {
    case FORM_BFLOAT16:
    case FORM_FLOAT32: break;
    case FORM_INTEGERS: return kernels->many[weight->activations][weight->type]->pack;
    case FORM_FEW_INTEGERS: return kernels->few[weight->activations][weight->type]->pack;
    case FORM_MATRIX: return matrix_product(set, weight)->pack;
    }
    return kernels->pack[form];
}

static void pack_panel(void *work, ptrdiff_t panel, int thread)
{
    (void)thread;
    const LinearPass *pass = work;
    const ptrdiff_t x_stride = pass->in * type_bytes(pass->x_type), t = panel * pass->panel_tokens;
    const pack_function pack = packer(pass->set, &pass->parts->weight, pass->form);
    pack(pass->panels + panel * pass->panel_floats, pass->x + t * x_stride, x_stride,
         (int)min_size(pass->panel_tokens, pass->tokens - t), pass->in, pass->x_type);
}

/* The rows of at most `most` units, from unit `at` on. Units are numbered across all groups. */
static RowRange range_at(const LinearPass *pass, ptrdiff_t at, ptrdiff_t most)
{
    RowRange range = {.group = at / pass->units, .part = pass->parts};
    ptrdiff_t unit = at % pass->units;
    for (; unit >= units_of(pass, range.part); range.part++)
        unit -= units_of(pass, range.part);
    range.row = unit * pass->unit_rows;
    range.rows =
        min_size(min_size(most * pass->unit_rows, pass->most_rows), range.part->rows - range.row);
    return range;
}

static void multiply_range(const LinearPass *pass, const RowRange *range, int thread)
{
    const LinearPart *part = range->part;
    const ptrdiff_t t = range->group * pass->group_tokens;
    const ptrdiff_t x_stride = pass->in * type_bytes(pass->x_type);
    const ptrdiff_t out_bytes = type_bytes(pass->out_type), out_stride = part->rows * out_bytes;
    float *scratch = (float *)(pass->threads + thread * thread_bytes(pass->in));
    const Operands operands = {.set = pass->set,
                               .out = (char *)part->out + (pass->first + t) * out_stride
                                      + range->row * out_bytes,
                               .out_stride = out_stride,
                               .x = pass->x + t * x_stride,
                               .panels = pass->panels + t / pass->panel_tokens * pass->panel_floats,
                               .panel_tokens = pass->panel_tokens,
                               .weight = &part->weight,
                               .weight_stride = pass->in * type_bytes(part->weight.type),
                               .row = range->row,
                               .rows = range->rows,
                               .bias = part->bias,
                               .tokens = min_size(pass->group_tokens, pass->tokens - t),
                               .in = pass->in,
                               .form = pass->form,
                               .x_type = pass->x_type,
                               .out_type = pass->out_type,
                               .bias_type = part->bias_type,
                               .flushes = pass->flushes,
                               .widened = scratch,
                               .lanes = scratch + WIDENED_BYTES / (ptrdiff_t)sizeof(float)};
    multiply(&operands);
}

/* Multiplies the rows that a thread has taken. */
static void multiply_taken_rows(void *work, ptrdiff_t first, ptrdiff_t count, int thread)
{
    const LinearPass *pass = work;
    const ptrdiff_t end = first + count;
    for (RowRange range; first < end; first += ceil_div(range.rows, pass->unit_rows)) {
        range = range_at(pass, first, end - first);
        multiply_range(pass, &range, thread);
    }
}

/*
 * linear: out_p[t, o] = sum over i of x[t, i] * weight_p[o, i], + bias_p[o], for each part p
 *
 *   x         [T, in]      bfloat16 or float32
 *   weight_p  [out_p, in]  all of one type and with the same activations: the type of x, a type
 *                          whose values the type of x represents exactly (PAIR_TYPES with
 *                          bfloat16; float16 and 8-bit floats with float32), or a block format
 *   bias_p    [out_p]      any plain type, or NULL for no bias
 *   out_p     [T, out_p]   bfloat16 or float32
 *   scratch   product_scratch_bytes(in, threads)
 *
 * All threads pack tokens into panels, and then take some rows of a weight for a group of tokens.
 * So each weight row is read from memory by one thread once per group, and no two threads write the
 * same output. In each pass the caller waits twice, for the panels and for the products, and only
 * for units that a worker has taken (threads.c). If there is one group, each thread has its own
 * span of rows, so that it continues where it has prefetched, and helps with the other spans
 * afterwards. The caller checks contiguity and sizes, and that outs and scratch do not overlap any
 * other argument.
 */
void linear(const LinearPart *parts, void *scratch, const void *x, ptrdiff_t count, ptrdiff_t T,
            ptrdiff_t in, ElementType x_type, ElementType out_type, int threads)
{
    const KernelSet *const set = kernel_set(), *const of_many = kernel_set_of_many();
    ptrdiff_t rows = 0;
    for (ptrdiff_t p = 0; p < count; p++)
        rows += parts[p].rows;
    if (T == 0 || rows == 0)
        return;
    const ElementType type = parts->weight.type;
    const int in_tiles = takes_tiles(set, T, x_type, &parts->weight, in);
    char *const panels = align_to_line(scratch);
    const ptrdiff_t room = panels_bytes(in, threads);
    LinearPass pass = {.parts = parts,
                       .unit_rows = in_tiles ? MATRIX_ROWS : 1,
                       .in = in,
                       .panel_tokens = in_tiles ? MATRIX_TOKENS : PANEL_TOKENS,
                       .panel_floats = in_tiles ? matrix_panel_room(in) : panel_room(in),
                       .panels = (float *)panels,
                       .threads = panels + room,
                       .x_type = x_type,
                       .out_type = out_type};
    for (ptrdiff_t p = 0; p < count; p++)
        pass.units += units_of(&pass, &parts[p]);
    /* 1024: without elements any number of panels fits. */
    const ptrdiff_t panel_bytes = pass.panel_floats * (ptrdiff_t)sizeof(float);
    const ptrdiff_t fitting = in ? room / panel_bytes : 1024;
    const ptrdiff_t most_tokens = even_part(T, fitting * pass.panel_tokens, pass.panel_tokens);
    const int workers = threads_for(T * in * rows, PRODUCTS_PER_THREAD, threads);
    for (; pass.first < T; pass.first += pass.tokens) {
        pass.x = (const char *)x + pass.first * in * type_bytes(x_type);
        pass.tokens = min_size(most_tokens, T - pass.first);
        pass.form = in_tiles ? FORM_MATRIX : product_form(pass.tokens, x_type, type, in);
        pass.set = pass.form == FORM_BFLOAT16 && pass.tokens > PANEL_TOKENS ? of_many : set;
        pass.flushes = pass.set != set;
        cut_units(&pass);
        if (in && !reads_rows(pass.tokens, x_type, type, pass.form))
            run_units(&pass, pack_panel, ceil_div(pass.tokens, pass.panel_tokens), 1, workers);
        const Shares shares = {ceil_div(FEWEST_ROWS, pass.unit_rows),
                               ceil_div(pass.most_rows, pass.unit_rows),
                               pass.groups == 1 ? workers : 1};
        run_ranges(&pass, multiply_taken_rows, pass.units * pass.groups, shares, workers);
    }
}

/* ---- experts ---- */

_Static_assert((int)EXPERT_PAIRS <= (int)RESTING_TOKENS, "a segment is one group of tokens");

enum {
    /* Room of a thread, in addition to thread_bytes: the products of one or two matrices. */
    EXPERT_SUMS_BYTES = 2 * EXPERT_PAIRS * CHUNK_ROWS * (int)sizeof(float)
};

/* A product of the pairs of a pass with the matrices of their experts. */
typedef struct ExpertPass {
    const KernelSet *set, *of_many;
    const char *x;               /* rows that pairs read */
    ptrdiff_t x_rows;            /* 1: all pairs read the same row */
    ptrdiff_t row_pairs;         /* pair p reads row p / row_pairs */
    const ExpertMatrix *matrix;  /* whose type determines the panels */
    const ExpertMatrix *up;      /* expert_hidden: the second matrix; otherwise NULL */
    const ExpertPairs *segments; /* in the order of experts */
    ptrdiff_t segment_count;
    const int32_t *pairs; /* the numbers of the pairs in this order */
    const float *weights; /* expert_outputs: a weight for each pair */
    char *out;            /* [pairs, rows] of out_type, or [T, rows] of float32 */
    ptrdiff_t T;          /* rows of out in expert_outputs */
    ptrdiff_t A;          /* pair p belongs to token p / A */
    float *panels;        /* scratch: the packed rows of all segments */
    char *threads;        /* scratch: expert_thread_bytes(in) for each thread */
    ElementwiseOp op;     /* expert_hidden: of the products of both matrices */
    ElementType x_type, out_type;
} ExpertPass;

static ptrdiff_t expert_thread_bytes(ptrdiff_t in)
{
    const ptrdiff_t gathered = PANEL_TOKENS * in * (ptrdiff_t)sizeof(float);
    return ceil_div(thread_bytes(in) + EXPERT_SUMS_BYTES + gathered, LINE) * LINE;
}

ptrdiff_t expert_scratch_bytes(ptrdiff_t in, ptrdiff_t panels, int threads)
{
    const ptrdiff_t panel_bytes = panel_room(in) * (ptrdiff_t)sizeof(float);
    return LINE + panels * panel_bytes + (ptrdiff_t)threads * expert_thread_bytes(in);
}

/* The row of x that the pair of index i, in the order of experts, reads. */
static const char *expert_row(const ExpertPass *pass, ptrdiff_t i)
{
    const ptrdiff_t row = pass->x_rows == 1 ? 0 : pass->pairs[i] / pass->row_pairs;
    return pass->x + row * pass->matrix->in * type_bytes(pass->x_type);
}

static Form expert_form(const ExpertPass *pass, const ExpertPairs *segment)
{
    return product_form(segment->count, pass->x_type, pass->matrix->weights->type,
                        pass->matrix->in);
}

/* The set of a segment: as in `linear`, another one multiplies many bfloat16 rows. */
static const KernelSet *expert_set(const ExpertPass *pass, const ExpertPairs *segment, Form form)
{
    return form == FORM_BFLOAT16 && segment->count > PANEL_TOKENS ? pass->of_many : pass->set;
}

/* Packs all panels of a segment. If all pairs read one row, the first segment packs it for all. */
static void pack_segment(void *work, ptrdiff_t number, int thread)
{
    const ExpertPass *pass = work;
    const ExpertPairs *segment = &pass->segments[number];
    const Weight *weight = pass->matrix->weights;
    const Form form = expert_form(pass, segment);
    const ptrdiff_t in = pass->matrix->in, bytes = in * type_bytes(pass->x_type);
    if (in == 0 || reads_rows(segment->count, pass->x_type, weight->type, form))
        return;
    if (pass->x_rows == 1 && number > 0)
        return;
    const pack_function pack = packer(expert_set(pass, segment, form), weight, form);
    char *rows =
        pass->threads + thread * expert_thread_bytes(in) + thread_bytes(in) + EXPERT_SUMS_BYTES;
    for (ptrdiff_t t = 0; t < segment->count; t += PANEL_TOKENS) {
        const int tokens = (int)min_size(PANEL_TOKENS, segment->count - t);
        for (int row = 0; row < tokens; row++)
            memcpy(rows + row * bytes, expert_row(pass, segment->first + t + row), (size_t)bytes);
        pack(pass->panels + (segment->panel + t / PANEL_TOKENS) * panel_room(in), rows, bytes,
             tokens, in, pass->x_type);
    }
}

/* Multiplies some rows of one matrix of a segment's expert by the rows of the segment:
 * out[tokens][CHUNK_ROWS] of out_type. */
static void multiply_segment(const ExpertPass *pass, const ExpertPairs *segment,
                             const ExpertMatrix *matrix, RowRange range, char *out, int thread)
{
    const Form form = expert_form(pass, segment);
    const KernelSet *set = expert_set(pass, segment, form);
    const Weight *weight = &matrix->weights[segment->expert];
    const ptrdiff_t in = matrix->in;
    float *scratch = (float *)(pass->threads + thread * expert_thread_bytes(in));
    const Operands operands = {.set = set,
                               .out = out,
                               .out_stride = CHUNK_ROWS * type_bytes(pass->out_type),
                               .x = expert_row(pass, segment->first),
                               .panels = pass->panels + segment->panel * panel_room(in),
                               .panel_tokens = PANEL_TOKENS,
                               .weight = weight,
                               .weight_stride = in * type_bytes(weight->type),
                               .row = range.row,
                               .rows = range.rows,
                               .bias = matrix->biases ? matrix->biases[segment->expert] : NULL,
                               .tokens = segment->count,
                               .in = in,
                               .form = form,
                               .x_type = pass->x_type,
                               .out_type = pass->out_type,
                               .bias_type = matrix->bias_type,
                               .flushes = set != pass->set,
                               .widened = scratch,
                               .lanes = scratch + WIDENED_BYTES / (ptrdiff_t)sizeof(float)};
    multiply(&operands);
}

/* Multiplies some rows of gate and up, and applies the activation. A unit is one row of both
 * matrices, for one segment. */
static void hidden_rows(void *work, ptrdiff_t first, ptrdiff_t count, int thread)
{
    const ExpertPass *pass = work;
    const ptrdiff_t rows = pass->matrix->rows, bytes = type_bytes(pass->out_type);
    char *gate = pass->threads + thread * expert_thread_bytes(pass->matrix->in)
                 + thread_bytes(pass->matrix->in);
    char *up = gate + EXPERT_SUMS_BYTES / 2;
    for (const ptrdiff_t end = first + count; first < end;) {
        const ExpertPairs *segment = &pass->segments[first / rows];
        RowRange range = {.row = first % rows};
        range.rows = min_size(min_size(end - first, CHUNK_ROWS), rows - range.row);
        multiply_segment(pass, segment, pass->matrix, range, gate, thread);
        multiply_segment(pass, segment, pass->up, range, up, thread);
        for (ptrdiff_t t = 0; t < segment->count; t++) {
            const ptrdiff_t pair = pass->pairs[segment->first + t];
            pass->set->rows->elementwise_span(
                pass->out + (pair * rows + range.row) * bytes, gate + t * CHUNK_ROWS * bytes,
                up + t * CHUNK_ROWS * bytes, range.rows, pass->op, pass->out_type);
        }
        first += range.rows;
    }
}

/* Multiplies some rows of the down matrices of all segments, and adds the weighted results of each
 * token in the order of the experts. A unit is one row of all matrices. */
static void output_rows(void *work, ptrdiff_t first, ptrdiff_t count, int thread)
{
    const ExpertPass *pass = work;
    const ptrdiff_t rows = pass->matrix->rows;
    float *out = (float *)pass->out;
    float *sums = (float *)(pass->threads + thread * expert_thread_bytes(pass->matrix->in)
                            + thread_bytes(pass->matrix->in));
    for (const ptrdiff_t end = first + count; first < end; first += CHUNK_ROWS) {
        const RowRange range = {.row = first, .rows = min_size(end - first, CHUNK_ROWS)};
        for (ptrdiff_t t = 0; t < pass->T; t++)
            memset(out + t * rows + first, 0, (size_t)range.rows * sizeof(float));
        for (ptrdiff_t s = 0; s < pass->segment_count; s++) {
            const ExpertPairs *segment = &pass->segments[s];
            multiply_segment(pass, segment, pass->matrix, range, (char *)sums, thread);
            for (ptrdiff_t t = 0; t < segment->count; t++) {
                const ptrdiff_t pair = pass->pairs[segment->first + t];
                const float weight = pass->weights[pair];
                float *restrict to = out + pair / pass->A * rows + first;
                const float *restrict from = sums + t * CHUNK_ROWS;
                for (ptrdiff_t r = 0; r < range.rows; r++)
                    to[r] += weight * from[r];
            }
        }
    }
}

/* Packs the rows of all segments, and then runs the units of a pass. */
static void run_experts(ExpertPass *pass, void *scratch, range_function run, ptrdiff_t units,
                        ptrdiff_t panels, ptrdiff_t products, int threads)
{
    const int workers = threads_for(products, PRODUCTS_PER_THREAD, threads);
    pass->set = kernel_set();
    pass->of_many = kernel_set_of_many();
    pass->panels = (float *)align_to_line(scratch);
    pass->threads = (char *)(pass->panels + panels * panel_room(pass->matrix->in));
    run_units(pass, pack_segment, pass->segment_count, 1, workers);
    run_ranges(pass, run, units, (Shares){FEWEST_ROWS, CHUNK_ROWS / 2, workers}, workers);
}

/*
 * expert_hidden: out[p, o] = op(gate_e[o] . x[p / A], up_e[o] . x[p / A]), where pair p belongs to
 * expert e
 *
 *   x         [T, in]        bfloat16 or float32
 *   gate, up  [E, rows, in]  of one type, and with the same activations
 *   segments  [count]        in the order of experts, each of at most EXPERT_PAIRS pairs
 *   pairs     [T * A]        the numbers of the pairs in this order
 *   out       [T * A, rows]  bfloat16 or float32
 *   scratch   expert_scratch_bytes(in, panels, threads)
 *
 * Threads take rows of both matrices of a segment, so that they apply op while the products are in
 * a cache. The products have the bits of `linear`.
 */
void expert_hidden(void *out, void *scratch, const void *x, const ExpertMatrix *gate,
                   const ExpertMatrix *up, const ExpertPairs *segments, const int32_t *pairs,
                   ptrdiff_t count, ptrdiff_t panels, ptrdiff_t T, ptrdiff_t A, ElementwiseOp op,
                   ElementType x_type, ElementType out_type, int threads)
{
    ExpertPass pass = {.x = x,
                       .x_rows = T,
                       .row_pairs = A,
                       .matrix = gate,
                       .up = up,
                       .segments = segments,
                       .segment_count = count,
                       .pairs = pairs,
                       .out = out,
                       .T = T,
                       .A = A,
                       .op = op,
                       .x_type = x_type,
                       .out_type = out_type};
    const ptrdiff_t products = 2 * T * A * gate->rows * gate->in;
    run_experts(&pass, scratch, hidden_rows, count * gate->rows, panels, products, threads);
}

/*
 * expert_outputs: out[t, o] = the sum over pairs p of token t, in the order of their experts, of
 * weights[p] * (down_e[o] . hidden[p])
 *
 *   hidden   [T * A, in]    bfloat16 or float32
 *   weights  [T * A]        float32
 *   down     [E, rows, in]  of one type, and with the same activations
 *   out      [T, rows]      float32
 *
 * See expert_hidden for the other arguments. Threads take rows of the matrices of all experts,
 * so that no two threads add to the same element.
 */
void expert_outputs(float *out, void *scratch, const void *hidden, const float *weights,
                    const ExpertMatrix *down, const ExpertPairs *segments, const int32_t *pairs,
                    ptrdiff_t count, ptrdiff_t panels, ptrdiff_t T, ptrdiff_t A, ElementType x_type,
                    int threads)
{
    ExpertPass pass = {.x = hidden,
                       .x_rows = T * A,
                       .row_pairs = 1,
                       .matrix = down,
                       .segments = segments,
                       .segment_count = count,
                       .pairs = pairs,
                       .weights = weights,
                       .out = (char *)out,
                       .T = T,
                       .A = A,
                       .x_type = x_type,
                       .out_type = TYPE_FLOAT32};
    const ptrdiff_t products = T * A * down->rows * down->in;
    run_experts(&pass, scratch, output_rows, down->rows, panels, products, threads);
}
