#include "kernels.h"

/*
 * linear_reference: out[t, o] = sum over i of x[t, i] * weight[o, i], + bias[o]
 *
 *   out     [T, rows]   float32
 *   x       [T, in]     float32
 *   weight  [rows, in]  float32
 *   bias    [rows]      float32, or NULL
 *
 * This code defines the product and is not optimized. linear.c has the same result except for
 * rounding. The caller checks contiguity and sizes, and that out does not overlap any other
 * argument.
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
