/* x86-64 with AVX2, FMA and F16C. */
#if defined(__x86_64__)

#if defined(__clang__)
#pragma clang attribute push(__attribute__((target("avx2,fma,f16c"))), apply_to = function)
#else
#pragma GCC target("avx2,fma,f16c")
#endif

#include "dot_avx2.h"
#include "fold_x86.h"
#include "tile.h"

const KernelSet kernel_set_avx2 = {
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
