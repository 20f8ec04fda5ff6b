/* Arm with dot products of int8. */
#if defined(__aarch64__)
#define NEON_DOT
#define TARGETS "arch=armv8.2-a+dotprod"
#define VECTORS "vectors_neon.h"
#define CODES "codes_neon.h"
#define INTEGERS "integer_fours.h"
#define KERNEL_SET kernel_set_neondot
#include "set_vector.h"
#endif
