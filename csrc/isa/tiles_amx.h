/*
 * The tile registers of Intel's AMX (HAS_AMX in kernels.h): eight registers, tmm0 to tmm7, of up to
 * 16 rows of 64 bytes.
 *
 * The instructions are written out: gcc 12's own functions for them do not tell the compiler which
 * memory they read. A register is named by its number, a constant. No thread may leave
 * TILES_BEGIN ... TILES_END while tiles are in use: other code may use the registers too, and the
 * system saves 8 KB at each switch of threads while they are configured.
 */
#pragma once
#include "kernels.h"

enum {
    TILE_BYTES = 1024, /* of a whole register */
    TILE_LINE = 64     /* of a row of a whole register; rows of memory are as far apart here */
};

/* The sizes of all registers, as ldtilecfg reads them. */
typedef struct TileSizes {
    uint8_t palette; /* 1 */
    uint8_t start_row;
    uint8_t reserved[14];
    uint16_t row_bytes[16]; /* of eight registers; the others are reserved */
    uint8_t rows[16];
} TileSizes;
_Static_assert(sizeof(TileSizes) == 64, "what ldtilecfg reads");

#define TILES_BEGIN(sizes) __asm__ volatile("ldtilecfg %0" : : "m"(sizes))
#define TILES_END() __asm__ volatile("tilerelease")
#define TILE_ZERO(tile) __asm__ volatile("tilezero %%tmm" #tile : :)
#define TILE_LOAD(tile, from)                               \
    __asm__ volatile("tileloadd (%0,%1,1), %%tmm" #tile     \
                     :                                      \
                     : "r"(from), "r"((ptrdiff_t)TILE_LINE) \
                     : "memory")
#define TILE_STORE(tile, to)                                \
    __asm__ volatile("tilestored %%tmm" #tile ", (%0,%1,1)" \
                     :                                      \
                     : "r"(to), "r"((ptrdiff_t)TILE_LINE)   \
                     : "memory")

/* sum[m][n] += sum over pairs k of a[m][2k] * b[k][2n] + a[m][2k+1] * b[k][2n+1], of bfloat16:
 * float32 sums of all pairs from zero, of which one addition to sum follows. */
#define TILE_MULTIPLY(sum, a, b) \
    __asm__ volatile("tdpbf16ps %%tmm" #b ", %%tmm" #a ", %%tmm" #sum : :)
