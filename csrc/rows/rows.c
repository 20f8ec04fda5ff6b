/*
 * The ops on rows and spans: one driver for all of them, which splits the rows over threads.
 *
 * The kernels that compute a row or a span are in row_kernels.h, compiled once for each instruction
 * set. They are elementwise, or sum a row in the fixed order of 16 lanes on one thread, so every
 * split gives the same bits. The caller checks contiguity, sizes and overlaps.
 */
#include <stdatomic.h>
#include <string.h>
#include "kernels.h"

enum {
    /* Elements of a span, which one thread processes at a time. */
    SPAN = 8192,
    /* Elements of a span that consists of whole blocks of any format. */
    BLOCKS_SPAN = 16384
};

/* The arguments of an op on rows. Each op sets the members that it uses. */
typedef struct Rows {
    const RowKernels *kernels;
    char *out;                      /* results, starting with row 0 or element 0 */
    const char *x;                  /* operand, starting with row 0 or element 0 */
    const char *y;                  /* second operand: weight, frequencies, or b */
    ptrdiff_t n;                    /* elements per row, or for spans, elements in total */
    ElementType x_type, y_type;     /* types of x and y */
    ElementType out_type;           /* type of the results, or for quantize, the format */
    float cap;                      /* soft_cap: the limit */
    float eps;                      /* rms_norm: added to the mean square */
    ElementwiseOp op;               /* elementwise */
    ptrdiff_t heads, h;             /* rotary, write_cache: heads per token; elements per head */
    int halves;                     /* rotary: the elements of a pair are half a head apart */
    char *scales;                   /* quantize: scales; the codes are in `out` */
    const Weight *table;            /* get_rows */
    const int32_t *ids;             /* get_rows: numbers of the rows, or NULL */
    ptrdiff_t table_rows, spans;    /* get_rows: rows of the table; spans per row */
    char *values;                   /* write_cache: values; the keys are in `out` */
    const ptrdiff_t *blocks;        /* write_cache: positions of the blocks in the cache, or NULL */
    ptrdiff_t start_pos, positions; /* write_cache: first position; size of the cache */
    _Atomic ptrdiff_t refused;      /* quantize, get_rows: elements or spans without a result */
} Rows;

static void softmax_unit(void *work, ptrdiff_t r, int thread)
{
    (void)thread;
    const Rows *w = work;
    w->kernels->softmax_row(w->out + r * w->n * type_bytes(w->out_type),
                            w->x + r * w->n * type_bytes(w->x_type), w->n, w->x_type, w->out_type);
}

/*
 * softmax: out[r, i] = exp(x[r, i] - max_r) * (1 / sum over j of exp(x[r, j] - max_r))
 *
 *   x    [rows, n]  bfloat16 or float32
 *   out  [rows, n]  bfloat16 or float32; may be x itself when the types are equal
 *
 * Because of the maximum, no exponential exceeds 1. Columns of -Inf at the end (a mask) add exact
 * zeros, so they do not change the bits of other columns. As in PyTorch, all results of a row are
 * NaN if all its scores are -Inf, or if it contains a NaN or +Inf. Finite scores never give a NaN.
 * Threads take rows.
 */
void softmax(void *out, const void *x, ptrdiff_t rows, ptrdiff_t n, ElementType x_type,
             ElementType out_type, int threads)
{
    Rows work = {.kernels = kernel_set()->rows, .out = out, .x = x, .n = n};
    work.x_type = x_type;
    work.out_type = out_type;
    const int workers = threads_for(rows * n, ELEMENTS_PER_THREAD / 4, threads);
    run_units(&work, softmax_unit, rows, 4, workers);
}

static void rms_norm_unit(void *work, ptrdiff_t r, int thread)
{
    (void)thread;
    const Rows *w = work;
    w->kernels->rms_norm_row(w->out + r * w->n * type_bytes(w->out_type),
                             w->x + r * w->n * type_bytes(w->x_type), w->y, w->n, w->eps, w->x_type,
                             w->y_type, w->out_type);
}

