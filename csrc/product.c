/*
 * One token goes straight to multiply_row: weights stream from memory, a few rows at a time.
 *
 * More tokens have been packed into panels of six. A few of them stay in the L2 cache, and the
 * weights stream from memory past them, four whole rows at a time: rows of four distant places, so
 * that a thread reads four long streams.
 *
 * Many are multiplied K block by K block, so that all that is read again and again is
 * near. From the innermost loop to the outermost:
 *   - a tile of 4 weight rows x 6 tokens (2 x 6 with AVX2) lives in registers;
 *   - a panel's K block is in the L1 cache while all weight rows of the chunk pass over it;
 *   - the first panel reads the weights where they are, and leaves them widened in the L2
 *     cache for the other panels of the group;
 *   - between two K blocks the lanes of the sums rest in scratch, as they are: where a row is cut
 *     changes no bit.
 *
 * Weights that have blocks are multiplied as integers, where x allows it: integers.c.
 */
#include "integers.h"

enum {
    /* Of a K block of one weight row, at most: a panel's fits the L1, a chunk's the L2 cache. */
    K_BLOCK_BYTES = 4 * 1024,
    WIDENED_BYTES = CHUNK_ROWS * K_BLOCK * (int)sizeof(float),
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
    /* Room for the panels of an op: as many tokens as fit, but at least one panel per thread. */
    PANELS_BYTES = 8 * 1024 * 1024,
    /* A group's tokens where K blocks are short: sums that rest between them fit the L2 cache. */
    RESTING_TOKENS = 22 * PANEL_TOKENS,
    LANES_BYTES = GROUP_TOKENS / PANEL_TOKENS * PANEL_LANES * (int)sizeof(float),
    THREAD_BYTES = WIDENED_BYTES + LANES_BYTES
};

