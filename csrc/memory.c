/* Memory that tensors leave: what the system takes back it has to clear for the next ones. */
#include "kernels.h"

#ifdef __GLIBC__
#include <malloc.h>

enum {
    /* Blocks of fewer bytes come from memory that malloc keeps; glibc takes no more than this. */
    MMAP_BYTES = 32 << 20,
    /* Bytes at the end of that memory that are kept: the activations of a prompt of 512 tokens. */
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