/*
 * rms_norm: out[r, i] = x[r, i] * (1 / sqrt(mean over j of x[r, j]^2 + eps)) * weight[i]
 *
 *   x       [rows, D]  bfloat16 or float32, D > 0
 *   weight  [D]        any plain type
 *   out     [rows, D]  bfloat16 or float32; may be x itself when the types are equal
 *
 * Results are computed in float32 and rounded once to the type of out. Threads take rows.
 * rms_norm_reference.c computes the same with plain loops.
 */
void rms_norm(void *out, const void *x, const void *weight, ptrdiff_t rows, ptrdiff_t D, float eps,
              ElementType x_type, ElementType weight_type, ElementType out_type, int threads)
{
    Rows work = {.kernels = kernel_set()->rows, .out = out, .x = x, .y = weight, .n = D};
    work.eps = eps;
    work.x_type = x_type;
    work.y_type = weight_type;
    work.out_type = out_type;
    run_units(&work, rms_norm_unit, rows, 4, threads_for(rows * D, ELEMENTS_PER_THREAD, threads));
}

static void rotary_unit(void *work, ptrdiff_t t, int thread)
{
    (void)thread;
    const Rows *w = work;
    const ptrdiff_t at = t * w->heads * w->h * type_bytes(w->x_type);
    w->kernels->rotary_row(w->out + at, w->x + at, (const float *)w->y + t * w->h, w->heads, w->h,
                           w->halves, w->x_type);
}

/*
 * rotary: out[t, k, 2i] + i out[t, k, 2i+1] = (a + i b) * frequencies[t, i], where a and b are
 * x[t, k, 2i] and x[t, k, 2i+1], or with halves x[t, k, i] and x[t, k, i + h/2]
 *
 *   x            [T, heads, h]  bfloat16 or float32, h even
 *   frequencies  [T, h/2]       complex64: cos and sin of position times angle
 *   out          [T, heads, h]  the type of x; may be x itself without halves
 *
 * With Meta's weights, the elements of a pair are adjacent in a query or key. With Hugging Face's
 * weights, they are in the two halves of a head. In the result they are always adjacent, so all
 * later ops do the same arithmetic in the same order, and weights are never permuted. Results are
 * computed in float32 and rounded once. Threads take tokens, so that one row of frequencies stays
 * in the cache for all heads of a token.
 */
void rotary(void *out, const void *x, const void *frequencies, ptrdiff_t T, ptrdiff_t heads,
            ptrdiff_t h, int halves, ElementType type, int threads)
{
    Rows work = {.kernels = kernel_set()->rows, .out = out, .x = x, .y = frequencies};
    work.heads = heads;
    work.h = h;
    work.halves = halves;
    work.x_type = type;
    const int workers = threads_for(T * heads * h, ELEMENTS_PER_THREAD, threads);
    run_units(&work, rotary_unit, T, 4, workers);
}

static void argmax_unit(void *work, ptrdiff_t r, int thread)
{
    (void)thread;
    const Rows *w = work;
    const char *row = w->x + r * w->n * type_bytes(w->x_type);
    ((int32_t *)w->out)[r] = (int32_t)w->kernels->argmax_row(row, w->n, w->x_type);
}

/*
 * argmax: out[r] = the least i with x[r, i] = max over j of x[r, j]
 *
 *   x    [rows, n]  bfloat16 or float32, 0 < n < 2^31
 *   out  [rows]     int32
 *
 * As in NumPy and PyTorch, a NaN counts as the maximum, so the result is the index of the first
 * NaN. Threads take rows.
 */
void argmax(int32_t *out, const void *x, ptrdiff_t rows, ptrdiff_t n, ElementType type, int threads)
{
    Rows work = {.kernels = kernel_set()->rows, .out = (char *)out, .x = x, .n = n};
    work.x_type = type;
    run_units(&work, argmax_unit, rows, 1, threads_for(rows * n, ELEMENTS_PER_THREAD, threads));
}

static void elementwise_unit(void *work, ptrdiff_t unit, int thread)
{
    (void)thread;
    const Rows *w = work;
    const ptrdiff_t start = unit * SPAN, at = start * type_bytes(w->x_type);
    w->kernels->elementwise_span(w->out + at, w->x + at, w->op == OP_SILU ? NULL : w->y + at,
                                 min_size(SPAN, w->n - start), w->op, w->x_type);
}

