#include "kernels.h"

/*
 * linear_reference: out[t, o] = sum over i of x[t, i] * weight[o, i], + bias[o]
 *
 *   out     [T, rows]   float32
 *   x       [T, in]     float32
 *   weight  [rows, in]  float32
 *   bias    [rows]      float32, or NULL
 *
 * What a product is, with nothing done for speed; linear.c has the same result up to rounding.
 * Checked by the caller: contiguity, sizes, and that out overlaps nothing.
 */
void linear_reference(float *out, const float *x, const float *weight, const float *bias,
                      ptrdiff_t T, ptrdiff_t in, ptrdiff_t rows)
{
    for (ptrdiff_t t = 0; t < T; t++)
        for (ptrdiff_t o = 0; o < rows; o++) {
            float sum = 0.0f;
            for (ptrdiff_t i = 0; i < in; i++)
                sum += x[t * in + i] * weight[o * in + i];
            out[t * rows + o] = bias ? sum + bias[o] : sum;
        }
}
