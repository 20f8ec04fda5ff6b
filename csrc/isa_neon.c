/* Arm with NEON, which all 64-bit processors have. */
#if defined(__aarch64__)
#define TARGETS "+simd"
#define VECTORS "vectors_neon.h"
#define CODES "codes_neon.h"
#define INTEGERS "integer_fours.h"
#define KERNEL_SET kernel_set_neon
#include "set_vector.h"
#endif