/*
 * elementwise: out[i] = a[i] + b[i] | a[i] * b[i] | silu(a[i]) | silu(a[i]) * b[i] |
 * gelu(a[i]) * b[i], with silu(x) = x / (1 + exp(-x)) and GELU approximated by tanh
 *
 *   a, b  [n]  bfloat16 or float32; b is not read (and may be null) for silu
 *   out   [n]  the type of a; may be a or b itself
 *
 * Results are computed in float32 and rounded once. Threads take spans of elements.
 */
void elementwise(void *out, const void *a, const void *b, ptrdiff_t n, ElementwiseOp op,
                 ElementType type, int threads)
{
    Rows work = {.kernels = kernel_set()->rows, .out = out, .x = a, .y = b, .n = n};
    work.op = op;
    work.x_type = type;
    const int workers = threads_for(n, ELEMENTS_PER_THREAD, threads);
    run_units(&work, elementwise_unit, ceil_div(n, SPAN), 1, workers);
}

static void soft_cap_unit(void *work, ptrdiff_t unit, int thread)
{
    (void)thread;
    const Rows *w = work;
    const ptrdiff_t start = unit * SPAN, at = start * type_bytes(w->x_type);
    w->kernels->soft_cap_span(w->out + at, w->x + at, min_size(SPAN, w->n - start), w->cap,
                              w->x_type);
}

/*
 * soft_cap: out[i] = cap * tanh(x[i] / cap)
 *
 *   x    [n]  bfloat16 or float32
 *   out  [n]  the type of x; may be x itself
 *
 * Results are computed in float32 and rounded once. The caller checks that cap > 0. Threads take
 * spans of elements.
 */
void soft_cap(void *out, const void *x, ptrdiff_t n, float cap, ElementType type, int threads)
{
    Rows work = {.kernels = kernel_set()->rows, .out = out, .x = x, .n = n};
    work.cap = cap;
    work.x_type = type;
    const int workers = threads_for(n, ELEMENTS_PER_THREAD, threads);
    run_units(&work, soft_cap_unit, ceil_div(n, SPAN), 1, workers);
}

static void convert_unit(void *work, ptrdiff_t unit, int thread)
{
    (void)thread;
    const Rows *w = work;
    const ptrdiff_t start = unit * SPAN;
    w->kernels->convert_span(w->out + start * type_bytes(w->out_type),
                             w->x + start * type_bytes(w->x_type), min_size(SPAN, w->n - start),
                             w->x_type, w->out_type);
}

/*
 * convert: out[i] = x[i] in another type
 *
 *   x    [n]  any plain type
 *   out  [n]  any plain type; does not overlap x
 *
 * Widening is exact. Narrowing rounds to nearest, ties to even. Values that are too large become
 * Inf (in float8_e4m3fn, NaN). A NaN becomes quiet and keeps its sign. Threads take spans of
 * elements.
 */
void convert(void *out, const void *x, ptrdiff_t n, ElementType x_type, ElementType out_type,
             int threads)
{
    Rows work = {.kernels = kernel_set()->rows, .out = out, .x = x, .n = n};
    work.x_type = x_type;
    work.out_type = out_type;
    const int workers = threads_for(n, ELEMENTS_PER_THREAD, threads);
    run_units(&work, convert_unit, ceil_div(n, SPAN), 1, workers);
}

static void quantize_unit(void *work, ptrdiff_t unit, int thread)
{
    (void)thread;
    Rows *w = work;
    const ptrdiff_t start = unit * BLOCKS_SPAN;
    const ptrdiff_t refused = w->kernels->formats[w->out_type].quantize_span(
        w->out, w->scales, w->x, start / block_elements(w->out_type),
        min_size(BLOCKS_SPAN, w->n - start), w->x_type);
    atomic_fetch_add(&w->refused, refused);
}

/*
 * quantize: codes and scales of blocks
 *
 *   codes   [code bytes of n elements, rounded up]
 *   scales  [blocks]  of the format's type
 *   x       [n]       any plain type
 *
 * Threads take spans of whole blocks. Returns the number of elements that are NaN or infinite;
 * their codes are unspecified. The caller checks that the format has a quantizer.
 */
