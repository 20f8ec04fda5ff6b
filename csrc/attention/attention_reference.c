#include "floats.h"

/* A sum of products of the elements from `first` to n: a chain of fused steps for each block of
 * 256, which begins at a multiple of 256, and the sum of the blocks in order. */
static float sum_products(const float *a, const float *b, ptrdiff_t b_stride, ptrdiff_t first,
                          ptrdiff_t n)
{
    float total = 0.0f;
    for (ptrdiff_t i = first; i < n;) {
        const ptrdiff_t end = min_size(n, (i / ATTENTION_BLOCK + 1) * ATTENTION_BLOCK);
        float chain = 0.0f;
        for (; i < end; i++)
            chain = fused_multiply_add(a[i], b[i * b_stride], chain);
        total += chain;
    }
    return total;
}

/*
 * attention_reference: out[t, i, :] = sum over s of p[s] * values[s, j, :],
 *     p = softmax over s of cap(scale * xq[t, i, :] . keys[s, j, :]),
 *     for start_pos + t - window < s <= start_pos + t, with j = i / (H / K)
 *
 *   out, xq       [T, H, h]              float32
 *   keys, values  [start_pos + T, K, h]  float32, in the order of positions
 *   sinks         [H]                    float32, or NULL: a score that has no value
 *   p             [start_pos + T]        scratch: scores, and then weights
 *
 * window is 0 if a token sees all earlier positions; cap(x) is soft_cap * tanh(x / soft_cap), or x
 * if soft_cap is 0. This code is not optimized. attention has the same bits. The exponential of
 * position s is added to lane s mod 16 of their sum, and that of a sink to lane 0 before them. The
 * caller checks contiguity and sizes, and that arguments do not overlap.
 */
void attention_reference(float *out, float *p, const float *xq, const float *keys,
                         const float *values, const float *sinks, ptrdiff_t T, ptrdiff_t start_pos,
                         ptrdiff_t H, ptrdiff_t K, ptrdiff_t h, ptrdiff_t window, float scale,
                         float soft_cap)
{
    for (ptrdiff_t t = 0; t < T; t++)
        for (ptrdiff_t i = 0; i < H; i++) {
            const ptrdiff_t seen = start_pos + t + 1, row = (t * H + i) * h, head = i / (H / K) * h;
            const ptrdiff_t first = window && window < seen ? seen - window : 0;
            float largest = sinks ? sinks[i] : -INFINITY, lanes[LANES] = {0};
            for (ptrdiff_t s = first; s < seen; s++) {
                p[s] = sum_products(xq + row, keys + s * K * h + head, 1, 0, h) * scale;
                if (soft_cap > 0.0f)
                    p[s] = soft_cap_f32(p[s], soft_cap);
                largest = p[s] > largest ? p[s] : largest;
            }
            if (sinks)
                lanes[0] = exp_f32(sinks[i] - largest);
            for (ptrdiff_t s = first; s < seen; s++) {
                p[s] = exp_f32(p[s] - largest);
                lanes[s % LANES] += p[s];
            }
            const float factor = 1.0f / reduce_lanes(lanes);
            for (ptrdiff_t s = first; s < seen; s++)
                p[s] = p[s] * factor;
            for (ptrdiff_t d = 0; d < h; d++)
                out[row + d] = sum_products(p, values + head + d, K * h, first, seen);
        }
}
