/*
 * The driver of products with int8 weights by integers.
 *
 * Few tokens: each row passes by once. More: a stretch of the rows is widened to 16 bits, and all
 * panels of the group pass over it; between two stretches the 16 lanes of each sum rest in scratch.
 */
#include "int8.h"

static void multiply_panels(const KernelSet *set, const Operands *o, const Int8Stretch *stretch,
                            float *lanes)
{
    float sums[PANEL_TOKENS * CHUNK_ROWS];
    Int8Stretch s = *stretch;
    s.out = sums;
    for (ptrdiff_t token = 0; token < o->tokens; token += PANEL_TOKENS) {
        s.panel = o->panels + token / PANEL_TOKENS * panel_room(o->in);
        s.tokens = (int)min_size(PANEL_TOKENS, o->tokens - token);
        s.lanes = lanes + token / PANEL_TOKENS * PANEL_LANES;
        set->multiply_int8_stretch(&s);
        if (s.start + s.count == o->in)
            store_rows(set, o, token, s.tokens, sums);
    }
}

void multiply_int8(const KernelSet *set, const Operands *o, float *widened, float *lanes)
{
    if (o->tokens <= INT8_FEW) {
        float sums[INT8_FEW * CHUNK_ROWS];
        set->multiply_int8_rows(o->quantized, o->quantized_row, o->rows, o->in, o->panels,
                                (int)o->tokens, sums);
        store_rows(set, o, 0, o->tokens, sums);
        return;
    }
    for (ptrdiff_t start = 0; start < o->in; start += INT8_STRETCH) {
        const Int8Stretch stretch = {
            .weight = o->quantized,
            .row = o->quantized_row,
            .rows = o->rows,
            .in = o->in,
            .start = start,
            .count = min_size(INT8_STRETCH, o->in - start),
            .widened = widened,
        };
        set->widen_int8_stretch(&stretch);
        multiply_panels(set, o, &stretch, lanes);
    }
}
