/* x86-64 with AVX2, FMA and F16C. */
#if defined(__x86_64__)

#if defined(__clang__)
#pragma clang attribute push(__attribute__((target("avx2,fma,f16c"))), apply_to = function)
#else
#pragma GCC target("avx2,fma,f16c")
#endif

#include "dot_avx2.h"
#include "fold_x86.h"
#include "attention_tile.h"
#include "probe_vector.h"
#include "int8_avx2.h"
#include "nf4_avx2.h"
#include "quantized_tile.h"

DEFINE_KERNEL_SET(kernel_set_avx2);

#if defined(__clang__)
#pragma clang attribute pop
#endif

#endif
