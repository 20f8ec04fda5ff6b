/*
 * The driver of products with weights: out = x . weight, with `in` elements of each row summed.
 *
 * From the outside to the inside, the work is cut into
 *   - passes: as many tokens as the scratch has room for, packed into panels of six tokens;
 *   - chunks, which threads take: up to 128 weight rows times a group of tokens. For threads.c,
 *     one unit is one weight row of one group;
 *   - K blocks: parts of `in` that all rows of the chunk and all panels of the group pass over
 *     before the next one begins, so that all that is read again and again is in a cache;
 *   - tiles: 4 weight rows x 6 tokens (2 x 6 with AVX2) in registers (tile.h).
 *
 * There are four ways through a chunk (multiply, multiply_plain):
 *   - one token of a plain product is not packed: weights stream from memory, a few rows at a time;
 *   - few tokens of a plain product: their panels stay in the L2 cache, and the weights stream from
 *     memory past them, four whole rows at a time: rows of four distant places, so that a thread
 *     reads four long streams;
 *   - many tokens of a plain product, or of float32 x with blocks: a panel's K block is in the L1
 *     cache while all weight rows of the chunk pass over it. Where an instruction set has to widen
 *     the weights, the first panel leaves them widened in the L2 cache for the other panels of the
 *     group; avx512bf16 multiplies bfloat16 weights as they are;
 *   - bfloat16 x with blocks: integers. Few tokens pass by each row once (few_tokens.h); of more
 *     tokens, a K block of the rows is laid out for all panels (many_tokens.h).
 *
 * A set may leave products of more than one panel to another set whose bits are the same
 * (kernel_set_of_many in dispatch.c): avx512bf16 to avx512, on Intel.
 *
 * Between two K blocks the 16 lanes of each sum rest in scratch, as they are: where a row is cut
 * changes no bit.
 */
#include "products/product.h"

enum {
    /* Tokens of a unit, at most. */
    GROUP_TOKENS = 43 * PANEL_TOKENS,
    /* No fewer rows are worth the way to a thread. */
    FEWEST_ROWS = 8,
    /* Multiply-adds that are worth one more thread. */
    PRODUCTS_PER_THREAD = 128 * 1024,
    /* Of a K block of one weight row, at most: a panel's fits the L1, a chunk's the L2 cache. */
    K_BLOCK_BYTES = 4 * 1024,
    /* From here on a group has the panels to gain from weights that are kept widened. */
    KEPT_TOKENS = 8 * PANEL_TOKENS,
    /* Tokens that are few: where each panel widens the weights anew, and where none does; and the
     * bytes of room that their panels may take. */
    FEW_WIDENING = 4 * PANEL_TOKENS,
    FEW_TOKENS = 8 * PANEL_TOKENS,
    FEW_BYTES = 2 * 1024 * 1024,
    /* Places in memory that a thread then reads weights from in turn, and bytes that one panel
     * prefetches of each. Of several panels each prefetches a part of the next rows there. */
    FEW_STREAMS = 4,
    FEW_PREFETCH = 2048,
    /* A group's tokens where K blocks are short: sums that rest between them fit the L2 cache. */
    RESTING_TOKENS = 22 * PANEL_TOKENS,
    /* Room for the panels of an op: as many tokens as fit, but at least one panel per thread. */
    PANELS_BYTES = 8 * 1024 * 1024,
    /* Room of a thread: a K block of a chunk, widened; and the resting lanes of its sums. */
    WIDENED_BYTES = CHUNK_ROWS * K_BLOCK * (int)sizeof(float),
    PANEL_LANES = CHUNK_ROWS * PANEL_TOKENS * LANES,
    LANES_BYTES = GROUP_TOKENS / PANEL_TOKENS * PANEL_LANES * (int)sizeof(float),
    THREAD_BYTES = WIDENED_BYTES + LANES_BYTES
};

/* ---- scratch ---- */