ptrdiff_t quantize(void *codes, void *scales, const void *x, ptrdiff_t n, ElementType x_type,
                   ElementType type, int threads)
{
    Rows work = {.kernels = kernel_set()->rows, .out = codes, .scales = scales, .x = x, .n = n};
    work.x_type = x_type;
    work.out_type = type;
    const int workers = threads_for(n, ELEMENTS_PER_THREAD, threads);
    run_units(&work, quantize_unit, ceil_div(n, BLOCKS_SPAN), 1, workers);
    return atomic_load(&work.refused);
}

static void get_rows_unit(void *work, ptrdiff_t unit, int thread)
{
    (void)thread;
    Rows *w = work;
    const ElementType type = w->table->type;
    const ptrdiff_t t = unit / w->spans, start = unit % w->spans * BLOCKS_SPAN;
    const ptrdiff_t row = w->ids ? w->ids[t] : t, first = row * w->n + start;
    const ptrdiff_t count = min_size(BLOCKS_SPAN, w->n - start);
    char *out = w->out + (t * w->n + start) * type_bytes(w->out_type);
    if (row < 0 || row >= w->table_rows) {
        atomic_fetch_add(&w->refused, 1);
        return;
    }
    if (block_elements(type)) {
        w->kernels->formats[type].dequantize_span(out, w->table, first, count, w->out_type);
        return;
    }
    const char *x = (const char *)w->table->data + first * type_bytes(type);
    if (type == w->out_type)
        memcpy(out, x, (size_t)(count * type_bytes(type)));
    else
        w->kernels->convert_span(out, x, count, type, w->out_type);
}

/*
 * get_rows: out[t, i] = table[ids[t], i]
 *
 *   out    [T, D]  any plain type
 *   table  [V, D]  any type
 *   ids    [T], or NULL for t itself
 *
 * Threads take spans of the result. Returns the number of spans whose id is not in [0, V). These
 * spans are not written.
 */
ptrdiff_t get_rows(void *out, const Weight *table, const int32_t *ids, ptrdiff_t T, ptrdiff_t V,
                   ptrdiff_t D, ElementType out_type, int threads)
{
    Rows work = {.kernels = kernel_set()->rows, .out = out, .table = table, .ids = ids, .n = D};
    work.table_rows = V;
    work.spans = ceil_div(D, BLOCKS_SPAN);
    work.out_type = out_type;
    const int workers = threads_for(T * D, ELEMENTS_PER_THREAD, threads);
    run_units(&work, get_rows_unit, T * work.spans, 1, workers);
    return atomic_load(&work.refused);
}

/* The position of a token in the cache. */
static ptrdiff_t cache_position(const Rows *w, ptrdiff_t t)
{
    const ptrdiff_t position = w->start_pos + t;
    const ptrdiff_t block = position / ATTENTION_BLOCK, place = position % ATTENTION_BLOCK;
    return w->blocks ? w->blocks[block] * ATTENTION_BLOCK + place : position;
}

/* The scale of a block of q8_0 with an element that is not finite or too large: a NaN. */
static const uint16_t not_a_scale = 0x7E00;

/* Writes a head's element blocks to one position of a group in q8_0 (attention.h). The codes are
 * `apart` bytes from each other. */
static void write_blocks(const Rows *w, char *group, ptrdiff_t lane, const char *x, ptrdiff_t first,
                         ptrdiff_t apart)
{
    const ptrdiff_t bytes = q8_0_elements * type_bytes(w->x_type);
    char *codes = group + first, *scales = group + LANES * w->h + lane * 2;
    for (ptrdiff_t i = 0; i < w->h; i += q8_0_elements, x += bytes, scales += LANES * 2) {
        char block[q8_0_code_bytes];
        if (w->kernels->formats[TYPE_Q8_0].quantize_span(block, NULL, x, 0, q8_0_elements,
                                                         w->x_type))
            memcpy(block, &not_a_scale, 2);
        memcpy(scales, block, 2);
        for (int j = 0; j < q8_0_elements; j++, codes += apart)
            *codes = block[2 + j];
    }
}

