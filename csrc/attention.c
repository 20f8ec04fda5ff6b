/*
 * Attention over the key/value cache, block by block, without a matrix of scores.
 *
 * Rows are the query heads of the tokens: the T * G rows of a key/value head, in order of tokens,
 * share every read of its keys and values. Positions are cut into blocks at fixed places. What a
 * block makes of a row, its state (attention.h), depends on nothing but the row and the block, and
 * blocks are merged in their order: so one row or many, and any split over threads, give the same
 * bits. From the innermost loop to the outermost:
 *   - a tile of 6 rows x 64 positions, then of 6 rows x 64 columns of values (16 with AVX2), lives
 *     in registers;
 *   - a panel of 6 rows makes its scores of a block, its weights, and its sum of values;
 *   - a block stays in the L2 cache while all panels of a unit pass over it.
 */
#include "attention.h"
#include <string.h>

enum {
    /* Most rows that pass over a block together. */
    UNIT_PANELS = 16,
    /* Most rows of a head for which the blocks are split over threads. */
    SPLIT_ROWS = 2 * PANEL_TOKENS,
    /* Units for each thread, so that a disturbed one holds nobody up. */
    UNITS_PER_THREAD = 4,
    /* Multiply-adds that are worth one more thread. */
    MULTIPLY_ADDS_PER_THREAD = 128 * 1024
};

typedef struct Attention {
    const KernelSet *set;
    const char *xq, *keys, *values;
    const ptrdiff_t *blocks; /* where the blocks of the sequence lie, or NULL: in order */
    char *out;
    ptrdiff_t start_pos, H, G, h;
    ptrdiff_t head_bytes; /* of a key/value head in the cache */
    ptrdiff_t words;      /* of one head of one position */
    ptrdiff_t floats;     /* of a state */
    ElementType type;
    float scale;
} Attention;

/* How the work is cut, and where the scratch of each thread lies. */
typedef struct Plan {
    ptrdiff_t rows;    /* of one key/value head */
    ptrdiff_t blocks;  /* that the last row sees */
    ptrdiff_t panels;  /* in a unit */
    ptrdiff_t groups;  /* units of one key/value head, where rows are split */
    int splits_blocks; /* units are blocks, not groups of rows */
    int workers;
    ptrdiff_t panel_floats; /* of a packed panel */
    ptrdiff_t thread_floats;
} Plan;

static Plan make_plan(ptrdiff_t T, ptrdiff_t start_pos, ptrdiff_t H, ptrdiff_t K, ptrdiff_t h,
                      ElementType type, int threads)
{
    const ptrdiff_t S = start_pos + T, state = state_floats(type, h);
    Plan plan = {.rows = T * (H / K), .blocks = ceil_div(S, ATTENTION_BLOCK)};
    plan.workers = threads_for(T * H * S * h, MULTIPLY_ADDS_PER_THREAD, threads);
    const ptrdiff_t wanted = ceil_div(UNITS_PER_THREAD * (ptrdiff_t)plan.workers, K);
    const ptrdiff_t panels = ceil_div(plan.rows, PANEL_TOKENS);
    plan.panels = min_size(UNIT_PANELS, ceil_div(panels, wanted));
    plan.splits_blocks = plan.workers > 1 && plan.rows <= SPLIT_ROWS && plan.blocks > 1;
    if (plan.splits_blocks)
        plan.panels = panels;
    plan.groups = panels ? ceil_div(panels, plan.panels) : 0;
    plan.panel_floats = ceil_div(h * PANEL_TOKENS, LANES) * LANES;
    /* The unit's packed queries; a panel's scores and its states of a block; the unit's states. */
    plan.thread_floats = plan.panels * plan.panel_floats + PANEL_TOKENS * ATTENTION_BLOCK
                         + PANEL_TOKENS * state + plan.panels * PANEL_TOKENS * state;
    return plan;
}

ptrdiff_t attention_scratch_bytes(ptrdiff_t T, ptrdiff_t start_pos, ptrdiff_t H, ptrdiff_t K,
                                  ptrdiff_t h, ElementType type, int threads)
{
    const Plan plan = make_plan(T, start_pos, H, K, h, type, threads);
    const ptrdiff_t split = plan.splits_blocks ? K * plan.blocks * plan.rows : 0;
    const ptrdiff_t floats = plan.workers * plan.thread_floats + split * state_floats(type, h);
    return floats * (ptrdiff_t)sizeof(float) + 64;
}

/* Where a row's query, and its result, lie: bytes from the first. */
static ptrdiff_t row_offset(const Attention *a, ptrdiff_t head, ptrdiff_t row)
{
    const ptrdiff_t t = row / a->G, g = row % a->G;
    return ((t * a->H + head * a->G + g) * a->h) * type_bytes(a->type);
}