/* Floats between two panels. */
static ptrdiff_t panel_room(ptrdiff_t in)
{
    /* Integers (integer_panel.h) take 19 / 8 bytes for each element of whole K blocks. */
    const ptrdiff_t floats = ceil_div(in, 32) * 32, integers = integer_padded(in) * 19 / 8 / 4;
    return (floats < integers ? integers : floats) * PANEL_TOKENS;
}

static ptrdiff_t panels_bytes(ptrdiff_t in, int threads)
{
    const ptrdiff_t least = threads * panel_room(in) * (ptrdiff_t)sizeof(float);
    return least < PANELS_BYTES ? PANELS_BYTES : least;
}

ptrdiff_t product_scratch_bytes(ptrdiff_t in, int threads)
{
    return LINE + panels_bytes(in, threads) + (ptrdiff_t)threads * THREAD_BYTES;
}

/* ---- one unit, on one thread ---- */

/* A unit: some rows of one weight times a group of tokens. */
typedef struct Operands {
    const KernelSet *set;    /* whose kernels run */
    char *out;               /* [tokens, rows] of out_type, rows side by side */
    ptrdiff_t out_stride;    /* bytes from token to token */
    const char *x;           /* [tokens, in] */
    float *panels;           /* the same tokens, packed; not read where reads_rows */
    const Weight *weight;    /* [.., in] */
    ptrdiff_t weight_stride; /* bytes from row to row of a plain weight */
    ptrdiff_t row;           /* the first of the weight's rows */
    ptrdiff_t rows;          /* at most CHUNK_ROWS */
    const void *bias;        /* [.., of the weight's rows], or NULL */
    ptrdiff_t tokens;        /* at most GROUP_TOKENS */
    ptrdiff_t in;            /* elements of a row */
    Form form;
    ElementType x_type, out_type, bias_type;
    int flushes;    /* KBlock.flushes */
    float *widened; /* scratch of the thread: a widened K block */
    float *lanes;   /* scratch of the thread: lanes between two K blocks */
} Operands;

/* How some tokens of x are multiplied by rows of `in` elements of a weight type. */
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

/* Whether a product reads one token as it is: from plain weights, in the type of x. */
static int reads_rows(ptrdiff_t tokens, ElementType x_type, ElementType weight_type, Form form)
{
    const ElementType type = form == FORM_BFLOAT16 ? TYPE_BFLOAT16 : TYPE_FLOAT32;
    const int is_plain = form == FORM_BFLOAT16 || form == FORM_FLOAT32;
    return tokens == 1 && is_plain && block_elements(weight_type) == 0 && x_type == type;
}

/* Whether weights are widened, by the first panel or before, K block by short K block. */
static int widens(const KernelSet *set, ElementType weight_type, Form form)
{
    return block_elements(weight_type) || set->products->plain[form][weight_type].keeps_widened;
}

/* Adds the bias to sums [tokens][CHUNK_ROWS], and rounds them into some of o's tokens. */
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

/* Where the chunk's rows of a plain weight begin. */
static const char *plain_rows(const Operands *o)
{
    return (const char *)o->weight->data + o->row * o->weight_stride;
}

/* A K block of all of `in`, for some rows of the chunk and the panel that begins at a token. */
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
            k.lanes = o->lanes; /* not used: the block is the first and the last one */
            k.out = of_tile;
            product->multiply_k_block(&k);
            for (ptrdiff_t t = 0; t < k.tokens; t++)
                for (ptrdiff_t r = 0; r < k.rows; r++)
                    sums[(token + t) * CHUNK_ROWS + row + r * apart] = of_tile[t * CHUNK_ROWS + r];
        }
    store_rows(o, 0, o->tokens, sums);
}

/* How K blocks are cut, and where their weights are. */
typedef struct KBlockPlan {
    ptrdiff_t step; /* elements of a K block */
    int block;      /* 1: weights are block-quantized, and widened before the first panel */
    int keep;       /* 1: the first panel keeps plain weights widened */
} KBlockPlan;