ptrdiff_t panel_room(ptrdiff_t in)
{
    /* Integers (integers.h) take 19 / 8 bytes for each element of whole K blocks. */
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

Scratch cut_scratch(void *scratch, ptrdiff_t in, int threads)
{
    char *start = align_to_line(scratch);
    const ptrdiff_t bytes = panels_bytes(in, threads);
    const ptrdiff_t panels = in ? bytes / (panel_room(in) * (ptrdiff_t)sizeof(float)) : 1024;
    return (Scratch){(float *)start, start + bytes, panels * PANEL_TOKENS};
}

Form product_form(ptrdiff_t tokens, ElementType x_type, ElementType weight_type, ptrdiff_t in)
{
    const int bfloat16 = x_type == TYPE_BFLOAT16;
    const Form plain = bfloat16 ? FORM_BFLOAT16 : FORM_FLOAT32;
    const Form integers = tokens <= INTEGER_FEW ? FORM_FEW_INTEGERS : FORM_INTEGERS;
#define PAIR_ROW(name, type, bytes) [type] = 1,
    static const uint8_t in_pairs[TYPE_COUNT] = { PAIR_TYPES(PAIR_ROW) };
#define PLAIN_ROW(name, type, bytes) case type:
#define BLOCK_ROW(name, type, elements, codes, scale) \
    case type: return bfloat16 && in % elements == 0 ? integers : plain;
    switch (weight_type) {
        PLAIN_TYPES(PLAIN_ROW)
        return in_pairs[weight_type] ? plain : FORM_FLOAT32;
        BLOCK_TYPES(BLOCK_ROW)
    }
    return plain;
}

int reads_rows(ptrdiff_t tokens, ElementType x_type, ElementType weight_type, Form form)
{
    const ElementType type = form == FORM_BFLOAT16 ? TYPE_BFLOAT16 : TYPE_FLOAT32;
    const int is_plain = form == FORM_BFLOAT16 || form == FORM_FLOAT32;
    return tokens == 1 && is_plain && block_elements(weight_type) == 0 && x_type == type;
}

/* Whether weights are widened, by the first panel or before, K block by short K block. */
static int widens(const KernelSet *set, ElementType weight_type, Form form)
{
    return block_elements(weight_type) || set->products[form][weight_type].keeps_widened;
}

UnitSize best_unit(const KernelSet *set, ElementType weight_type, Form form, ptrdiff_t tokens,
                   ptrdiff_t in)
{
    if (widens(set, weight_type, form))
        return (UnitSize){RESTING_TOKENS, CHUNK_ROWS / 2};
    const int rests = in * type_bytes(weight_type) > K_BLOCK_BYTES;
    return (UnitSize){GROUP_TOKENS, tokens > FEW_TOKENS && !rests ? CHUNK_ROWS : CHUNK_ROWS / 2};
}

void store_rows(const KernelSet *set, const Operands *o, ptrdiff_t first_token, ptrdiff_t tokens,
                float *sums)
{
    float bias[CHUNK_ROWS];
    if (o->bias)
        set->convert_span(bias, (const char *)o->bias + o->row * type_bytes(o->bias_type), o->rows,
                          o->bias_type, TYPE_FLOAT32);
    for (ptrdiff_t t = 0; t < tokens; t++) {
        for (ptrdiff_t r = 0; o->bias && r < o->rows; r++)
            sums[t * CHUNK_ROWS + r] += bias[r];
        set->convert_span(o->out + (first_token + t) * o->out_stride, sums + t * CHUNK_ROWS,
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

static void multiply_few(const KernelSet *set, const Operands *o, const PlainProduct *product,
                         float *lanes)
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
            k.lanes = lanes;
            k.out = of_tile;
            product->multiply_k_block(&k);
            for (ptrdiff_t t = 0; t < k.tokens; t++)
                for (ptrdiff_t r = 0; r < k.rows; r++)
                    sums[(token + t) * CHUNK_ROWS + row + r * apart] = of_tile[t * CHUNK_ROWS + r];
        }
    store_rows(set, o, 0, o->tokens, sums);
}

/* How many tokens pass over a chunk's K blocks, and where they find the weights. */
typedef struct Plan {
    ptrdiff_t step;  /* elements of a K block */
    int block, keep; /* whether weights are block-quantized; whether the first panel keeps them */
    float *widened, *lanes;
} Plan;

/* Elements [start, start + step) along `in`, for the panel that begins at a token. */
static void multiply_panel(const KernelSet *set, const Operands *o, const Plan *plan,
                           ptrdiff_t token, ptrdiff_t start)
{
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
    k.widened = plan->widened;
    k.lanes = plan->lanes + token / PANEL_TOKENS * panel_lanes;
    k.out = sums;
    if (k.source == WEIGHTS_WIDENED)
        set->multiply_widened[o->form](&k);
    else
        set->products[o->form][o->weight->type].multiply_k_block(&k);
    if (k.last)
        store_rows(set, o, token, k.tokens, sums);
}

static void multiply_many(const KernelSet *set, const Operands *o, float *widened, float *lanes)
{
    const ElementType type = o->weight->type;
    const ptrdiff_t bytes = type_bytes(type) == 1 ? 2 : type_bytes(type);
    const int block = block_elements(type) != 0;
    const int keep =
        !block && o->tokens >= KEPT_TOKENS && set->products[o->form][type].keeps_widened;
    const ptrdiff_t most = block || keep ? K_BLOCK : K_BLOCK_BYTES / bytes;
    const ptrdiff_t step = ceil_div(ceil_div(o->in, ceil_div(o->in, most)), 32) * 32;
    const Plan plan = {step, block, keep, widened, lanes};
    for (ptrdiff_t start = 0; start < o->in; start += step) {
        if (block)
            set->formats[type].widen_k_block(widened, o->weight, o->row, o->rows, o->in, start,
                                             min_size(step, o->in - start), o->form);
        for (ptrdiff_t token = 0; token < o->tokens; token += PANEL_TOKENS)
            multiply_panel(set, o, &plan, token, start);
    }
}

/* A sum over nothing is 0. */
static void store_zeros(const KernelSet *set, const Operands *o)
{
    for (ptrdiff_t token = 0; token < o->tokens; token += PANEL_TOKENS) {
        float sums[PANEL_TOKENS * CHUNK_ROWS] = {0};
        store_rows(set, o, token, min_size(PANEL_TOKENS, o->tokens - token), sums);
    }
}

static void multiply_plain(const KernelSet *set, const Operands *o, float *widened, float *lanes)
{
    const PlainProduct *product = &set->products[o->form][o->weight->type];
    const ptrdiff_t most = widens(set, o->weight->type, o->form) ? FEW_WIDENING : FEW_TOKENS;
    const int few = o->tokens <= most && o->tokens * o->in * 4 <= FEW_BYTES;
    float sums[CHUNK_ROWS];
    if (reads_rows(o->tokens, o->x_type, o->weight->type, o->form)) {
        product->multiply_row(sums, o->x, plain_rows(o), o->weight_stride, o->rows, o->in);
        store_rows(set, o, 0, 1, sums);
    } else if (few && block_elements(o->weight->type) == 0) {
        multiply_few(set, o, product, lanes);
    } else {
        multiply_many(set, o, widened, lanes);
    }
}

void multiply(const KernelSet *set, const Operands *o, const Scratch *scratch, int thread)
{
    float *widened = (float *)(scratch->threads + thread * (ptrdiff_t)THREAD_BYTES);
    float *lanes = widened + WIDENED_BYTES / (ptrdiff_t)sizeof(float);
    if (o->in == 0) {
        store_zeros(set, o);
        return;
    }
    switch (o->form) {
    case FORM_BFLOAT16:
    case FORM_FLOAT32: multiply_plain(set, o, widened, lanes); break;
    case FORM_INTEGERS:
    case FORM_FEW_INTEGERS: multiply_integers(set, o, widened, lanes); break;
    }
}