/* Positions of a block that a row sees; not above 0 where it sees none. */
static ptrdiff_t visible(const Attention *a, ptrdiff_t row, ptrdiff_t block)
{
    const ptrdiff_t seen = a->start_pos + row / a->G + 1 - block * ATTENTION_BLOCK;
    return min_size(seen, ATTENTION_BLOCK);
}

static int panel_rows(ptrdiff_t row, ptrdiff_t end)
{
    return (int)min_size(PANEL_TOKENS, end - row);
}

static void pack_rows(const Attention *a, const Plan *plan, ptrdiff_t head, ptrdiff_t row,
                      ptrdiff_t end, float *panels)
{
    for (; row < end; row += PANEL_TOKENS, panels += plan->panel_floats) {
        const int rows = panel_rows(row, end);
        for (int r = 0; r < rows; r++)
            a->set->pack_query(panels + r, a->xq + row_offset(a, head, row + r), a->words, rows,
                               a->type);
    }
}

/*
 * Makes the states of one block for the rows of a panel. Returns how many rows, the first ones, see
 * nothing of the block and have no state. Keys that a row does not see are multiplied and not used;
 * values that it does not see are not touched.
 */
static int attend_block(const Attention *a, const float *panel, ptrdiff_t head, ptrdiff_t row,
                        int rows, ptrdiff_t block, float *scores, float *states)
{
    const ptrdiff_t place = a->blocks ? a->blocks[block] : block;
    const ptrdiff_t first = head * a->head_bytes + place * ATTENTION_BLOCK * a->words * 4;
    const ptrdiff_t most = visible(a, row + rows - 1, block);
    int masked = 0;
    while (visible(a, row + masked, block) <= 0)
        masked++;
    a->set->attention_scores(scores, panel, a->keys + first, rows, ceil_div(most, LANES), a->words,
                             a->type);
    for (int r = masked; r < rows; r++) {
        float *state = states + r * a->floats;
        memset(state, 0, (size_t)a->floats * sizeof(float));
        a->set->attention_weights(scores + r * ATTENTION_BLOCK, state, visible(a, row + r, block),
                                  a->scale);
    }
    const ptrdiff_t common = visible(a, row + masked, block);
    a->set->attention_sum(states + masked * a->floats + STATE_VALUES,
                          scores + masked * ATTENTION_BLOCK, a->values + first, rows - masked,
                          common, a->words, a->floats, a->type);
    for (int r = masked + 1; r < rows && common < most; r++)
        a->set->attention_sum(states + r * a->floats + STATE_VALUES,
                              scores + r * ATTENTION_BLOCK + common,
                              a->values + first + common * a->words * 4, 1,
                              visible(a, row + r, block) - common, a->words, a->floats, a->type);
    return masked;
}

/* A group of rows over all of their blocks, on one thread. */
static void attend_rows(const Attention *a, const Plan *plan, ptrdiff_t head, ptrdiff_t row,
                        ptrdiff_t end, float *scratch)
{
    float *scores = scratch + plan->panels * plan->panel_floats;
    float *blocks = scores + PANEL_TOKENS * ATTENTION_BLOCK;
    float *states = blocks + PANEL_TOKENS * a->floats;
    pack_rows(a, plan, head, row, end, scratch);
    for (ptrdiff_t r = row; r < end; r++)
        a->set->attention_begin(states + (r - row) * a->floats, a->floats);
    for (ptrdiff_t block = 0; visible(a, end - 1, block) > 0; block++) {
        const float *panel = scratch;
        for (ptrdiff_t at = row; at < end; at += PANEL_TOKENS, panel += plan->panel_floats) {
            const int rows = panel_rows(at, end);
            if (visible(a, at + rows - 1, block) <= 0)
                continue;
            const int masked = attend_block(a, panel, head, at, rows, block, scores, blocks);
            for (int r = masked; r < rows; r++)
                a->set->attention_merge(states + (at + r - row) * a->floats, blocks + r * a->floats,
                                        a->floats);
        }
    }
    for (ptrdiff_t r = row; r < end; r++)
        a->set->attention_finish(a->out + row_offset(a, head, r), states + (r - row) * a->floats,
                                 a->h, a->type);
}

/* One block for all rows of a head, on one thread; states: [rows]. */
static void attend_split(const Attention *a, const Plan *plan, ptrdiff_t head, ptrdiff_t block,
                         float *states, float *scratch)
{
    float *scores = scratch + plan->panels * plan->panel_floats;
    pack_rows(a, plan, head, 0, plan->rows, scratch);
    for (ptrdiff_t row = 0; row < plan->rows; row += PANEL_TOKENS, scratch += plan->panel_floats) {
        const int rows = panel_rows(row, plan->rows);
        if (visible(a, row + rows - 1, block) > 0)
            attend_block(a, scratch, head, row, rows, block, scores, states + row * a->floats);
    }
}

