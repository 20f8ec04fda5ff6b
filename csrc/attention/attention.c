/*
 * Attention over the key/value cache, with the bits of a matmul, a softmax and another matmul.
 *
 * Rows are the query heads of the tokens: T * G rows for each key/value head, in the order of
 * tokens. In a unit, all scores of its rows are computed first, so that the maximum and the sum of
 * each row are known before any value is weighted. A unit has few enough rows for their scores to
 * stay in the cache. All sums have a fixed order (kernels.h), so the bits depend neither on the
 * number of rows nor on the split over threads. From the innermost loop to the outermost:
 *   - a tile of 6 rows x 64 positions, and later of 6 rows x 64 columns of values, is in registers
 *     (with AVX2, 16 positions or columns);
 *   - a panel of 6 rows is multiplied by a block of 256 positions;
 *   - a block stays in the L2 cache while all panels of a unit are multiplied by it.
 */
#include "attention/attention.h"
#include <stdatomic.h>
#include "floats.h"

enum {
    /* Maximum number of panels in a unit, and maximum number of their scores (256 KiB) unless a
     * single panel has more. */
    UNIT_PANELS = 16,
    UNIT_SCORES = 64 * 1024,
    /* Maximum number of rows of a head for which the positions are split over threads. */
    SPLIT_ROWS = 2 * PANEL_TOKENS,
    /* Several units per thread, so that a preempted thread delays little work. */
    UNITS_PER_THREAD = 4,
    /* Maximum number of blocks that a thread takes at a time if positions are split. */
    BLOCKS_TAKEN = 8,
    /* Number of multiply-adds for which another thread pays off. */
    MULTIPLY_ADDS_PER_THREAD = 128 * 1024
};

typedef struct Attention {
    const AttentionKernels *kernels;
    const char *xq, *keys, *values;
    const ptrdiff_t *blocks; /* blocks of the sequence in the cache, or NULL: in order */
    char *out;
    ptrdiff_t start_pos, H, G, h;
    ptrdiff_t head_bytes; /* bytes per key/value head in the cache */
    ptrdiff_t words;      /* words per head and position */
    ptrdiff_t floats;     /* floats in a row's weighted sum */
    ElementType type;
    float scale;
} Attention;

/* The division of the work, and the layout of the scratch. */
typedef struct AttentionPlan {
    ptrdiff_t K, rows;    /* key/value heads; rows per key/value head */
    ptrdiff_t blocks;     /* blocks that the last row sees */
    ptrdiff_t panels;     /* panels per unit */
    ptrdiff_t groups;     /* units per key/value head, if rows are split */
    int splits_positions; /* 1: units are blocks instead of groups of rows */
    int workers;
    ptrdiff_t panel_floats; /* floats in a packed panel */
    ptrdiff_t thread_floats;
    ptrdiff_t head_floats; /* shared by threads, if positions are split */
} AttentionPlan;

