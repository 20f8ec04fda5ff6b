#include "kernel_set.h"

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
void rotary(void *out, const void *x, const float *frequencies, ptrdiff_t T, ptrdiff_t heads,
            ptrdiff_t h, int halves, ElementType type, int threads)
{
    const KernelSet *set = kernel_set();
    const ptrdiff_t row_bytes = heads * h * type_bytes(type);
    const int workers = threads_for(T * heads * h, ELEMENTS_PER_THREAD, threads);
#pragma omp parallel for schedule(dynamic, 4) num_threads(workers) if (workers > 1)
    for (ptrdiff_t t = 0; t < T; t++)
        set->rotary_row((char *)out + t * row_bytes, (const char *)x + t * row_bytes,
                        frequencies + t * h, heads, h, halves, type);
}