/* Elements [start, start + step) along `in`, for the panel that begins at a token. */
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
    /* An element of 8 bits is at least 2 bytes long in a panel. */
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
    /* 4 bytes for each element: panels of pairs of bfloat16 take half of them. */
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

/* A sum over nothing is 0. */
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
    }
}

/* ---- all units, on all threads ---- */

/* One pass over all weights: as many tokens as the scratch has room for, and how they are cut. */
typedef struct LinearPass {
    const KernelSet *set;
    const LinearPart *parts; /* the weights of the op, and their results */
    ptrdiff_t rows;          /* of all weights */
    const char *x;           /* [tokens, in] */
    ptrdiff_t first;         /* the first of the pass's tokens among those of the op */
    ptrdiff_t tokens;        /* of the pass */
    ptrdiff_t in;            /* elements of a row */
    ptrdiff_t groups;        /* of tokens */
    ptrdiff_t group_tokens;  /* in a group; the last one may have fewer */
    ptrdiff_t most_rows;     /* that are best multiplied at a time */
    float *panels;           /* scratch: the tokens, packed */
    char *threads;           /* scratch, not a number: THREAD_BYTES for each thread */
    Form form;
    ElementType x_type, out_type;
    int flushes; /* 1: `set` stands in for avx512bf16 and imitates it (KBlock.flushes) */
} LinearPass;

/* Some rows of one weight, for one group of tokens. */
typedef struct RowRange {
    ptrdiff_t group, row, rows;
    const LinearPart *part;
} RowRange;

/* The size of nearly equal parts of some tokens, each of whole panels. */
static ptrdiff_t even_part(ptrdiff_t tokens, ptrdiff_t most)
{
    return ceil_div(ceil_div(tokens, ceil_div(tokens, most)), PANEL_TOKENS) * PANEL_TOKENS;
}

/* Cuts the pass's tokens into groups, and chooses how many rows a unit has at best. */
static void cut_units(LinearPass *pass)
{
    const ElementType type = pass->parts->weight.type;
    const int rests = pass->in * type_bytes(type) > K_BLOCK_BYTES;
    ptrdiff_t tokens = GROUP_TOKENS;
    pass->most_rows = CHUNK_ROWS / 2;
    if (widens(pass->set, type, pass->form))
        tokens = RESTING_TOKENS;
    else if (pass->tokens > FEW_TOKENS && !rests)
        pass->most_rows = CHUNK_ROWS;
    pass->group_tokens = even_part(pass->tokens, tokens);
    pass->groups = ceil_div(pass->tokens, pass->group_tokens);
}

static pack_function packer(const LinearPass *pass)
{
    const ProductKernels *kernels = pass->set->products;
    const Weight *weight = &pass->parts->weight;
    switch (pass->form) {
    case FORM_BFLOAT16:
    case FORM_FLOAT32: break;
    case FORM_INTEGERS: return kernels->many[weight->activations][weight->type]->pack;
    case FORM_FEW_INTEGERS: return kernels->few[weight->activations][weight->type]->pack;
    }
    return kernels->pack[pass->form];
}

static void pack_panel(void *work, ptrdiff_t panel, int thread)
{
    (void)thread;
    const LinearPass *pass = work;
    const ptrdiff_t x_stride = pass->in * type_bytes(pass->x_type), t = panel * PANEL_TOKENS;
    const pack_function pack = packer(pass);
    pack(pass->panels + panel * panel_room(pass->in), pass->x + t * x_stride, x_stride,
         (int)min_size(PANEL_TOKENS, pass->tokens - t), pass->in, pass->x_type);
}

/* The unit that begins at a row, of at most some rows; rows are counted over all groups. */
static RowRange range_at(const LinearPass *pass, ptrdiff_t at, ptrdiff_t most)
{
    RowRange range = {.group = at / pass->rows, .row = at % pass->rows, .part = pass->parts};
    for (; range.row >= range.part->rows; range.part++)
        range.row -= range.part->rows;
    range.rows = min_size(min_size(most, pass->most_rows), range.part->rows - range.row);
    return range;
}