/* A plan for more positions never needs less scratch. */
static AttentionPlan make_plan(ptrdiff_t T, ptrdiff_t start_pos, ptrdiff_t H, ptrdiff_t K,
                               ptrdiff_t h, ElementType type, int threads)
{
    const ptrdiff_t S = start_pos + T, sum = sum_floats(type, h);
    AttentionPlan plan = {.K = K, .rows = T * (H / K), .blocks = ceil_div(S, ATTENTION_BLOCK)};
    plan.workers = threads_for(T * H * S * h, MULTIPLY_ADDS_PER_THREAD, threads);
    /* If there are enough heads for all threads, heads are not split. Each thread then reads whole
     * heads, and does not wait for other threads before the end. */
    const int heads_suffice = K >= UNITS_PER_THREAD * plan.workers;
    plan.splits_positions =
        plan.workers > 1 && !heads_suffice && plan.rows <= SPLIT_ROWS && plan.blocks > 1;
    const ptrdiff_t panels = ceil_div(plan.rows, PANEL_TOKENS);
    const ptrdiff_t wanted = ceil_div(UNITS_PER_THREAD * (ptrdiff_t)plan.workers, K);
    const ptrdiff_t row_scores = plan.blocks * ATTENTION_BLOCK;
    const ptrdiff_t panel_scores = PANEL_TOKENS * row_scores;
    const ptrdiff_t cached = UNIT_SCORES < panel_scores ? 1 : UNIT_SCORES / panel_scores;
    const ptrdiff_t most = min_size(panels, UNIT_PANELS); /* there may be fewer panels */
    plan.panels = min_size(min_size(most, cached), ceil_div(panels, wanted));
    if (plan.splits_positions)
        plan.panels = panels;
    plan.groups = ceil_div(panels, plan.panels);
    plan.panel_floats = ceil_div(h * PANEL_TOKENS, LANES) * LANES;
    /* The unit's packed queries; the lanes, factor and sum of each row; and the sums of a panel for
     * one block. All of them begin at a cache line. */
    plan.thread_floats = most * (plan.panel_floats + PANEL_TOKENS * (LANES + sum))
                         + PANEL_TOKENS * (UNIT_PANELS + sum);
    if (plan.splits_positions) {
        plan.head_floats =
            LANES + plan.rows * (LANES + plan.blocks * (ATTENTION_BLOCK + LANES + sum));
    } else {
        const ptrdiff_t unit_scores = panel_scores < UNIT_SCORES ? UNIT_SCORES : panel_scores;
        plan.thread_floats += min_size(plan.rows * row_scores, unit_scores);
    }
    return plan;
}

ptrdiff_t attention_scratch_bytes(ptrdiff_t T, ptrdiff_t start_pos, ptrdiff_t H, ptrdiff_t K,
                                  ptrdiff_t h, ElementType type, int threads)
{
    if (T == 0 || H == 0 || h == 0)
        return LINE;
    const AttentionPlan plan = make_plan(T, start_pos, H, K, h, type, threads);
    const ptrdiff_t floats = plan.workers * plan.thread_floats + K * plan.head_floats;
    return floats * (ptrdiff_t)sizeof(float) + LINE;
}

/* The offset of a row's query and result, in bytes. */
static ptrdiff_t row_offset(const Attention *a, ptrdiff_t head, ptrdiff_t row)
{
    const ptrdiff_t t = row / a->G, g = row % a->G;
    return ((t * a->H + head * a->G + g) * a->h) * type_bytes(a->type);
}

/* Computes the number of positions that each of some rows sees. */
static void count_seen(const Attention *a, ptrdiff_t row, ptrdiff_t rows, ptrdiff_t *seen)
{
    for (ptrdiff_t r = 0; r < rows; r++)
        seen[r] = a->start_pos + (row + r) / a->G + 1;
}

/* The number of positions in a block that a row sees, or a number <= 0 if it sees none. */
static ptrdiff_t visible(ptrdiff_t seen, ptrdiff_t block)
{
    return min_size(seen - block * ATTENTION_BLOCK, ATTENTION_BLOCK);
}

static int panel_rows(ptrdiff_t row, ptrdiff_t end)
{
    return (int)min_size(PANEL_TOKENS, end - row);
}

/* The offset of a block of a head in the cache, which is the same for keys and values. */
static ptrdiff_t block_offset(const Attention *a, ptrdiff_t head, ptrdiff_t block)
{
    const ptrdiff_t place = a->blocks ? a->blocks[block] : block;
    return head * a->head_bytes + place * ATTENTION_BLOCK * a->words * 4;
}

/* Packs rows into panels. In a panel, blocks of elements follow each other. */
static void pack_rows(const Attention *a, const AttentionPlan *plan, ptrdiff_t head, ptrdiff_t row,
                      ptrdiff_t end, float *panels)
{
    const ptrdiff_t most = element_words(a->type, ATTENTION_BLOCK);
    for (; row < end; row += PANEL_TOKENS, panels += plan->panel_floats) {
        const int rows = panel_rows(row, end);
        for (int r = 0; r < rows; r++) {
            const char *query = a->xq + row_offset(a, head, row + r);
            float *part = panels + r;
            for (ptrdiff_t w = 0; w < a->words; w += most, part += PANEL_TOKENS * ATTENTION_BLOCK)
                a->kernels->pack_chains(part, query + 4 * w, min_size(most, a->words - w), rows,
                                        a->type);
        }
    }
}

