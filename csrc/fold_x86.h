/* The last folds of a sum, from four lanes to one: + 2, then + 1. Included after a dot_*.h. */
#ifndef LLAMA_BOLTS_FOLD_X86_H
#define LLAMA_BOLTS_FOLD_X86_H

#include "kernel_set.h"

INLINE float fold_vectors(const vec *v)
{
    const __m128 four = fold_to_four(v);
    const __m128 two = _mm_add_ps(four, _mm_movehl_ps(four, four));
    return _mm_cvtss_f32(_mm_add_ss(two, _mm_movehdup_ps(two)));
}

/* The same for four neighbouring rows at once, by transposing what is left of them. */
INLINE void fold_four_rows(const vec *v, float *out)
{
    enum { STEP = LANES / VEC_LANES };
    __m128 a = fold_to_four(v), b = fold_to_four(v + STEP);
    __m128 c = fold_to_four(v + 2 * STEP), d = fold_to_four(v + 3 * STEP);
    _MM_TRANSPOSE4_PS(a, b, c, d);
    _mm_storeu_ps(out, _mm_add_ps(_mm_add_ps(a, c), _mm_add_ps(b, d)));
}

#endif