/* Merges the states [blocks][rows] of one row of a head. */
static void merge_split(const Attention *a, const Plan *plan, ptrdiff_t head, ptrdiff_t row,
                        const float *states, float *state)
{
    a->set->attention_begin(state, a->floats);
    for (ptrdiff_t block = 0; block < plan->blocks && visible(a, row, block) > 0; block++)
        a->set->attention_merge(state, states + (block * plan->rows + row) * a->floats, a->floats);
    a->set->attention_finish(a->out + row_offset(a, head, row), state, a->h, a->type);
}

/* All that threads read. */
typedef struct Pass {
    const Attention *a;
    const Plan *plan;
    ptrdiff_t K;
    float *scratch, *states; /* of each thread; of all blocks, where they are split */
} Pass;

static float *states_of(const Pass *pass, ptrdiff_t head)
{
    return pass->states + head * pass->plan->blocks * pass->plan->rows * pass->a->floats;
}

static void run_block(void *work, ptrdiff_t unit, int thread)
{
    const Pass *pass = work;
    const Plan *plan = pass->plan;
    const ptrdiff_t head = unit / plan->blocks, block = unit % plan->blocks;
    attend_split(pass->a, plan, head, block,
                 states_of(pass, head) + block * plan->rows * pass->a->floats,
                 pass->scratch + thread * plan->thread_floats);
}

static void merge_row(void *work, ptrdiff_t unit, int thread)
{
    const Pass *pass = work;
    const Plan *plan = pass->plan;
    const ptrdiff_t head = unit / plan->rows;
    merge_split(pass->a, plan, head, unit % plan->rows, states_of(pass, head),
                pass->scratch + thread * plan->thread_floats);
}

/* The last tokens first, whose work is the longest. */
static void run_group(void *work, ptrdiff_t unit, int thread)
{
    const Pass *pass = work;
    const Plan *plan = pass->plan;
    const ptrdiff_t rows = plan->panels * PANEL_TOKENS;
    const ptrdiff_t row = (plan->groups - 1 - unit / pass->K) * rows;
    attend_rows(pass->a, plan, unit % pass->K, row, min_size(row + rows, plan->rows),
                pass->scratch + thread * plan->thread_floats);
}

/*
 * attention: out[t, i, :] = (sum over s of 2^z[s] * v[s, j, :]) / (sum over s of 2^z[s]),
 *            z[s] = scale * xq[t, i, :] . k[s, j, :], for s <= start_pos + t, with j = i / (H / K)
 *
 *   xq       [T, H, h]              bfloat16 or float32
 *   keys     [K, C/16, words, 16]   the same type; a word of 4 bytes is one float32 or two bfloat16
 *                                   neighbours of a position, and 16 positions stand side by side
 *   values   [K, C, h]              the same type
 *   blocks   [start_pos + T in blocks]  block b of the sequence is block blocks[b] of the cache; or
 *                                   NULL: all lie in their order from the first on
 *   out      [T, H, h]              the same type
 *   scratch  attention_scratch_bytes(...)
 *
 * Threads take groups of rows, or blocks of positions where rows are few (decoding).
 * Checked by the caller: contiguity, sizes, h even, C a multiple of 16, blocks inside of the cache,
 * positions below start_pos + T written, and that out and scratch overlap nothing.
 */
void attention(void *out, void *scratch, const void *xq, const void *keys, const void *values,
               const ptrdiff_t *blocks, ptrdiff_t T, ptrdiff_t start_pos, ptrdiff_t H, ptrdiff_t K,
               ptrdiff_t h, ptrdiff_t C, float scale, ElementType type, int threads)
{
    const Plan plan = make_plan(T, start_pos, H, K, h, type, threads);
    const Attention a = {.set = kernel_set(),
                         .xq = xq,
                         .keys = keys,
                         .values = values,
                         .blocks = blocks,
                         .out = out,
                         .start_pos = start_pos,
                         .H = H,
                         .G = H / K,
                         .h = h,
                         .head_bytes = C * h * type_bytes(type),
                         .words = head_words(type, h),
                         .floats = state_floats(type, h),
                         .type = type,
                         .scale = scale};
    float *lines = (float *)align_to_line(scratch);
    Pass pass = {&a, &plan, K, lines, lines + plan.workers * plan.thread_floats};
    if (plan.splits_blocks) {
        run_units(&pass, run_block, K * plan.blocks, 1, plan.workers);
        run_units(&pass, merge_row, K * plan.rows, 1, plan.workers);
    } else {
        run_units(&pass, run_group, K * plan.groups, 1, plan.workers);
    }
}
