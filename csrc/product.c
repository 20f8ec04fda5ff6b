/*
 * One token goes straight to multiply_row: weights stream from memory, a few rows at a time.
 *
 * More tokens have been packed into panels of six. A few of them stay in the second cache, and the
 * weights stream from memory past them, four whole rows at a time.
 *
 * Many are multiplied stretch by stretch along `in`, so that all that is read again and again is
 * near. From the innermost loop to the outermost:
 *   - a tile of 4 weight rows x 6 tokens (2 x 6 with AVX2) lives in registers;
 *   - a panel's stretch lies in the first cache while all weight rows of the chunk pass over it;
 *   - the first panel reads the weights where they are, and leaves them widened to float32 in the
 *     second cache for the other panels of the group;
 *   - between two stretches the lanes of the sums rest in scratch, as they are: where a row is cut
 *     changes no bit.
 *
 * int8 weights are multiplied by integers, where x allows it: int8.c.
 */
#include "int8.h"

enum {
    /* Bytes of a stretch of one weight row, at most; a chunk's stays in the second cache. */
    STRETCH_BYTES = 8 * 1024,
    /* The same in elements where weights are kept widened; a panel's takes 12 KB. */
    KEPT_STRETCH = 512,
    WIDENED_BYTES = CHUNK_ROWS * KEPT_STRETCH * (int)sizeof(float),
    /* From here on a group has the panels to gain from that. */
    KEPT_TOKENS = 8 * PANEL_TOKENS,
    /* Tokens that are few, and the bytes that their panels may take. */
    FEW_TOKENS = 2 * PANEL_TOKENS,
    FEW_BYTES = 512 * 1024,
    /* Room for the panels of an op: as many tokens as fit, but at least one panel per thread. */
    PANELS_BYTES = 8 * 1024 * 1024,
    LANES_BYTES = GROUP_TOKENS / PANEL_TOKENS * PANEL_LANES * (int)sizeof(float),
    THREAD_BYTES = WIDENED_BYTES + LANES_BYTES + QUANTIZED_BYTES
};

