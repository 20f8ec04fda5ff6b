/* x86-64 with AVX-512 F, BW, DQ, VL and BF16. Panels keep bfloat16 pairs (one phase). */
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

const KernelSet kernel_set_avx512bf16 = {
    .pack_panel = pack_panel,
    .multiply_stretch = multiply_stretch,
    .multiply_row = multiply_row,
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