/*
 * Computes the scores of a panel's rows for a block, and updates the maximum of each row. The
 * scores of keys that a row does not see are computed but not used.
 */
static void score_block(const Attention *a, const float *panel, ptrdiff_t head, int rows,
                        const ptrdiff_t *seen, ptrdiff_t block, float *scores, float *largest)
{
    const ptrdiff_t positions = visible(seen[rows - 1], block);
    if (positions <= 0)
        return;
    const ptrdiff_t most = element_words(a->type, ATTENTION_BLOCK);
    const ptrdiff_t groups = ceil_div(positions, LANES);
    const char *keys = a->keys + block_offset(a, head, block);
    a->kernels->multiply_chains(scores, panel, keys, rows, groups, min_size(most, a->words),
                                a->words, a->type);
    for (ptrdiff_t w = most; w < a->words; w += most) {
        float sums[PANEL_TOKENS * ATTENTION_BLOCK];
        panel += PANEL_TOKENS * ATTENTION_BLOCK;
        a->kernels->multiply_chains(sums, panel, keys + w * LINE, rows, groups,
                                    min_size(most, a->words - w), a->words, a->type);
        for (int r = 0; r < rows; r++)
            for (ptrdiff_t s = 0; s < groups * LANES; s++)
                scores[r * ATTENTION_BLOCK + s] += sums[r * ATTENTION_BLOCK + s];
    }
    for (int r = 0; r < rows; r++) {
        const ptrdiff_t count = visible(seen[r], block);
        if (count > 0)
            a->kernels->raise_largest(scores + r * ATTENTION_BLOCK, largest + r * LANES, count);
    }
}

/* Replaces the scores of a row in a block by their exponentials, and adds the exponentials to the
 * lanes of their sum. The maximum of the scaled scores equals the scaled maximum of the scores. */
static void exponentiate_block(const Attention *a, ptrdiff_t seen, ptrdiff_t block, float maximum,
                               float *scores, float *sums)
{
    const ptrdiff_t count = visible(seen, block);
    if (count > 0)
        a->kernels->exponentiate(scores, sums, count, a->scale, maximum);
}

/*
 * Normalizes the exponentials of a panel to weights, and adds the weighted values of a block.
 * Values that a row does not see are not read.
 */
static void weigh_block(const Attention *a, ptrdiff_t head, int rows, const ptrdiff_t *seen,
                        ptrdiff_t block, float *scores, const float *factors, float *sums)
{
    const ptrdiff_t positions = visible(seen[rows - 1], block);
    int first = 0;
    while (visible(seen[first], block) <= 0)
        first++;
    for (int r = first; r < rows; r++)
        a->kernels->normalize_row(scores + r * ATTENTION_BLOCK, visible(seen[r], block),
                                  factors[r]);
    memset(sums, 0, (size_t)(rows * a->floats) * sizeof(float));
    const char *values = a->values + block_offset(a, head, block);
    const ptrdiff_t common = visible(seen[first], block);
    a->kernels->sum_values(sums + first * a->floats, scores + first * ATTENTION_BLOCK, values,
                           rows - first, common, a->words, a->floats, a->type);
    for (int r = first + 1; r < rows && common < positions; r++)
        a->kernels->sum_values(sums + r * a->floats, scores + r * ATTENTION_BLOCK + common,
                               values + common * a->words * 4, 1, visible(seen[r], block) - common,
                               a->words, a->floats, a->type);
}

static void add_sums(float *totals, const float *sums, ptrdiff_t count)
{
    for (ptrdiff_t i = 0; i < count; i++)
        totals[i] += sums[i];
}

