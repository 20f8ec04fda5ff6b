/*
 * Attention over the key/value cache, with the bits of a matmul, a softmax and another matmul.
 *
 * Rows are the query heads of the tokens: T * G rows for each key/value head, in the order of
 * tokens. In a unit, all scores of its rows are computed first, so that the maximum and the sum of
 * each row are known before any value is weighted. A unit has few enough rows for their scores to
 * stay in the cache. All sums have a fixed order (kernels.h), so the bits depend neither on the
 * number of rows nor on the split over threads. From the innermost loop to the outermost:
 *   - a tile of 6 rows x 64 positions, and later of 6 rows x 64 columns of values, is in registers
 *     (with AVX2, 16 positions or columns; with 1 or 2 rows, more of them);
 *   - a panel of 6 rows is multiplied by a block of 256 positions;
 *   - a block stays in the L2 cache while all panels of a unit are multiplied by it. 8 KiB of its
 *     values stay in the L1 cache while all their columns are summed.
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
    const float *sinks;      /* [H], or NULL */
    char *out;
    ptrdiff_t start_pos, H, G, h;
    ptrdiff_t window;         /* positions that a row sees at most */
    ptrdiff_t position_bytes; /* bytes per position of a head in the cache */
    ptrdiff_t head_bytes;     /* bytes per key/value head in the cache */
    ptrdiff_t words;          /* words per head and position that are multiplied */
    ptrdiff_t floats;         /* floats in a row's weighted sum */
    ElementType cache_type;
    ElementType type;     /* type in which elements are multiplied */
    ElementType out_type; /* type of queries and results */
    float scale;
    float soft_cap; /* limit of the scaled scores, or 0 */
} Attention;

/* Positions of a block, begin <= s < end. There are none if end <= begin. */
typedef struct Range {
    ptrdiff_t begin, end;
} Range;

/* The division of the work, and the layout of the scratch. */
typedef struct AttentionPlan {
    ptrdiff_t K, rows;    /* key/value heads; rows per key/value head */
    ptrdiff_t first;      /* the first block that the first row sees */
    ptrdiff_t blocks;     /* blocks from there to the last one that the last row sees */
    ptrdiff_t panels;     /* panels per unit */
    ptrdiff_t groups;     /* units per key/value head, if rows are split */
    int splits_positions; /* 1: units are blocks instead of groups of rows */
    int workers;
    ptrdiff_t panel_floats; /* floats in a packed panel */
    ptrdiff_t query_floats; /* floats in a query that is widened before it is packed, or 0 */
    ptrdiff_t thread_floats;
    ptrdiff_t head_floats; /* shared by threads, if positions are split */
} AttentionPlan;

/* Plans the work for positions `begin` to `end`, which contain all that the rows see. A plan for
 * more positions never needs less scratch. */
