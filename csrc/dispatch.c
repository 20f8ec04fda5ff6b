/* Selects the instruction set at run time, among those that this build contains and this machine
 * can run, and describes this build. */
#include <stdatomic.h>
#include "kernels.h"

/* The kernels of each instruction set, which its units define (write_units.py). */
extern const RowKernels row_kernels_portable, row_kernels_avx2, row_kernels_avx512,
    row_kernels_avx512bf16, row_kernels_neon, row_kernels_neondot, row_kernels_neonbf16;
extern const struct ProductKernels product_kernels_portable, product_kernels_avx2,
    product_kernels_avx512, product_kernels_avx512bf16, product_kernels_neon,
    product_kernels_neondot, product_kernels_neonbf16;
extern const struct AttentionKernels attention_kernels_portable, attention_kernels_avx2,
    attention_kernels_avx512, attention_kernels_avx512bf16, attention_kernels_neon,
    attention_kernels_neondot, attention_kernels_neonbf16;
extern const struct ProbeKernels probe_kernels_portable, probe_kernels_avx2, probe_kernels_avx512,
    probe_kernels_avx512bf16, probe_kernels_neon, probe_kernels_neondot, probe_kernels_neonbf16;

static const KernelSet kernel_set_portable = {&row_kernels_portable, &product_kernels_portable,
                                              &attention_kernels_portable, &probe_kernels_portable,
                                              NULL};

#if defined(__x86_64__)
#include <cpuid.h>

extern const struct MatrixKernels matrix_kernels_avx512amx;

static const KernelSet kernel_set_avx2 = {&row_kernels_avx2, &product_kernels_avx2,
                                          &attention_kernels_avx2, &probe_kernels_avx2, NULL};
static const KernelSet kernel_set_avx512 = {&row_kernels_avx512, &product_kernels_avx512,
                                            &attention_kernels_avx512, &probe_kernels_avx512, NULL};
static const KernelSet kernel_set_avx512bf16 = {
    &row_kernels_avx512bf16, &product_kernels_avx512bf16, &attention_kernels_avx512bf16,
    &probe_kernels_avx512bf16, NULL};
#ifdef HAS_AMX
static const KernelSet kernel_set_avx512amx = {
    &row_kernels_avx512bf16, &product_kernels_avx512bf16, &attention_kernels_avx512bf16,
    &probe_kernels_avx512bf16, &matrix_kernels_avx512amx};
#endif

/* Older compilers do not support F16C in __builtin_cpu_supports. */
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
    return has_avx512() && __builtin_cpu_supports("avx512vnni")
           && __builtin_cpu_supports("avx512bf16");
#endif
}

#ifdef HAS_AMX

/* arch_prctl(ARCH_REQ_XCOMP_PERM, XFEATURE_XTILEDATA): Linux gives a process tile registers, and
 * its children too, after this call alone. It refuses them to a process with a signal stack that is
 * too small for them. */
static int ask_for_tiles(void)
{
    long result = 158; /* the number of arch_prctl */
    __asm__ volatile("syscall" : "+a"(result) : "D"(0x1023L), "S"(18L) : "rcx", "r11", "memory");
    return result == 0;
}

/* Tile registers and their products of bfloat16, which the system saves with a thread (XCR0). */
static int has_tiles(void)
{
    unsigned a, b, c, d, saved, upper;
    if (!has_avx512bf16() || !__get_cpuid_count(7, 0, &a, &b, &c, &d))
        return 0;
    __asm__ volatile("xgetbv" : "=a"(saved), "=d"(upper) : "c"(0));
    return (d >> 22 & 1) && (d >> 24 & 1) && (saved >> 17 & 3) == 3 && ask_for_tiles();
}

static const KernelSet *find_amx(void)
{
    static _Atomic int answer = 0; /* 1: yes, -1: no */
    if (atomic_load(&answer) == 0)
        atomic_store(&answer, has_tiles() ? 1 : -1);
    return atomic_load(&answer) == 1 ? &kernel_set_avx512amx : NULL;
}
#else
static const KernelSet *find_amx(void) { return NULL; }
#endif

