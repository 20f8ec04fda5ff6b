#include "floats.h"

/*
 * rms_norm_reference: out[r, i] = x[r, i] * (1 / sqrt(mean over j of x[r, j]^2 + eps)) * weight[i]
 *
 *   out, x  [rows, D]  float32
 *   weight  [D]        float32
 *
 * This code is not optimized. Element j is added to lane j mod 16, and the lanes are reduced in
 * their fixed order, so rms_norm has the same bits. The caller checks contiguity, sizes and D > 0.
 */
void rms_norm_reference(float *out, const float *x, const float *weight, ptrdiff_t rows,
                        ptrdiff_t D, float eps)
{
    for (ptrdiff_t r = 0; r < rows; r++) {
        float lanes[LANES] = {0};
        for (ptrdiff_t j = 0; j < D; j++)
            lanes[j % LANES] += x[r * D + j] * x[r * D + j];
        const float scale = 1.0f / sqrtf(reduce_lanes(lanes) / (float)D + eps);
        for (ptrdiff_t i = 0; i < D; i++)
            out[r * D + i] = x[r * D + i] * scale * weight[i];
    }
}