static AttentionPlan make_plan(ptrdiff_t T, ptrdiff_t begin, ptrdiff_t end, ptrdiff_t H,
                               ptrdiff_t K, ptrdiff_t h, ElementType cache_type, int threads)
{
    const ElementType type = product_type(cache_type);
    const ptrdiff_t sum = sum_floats(type, h);
    AttentionPlan plan = {.K = K, .rows = T * (H / K), .first = begin / ATTENTION_BLOCK};
    plan.blocks = ceil_div(end, ATTENTION_BLOCK) - plan.first;
    plan.workers = threads_for(T * H * (end - begin) * h, MULTIPLY_ADDS_PER_THREAD, threads);
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
    plan.query_floats = type == cache_type ? 0 : ceil_div(h, LANES) * LANES;
    /* A widened query; the unit's packed queries; the lanes, factor and sum of each row; and the
     * sums of a panel for one block. All of them begin at a cache line. */
    plan.thread_floats = plan.query_floats
                         + most * (plan.panel_floats + PANEL_TOKENS * (LANES + sum))
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

/* The positions that a row sees at most, of S positions; a window of 0 does not limit them. */
static ptrdiff_t most_seen(ptrdiff_t window, ptrdiff_t S)
{
    return window ? min_size(window, S) : S;
}

ptrdiff_t attention_scratch_bytes(ptrdiff_t T, ptrdiff_t start_pos, ptrdiff_t H, ptrdiff_t K,
                                  ptrdiff_t h, ptrdiff_t window, ElementType cache_type,
                                  int threads)
{
    if (T == 0 || H == 0 || h == 0)
        return LINE;
    /* With a window, the first position may be in the middle of a block, so that the positions that
     * the rows see are in one block more than from the beginning of a sequence. */
    const ptrdiff_t S = start_pos + T;
    const ptrdiff_t seen = min_size(S, most_seen(window, S) + T - 1);
    const ptrdiff_t end = seen < S ? min_size(S, seen + ATTENTION_BLOCK - 1) : S;
    const AttentionPlan plan = make_plan(T, 0, end, H, K, h, cache_type, threads);
    const ptrdiff_t floats = plan.workers * plan.thread_floats + K * plan.head_floats;
    return floats * (ptrdiff_t)sizeof(float) + LINE;
}

/* The offset of a row's query and result, in bytes. */
static ptrdiff_t row_offset(const Attention *a, ptrdiff_t head, ptrdiff_t row)
{
    const ptrdiff_t t = row / a->G, g = row % a->G;
    return ((t * a->H + head * a->G + g) * a->h) * type_bytes(a->out_type);
}

/* Computes the number of positions that each of some rows sees. */
static void count_seen(const Attention *a, ptrdiff_t row, ptrdiff_t rows, ptrdiff_t *seen)
{
    for (ptrdiff_t r = 0; r < rows; r++)
        seen[r] = a->start_pos + (row + r) / a->G + 1;
}

/* The positions of a block that a row sees: the last `window` positions before `seen`. */
static Range visible(const Attention *a, ptrdiff_t seen, ptrdiff_t block)
{
    const ptrdiff_t start = block * ATTENTION_BLOCK, first = seen - a->window - start;
    return (Range){first > 0 ? first : 0, min_size(seen - start, ATTENTION_BLOCK)};
}

static int is_empty(Range range) { return range.end <= range.begin; }

/* The first block that a row sees. */
static ptrdiff_t first_block(const Attention *a, ptrdiff_t seen)
{
    return seen > a->window ? (seen - a->window) / ATTENTION_BLOCK : 0;
}

/* The first position of the lanes that contain a position. */
static ptrdiff_t whole_lanes(ptrdiff_t position) { return position / LANES * LANES; }

/* The positions of a block that at least one row of a panel sees: the window moves from row to
 * row, so they begin with the first row that sees any and end with the last one. */
static Range visible_to_panel(const Attention *a, int rows, const ptrdiff_t *seen, ptrdiff_t block)
{
    const Range first = visible(a, seen[0], block), last = visible(a, seen[rows - 1], block);
    return (Range){first.begin, last.end};
}

static int panel_rows(ptrdiff_t row, ptrdiff_t end)
{
    return (int)min_size(PANEL_TOKENS, end - row);
}

/* The offset of a block of a head in the cache, which is the same for keys and values. */
static ptrdiff_t block_offset(const Attention *a, ptrdiff_t head, ptrdiff_t block)
{
    const ptrdiff_t place = a->blocks ? a->blocks[block] : block;
    return head * a->head_bytes + place * ATTENTION_BLOCK * a->position_bytes;
}

/* Packs rows into panels, which follow the widened query in the scratch. In a panel, blocks of
 * elements follow each other. */
static void pack_rows(const Attention *a, const AttentionPlan *plan, ptrdiff_t head, ptrdiff_t row,
                      ptrdiff_t end, float *scratch)
{
    float *panels = scratch + plan->query_floats;
    const ptrdiff_t most = element_words(a->type, ATTENTION_BLOCK);
    for (; row < end; row += PANEL_TOKENS, panels += plan->panel_floats) {
        const int rows = panel_rows(row, end);
        for (int r = 0; r < rows; r++) {
            const char *query = a->xq + row_offset(a, head, row + r);
            if (plan->query_floats) {
                a->kernels->widen_query(scratch, query, a->h, a->out_type);
                query = (const char *)scratch;
            }
            float *part = panels + r;
            for (ptrdiff_t w = 0; w < a->words; w += most, part += PANEL_TOKENS * ATTENTION_BLOCK)
                a->kernels->pack_chains(part, query + 4 * w, min_size(most, a->words - w), rows,
                                        a->type);
        }
    }
}

/* The score of a sink, or -Inf without sinks. It is neither scaled nor capped. */
static float sink_of(const Attention *a, ptrdiff_t head, ptrdiff_t row)
{
    return a->sinks ? a->sinks[head * a->G + row % a->G] : -INFINITY;
}

/* Multiplies a panel by the words [first, end) of some groups of keys, which are in at most one
 * block of elements. */
static void multiply_keys(const Attention *a, float *sums, const float *panel, const char *keys,
                          int rows, ptrdiff_t groups, Range words)
{
    if (a->cache_type == TYPE_Q8_0)
        a->kernels->multiply_codes(sums, panel, keys, rows, groups, words.begin, words.end, a->h);
    else
        a->kernels->multiply_chains(sums, panel, keys + words.begin * LINE, rows, groups,
                                    words.end - words.begin, a->words, a->type);
}

/*
 * Computes the scores of a panel's rows for a block, and updates the maximum of each row. The keys
 * before the first visible group of 16 positions are not read. The scores of other keys that a row
 * does not see are computed but not used.
 */
static void score_block(const Attention *a, const float *panel, ptrdiff_t head, int rows,
                        const ptrdiff_t *seen, ptrdiff_t block, float *scores, float *largest)
{
    const Range positions = visible_to_panel(a, rows, seen, block);
    if (is_empty(positions))
        return;
    const ptrdiff_t most = element_words(a->type, ATTENTION_BLOCK);
    const ptrdiff_t begin = whole_lanes(positions.begin);
    const ptrdiff_t groups = ceil_div(positions.end - begin, LANES);
    const char *keys = a->keys + block_offset(a, head, block) + begin * a->position_bytes;
    float *visible_scores = scores + begin;
    multiply_keys(a, visible_scores, panel, keys, rows, groups,
                  (Range){0, min_size(most, a->words)});
    for (ptrdiff_t w = most; w < a->words; w += most) {
        float sums[PANEL_TOKENS * ATTENTION_BLOCK];
        panel += PANEL_TOKENS * ATTENTION_BLOCK;
        multiply_keys(a, sums, panel, keys, rows, groups, (Range){w, min_size(w + most, a->words)});
        for (int r = 0; r < rows; r++)
            for (ptrdiff_t s = 0; s < groups * LANES; s++)
                visible_scores[r * ATTENTION_BLOCK + s] += sums[r * ATTENTION_BLOCK + s];
    }
    for (int r = 0; r < rows; r++) {
        const Range own = visible(a, seen[r], block);
        if (is_empty(own))
            continue;
        float *row = scores + r * ATTENTION_BLOCK;
        const ptrdiff_t start = whole_lanes(own.begin);
        if (a->soft_cap > 0.0f)
            a->kernels->cap_scores(row + start, own.end - start, a->scale, a->soft_cap);
        for (ptrdiff_t s = start; s < own.begin; s++)
            row[s] = -INFINITY;
        a->kernels->raise_largest(row + start, largest + r * LANES, own.end - start);
    }
}

/* The factor of the scores in the exponentials. Capped scores are scaled already. */
static float remaining_scale(const Attention *a) { return a->soft_cap > 0.0f ? 1.0f : a->scale; }

/* The maximum of a row's scaled scores and of its sink. The maximum of the scaled scores equals the
 * scaled maximum of the scores. */
static float row_maximum(const Attention *a, const float *largest, float sink)
{
    const float maximum = largest_lane(largest) * remaining_scale(a);
    return sink > maximum ? sink : maximum;
}

/* Sets the lanes of a sum to the exponential of the sink, which is in lane 0 as if it was a
 * position before the first one. */
static void begin_sums(const Attention *a, float *sums, float sink, float maximum)
{
    memset(sums, 0, LANES * sizeof(float));
    if (a->sinks)
        sums[0] = exp_f32(sink - maximum);
}

/* Replaces the scores of a row in a block by their exponentials, and adds the exponentials to the
 * lanes of their sum. */
static void exponentiate_block(const Attention *a, ptrdiff_t seen, ptrdiff_t block, float maximum,
                               float *scores, float *sums)
{
    const Range own = visible(a, seen, block);
    const ptrdiff_t start = whole_lanes(own.begin);
    if (!is_empty(own))
        a->kernels->exponentiate(scores + start, sums, own.end - start, remaining_scale(a),
                                 maximum);
}

/* Adds the weighted values of some positions of a block. */
static void add_values(const Attention *a, const char *values, int rows, Range range,
                       const float *scores, float *sums)
{
    if (is_empty(range))
        return;
    if (a->cache_type == TYPE_Q8_0)
        a->kernels->sum_codes(sums, scores, values, rows, range.begin, range.end, a->h, a->floats);
    else
        a->kernels->sum_values(sums, scores + range.begin, values + range.begin * a->position_bytes,
                               rows, range.end - range.begin, a->words, a->floats, a->type);
}

/*
 * Normalizes the exponentials of a panel to weights, and adds the weighted values of a block.
 * Values that a row does not see are not read. Each row adds in the order of positions: those that
 * later rows do not see any more, those that all rows see, and those that earlier rows do not see
 * yet.
 */
static void weigh_block(const Attention *a, ptrdiff_t head, int rows, const ptrdiff_t *seen,
                        ptrdiff_t block, float *scores, const float *factors, float *sums)
{
    Range own[PANEL_TOKENS];
    for (int r = 0; r < rows; r++)
        own[r] = visible(a, seen[r], block);
    int first = 0, end = rows;
    while (first < end && is_empty(own[first]))
        first++;
    while (first < end && is_empty(own[end - 1]))
        end--;
    memset(sums, 0, (size_t)(rows * a->floats) * sizeof(float));
    if (first == end)
        return;
    for (int r = first; r < end; r++)
        a->kernels->normalize_row(scores + r * ATTENTION_BLOCK + own[r].begin,
                                  own[r].end - own[r].begin, factors[r]);
    const char *values = a->values + block_offset(a, head, block);
    const Range common = {own[end - 1].begin, own[first].end};
    if (is_empty(common)) {
        for (int r = first; r < end; r++)
            add_values(a, values, 1, own[r], scores + r * ATTENTION_BLOCK, sums + r * a->floats);
        return;
    }
    for (int r = first; r < end; r++)
        add_values(a, values, 1, (Range){own[r].begin, common.begin}, scores + r * ATTENTION_BLOCK,
                   sums + r * a->floats);
    add_values(a, values, end - first, common, scores + first * ATTENTION_BLOCK,
               sums + first * a->floats);
    for (int r = first; r < end; r++)
        add_values(a, values, 1, (Range){common.end, own[r].end}, scores + r * ATTENTION_BLOCK,
                   sums + r * a->floats);
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
    const float *panels = scratch + plan->query_floats;
    float *lanes = scratch + plan->query_floats + plan->panels * plan->panel_floats;
    float *factors = lanes + plan->panels * PANEL_TOKENS * LANES; /* first maxima */
    float *sums = factors + UNIT_PANELS * PANEL_TOKENS;
    float *totals = sums + PANEL_TOKENS * a->floats;
    float *scores = totals + plan->panels * PANEL_TOKENS * a->floats; /* [block][row][position] */
    ptrdiff_t seen[UNIT_PANELS * PANEL_TOKENS];
    count_seen(a, row, rows, seen);
    pack_rows(a, plan, head, row, end, scratch);
    for (ptrdiff_t i = 0; i < rows * LANES; i++)
        lanes[i] = -INFINITY;
    const ptrdiff_t first = first_block(a, seen[0]);
    const ptrdiff_t end_block = ceil_div(seen[rows - 1], ATTENTION_BLOCK);
    for (ptrdiff_t block = first; block < end_block; block++)
        for (ptrdiff_t r = 0; r < rows; r += PANEL_TOKENS)
            score_block(a, panels + r / PANEL_TOKENS * plan->panel_floats, head,
                        panel_rows(r, rows), seen + r, block,
                        scores + (block - first) * stride + r * ATTENTION_BLOCK, lanes + r * LANES);
    for (ptrdiff_t r = 0; r < rows; r++) {
        const float sink = sink_of(a, head, row + r);
        factors[r] = row_maximum(a, lanes + r * LANES, sink);
        begin_sums(a, lanes + r * LANES, sink, factors[r]);
    }
    for (ptrdiff_t block = first; block < end_block; block++)
        for (ptrdiff_t r = 0; r < rows; r++)
            exponentiate_block(a, seen[r], block, factors[r],
                               scores + (block - first) * stride + r * ATTENTION_BLOCK,
                               lanes + r * LANES);
    for (ptrdiff_t r = 0; r < rows; r++)
        factors[r] = 1.0f / reduce_lanes(lanes + r * LANES);
    memset(totals, 0, (size_t)(rows * a->floats) * sizeof(float));
    for (ptrdiff_t block = first; block < end_block; block++)
        for (ptrdiff_t r = 0; r < rows; r += PANEL_TOKENS) {
            const int count = panel_rows(r, rows);
            if (is_empty(visible_to_panel(a, count, seen + r, block)))
                continue;
            weigh_block(a, head, count, seen + r, block,
                        scores + (block - first) * stride + r * ATTENTION_BLOCK, factors + r, sums);
            add_sums(totals + r * a->floats, sums, count * a->floats);
        }
    for (ptrdiff_t r = 0; r < rows; r++)
        a->kernels->finish_row(a->out + row_offset(a, head, row + r), totals + r * a->floats, a->h,
                               a->type, a->out_type);
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
                                   ptrdiff_t head, ptrdiff_t row)
{
    const AttentionPlan *plan = pass->plan;
    float largest[LANES], sums[LANES];
    memcpy(largest, shared->largest + row * LANES, sizeof largest);
    for (ptrdiff_t block = 1; block < plan->blocks; block++) {
        const float *of_block = shared->largest + (block * plan->rows + row) * LANES;
        for (int l = 0; l < LANES; l++)
            largest[l] = of_block[l] > largest[l] ? of_block[l] : largest[l];
    }
    const float sink = sink_of(pass->a, head, row);
    const float maximum = row_maximum(pass->a, largest, sink);
    begin_sums(pass->a, sums, sink, maximum);
    for (ptrdiff_t block = 0; block < plan->blocks; block++)
        exponentiate_block(pass->a, pass->seen[row], plan->first + block, maximum,
                           shared->scores + (block * plan->rows + row) * ATTENTION_BLOCK, sums);
    shared->factors[row] = 1.0f / reduce_lanes(sums);
}

/* Computes the scores of some blocks for all rows of a head. Units are the blocks of all heads. The
 * thread that finishes the last block of a head computes the exponentials. */
static void score_split(void *work, ptrdiff_t first, ptrdiff_t count, int thread)
{
    const AttentionPass *pass = work;
    const AttentionPlan *plan = pass->plan;
    float *scratch = pass->scratch + thread * plan->thread_floats;
    const float *panels = scratch + plan->query_floats;
    for (ptrdiff_t unit = first; unit < first + count; unit++) {
        const ptrdiff_t head = unit / plan->blocks, block = unit % plan->blocks;
        const SharedHead shared = shared_head(pass, head);
        float *largest = shared.largest + block * plan->rows * LANES;
        float *scores = shared.scores + block * plan->rows * ATTENTION_BLOCK;
        if (unit == first || block == 0)
            pack_rows(pass->a, plan, head, 0, plan->rows, scratch);
        for (ptrdiff_t i = 0; i < plan->rows * LANES; i++)
            largest[i] = -INFINITY;
        for (ptrdiff_t r = 0; r < plan->rows; r += PANEL_TOKENS)
            score_block(pass->a, panels + r / PANEL_TOKENS * plan->panel_floats, head,
                        panel_rows(r, plan->rows), pass->seen + r, plan->first + block,
                        scores + r * ATTENTION_BLOCK, largest + r * LANES);
        if (atomic_fetch_sub(shared.unscored, 1) == 1)
            for (ptrdiff_t row = 0; row < plan->rows; row++)
                exponentiate_split_row(pass, &shared, head, row);
    }
}

/* Adds the sums of the blocks of one row of a head, in order. */
static void add_row(const AttentionPass *pass, const SharedHead *shared, ptrdiff_t head,
                    ptrdiff_t row, float *totals)
{
    const Attention *a = pass->a;
    memset(totals, 0, (size_t)a->floats * sizeof(float));
    for (ptrdiff_t block = 0; block < pass->plan->blocks; block++)
        if (!is_empty(visible(a, pass->seen[row], pass->plan->first + block)))
            add_sums(totals, shared->sums + (block * pass->plan->rows + row) * a->floats,
                     a->floats);
    a->kernels->finish_row(a->out + row_offset(a, head, row), totals, a->h, a->type, a->out_type);
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
            if (!is_empty(visible_to_panel(pass->a, rows, pass->seen + r, plan->first + block)))
                weigh_block(pass->a, head, rows, pass->seen + r, plan->first + block,
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
 *            p = softmax over s of cap(scale * xq[t, i, :] . k[s, j, :]),
 *            for start_pos + t - window < s <= start_pos + t, with j = i / (H / K)
 *
 *   xq       [T, H, h]              bfloat16 or float32
 *   keys     [K, C/16, words, 16]   the same type; a word of 4 bytes is one float32 or two bfloat16
 *                                   adjacent elements of a position; 16 positions are interleaved
 *   values   [K, C, h]              the same type
 *            or both in q8_0, in groups of 16 positions [K, C/16, 16 * bytes] (attention.h)
 *   blocks   [start_pos + T in blocks]  block b of the sequence is block blocks[b] of the cache; or
 *                                   NULL if the blocks are in order, starting with the first
 *   sinks    [H]                    float32 scores that take part in the softmax of a head without
 *                                   a value, as if they were a position before the first; or NULL
 *   out      [T, H, h]              the same type
 *   scratch  attention_scratch_bytes(...)
 *
 * window is 0 if a token sees all earlier positions; cap(x) is soft_cap * tanh(x / soft_cap), or x
 * if soft_cap is 0. Scores and weights are float32. The result has the bits of batched_matmul, a
 * multiplication by scale, softmax and batched_matmul with values widened to float32. Sums over
 * positions keep the blocks and lanes of the positions in the sequence, wherever a window begins.
 * Threads take groups of rows. If there are few rows (decoding) and few heads, they take blocks of
 * positions: first to compute the scores and, once the rows are normalized, to compute the weighted
 * values.
 * The caller checks contiguity, sizes, that h is even, that C is a multiple of 16, that blocks are
 * inside the cache, that the positions below start_pos + T were written, and that out and scratch
 * do not overlap any other argument.
 */
void attention(void *out, void *scratch, const void *xq, const void *keys, const void *values,
               const ptrdiff_t *blocks, const float *sinks, ptrdiff_t T, ptrdiff_t start_pos,
               ptrdiff_t H, ptrdiff_t K, ptrdiff_t h, ptrdiff_t C, ptrdiff_t window, float scale,
               float soft_cap, ElementType type, ElementType cache_type, int threads)
{
    if (T == 0 || H == 0 || h == 0)
        return;
    const ptrdiff_t S = start_pos + T, seen = most_seen(window, S);
    const ptrdiff_t begin = start_pos + 1 > seen ? start_pos + 1 - seen : 0;
    const AttentionPlan plan = make_plan(T, begin, S, H, K, h, cache_type, threads);
    const ElementType words_type = product_type(cache_type);
    const Attention a = {.kernels = kernel_set()->attention,
                         .xq = xq,
                         .keys = keys,
                         .values = values,
                         .blocks = blocks,
                         .sinks = sinks,
                         .out = out,
                         .start_pos = start_pos,
                         .window = seen,
                         .H = H,
                         .G = H / K,
                         .h = h,
                         .position_bytes = position_bytes(cache_type, h),
                         .head_bytes = C * position_bytes(cache_type, h),
                         .words = element_words(words_type, h),
                         .floats = sum_floats(words_type, h),
                         .cache_type = cache_type,
                         .type = words_type,
                         .out_type = type,
                         .scale = scale,
                         .soft_cap = soft_cap};
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