static void write_q8_0_unit(void *work, ptrdiff_t t, int thread)
{
    (void)thread;
    const Rows *w = work;
    const ptrdiff_t bytes = w->h * type_bytes(w->x_type);
    const ptrdiff_t group_bytes = LANES * (w->h / q8_0_elements) * q8_0_code_bytes;
    const ptrdiff_t at = cache_position(w, t), lane = at % LANES;
    for (ptrdiff_t k = 0; k < w->heads && bytes > 0; k++) {
        const ptrdiff_t from = (t * w->heads + k) * bytes;
        const ptrdiff_t group = (k * w->positions + at) / LANES * group_bytes;
        write_blocks(w, w->out + group, lane, w->x + from, lane, LANES);
        write_blocks(w, w->values + group, lane, w->y + from, lane * w->h, 1);
    }
}

static void write_cache_unit(void *work, ptrdiff_t t, int thread)
{
    (void)thread;
    const Rows *w = work;
    const ptrdiff_t at = cache_position(w, t), bytes = w->h * type_bytes(w->x_type);
    for (ptrdiff_t k = 0; k < w->heads && bytes > 0; k++) {
        const ptrdiff_t from = (t * w->heads + k) * bytes;
        char *group = w->out + (k * w->positions + at / LANES * LANES) * bytes;
        for (ptrdiff_t word = 0; word < bytes; word += 4)
            memcpy(group + at % LANES * 4 + word * LANES, w->x + from + word, 4);
        memcpy(w->values + (k * w->positions + at) * bytes, w->y + from, (size_t)bytes);
    }
}

/*
 * write_cache: writes the keys and values of positions [start_pos, start_pos + T) to the cache
 *
 *   xk, xv  [T, K, h]              bfloat16 or float32, h even
 *   keys    [K, C/16, words, 16]   of the same type (attention.c)
 *   values  [K, C, h]
 *           or both in q8_0 [K, C/16, 16 * bytes] (attention.h), h a multiple of 32
 *   blocks  the positions of the sequence's blocks in the cache, or NULL (attention.c)
 *
 * The words of a key are written at every 16th place of its group of 16 positions. In q8_0, a block
 * with an element that is not finite, or larger than 127 times the largest float16, becomes NaN.
 * Threads take tokens.
 */
void write_cache(void *keys, void *values, const void *xk, const void *xv, const ptrdiff_t *blocks,
                 ptrdiff_t T, ptrdiff_t start_pos, ptrdiff_t K, ptrdiff_t h, ptrdiff_t C,
                 ElementType type, ElementType cache_type, int threads)
{
    Rows work = {.kernels = kernel_set()->rows, .out = keys, .values = values, .x = xk, .y = xv};
    work.blocks = blocks;
    work.start_pos = start_pos;
    work.heads = K;
    work.h = h;
    work.positions = C;
    work.x_type = type;
    const int workers = threads_for(T * K * h, ELEMENTS_PER_THREAD, threads);
    run_units(&work, cache_type == TYPE_Q8_0 ? write_q8_0_unit : write_cache_unit, T, 4, workers);
}

/*
 * choose_experts: the A experts of each token with the largest logits, in ascending order, and
 * their values
 *
 *   logits   [T, E]  float32
 *   values   [T, E]  float32; may be the logits
 *   experts  [T, A]  int32, 1 <= A <= E
 *   chosen   [T, A]  float32: the values of the experts
 *
 * Of equal logits, the lower number is chosen. A NaN is never larger than another logit, so it is
 * chosen last. Each expert goes to its place among the experts that are chosen already.
 */
void choose_experts(int32_t *experts, float *chosen, const float *logits, const float *values,
                    ptrdiff_t T, ptrdiff_t E, ptrdiff_t A)
{
    for (ptrdiff_t t = 0; t < T; t++, experts += A, chosen += A, logits += E, values += E) {
        for (ptrdiff_t a = 0; a < A; a++) {
            ptrdiff_t best = -1, next = 0;
            for (ptrdiff_t e = 0; e < E; e++) {
                if (next < a && experts[next] == e)
                    next++; /* this expert is chosen already */
                else if (best < 0 || logits[e] > logits[best]
                         || (logits[best] != logits[best] && logits[e] == logits[e]))
                    best = e;
            }
            ptrdiff_t place = a;
            for (; place > 0 && experts[place - 1] > best; place--)
                experts[place] = experts[place - 1];
            experts[place] = (int32_t)best;
        }
        for (ptrdiff_t a = 0; a < A; a++)
            chosen[a] = values[experts[a]];
    }
}
