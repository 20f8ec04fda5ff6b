/* Arm with BF16 instructions. Panels keep bfloat16 pairs (one phase). */
#if defined(__aarch64__)
#define NEON_BF16
#define TARGETS "arch=armv8.2-a+bf16"
#define VECTORS "vectors_neon.h"
#define CODES "codes_neon.h"
#define INTEGERS "integer_fours.h"
#define KERNEL_SET kernel_set_neonbf16
#include "set_vector.h"
#endif