/* Computes a group of rows over all of their positions, on one thread. */
static void attend_rows(const Attention *a, const AttentionPlan *plan, ptrdiff_t head,
                        ptrdiff_t row, ptrdiff_t end, float *scratch)
{
    const ptrdiff_t rows = end - row, stride = rows * ATTENTION_BLOCK;
    float *lanes = scratch + plan->panels * plan->panel_floats;   /* [row][lane] */
    float *factors = lanes + plan->panels * PANEL_TOKENS * LANES; /* first maxima */
    float *sums = factors + UNIT_PANELS * PANEL_TOKENS;
    float *totals = sums + PANEL_TOKENS * a->floats;
    float *scores = totals + plan->panels * PANEL_TOKENS * a->floats; /* [block][row][position] */
    ptrdiff_t seen[UNIT_PANELS * PANEL_TOKENS];
    count_seen(a, row, rows, seen);
    pack_rows(a, plan, head, row, end, scratch);
    for (ptrdiff_t i = 0; i < rows * LANES; i++)
        lanes[i] = -INFINITY;
    const ptrdiff_t blocks = ceil_div(seen[rows - 1], ATTENTION_BLOCK);
    for (ptrdiff_t block = 0; block < blocks; block++)
        for (ptrdiff_t r = 0; r < rows; r += PANEL_TOKENS)
            score_block(a, scratch + r / PANEL_TOKENS * plan->panel_floats, head,
                        panel_rows(r, rows), seen + r, block,
                        scores + block * stride + r * ATTENTION_BLOCK, lanes + r * LANES);
    for (ptrdiff_t r = 0; r < rows; r++)
        factors[r] = largest_lane(lanes + r * LANES) * a->scale;
    memset(lanes, 0, (size_t)(rows * LANES) * sizeof(float));
    for (ptrdiff_t block = 0; block < blocks; block++)
        for (ptrdiff_t r = 0; r < rows; r++)
            exponentiate_block(a, seen[r], block, factors[r],
                               scores + block * stride + r * ATTENTION_BLOCK, lanes + r * LANES);
    for (ptrdiff_t r = 0; r < rows; r++)
        factors[r] = 1.0f / reduce_lanes(lanes + r * LANES);
    memset(totals, 0, (size_t)(rows * a->floats) * sizeof(float));
    for (ptrdiff_t block = 0; block < blocks; block++)
        for (ptrdiff_t r = 0; r < rows; r += PANEL_TOKENS) {
            const int count = panel_rows(r, rows);
            if (visible(seen[r + count - 1], block) <= 0)
                continue;
            weigh_block(a, head, count, seen + r, block,
                        scores + block * stride + r * ATTENTION_BLOCK, factors + r, sums);
            add_sums(totals + r * a->floats, sums, count * a->floats);
        }
    for (ptrdiff_t r = 0; r < rows; r++)
        a->kernels->finish_row(a->out + row_offset(a, head, row + r), totals + r * a->floats, a->h,
                               a->type);
}

/* The data that threads read. */
typedef struct AttentionPass {
    const Attention *a;
    const AttentionPlan *plan;
    float *scratch; /* for each thread */
    float *shared;  /* for each head, if positions are split */
    ptrdiff_t seen[SPLIT_ROWS];
} AttentionPass;

/* Units are ordered by heads, so that the keys and values of a head stay in the cache. The last
 * tokens come first, because they take longest. */
static void run_group(void *work, ptrdiff_t unit, int thread)
{
    const AttentionPass *pass = work;
    const AttentionPlan *plan = pass->plan;
    const ptrdiff_t rows = plan->panels * PANEL_TOKENS;
    const ptrdiff_t row = (plan->groups - 1 - unit % plan->groups) * rows;
    attend_rows(pass->a, plan, unit / plan->groups, row, min_size(row + rows, plan->rows),
                pass->scratch + thread * plan->thread_floats);
}

/* The data of a head that threads share. */
typedef struct SharedHead {
    atomic_int *unscored; /* blocks without scores */
    atomic_int *missing;  /* blocks without weighted values */
    float *factors;       /* [row] */
    float *largest;       /* [block][row][lane] */
    float *sums;          /* [block][row][element of a sum] */
    float *scores;        /* [block][row][position] */
} SharedHead;

