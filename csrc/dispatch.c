/* Chooses the instruction set at run time, from what this build holds and this machine can run. */
#include "kernel_set.h"

#include <stdatomic.h>

#if defined(__x86_64__)
#include <cpuid.h>

/* F16C has no name in the older compilers' __builtin_cpu_supports. */
static int has_f16c(void)
{
    unsigned a, b, c, d;
    return __get_cpuid(1, &a, &b, &c, &d) && (c & (1u << 29)) != 0;
}

static int has_avx2(void)
{
    return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && has_f16c();
}

static int has_avx512(void)
{
    return has_avx2() && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw")
           && __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl");
}

static int has_avx512bf16(void)
{
#ifdef LLAMA_BOLTS_EMULATE_BF16
    return has_avx512();
#else
    return has_avx512() && __builtin_cpu_supports("avx512bf16");
#endif
}

static const KernelSet *find_set(int isa)
{
    switch (isa) {
    case ISA_PORTABLE: return &kernel_set_portable;
    case ISA_AVX2: return has_avx2() ? &kernel_set_avx2 : NULL;
    case ISA_AVX512: return has_avx512() ? &kernel_set_avx512 : NULL;
    case ISA_AVX512BF16: return has_avx512bf16() ? &kernel_set_avx512bf16 : NULL;
    default: return NULL;
    }
}

#else

static const KernelSet *find_set(int isa)
{
    return isa == ISA_PORTABLE ? &kernel_set_portable : NULL;
}

#endif

static _Atomic int selected = ISA_PORTABLE;
static _Atomic(const KernelSet *) selected_set = &kernel_set_portable;

int isa_available(int isa)
{
    return find_set(isa) != NULL;
}

int isa_select(int isa)
{
    const KernelSet *set = find_set(isa);
    if (set == NULL)
        return 0;
    atomic_store(&selected, isa);
    atomic_store(&selected_set, set);
    return 1;
}

int isa_selected(void)
{
    return atomic_load(&selected);
}

const KernelSet *kernel_set(void)
{
    return atomic_load(&selected_set);
}
