/*
 * One token goes straight to multiply_row: weights stream from memory, a few rows at a time.
 *
 * More tokens are packed into panels of six and multiplied stretch by stretch along `in`, so that
 * all that is read again and again is near. From the innermost loop to the outermost:
 *   - a tile of 4 weight rows x 6 tokens (2 x 6 with AVX2) lives in registers;
 *   - a panel's stretch is passed over by all weight rows of the chunk, and a stretch of those rows
 *     (WEIGHT_BYTES, which stays in the second cache) by all panels of the group;
 *   - between two stretches the lanes of the sums rest in scratch, as they are: where a row is cut
 *     changes no bit.
 */
#include "product.h"

enum {
    /* A stretch of a chunk's weight rows, and its share of one row. */
    WEIGHT_BYTES = 512 * 1024,
    WEIGHT_ROW_BYTES = WEIGHT_BYTES / CHUNK_ROWS,
    /* Activations take at most twice the bytes of the weights beside them (bfloat16 widened). */
    PANEL_BYTES = 2 * WEIGHT_ROW_BYTES * PANEL_TOKENS,
    PANEL_LANES = CHUNK_ROWS * PANEL_TOKENS * LANES,
    LANES_BYTES = GROUP_TOKENS / PANEL_TOKENS * PANEL_LANES * (int)sizeof(float)
};

ptrdiff_t product_scratch_bytes(void)
{
    return PANEL_BYTES + LANES_BYTES;
}

static void store_rows(const KernelSet *set, const Operands *o, ptrdiff_t first_token,
                       ptrdiff_t tokens, const float *sums)
{
    for (ptrdiff_t t = 0; t < tokens; t++)
        set->convert_span(sums + t * CHUNK_ROWS, TYPE_F32,
                          o->out + (first_token + t) * o->out_stride, o->out_type, o->rows);
}

/* Elements [start, start + count) along `in` for the panel that begins at a token. */
static void multiply_panel(const KernelSet *set, const Operands *o, ptrdiff_t token,
                           ptrdiff_t start, ptrdiff_t count, char *panel, float *lanes)
{
    float sums[PANEL_TOKENS * CHUNK_ROWS];
    const Stretch stretch = {
        .panel = panel,
        .tokens = (int)min_size(PANEL_TOKENS, o->tokens - token),
        .weight = o->weight + start * product_weight_bytes(o->kind),
        .weight_stride = o->weight_stride,
        .rows = o->rows,
        .count = count,
        .first = start == 0,
        .last = start + count == o->in,
        .lanes = lanes,
        .out = sums,
    };
    set->pack_panel(o->kind, o->x + token * o->x_stride + start * product_x_bytes(o->kind),
                    o->x_stride, stretch.tokens, count, panel);
    set->multiply_stretch(o->kind, &stretch);
    if (stretch.last)
        store_rows(set, o, token, stretch.tokens, sums);
}

void multiply(const KernelSet *set, const Operands *o, char *scratch)
{
    if (o->tokens == 1) {
        float sums[CHUNK_ROWS];
        set->multiply_row(o->kind, o->x, o->weight, o->weight_stride, o->rows, o->in, sums);
        store_rows(set, o, 0, 1, sums);
        return;
    }
    float *lanes = (float *)(scratch + PANEL_BYTES);
    const ptrdiff_t step = WEIGHT_ROW_BYTES / product_weight_bytes(o->kind);
    const ptrdiff_t panel_lanes = o->in > step ? PANEL_LANES : 0;
    for (ptrdiff_t start = 0; start < o->in || start == 0; start += step)
        for (ptrdiff_t token = 0; token < o->tokens; token += PANEL_TOKENS)
            multiply_panel(set, o, token, start, min_size(step, o->in - start), scratch,
                           lanes + token / PANEL_TOKENS * panel_lanes);
}
