#include "kernels.h"

/*
 * rotary_reference: out[t, k, 2i] + i out[t, k, 2i+1] = (a + i b) * (c + i s), where a and b are
 * x[t, k, 2i] and x[t, k, 2i+1], or with halves x[t, k, i] and x[t, k, i + h/2]
 *
 *   out, x       [T, heads, h]   float32, h even
 *   frequencies  [T, h/2][c, s]  float32: cos and sin of position times angle
 *
 * This code is not optimized. rotary has the same bits. The caller checks contiguity and sizes, and
 * that out does not overlap x.
 */
void rotary_reference(float *out, const float *x, const float *frequencies, ptrdiff_t T,
                      ptrdiff_t heads, ptrdiff_t h, int halves)
{
    for (ptrdiff_t t = 0; t < T; t++)
        for (ptrdiff_t k = 0; k < heads; k++) {
            const ptrdiff_t head = (t * heads + k) * h;
            for (ptrdiff_t i = 0; i < h / 2; i++) {
                const float a = x[head + (halves ? i : 2 * i)];
                const float b = x[head + (halves ? i + h / 2 : 2 * i + 1)];
                const float c = frequencies[t * h + 2 * i];
                const float s = frequencies[t * h + 2 * i + 1];
                out[head + 2 * i] = a * c - b * s;
                out[head + 2 * i + 1] = a * s + b * c;
            }
        }
}
