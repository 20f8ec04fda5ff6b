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
#include "attention_tile.h"
#include "probe_vector.h"
#include "int8_avx512.h"
#include "nf4_avx512.h"
#include "quantized_tile.h"

DEFINE_KERNEL_SET(kernel_set_avx512);

#if defined(__clang__)
#pragma clang attribute pop
#endif

#endif
