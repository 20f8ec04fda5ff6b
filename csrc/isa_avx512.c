/* x86-64 with AVX-512 F, BW, DQ and VL, without BF16. */
#if defined(__x86_64__)
#define TARGETS "avx2,fma,f16c,avx512f,avx512bw,avx512dq,avx512vl"
#define VECTORS "vectors_avx512.h"
#define CODES "codes_avx512.h"
#define KERNEL_SET kernel_set_avx512
#include "set_vector.h"
#endif
