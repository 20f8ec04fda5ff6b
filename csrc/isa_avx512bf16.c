/* x86-64 with AVX-512 F, BW, DQ, VL, VNNI and BF16. Panels keep bfloat16 pairs (one phase). */
#if defined(__x86_64__)
#define AVX512BF16
#ifdef LLAMA_BOLTS_EMULATE_BF16
#define TARGETS "avx2,fma,f16c,avx512f,avx512bw,avx512dq,avx512vl"
#else
#define TARGETS "avx2,fma,f16c,avx512f,avx512bw,avx512dq,avx512vl,avx512vnni,avx512bf16"
#endif
#define VECTORS "vectors_avx512.h"
#define CODES "codes_avx512.h"
#define KERNEL_SET kernel_set_avx512bf16
#include "set_vector.h"
#endif
