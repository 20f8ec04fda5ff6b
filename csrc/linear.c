#include "product.h"

/* No fewer rows are worth the way to a thread. */
enum { FEWEST_ROWS = 8 };

/* The work of one op: for each group of tokens, the rows of all weights one after the other. */
typedef struct Work {
    const LinearPart *parts;
    ptrdiff_t rows;   /* of all weights */
    ptrdiff_t groups; /* of tokens */
    ptrdiff_t tokens; /* in a group */
    ptrdiff_t most;   /* rows that are best multiplied at a time */
} Work;

/* What is multiplied at a time: some rows of one weight for one group. */
typedef struct Unit {
    ptrdiff_t group, row, rows;
    const LinearPart *part;
} Unit;

/* The size of nearly equal parts of some tokens, each of whole panels. */
static ptrdiff_t even_part(ptrdiff_t tokens, ptrdiff_t most)
{
    return ceil_div(ceil_div(tokens, ceil_div(tokens, most)), PANEL_TOKENS) * PANEL_TOKENS;
}

static void cut_groups(Work *work, ptrdiff_t tokens, UnitSize best)
{
    work->most = best.rows;
    work->tokens = even_part(tokens, best.tokens);
    work->groups = ceil_div(tokens, work->tokens);
}

/* The unit that begins at a row, of at most some rows; rows are counted over all groups. */
static Unit unit_at(const Work *work, ptrdiff_t at, ptrdiff_t most)
{
    Unit unit = {.group = at / work->rows, .row = at % work->rows, .part = work->parts};
    for (; unit.row >= unit.part->rows; unit.part++)
        unit.row -= unit.part->rows;
    unit.rows = min_size(min_size(most, work->most), unit.part->rows - unit.row);
    return unit;
}

/* One pass: packs as many tokens as the scratch has room for, and multiplies them. */
typedef struct Pass {
    const KernelSet *set;
    Work *work;
    const char *x;               /* [tokens, in] */
    ptrdiff_t tokens, in, first; /* first: of its tokens among those of the op */
    Scratch scratch;
    Form form;
    ElementType x_type, out_type;
    int flushes; /* subnormal numbers, as the set in use does */
} Pass;

static void pack_panel(void *work, ptrdiff_t panel, int thread)
{
    (void)thread;
    const Pass *pass = work;
    const ptrdiff_t x_stride = pass->in * type_bytes(pass->x_type), t = panel * PANEL_TOKENS;
    const pack_function pack = pass->form == FORM_FEW_INTEGERS
                                   ? pass->set->formats[pass->work->parts->weight.type].pack_few
                                   : pass->set->pack[pass->form];
    pack(pass->scratch.panels + panel * panel_room(pass->in), pass->x + t * x_stride, x_stride,
         (int)min_size(PANEL_TOKENS, pass->tokens - t), pass->in, pass->x_type);
}

static void multiply_unit(const Pass *pass, const Unit *unit, int thread)
{
    const Work *work = pass->work;
    const LinearPart *part = unit->part;
    const ptrdiff_t t = unit->group * work->tokens;
    const ptrdiff_t x_stride = pass->in * type_bytes(pass->x_type);
    const ptrdiff_t out_bytes = type_bytes(pass->out_type), out_stride = part->rows * out_bytes;
    const Operands operands = {
        .out = (char *)part->out + (pass->first + t) * out_stride + unit->row * out_bytes,
        .out_stride = out_stride,
        .x = pass->x + t * x_stride,
        .x_stride = x_stride,
        .panels = pass->scratch.panels + t / PANEL_TOKENS * panel_room(pass->in),
        .weight = &part->weight,
        .weight_stride = pass->in * type_bytes(part->weight.type),
        .row = unit->row,
        .rows = unit->rows,
        .bias = part->bias,
        .tokens = min_size(work->tokens, pass->tokens - t),
        .in = pass->in,
        .form = pass->form,
        .x_type = pass->x_type,
        .out_type = pass->out_type,
        .bias_type = part->bias_type,
        .flushes = pass->flushes};
    multiply(pass->set, &operands, &pass->scratch, thread);
}

static void multiply_range(void *pass, ptrdiff_t first, ptrdiff_t count, int thread)
{
    const ptrdiff_t end = first + count;
    for (Unit unit; first < end; first += unit.rows) {
        unit = unit_at(((const Pass *)pass)->work, first, end - first);
        multiply_unit(pass, &unit, thread);
    }
}

/*
 * linear: out_p[t, o] = sum over i of x[t, i] * weight_p[o, i], + bias_p[o], for each part p
 *
 *   x         [T, in]      bfloat16 or float32
 *   weight_p  [out_p, in]  the type of x, or one that it holds exactly (PAIR_TYPES with bfloat16;
 *                          float16 and 8-bit floats with float32), or block-quantized; one type
 *   bias_p    [out_p]      any plain type, or NULL: nothing is added
 *   out_p     [T, out_p]   bfloat16 or float32
 *   scratch   product_scratch_bytes(in, threads)
 *
 * All threads pack the tokens into panels, and then take some rows of a weight for a group of
 * tokens: each weight is read from memory by one thread once per group, and no two threads write
 * the same output. Where there is one group, each thread has a span of the rows, so that it reads
 * on where it has prefetched, and then helps with the others.
 * Checked by the caller: contiguity, sizes, and that outs and scratch overlap nothing.
 */
void linear(const LinearPart *parts, void *scratch, const void *x, ptrdiff_t count, ptrdiff_t T,
            ptrdiff_t in, ElementType x_type, ElementType out_type, int threads)
{
    Work work = {.parts = parts};
    const KernelSet *const set = kernel_set(), *const of_many = kernel_set_of_many();
    Pass pass = {.work = &work,
                 .in = in,
                 .scratch = cut_scratch(scratch, in, threads),
                 .x_type = x_type,
                 .out_type = out_type};
    for (ptrdiff_t p = 0; p < count; p++)
        work.rows += parts[p].rows;
    const int workers = threads_for(T * in * work.rows, PRODUCTS_PER_THREAD, threads);
    for (; pass.first < T && work.rows; pass.first += pass.tokens) {
        const ElementType type = parts->weight.type;
        pass.x = (const char *)x + pass.first * in * type_bytes(x_type);
        pass.tokens = min_size(even_part(T, pass.scratch.panel_tokens), T - pass.first);
        pass.form = product_form(pass.tokens, x_type, type, in);
        pass.set = pass.form == FORM_BFLOAT16 && pass.tokens > PANEL_TOKENS ? of_many : set;
        pass.flushes = pass.set != set;
        cut_groups(&work, pass.tokens, best_unit(pass.set, type, pass.form, pass.tokens, in));
        if (in && !reads_rows(pass.tokens, x_type, type, pass.form))
            run_units(&pass, pack_panel, ceil_div(pass.tokens, PANEL_TOKENS), 1, workers);
        const Shares shares = {FEWEST_ROWS, work.most, work.groups == 1 ? workers : 1};
        run_ranges(&pass, multiply_range, work.rows * work.groups, shares, workers);
    }
}