ptrdiff_t panel_room(ptrdiff_t in)
{
    /* Integers (int8.h) take 17 / 8 bytes for each element of whole stretches. */
    const ptrdiff_t floats = ceil_div(in, 32) * 32, least = INT8_STRETCH * 17 / 8 / 4;
    return (floats < least ? least : floats) * PANEL_TOKENS;
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

void pack_tokens(const KernelSet *set, int kind, const char *x, ptrdiff_t x_stride,
                 ptrdiff_t tokens, ptrdiff_t in, float *panel)
{
    set->pack_panel(kind, x, x_stride, (int)min_size(PANEL_TOKENS, tokens), in, panel);
}

void store_rows(const KernelSet *set, const Operands *o, ptrdiff_t first_token, ptrdiff_t tokens,
                const float *sums)
{
    for (ptrdiff_t t = 0; t < tokens; t++)
        set->convert_span(sums + t * CHUNK_ROWS, TYPE_F32,
                          o->out + (first_token + t) * o->out_stride, o->out_type, o->rows);
}

static void multiply_one(const KernelSet *set, const Operands *o)
{
    float sums[CHUNK_ROWS];
    if (o->quantized)
        set->multiply_nf4(o->quantized, o->quantized_row, o->rows, o->in, o->panels, sums);
    else
        set->multiply_row(o->kind, o->x, o->weight, o->weight_stride, o->rows, o->in, sums);
    store_rows(set, o, 0, 1, sums);
}

/* A stretch of all of `in`, for some rows of the chunk and the panel that begins at a token. */
static Stretch whole_stretch(const Operands *o, ptrdiff_t token, ptrdiff_t row, ptrdiff_t rows)
{
    return (Stretch){
        .panel = o->panels + token / PANEL_TOKENS * panel_room(o->in),
        .tokens = (int)min_size(PANEL_TOKENS, o->tokens - token),
        .in = o->in,
        .weight = o->weight + row * o->weight_stride,
        .weight_stride = o->weight_stride,
        .rows = rows,
        .count = o->in,
        .source = WEIGHTS_AS_STORED,
        .first = 1,
        .last = 1,
    };
}

static void multiply_few(const KernelSet *set, const Operands *o, float *lanes)
{
    enum { ROWS = 4 };
    float sums[FEW_TOKENS * CHUNK_ROWS];
    for (ptrdiff_t row = 0; row < o->rows; row += ROWS)
        for (ptrdiff_t token = 0; token < o->tokens; token += PANEL_TOKENS) {
            Stretch stretch = whole_stretch(o, token, row, min_size(ROWS, o->rows - row));
            stretch.lanes = lanes;
            stretch.out = sums + token * CHUNK_ROWS + row;
            set->multiply_stretch(o->kind, &stretch);
        }
    store_rows(set, o, 0, o->tokens, sums);
}

/* The weights of the next stretch that this panel asks for, so that each panel has its share. */
static Ahead weights_ahead(const Operands *o, const Stretch *s, ptrdiff_t token, ptrdiff_t step)
{
    const ptrdiff_t bytes = product_weight_bytes(o->kind), others = (o->tokens - 1) / PANEL_TOKENS;
    const ptrdiff_t share = token / PANEL_TOKENS - 1;
    if (share < 0 || s->last || o->quantized)
        return (Ahead){0};
    const ptrdiff_t row = o->rows * share / others, end = o->rows * (share + 1) / others;
    return (Ahead){
        .at = s->weight + step * bytes + row * o->weight_stride,
        .stride = o->weight_stride,
        .rows = end - row,
        .bytes = min_size(step, o->in - s->start - step) * bytes,
    };
}

/* Elements [start, start + step) along `in`, where o's weight begins, for a panel at a token. */
static void multiply_panel(const KernelSet *set, const Operands *o, ptrdiff_t token,
                           ptrdiff_t start, ptrdiff_t step, float *widened, float *lanes)
{
    float sums[PANEL_TOKENS * CHUNK_ROWS];
    Stretch stretch = whole_stretch(o, token, 0, o->rows);
    stretch.start = start;
    stretch.count = min_size(step, o->in - start);
    stretch.first = start == 0;
    stretch.last = start + stretch.count == o->in;
    if (token + PANEL_TOKENS < o->tokens)
        stretch.next_panel = stretch.panel + panel_room(o->in);
    if (widened)
        stretch.source = token || o->quantized ? WEIGHTS_WIDENED : WEIGHTS_KEPT_NOW;
    stretch.widened = widened;
    stretch.ahead = weights_ahead(o, &stretch, token, step);
    stretch.lanes = lanes;
    stretch.out = sums;
    set->multiply_stretch(o->kind, &stretch);
    if (stretch.last)
        store_rows(set, o, token, stretch.tokens, sums);
}

/* The rows from an element on; those of a quantised weight are written out for a stretch, into
 * `widened` where weights are kept so, else into `room`. */
static Operands operands_from(const KernelSet *set, const Operands *o, ptrdiff_t start,
                              ptrdiff_t step, float *widened, char *room)
{
    const ptrdiff_t count = min_size(step, o->in - start);
    Operands from = *o;
    if (o->quantized && widened) {
        set->widen_codes_stretch(o->quantized, o->quantized_row, o->rows, o->in, start, count,
                                 widened);
    } else if (o->quantized) {
        dequantize_stretch(set, o, start, count, room);
        from.weight = room;
        from.weight_stride = QUANTIZED_STRETCH * product_weight_bytes(o->kind);
    } else {
        from.weight += start * product_weight_bytes(o->kind);
    }
    return from;
}

static void multiply_many(const KernelSet *set, const Operands *o, float *widened, float *lanes)
{
    /* What has to be written out anyway is written as tiles read it fastest. */
    const int gains = o->tokens >= KEPT_TOKENS || o->quantized;
    const int keep = gains && set->keeps_widened(o->kind);
    const ptrdiff_t most = keep || o->quantized ? KEPT_STRETCH
                                                : STRETCH_BYTES / product_weight_bytes(o->kind);
    const ptrdiff_t step = ceil_div(ceil_div(o->in, ceil_div(o->in, most)), 32) * 32;
    const ptrdiff_t panel_lanes = o->in > step ? PANEL_LANES : 0;
    if (!keep)
        widened = NULL;
    for (ptrdiff_t start = 0; start < o->in; start += step) {
        const Operands from =
            operands_from(set, o, start, step, widened, (char *)lanes + LANES_BYTES);
        for (ptrdiff_t token = 0; token < o->tokens; token += PANEL_TOKENS)
            multiply_panel(set, &from, token, start, step, widened,
                           lanes + token / PANEL_TOKENS * panel_lanes);
    }
}

void multiply(const KernelSet *set, const Operands *o, const Scratch *scratch, int thread)
{
    char *own = scratch->threads + thread * (ptrdiff_t)THREAD_BYTES;
    float *lanes = (float *)(own + WIDENED_BYTES);
    const int few = o->tokens <= FEW_TOKENS && o->tokens * o->in * 4 <= FEW_BYTES;
    if (o->quantized && takes_integers(o->kind, o->quantized, o->in))
        multiply_int8(set, o, (float *)own, lanes);
    else if (o->tokens == 1 && !(o->quantized && reads_panel(o->quantized, o->in)))
        multiply_one(set, o);
    else if (o->in == 0 || (few && o->quantized == NULL))
        multiply_few(set, o, lanes);
    else
        multiply_many(set, o, (float *)own, lanes);
}