static SharedHead shared_head(const AttentionPass *pass, ptrdiff_t head)
{
    const AttentionPlan *plan = pass->plan;
    float *counters = pass->shared + head * plan->head_floats;
    float *factors = counters + LANES;
    float *largest = factors + plan->rows * LANES;
    float *sums = largest + plan->blocks * plan->rows * LANES;
    float *scores = sums + plan->blocks * plan->rows * pass->a->floats;
    atomic_int *unscored = (atomic_int *)(void *)counters;
    return (SharedHead){unscored, unscored + 1, factors, largest, sums, scores};
}

/* Computes the exponentials of one row of a head, whose scores must be complete. */
static void exponentiate_split_row(const AttentionPass *pass, const SharedHead *shared,
                                   ptrdiff_t row)
{
    const AttentionPlan *plan = pass->plan;
    float largest[LANES], sums[LANES] = {0};
    memcpy(largest, shared->largest + row * LANES, sizeof largest);
    for (ptrdiff_t block = 1; block < plan->blocks; block++) {
        const float *of_block = shared->largest + (block * plan->rows + row) * LANES;
        for (int l = 0; l < LANES; l++)
            largest[l] = of_block[l] > largest[l] ? of_block[l] : largest[l];
    }
    const float maximum = largest_lane(largest) * pass->a->scale;
    for (ptrdiff_t block = 0; block < plan->blocks; block++)
        exponentiate_block(pass->a, pass->seen[row], block, maximum,
                           shared->scores + (block * plan->rows + row) * ATTENTION_BLOCK, sums);
    shared->factors[row] = 1.0f / reduce_lanes(sums);
}

/* Computes the scores of some blocks for all rows of a head. Units are the blocks of all heads. The
 * thread that finishes the last block of a head computes the exponentials. */
static void score_split(void *work, ptrdiff_t first, ptrdiff_t count, int thread)
{
    const AttentionPass *pass = work;
    const AttentionPlan *plan = pass->plan;
    float *panels = pass->scratch + thread * plan->thread_floats;
    for (ptrdiff_t unit = first; unit < first + count; unit++) {
        const ptrdiff_t head = unit / plan->blocks, block = unit % plan->blocks;
        const SharedHead shared = shared_head(pass, head);
        float *largest = shared.largest + block * plan->rows * LANES;
        float *scores = shared.scores + block * plan->rows * ATTENTION_BLOCK;
        if (unit == first || block == 0)
            pack_rows(pass->a, plan, head, 0, plan->rows, panels);
        for (ptrdiff_t i = 0; i < plan->rows * LANES; i++)
            largest[i] = -INFINITY;
        for (ptrdiff_t r = 0; r < plan->rows; r += PANEL_TOKENS)
            score_block(pass->a, panels + r / PANEL_TOKENS * plan->panel_floats, head,
                        panel_rows(r, plan->rows), pass->seen + r, block,
                        scores + r * ATTENTION_BLOCK, largest + r * LANES);
        if (atomic_fetch_sub(shared.unscored, 1) == 1)
            for (ptrdiff_t row = 0; row < plan->rows; row++)
                exponentiate_split_row(pass, &shared, row);
    }
}

/* Adds the sums of the blocks of one row of a head, in order. */
static void add_row(const AttentionPass *pass, const SharedHead *shared, ptrdiff_t head,
                    ptrdiff_t row, float *totals)
{
    const Attention *a = pass->a;
    memset(totals, 0, (size_t)a->floats * sizeof(float));
    for (ptrdiff_t block = 0; visible(pass->seen[row], block) > 0; block++)
        add_sums(totals, shared->sums + (block * pass->plan->rows + row) * a->floats, a->floats);
    a->kernels->finish_row(a->out + row_offset(a, head, row), totals, a->h, a->type);
}

/* Computes the weighted values of some blocks for all rows of a head. The thread that finishes the
 * last block of a head adds the blocks. */
