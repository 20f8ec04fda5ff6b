#include "kernel_set.h"
#include <stdatomic.h>
#include <string.h>

/* Elements of a row that a thread takes at a time: whole blocks. */
enum { ROW_SPAN = 16384 };

typedef struct Rows {
    const KernelSet *set;
    char *out;
    const Weight *table;
    const int32_t *ids;
    ptrdiff_t V, D, spans; /* spans: of a row */
    ElementType out_type;
    _Atomic ptrdiff_t refused;
} Rows;

static void get_span(void *work, ptrdiff_t unit, int thread)
{
    (void)thread;
    Rows *w = work;
    const ElementType type = w->table->type;
    const ptrdiff_t t = unit / w->spans, start = unit % w->spans * ROW_SPAN;
    const ptrdiff_t row = w->ids ? w->ids[t] : t, first = row * w->D + start;
    const ptrdiff_t count = min_size(ROW_SPAN, w->D - start);
    char *out = w->out + (t * w->D + start) * type_bytes(w->out_type);
    if (row < 0 || row >= w->V) {
        atomic_fetch_add(&w->refused, 1);
        return;
    }
    if (block_elements(type)) {
        w->set->formats[type].dequantize_span(out, w->table, first, count, w->out_type);
        return;
    }
    const char *x = (const char *)w->table->data + first * type_bytes(type);
    if (type == w->out_type)
        memcpy(out, x, (size_t)(count * type_bytes(type)));
    else
        w->set->convert_span(out, x, count, type, w->out_type);
}

/*
 * get_rows: out[t, i] = table[ids[t], i]
 *
 *   out    [T, D]  any plain type
 *   table  [V, D]  any type
 *   ids    [T], or NULL for t itself
 *
 * Threads take spans of the result, which are independent. Returns 0, or how many spans have an id
 * that is not in [0, V): they are not written.
 * Checked by the caller: contiguity, sizes, and that out overlaps nothing.
 */
ptrdiff_t get_rows(void *out, const Weight *table, const int32_t *ids, ptrdiff_t T, ptrdiff_t V,
                   ptrdiff_t D, ElementType out_type, int threads)
{
    const ptrdiff_t spans = ceil_div(D, ROW_SPAN);
    const int workers = threads_for(T * D, ELEMENTS_PER_THREAD, threads);
    Rows rows = {kernel_set(), out, table, ids, V, D, spans, out_type, 0};
    run_units(&rows, get_span, T * spans, 1, workers);
    return atomic_load(&rows.refused);
}
