/* x86-64 with AVX-512 F, BW, DQ, VL and BF16. Panels keep bfloat16 pairs, as vdpbf16ps takes. */
#if defined(__x86_64__)

#if defined(__clang__)
#pragma clang attribute push( \
    __attribute__((target("avx2,fma,f16c,avx512f,avx512bw,avx512dq,avx512vl,avx512bf16"))), \
    apply_to = function)
#elif defined(LLAMA_BOLTS_EMULATE_BF16)
#pragma GCC target("avx2,fma,f16c,avx512f,avx512bw,avx512dq,avx512vl,prefer-vector-width=512")
#else
#pragma GCC target( \
    "avx2,fma,f16c,avx512f,avx512bw,avx512dq,avx512vl,avx512bf16,prefer-vector-width=512")
#endif

#include "dot_avx512bf16.h"
#include "fold_x86.h"
#include "tile.h"

/* bfloat16: [block of 32 elements][token][32], padded by zeros; the rest as everywhere. */
static void pack_panel_pairs(int kind, const char *x, ptrdiff_t x_stride, int tokens, ptrdiff_t in,
                             void *panel)
{
    if (kind != PRODUCT_BF16) {
        pack_panel_f32(kind, x, x_stride, tokens, in, panel);
        return;
    }
    for (int t = 0; t < tokens; t++) {
        const char *row = x + t * x_stride;
        char *out = (char *)panel + t * 64;
        for (ptrdiff_t at = 0; at < 2 * in; at += 64, out += tokens * 64) {
            char pairs[64] = {0};
            memcpy(pairs, row + at, (size_t)min_size(64, 2 * in - at));
            memcpy(out, pairs, sizeof pairs);
        }
    }
}

const KernelSet kernel_set_avx512bf16 = {
    .panel_block_bytes = {64, 64, 64},
    .pack_panel = pack_panel_pairs,
    .tile_rows = tile_rows,
    .softmax_row = softmax_row,
    .rms_norm_row = rms_norm_row,
    .rotary_row = rotary_row,
    .elementwise_span = elementwise_span,
    .argmax_row = argmax_row,
    .convert_span = convert_span,
};

#if defined(__clang__)
#pragma clang attribute pop
#endif

#endif
