#include "kernel_set.h"

typedef struct Tokens {
    const KernelSet *set;
    char *out;
    const char *x;
    const float *frequencies;
    ptrdiff_t heads, h;
    int halves;
    ElementType type;
} Tokens;

static void run_token(void *work, ptrdiff_t t, int thread)
{
    (void)thread;
    const Tokens *w = work;
    const ptrdiff_t at = t * w->heads * w->h * type_bytes(w->type);
    w->set->rotary_row(w->out + at, w->x + at, w->frequencies + t * w->h, w->heads, w->h, w->halves,
                       w->type);
}

/*
 * rotary: out[t, k, 2i] + i out[t, k, 2i+1] = (a + i b) * frequencies[t, i], where a and b are
 * x[t, k, 2i] and x[t, k, 2i+1], or with halves x[t, k, i] and x[t, k, i + h/2]
 *
 *   x            [T, heads, h]  bfloat16 or float32, h even
 *   frequencies  [T, h/2]       complex64: cos and sin of position times angle
 *   out          [T, heads, h]  the type of x; may be x itself without halves
 *
 * A query or key from Meta's weights has its pairs as neighbours, one from Hugging Face's weights
 * in the two halves of a head. The result has neighbours either way: all that follows is the same
 * arithmetic in the same order, and no weight is ever permuted. Computed in float32 and rounded
 * once. Threads take tokens, so that one row of frequencies serves all heads of a token from the
 * cache. Checked by the caller: contiguity and sizes.
 */
void rotary(void *out, const void *x, const void *frequencies, ptrdiff_t T, ptrdiff_t heads,
            ptrdiff_t h, int halves, ElementType type, int threads)
{
    const int workers = threads_for(T * heads * h, ELEMENTS_PER_THREAD, threads);
    run_units(&(Tokens){kernel_set(), out, x, frequencies, heads, h, halves, type}, run_token, T, 4,
              workers);
}
