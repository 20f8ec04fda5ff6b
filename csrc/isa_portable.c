/* Plain C11 for every processor; the compiler vectorises it for the machine it builds for. */
#include "attention_portable.h"
#include "formats.h"
#include "integer_portable.h"

typedef void (*dequantize_function)(void *out, const Weight *weight, ptrdiff_t first,
                                    ptrdiff_t count, ElementType out_type);

/* A widened K block is here its rows, of the type that the product runs in. */
INLINE void widen_rows(float *widened, const Weight *weight, ptrdiff_t row, ptrdiff_t rows,
                       ptrdiff_t in, ptrdiff_t start, ptrdiff_t count, const Product p,
                       ElementType type, const ptrdiff_t elements, const ptrdiff_t code_bytes,
                       const dequantize_function widen_span)
{
    (void)p, (void)elements, (void)code_bytes;
    for (ptrdiff_t r = 0; r < rows; r++)
        widen_span((char *)widened + r * K_BLOCK * type_bytes(type), weight, (row + r) * in + start,
                   count, type);
}

/* Integers are not widened: rows are read where they are. */
INLINE void widen_expanded(const IntegerKBlock *k, const ExpandedFormat f) { (void)k, (void)f; }

/* Exclusive or of all 32-bit words; how many are in flight is left to the compiler. */
static uint32_t read_span(const char *bytes, ptrdiff_t count, int streams)
{
    (void)streams;
    uint32_t all = 0, word;
    for (ptrdiff_t at = 0; at + 4 <= count; at += 4) {
        memcpy(&word, bytes + at, 4);
        all ^= word;
    }
    return all;
}

/* Nothing keeps a compiler from spilling the sums: no peak is claimed. */
static ptrdiff_t multiply_add_chains(float *result, const float *seeds, ptrdiff_t rounds,
                                     ElementType type)
{
    (void)type, (void)seeds, (void)rounds;
    *result = 0.0f;
    return 0;
}

#define KERNEL_SET kernel_set_portable
#include "set.inc"
