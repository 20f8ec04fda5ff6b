#include <stdatomic.h>

#include "int8.h"
#include "threads.h"

/* The work of one op: for each group of tokens, the rows of all weights one after the other. */
typedef struct Work {
    const LinearPart *parts;
    ptrdiff_t rows;   /* of all weights */
    ptrdiff_t groups; /* of tokens */
    ptrdiff_t tokens; /* in a group */
    int workers;
    _Atomic ptrdiff_t next; /* the first row, of all groups, that nobody has taken */
} Work;

/* What one thread takes at a time: some rows of one weight for one group. */
typedef struct Unit {
    ptrdiff_t group, row, rows;
    const LinearPart *part;
} Unit;

/* As many rows as multiply takes, but fewer near the end, so that all threads end together. */
static ptrdiff_t fair_share(const Work *work, ptrdiff_t at)
{
    const ptrdiff_t left = work->rows * work->groups - at;
    const ptrdiff_t share = ceil_div(left, 4 * (ptrdiff_t)work->workers);
    return min_size(share < 8 ? 8 : ceil_div(share, 4) * 4, CHUNK_ROWS);
}

/* Groups of nearly equal size, each of whole panels. */
static void cut_groups(Work *work, ptrdiff_t tokens)
{
    const ptrdiff_t groups = ceil_div(tokens, GROUP_TOKENS);
    work->tokens = ceil_div(ceil_div(tokens, groups), PANEL_TOKENS) * PANEL_TOKENS;
    work->groups = ceil_div(tokens, work->tokens);
    atomic_store(&work->next, 0);
}

static Unit unit_at(const Work *work, ptrdiff_t at)
{
    Unit unit = {.group = at / work->rows, .row = at % work->rows, .part = work->parts};
    for (; unit.row >= unit.part->out_features; unit.part++)
        unit.row -= unit.part->out_features;
    unit.rows = min_size(fair_share(work, at), unit.part->out_features - unit.row);
    return unit;
}

/* Takes a unit; 0 when none is left. */
static int take(Work *work, Unit *unit)
{
    ptrdiff_t at = atomic_load(&work->next);
    do {
        if (at == work->rows * work->groups)
            return 0;
        *unit = unit_at(work, at);
    } while (!atomic_compare_exchange_weak(&work->next, &at, at + unit->rows));
    return 1;
}

/* One pass: packs as many tokens as the scratch has room for, and multiplies them. */
typedef struct Pass {
    const KernelSet *set;
    const char *x; /* [tokens, in] */
    ptrdiff_t tokens, in, first; /* first: of its tokens among those of the op */
    Scratch scratch;
    int kind, out_type;
    int packs;    /* whether the tokens are read from panels */
    int integers; /* which hold integers */
} Pass;

static void pack(const Pass *pass)
{
    const ptrdiff_t x_stride = pass->in * product_x_bytes(pass->kind);
    const ptrdiff_t room = panel_room(pass->in);
#pragma omp for schedule(dynamic, 1)
    for (ptrdiff_t t = 0; t < pass->tokens; t += PANEL_TOKENS) {
        const char *x = pass->x + t * x_stride;
        float *panel = pass->scratch.panels + t / PANEL_TOKENS * room;
        if (pass->integers)
            pass->set->quantize_panel(x, x_stride, (int)min_size(PANEL_TOKENS, pass->tokens - t),
                                      pass->in, panel);
        else
            pack_tokens(pass->set, pass->kind, x, x_stride, pass->tokens - t, pass->in, panel);
    }
}

static void multiply_unit(const Pass *pass, const Work *work, const Unit *unit)
{
    const ptrdiff_t t = unit->group * work->tokens;
    const ptrdiff_t x_stride = pass->in * product_x_bytes(pass->kind);
    const ptrdiff_t weight_stride = pass->in * product_weight_bytes(pass->kind);
    const ptrdiff_t out_bytes = type_bytes(pass->out_type);
    const ptrdiff_t out_stride = unit->part->out_features * out_bytes;
    const QuantizedWeight *quantized = &unit->part->quantized;
    const Operands operands = {
        .x = pass->x + t * x_stride,
        .x_stride = x_stride,
        .panels = pass->scratch.panels + t / PANEL_TOKENS * panel_room(pass->in),
        .tokens = min_size(work->tokens, pass->tokens - t),
        .weight = quantized->codes ? NULL
                                   : (const char *)unit->part->weight + unit->row * weight_stride,
        .weight_stride = weight_stride,
        .quantized = quantized->codes ? quantized : NULL,
        .quantized_row = unit->row,
        .rows = unit->rows,
        .in = pass->in,
        .out = (char *)unit->part->out + (pass->first + t) * out_stride + unit->row * out_bytes,
        .out_stride = out_stride,
        .kind = pass->kind,
        .out_type = pass->out_type,
    };
    multiply(pass->set, &operands, &pass->scratch, thread_index());
}

/*
 * linear: out_p[t, o] = sum over i of x[t, i] * weight_p[o, i] for each part p
 *
 *   x         [T, in]      bfloat16 | float32 | float32   (kind: BF16 | F32 | F32_F16)
 *   weight_p  [out_p, in]  bfloat16 | float32 | float16, or int8 (kind: BF16 | F32), or nf4
 *                          (kind: BF16_F32 | F32)
 *   out_p     [T, out_p]   bfloat16 or float32
 *   scratch   product_scratch_bytes(in, threads)
 *
 * All threads pack the tokens into panels, and then take some rows of a weight for a group of
 * tokens: each weight is read from memory by one thread once per group, and no two threads write
 * the same output. Units are handed out as threads become free, so that a disturbed processor
 * holds nobody up.
 * Checked by the caller: contiguity, sizes, and that outs and scratch overlap nothing.
 */
void linear(const void *x, const LinearPart *parts, ptrdiff_t count, void *scratch, ptrdiff_t T,
            ptrdiff_t in_features, int kind, int out_type, int threads)
{
    Pass pass = {
        .set = kernel_set(),
        .in = in_features,
        .scratch = cut_scratch(scratch, in_features, threads),
        .kind = kind,
        .out_type = out_type,
        .integers = count && takes_integers(kind, &parts->quantized, in_features),
    };
    Work work = {.parts = parts};
    for (ptrdiff_t p = 0; p < count; p++)
        work.rows += parts[p].out_features;
    work.workers = threads_for(T * in_features * work.rows, PRODUCTS_PER_THREAD, threads);
    for (; pass.first < T && work.rows; pass.first += pass.tokens) {
        pass.x = (const char *)x + pass.first * in_features * product_x_bytes(kind);
        pass.tokens = min_size(pass.scratch.panel_tokens, T - pass.first);
        pass.packs = pass.tokens > 1 || reads_panel(&parts->quantized, in_features);
        if (pass.tokens == 1 && reads_nf4_lanes(&parts->quantized, in_features))
            pass.set->pack_nf4(kind, pass.x, in_features, pass.scratch.panels);
        cut_groups(&work, pass.tokens);
#pragma omp parallel num_threads(work.workers) if (work.workers > 1)
        {
            if (pass.packs)
                pack(&pass);
            for (Unit unit; take(&work, &unit);)
                multiply_unit(&pass, &work, &unit);
        }
    }
}