static const KernelSet *find_set(InstructionSet isa)
{
    switch (isa) {
    case ISA_PORTABLE: return &kernel_set_portable;
    case ISA_AVX2: return has_avx2() ? &kernel_set_avx2 : NULL;
    case ISA_AVX512: return has_avx512() ? &kernel_set_avx512 : NULL;
    case ISA_AVX512BF16: return has_avx512bf16() ? &kernel_set_avx512bf16 : NULL;
    case ISA_AVX512AMX: return find_amx();
    case ISA_NEON:
    case ISA_NEONDOT:
    case ISA_NEONBF16: return NULL;
    }
    return NULL;
}

#elif defined(__aarch64__)
static const KernelSet kernel_set_neon = {&row_kernels_neon, &product_kernels_neon,
                                          &attention_kernels_neon, &probe_kernels_neon, NULL};
static const KernelSet kernel_set_neondot = {&row_kernels_neondot, &product_kernels_neondot,
                                             &attention_kernels_neondot, &probe_kernels_neondot,
                                             NULL};
static const KernelSet kernel_set_neonbf16 = {&row_kernels_neonbf16, &product_kernels_neonbf16,
                                              &attention_kernels_neonbf16, &probe_kernels_neonbf16,
                                              NULL};

#if defined(__APPLE__)
#include <sys/sysctl.h>

static int has_feature(const char *name)
{
    int has = 0;
    size_t size = sizeof has;
    return sysctlbyname(name, &has, &size, NULL, 0) == 0 && has;
}

static int has_dot(void) { return has_feature("hw.optional.arm.FEAT_DotProd"); }
static int has_bf16(void)
{
    return has_feature("hw.optional.arm.FEAT_BF16") && has_feature("hw.optional.arm.FEAT_I8MM");
}
#elif defined(__linux__)
#include <sys/auxv.h>

/* HWCAP_ASIMDDP, HWCAP2_I8MM and HWCAP2_BF16, which older headers do not define. */
static int has_dot(void) { return getauxval(AT_HWCAP) >> 20 & 1; }
static int has_bf16(void) { return (getauxval(AT_HWCAP2) >> 13 & 3) == 3; }
#else
static int has_dot(void) { return 0; }
static int has_bf16(void) { return 0; }
#endif

static const KernelSet *find_set(InstructionSet isa)
{
    switch (isa) {
    case ISA_PORTABLE: return &kernel_set_portable;
    case ISA_NEON: return &kernel_set_neon;
    case ISA_NEONDOT: return has_dot() ? &kernel_set_neondot : NULL;
    case ISA_NEONBF16: return has_bf16() ? &kernel_set_neonbf16 : NULL;
    case ISA_AVX2:
    case ISA_AVX512:
    case ISA_AVX512BF16:
    case ISA_AVX512AMX: return NULL;
    }
    return NULL;
}

#else
static const KernelSet *find_set(InstructionSet isa)
{
    return isa == ISA_PORTABLE ? &kernel_set_portable : NULL;
}
#endif

static _Atomic InstructionSet selected = ISA_PORTABLE;
static _Atomic(const KernelSet *) selected_set = &kernel_set_portable;

int isa_available(InstructionSet isa) { return find_set(isa) != NULL; }

int isa_select(InstructionSet isa)
{
    const KernelSet *set = find_set(isa);
    if (set == NULL)
        return 0;
    atomic_store(&selected, isa);
    atomic_store(&selected_set, set);
    return 1;
}

InstructionSet isa_selected(void) { return atomic_load(&selected); }
const KernelSet *kernel_set(void) { return atomic_load(&selected_set); }

const KernelSet *kernel_set_of_many(void)
{
    const KernelSet *set = kernel_set();
#ifdef LLAMA_BOLTS_EMULATE_BF16
    return set->products == &product_kernels_avx512bf16 ? &kernel_set_avx512 : set;
#elif defined(__x86_64__)
    /* On Emerald Rapids, and on a Xeon with AMX, vdpbf16ps takes twice as long as the two
     * multiply-adds that it replaces. */
    if (set->products == &product_kernels_avx512bf16 && __builtin_cpu_is("intel"))
        return &kernel_set_avx512;
#endif
    return set;
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
