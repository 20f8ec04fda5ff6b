/*
 * The driver of products with codes of weights by integers.
 *
 * Few tokens: each row passes by once. More: a K block of the rows is widened to 16 bits, and all
 * panels of the group pass over it; between two K blocks the 16 lanes of each sum rest in scratch.
 */
#include "integers.h"

void multiply_integers(const KernelSet *set, const Operands *o, float *widened, float *lanes)
{
    const BlockFormat *format = &set->formats[o->weight->type];
    float sums[PANEL_TOKENS * CHUNK_ROWS];
    if (o->form == FORM_FEW_INTEGERS) {
        format->multiply_integer_rows(sums, o->panels, o->weight, o->row, o->rows, o->in,
                                      (int)o->tokens);
        store_rows(set, o, 0, o->tokens, sums);
        return;
    }
    IntegerKBlock k = {.out = sums, .widened = widened, .weight = o->weight, .in = o->in};
    k.row = o->row, k.rows = o->rows;
    for (; k.start < o->in; k.start += INTEGER_K_BLOCK) {
        k.count = min_size(INTEGER_K_BLOCK, o->in - k.start);
        format->widen_integers(&k);
        for (ptrdiff_t token = 0; token < o->tokens; token += PANEL_TOKENS) {
            k.panel = o->panels + token / PANEL_TOKENS * panel_room(o->in);
            k.tokens = (int)min_size(PANEL_TOKENS, o->tokens - token);
            k.lanes = lanes + token / PANEL_TOKENS * PANEL_LANES;
            format->multiply_integers(&k);
            if (k.start + k.count == o->in)
                store_rows(set, o, token, k.tokens, sums);
        }
    }
}
