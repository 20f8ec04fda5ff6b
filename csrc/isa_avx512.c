/* x86-64 with AVX-512 F, BW, DQ and VL, without BF16. */
#if defined(__x86_64__)

#if defined(__clang__)
#pragma clang attribute push( \
    __attribute__((target("avx2,fma,f16c,avx512f,avx512bw,avx512dq,avx512vl"))), \
    apply_to = function)
#else
#pragma GCC target("avx2,fma,f16c,avx512f,avx512bw,avx512dq,avx512vl,prefer-vector-width=512")
#endif

#include "dot_avx512_widened.h"
#include "fold_x86.h"
#include "tile.h"

const KernelSet kernel_set_avx512 = {
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
