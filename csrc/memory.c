/* Keeps freed memory of tensors, because memory that is returned to the system must be cleared
 * again before the next use. */
#include "kernels.h"

#ifdef __GLIBC__
#include <malloc.h>

enum {
    /* Smaller blocks are allocated from memory that malloc keeps. This is the largest value that
     * glibc accepts. */
    MMAP_BYTES = 32 << 20,
    /* Bytes that are kept at the end of that memory: the activations of a prompt of 512 tokens. */
    KEPT_BYTES = 128 << 20
};

void keep_freed_memory(void)
{
    mallopt(M_MMAP_THRESHOLD, MMAP_BYTES);
    mallopt(M_TRIM_THRESHOLD, KEPT_BYTES);
}
#else
void keep_freed_memory(void) {}
#endif
