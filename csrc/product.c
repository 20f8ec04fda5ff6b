/*
 * One token goes straight to multiply_row: weights stream from memory, one row after the other.
 *
 * More tokens are packed into panels of six and multiplied stretch by stretch along `in`, so that
 * all that is read again and again is near. From the innermost loop to the outermost:
 *   - a tile of 4 weight rows x 6 tokens (2 x 6 with AVX2) lives in registers;
 *   - a panel's stretch (PANEL_BYTES) stays in the first cache while all weight rows of the chunk
 *     pass over it;
 *   - the weights of a block of stretches (BLOCK_BYTES) stay in the second cache while all panels
 *     of the group pass over them;
 *   - between two stretches the lanes of the sums rest in scratch, as they are: where a row is cut
 *     changes no bit.
 * The first panel that meets a block takes it in one stretch: this is when the weights come from
 * memory, and long runs come faster.
 */
#include "product.h"

enum {
    PANEL_BYTES = 18 * 1024,
    BLOCK_BYTES = 512 * 1024,
    /* Of every row, a block holds this many elements of 2 bytes (of 4: half as many). */
    BLOCK_ROW_BYTES = BLOCK_BYTES / CHUNK_ROWS,
    /* A bfloat16 panel is twice as wide once it is widened. */
    MAX_PANEL_BYTES = 2 * BLOCK_ROW_BYTES * PANEL_TOKENS,
    PANEL_LANES = CHUNK_ROWS * PANEL_TOKENS * LANES,
    LANES_BYTES = GROUP_TOKENS / PANEL_TOKENS * PANEL_LANES * (int)sizeof(float)
};

ptrdiff_t product_scratch_bytes(void)
{
    return MAX_PANEL_BYTES + LANES_BYTES;
}

static void store_rows(const KernelSet *set, const Operands *o, ptrdiff_t first_token,
                       ptrdiff_t tokens, const float *sums)
{
    for (ptrdiff_t t = 0; t < tokens; t++)
        set->convert_span(sums + t * CHUNK_ROWS, TYPE_F32,
                          o->out + (first_token + t) * o->out_stride, o->out_type, o->rows);
}

/* Elements of a panel's stretch: whole blocks that fill PANEL_BYTES. */
static ptrdiff_t stretch_elements(const KernelSet *set, int kind, int tokens)
{
    const ptrdiff_t elements = PANEL_BYTES / (tokens * set->panel_element_bytes[kind]);
    return elements / 32 * 32;
}

/* Elements [start, start + count) along `in` for one panel of tokens. */
static void multiply_panel(const KernelSet *set, const Operands *o, ptrdiff_t first_token,
                           ptrdiff_t start, ptrdiff_t count, char *panel, float *lanes)
{
    const int tokens = (int)min_size(PANEL_TOKENS, o->tokens - first_token);
    const ptrdiff_t step =
        first_token == 0 ? count + 1 : stretch_elements(set, o->kind, tokens);
    const ptrdiff_t x_bytes = product_x_bytes(o->kind), w_bytes = product_weight_bytes(o->kind);
    float sums[PANEL_TOKENS * CHUNK_ROWS];
    Stretch s = {.panel = panel, .tokens = tokens, .weight_stride = o->weight_stride,
                 .rows = o->rows, .lanes = lanes, .out = sums};
    for (ptrdiff_t at = start; at < start + count || at == 0; at += step) {
        s.count = min_size(step, start + count - at);
        s.weight = o->weight + at * w_bytes;
        s.first = at == 0;
        s.last = at + s.count == o->in;
        set->pack_panel(o->kind, o->x + first_token * o->x_stride + at * x_bytes, o->x_stride,
                        tokens, s.count, panel);
        set->multiply_stretch(o->kind, &s);
        if (s.last)
            store_rows(set, o, first_token, tokens, sums);
    }
}

void multiply(const KernelSet *set, const Operands *o, char *scratch)
{
    if (o->tokens == 1) {
        float sums[CHUNK_ROWS];
        set->multiply_row(o->kind, o->x, o->weight, o->weight_stride, o->rows, o->in, sums);
        store_rows(set, o, 0, 1, sums);
        return;
    }
    float *lanes = (float *)(scratch + MAX_PANEL_BYTES);
    const ptrdiff_t block = BLOCK_ROW_BYTES / product_weight_bytes(o->kind);
    const ptrdiff_t panel_lanes = o->in > block ? PANEL_LANES : 0;
    for (ptrdiff_t start = 0; start < o->in || start == 0; start += block)
        for (ptrdiff_t token = 0; token < o->tokens; token += PANEL_TOKENS)
            multiply_panel(set, o, token, start, min_size(block, o->in - start), scratch,
                           lanes + token / PANEL_TOKENS * panel_lanes);
}