static void weigh_split(void *work, ptrdiff_t first, ptrdiff_t count, int thread)
{
    const AttentionPass *pass = work;
    const AttentionPlan *plan = pass->plan;
    for (ptrdiff_t unit = first; unit < first + count; unit++) {
        const ptrdiff_t head = unit / plan->blocks, block = unit % plan->blocks;
        const SharedHead shared = shared_head(pass, head);
        for (ptrdiff_t r = 0; r < plan->rows; r += PANEL_TOKENS) {
            const int rows = panel_rows(r, plan->rows);
            const ptrdiff_t row = block * plan->rows + r;
            if (visible(pass->seen[r + rows - 1], block) > 0)
                weigh_block(pass->a, head, rows, pass->seen + r, block,
                            shared.scores + row * ATTENTION_BLOCK, shared.factors + r,
                            shared.sums + row * pass->a->floats);
        }
        if (atomic_fetch_sub(shared.missing, 1) == 1)
            for (ptrdiff_t row = 0; row < plan->rows; row++)
                add_row(pass, &shared, head, row, pass->scratch + thread * plan->thread_floats);
    }
}

/*
 * attention: out[t, i, :] = sum over s of p[s] * v[s, j, :],
 *            p = softmax over s of (scale * xq[t, i, :] . k[s, j, :]), for s <= start_pos + t,
 *            with j = i / (H / K)
 *
 *   xq       [T, H, h]              bfloat16 or float32
 *   keys     [K, C/16, words, 16]   the same type; a word of 4 bytes is one float32 or two bfloat16
 *                                   adjacent elements of a position; 16 positions are interleaved
 *   values   [K, C, h]              the same type
 *   blocks   [start_pos + T in blocks]  block b of the sequence is block blocks[b] of the cache; or
 *                                   NULL if the blocks are in order, starting with the first
 *   out      [T, H, h]              the same type
 *   scratch  attention_scratch_bytes(...)
 *
 * Scores and weights are float32. The result has the bits of batched_matmul, a multiplication by
 * scale, softmax and batched_matmul with values widened to float32.
 * Threads take groups of rows. If there are few rows (decoding) and few heads, they take blocks of
 * positions: first to compute the scores and, once the rows are normalized, to compute the weighted
 * values.
 * The caller checks contiguity, sizes, that h is even, that C is a multiple of 16, that blocks are
 * inside the cache, that the positions below start_pos + T were written, and that out and scratch
 * do not overlap any other argument.
 */
void attention(void *out, void *scratch, const void *xq, const void *keys, const void *values,
               const ptrdiff_t *blocks, ptrdiff_t T, ptrdiff_t start_pos, ptrdiff_t H, ptrdiff_t K,
               ptrdiff_t h, ptrdiff_t C, float scale, ElementType type, int threads)
{
    if (T == 0 || H == 0 || h == 0)
        return;
    const AttentionPlan plan = make_plan(T, start_pos, H, K, h, type, threads);
    const Attention a = {.kernels = kernel_set()->attention,
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
                         .words = element_words(type, h),
                         .floats = sum_floats(type, h),
                         .type = type,
                         .scale = scale};
    float *lines = (float *)align_to_line(scratch);
    AttentionPass pass = {&a, &plan, lines, lines + plan.workers * plan.thread_floats, {0}};
    if (!plan.splits_positions) {
        run_units(&pass, run_group, K * plan.groups, 1, plan.workers);
        return;
    }
    count_seen(&a, 0, plan.rows, pass.seen);
    for (ptrdiff_t head = 0; head < K; head++) {
        const SharedHead shared = shared_head(&pass, head);
        atomic_init(shared.unscored, (int)plan.blocks);
        atomic_init(shared.missing, (int)plan.blocks);
    }
    /* Each thread has a span of blocks, so that it continues where it has prefetched. */
    const Shares shares = {1, BLOCKS_TAKEN, plan.workers};
    run_ranges(&pass, score_split, K * plan.blocks, shares, plan.workers);
    run_ranges(&pass, weigh_split, K * plan.blocks, shares, plan.workers);
}