static void multiply_range(const LinearPass *pass, const RowRange *range, int thread)
{
    const LinearPart *part = range->part;
    const ptrdiff_t t = range->group * pass->group_tokens;
    const ptrdiff_t x_stride = pass->in * type_bytes(pass->x_type);
    const ptrdiff_t out_bytes = type_bytes(pass->out_type), out_stride = part->rows * out_bytes;
    float *scratch = (float *)(pass->threads + thread * (ptrdiff_t)THREAD_BYTES);
    const Operands operands = {.set = pass->set,
                               .out = (char *)part->out + (pass->first + t) * out_stride
                                      + range->row * out_bytes,
                               .out_stride = out_stride,
                               .x = pass->x + t * x_stride,
                               .panels = pass->panels + t / PANEL_TOKENS * panel_room(pass->in),
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
    for (RowRange range; first < end; first += range.rows) {
        range = range_at(pass, first, end - first);
        multiply_range(pass, &range, thread);
    }
}

/*
 * linear: out_p[t, o] = sum over i of x[t, i] * weight_p[o, i], + bias_p[o], for each part p
 *
 *   x         [T, in]      bfloat16 or float32
 *   weight_p  [out_p, in]  the type of x, or one that it holds exactly (PAIR_TYPES with bfloat16;
 *                          float16 and 8-bit floats with float32), or block-quantized; one type
 *                          and the same activations
 *   bias_p    [out_p]      any plain type, or NULL: nothing is added
 *   out_p     [T, out_p]   bfloat16 or float32
 *   scratch   product_scratch_bytes(in, threads)
 *
 * All threads pack the tokens into panels, and then take some rows of a weight for a group of
 * tokens: each weight is read from memory by one thread once per group, and no two threads write
 * the same output. The caller waits twice in a pass: when the panels are packed, and when the rows
 * are multiplied; each time only for units that a worker has taken (threads.c). Where there is one
 * group, each thread has a span of the rows, so that it reads on where it has prefetched, and then
 * helps with the others. Checked by the caller: contiguity, sizes, and that outs and scratch
 * overlap nothing.
 */
void linear(const LinearPart *parts, void *scratch, const void *x, ptrdiff_t count, ptrdiff_t T,
            ptrdiff_t in, ElementType x_type, ElementType out_type, int threads)
{
    const KernelSet *const set = kernel_set(), *const of_many = kernel_set_of_many();
    char *const panels = align_to_line(scratch);
    const ptrdiff_t room = panels_bytes(in, threads);
    const ptrdiff_t fitting = in ? room / (panel_room(in) * (ptrdiff_t)sizeof(float)) : 1024;
    /* 1024: without elements any number of panels fits. */
    LinearPass pass = {.parts = parts,
                       .in = in,
                       .panels = (float *)panels,
                       .threads = panels + room,
                       .x_type = x_type,
                       .out_type = out_type};
    for (ptrdiff_t p = 0; p < count; p++)
        pass.rows += parts[p].rows;
    const int workers = threads_for(T * in * pass.rows, PRODUCTS_PER_THREAD, threads);
    for (; pass.first < T && pass.rows; pass.first += pass.tokens) {
        const ElementType type = parts->weight.type;
        pass.x = (const char *)x + pass.first * in * type_bytes(x_type);
        pass.tokens = min_size(even_part(T, fitting * PANEL_TOKENS), T - pass.first);
        pass.form = product_form(pass.tokens, x_type, type, in);
        pass.set = pass.form == FORM_BFLOAT16 && pass.tokens > PANEL_TOKENS ? of_many : set;
        pass.flushes = pass.set != set;
        cut_units(&pass);
        if (in && !reads_rows(pass.tokens, x_type, type, pass.form))
            run_units(&pass, pack_panel, ceil_div(pass.tokens, PANEL_TOKENS), 1, workers);
        const Shares shares = {FEWEST_ROWS, pass.most_rows, pass.groups == 1 ? workers : 1};
        run_ranges(&pass, multiply_taken_rows, pass.rows * pass.groups, shares, workers);
    }
}
