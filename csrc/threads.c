/* What this build was made with. */
#include "kernels.h"

int openmp_version(void)
{
#ifdef _OPENMP
    return _OPENMP;
#else
    return 0;
#endif
}

const char *compiler_version(void)
{
#if defined(LLAMA_BOLTS_EMULATE_BF16)
    return "test build, vdpbf16ps emulated";
#elif defined(__clang__)
    return "clang " __clang_version__;
#elif defined(__GNUC__)
    return "gcc " __VERSION__;
#else
    return "unknown";
#endif
}
