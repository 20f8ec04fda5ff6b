/* Arm with the instructions of BF16 and i8mm. Panels keep bfloat16 pairs (one phase). */
#if defined(__aarch64__)
#define NEON_BF16
#define NEON_DOT
#define NEON_I8MM
#define TARGETS "arch=armv8.2-a+bf16+dotprod+i8mm"
#define VECTORS "vectors_neon.h"
#define CODES "codes_neon.h"
#define INTEGERS "integer_fours.h"
#define KERNEL_SET kernel_set_neonbf16
#include "set_vector.h"
#endif
