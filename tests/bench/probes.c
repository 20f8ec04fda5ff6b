/*
 * The machine's roofs: how fast memory is read, and how fast products are added up.
 *
 * Built by roofs.py with the compiler of the machine, for benchmarks only.
 */
#include <stddef.h>
#include <stdint.h>
#include <string.h>
#include <time.h>

#if defined(__x86_64__)
#include <immintrin.h>
#endif

enum { CHUNK = 1 << 20, STREAMS = 4, REGISTERS = 12 };

static double seconds(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec + 1e-9 * (double)now.tv_nsec;
}

/* Bytes per second of one pass over a buffer, by all threads, each reading four streams side by
 * side; the sum keeps the reads alive. */
double read_rate(const char *buffer, ptrdiff_t bytes, int threads, uint64_t *sum)
{
    uint64_t total = 0;
    const double start = seconds();
#pragma omp parallel for schedule(dynamic, 1) num_threads(threads) reduction(+ : total)
    for (ptrdiff_t at = 0; at < bytes / CHUNK; at++) {
        uint64_t lanes[16] = {0};
        for (ptrdiff_t i = 0; i < CHUNK / STREAMS; i += (ptrdiff_t)sizeof lanes)
            for (ptrdiff_t stream = 0; stream < STREAMS; stream++) {
                uint64_t words[16];
                memcpy(words, buffer + at * CHUNK + stream * (CHUNK / STREAMS) + i, sizeof words);
                for (int l = 0; l < 16; l++)
                    lanes[l] += words[l];
            }
        for (int l = 0; l < 16; l++)
            total += lanes[l];
    }
    *sum = total;
    return (double)(bytes / CHUNK * CHUNK) / (seconds() - start);
}

#if defined(__x86_64__)

/* The empty asm keeps the compiler from folding the registers into one. */
#define CHAIN(name, isa, vector, zero, step)                                  \
    __attribute__((target(isa), noinline)) static void name(ptrdiff_t rounds) \
    {                                                                         \
        vector acc[REGISTERS], x = zero();                                    \
        _Pragma("GCC unroll 12") for (int i = 0; i < REGISTERS; i++)          \
            acc[i] = zero();                                                  \
        for (ptrdiff_t r = 0; r < rounds; r++) {                              \
            _Pragma("GCC unroll 12") for (int i = 0; i < REGISTERS; i++)      \
            {                                                                 \
                acc[i] = step;                                                \
                __asm__ volatile("" : "+v"(acc[i]), "+v"(x));                 \
            }                                                                 \
        }                                                                     \
    }

CHAIN(chain_avx2, "avx2,fma", __m256, _mm256_setzero_ps, _mm256_fmadd_ps(x, x, acc[i]))
CHAIN(chain_avx512, "avx512f", __m512, _mm512_setzero_ps, _mm512_fmadd_ps(x, x, acc[i]))
CHAIN(chain_bf16, "avx512f,avx512bf16", __m512, _mm512_setzero_ps,
      _mm512_dpbf16_ps(acc[i], (__m512bh)x, (__m512bh)x))

/* Multiplications and additions per second in registers; 0 for an instruction set unknown here. */
double multiply_add_rate(const char *isa, ptrdiff_t rounds, int threads)
{
    const int bf16 = strcmp(isa, "avx512bf16") == 0, wide = strcmp(isa, "avx512") == 0;
    if (!bf16 && !wide && strcmp(isa, "avx2") != 0)
        return 0;
    const double per_step = bf16 ? 64 : wide ? 32 : 16;
    const double start = seconds();
#pragma omp parallel num_threads(threads)
    (bf16 ? chain_bf16 : wide ? chain_avx512 : chain_avx2)(rounds);
    return per_step * REGISTERS * (double)rounds * threads / (seconds() - start);
}

#else

double multiply_add_rate(const char *isa, ptrdiff_t rounds, int threads)
{
    (void)isa, (void)rounds, (void)threads;
    return 0;
}

#endif
