/* The probes of probe.c for a set with vector intrinsics. */
#pragma once
#include "probe/probe.h"
#include "products/tile.h"

/* Number of independent sums: larger than the latency of a multiply-add on all known processors. */
enum { CHAINS = 12, VEC_BYTES = VEC_LANES * 4 };

/* The exclusive or of all 32-bit words. `streams` parts of the span are read at the same time. */
INLINE uint32_t read_streams(const int streams, const char *bytes, ptrdiff_t count)
{
    const ptrdiff_t part = count / streams / VEC_BYTES * VEC_BYTES;
    vec_words acc[PROBE_STREAMS];
#pragma GCC unroll 8
    for (int s = 0; s < streams; s++)
        acc[s] = (vec_words){0};
    for (ptrdiff_t at = 0; at < part; at += VEC_BYTES)
#pragma GCC unroll 8
        for (int s = 0; s < streams; s++)
            acc[s] ^= (vec_words)load_float32(bytes + s * part + at, 0, 0);
    uint32_t all = 0, word;
    for (int s = 0; s < streams; s++)
        for (int l = 0; l < VEC_LANES; l++)
            all ^= acc[s][l];
    for (ptrdiff_t at = streams * part; at + 4 <= count; at += 4) {
        memcpy(&word, bytes + at, 4);
        all ^= word;
    }
    return all;
}

static uint32_t read_span(const char *bytes, ptrdiff_t count, int streams)
{
    switch (streams) {
    case 1: return read_streams(1, bytes, count);
    case 2: return read_streams(2, bytes, count);
    case 4: return read_streams(4, bytes, count);
    default: return read_streams(PROBE_STREAMS, bytes, count);
    }
}

/* Runs chains of multiply-adds. Their seeds differ, so that the compiler cannot merge chains. */
INLINE float run_chains(const mac_function mac, const float *seeds, ptrdiff_t rounds)
{
    const vec x = vec_load(seeds), w = vec_load(seeds + 1);
    vec acc[CHAINS];
    float lanes[VEC_LANES];
#pragma GCC unroll 12
    for (int i = 0; i < CHAINS; i++)
        acc[i] = vec_load(seeds + i);
    for (ptrdiff_t r = 0; r < rounds; r++)
#pragma GCC unroll 12
        for (int i = 0; i < CHAINS; i++)
            acc[i] = mac(acc[i], x, w);
    for (int i = 1; i < CHAINS; i++)
        acc[0] = mac(acc[0], acc[i], w);
    vec_store(lanes, acc[0]);
    return lanes[0];
}

static ptrdiff_t multiply_add_chains(float *result, const float *seeds, ptrdiff_t rounds,
                                     ElementType type)
{
    const int is_bfloat16 = type == TYPE_BFLOAT16;
    *result =
        is_bfloat16 ? run_chains(mac_pairs, seeds, rounds) : run_chains(mac_float32, seeds, rounds);
    return rounds * CHAINS * VEC_LANES * (is_bfloat16 && PAIR_PHASES == 1 ? 4 : 2);
}
