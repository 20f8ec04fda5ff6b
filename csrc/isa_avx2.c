/* x86-64 with AVX2, FMA and F16C. */
#if defined(__x86_64__)
#define TARGETS "avx2,fma,f16c"
#define VECTORS "vectors_avx2.h"
#define CODES "codes_avx2.h"
#define KERNEL_SET kernel_set_avx2
#include "set_vector.h"
#endif
