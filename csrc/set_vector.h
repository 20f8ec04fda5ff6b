/* A set with vector intrinsics: all of its isa_*.c but the names of what it is made from. */
#pragma once

#ifndef TARGETS
#define TARGETS "avx2,fma,f16c"
#define CODES "codes_avx2.h"
#define KERNEL_SET kernel_set_avx2
#endif
#ifndef INTEGERS
#define INTEGERS "integer_tile.h"
#endif

#define PRAGMA_TEXT(...) _Pragma(#__VA_ARGS__)
#define PRAGMA(...) PRAGMA_TEXT(__VA_ARGS__)
/* clang-format off */
#if defined(__clang__)
PRAGMA(clang attribute push(__attribute__((target(TARGETS))), apply_to = function))
#elif defined(__aarch64__)
PRAGMA(GCC target(TARGETS))
#else
PRAGMA(GCC target(TARGETS, "prefer-vector-width=512"))
#endif
/* clang-format on */

#include "attention_tile.h"
#include "float8_vectors.h"
#include INTEGERS
#include "probe_vector.h"
#include "widen_tile.h"
#include "set.inc"

#if defined(__clang__)
#pragma clang attribute pop
#endif
