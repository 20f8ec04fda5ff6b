/*
 * Runs regions of one span and of three, and counts how often each unit was run: once is right.
 *
 * It is built together with csrc/threads.c as a test build, in which a thread that lets others run
 * sleeps for some time. So the workers come while a region is opened, and after it has ended.
 */
#include "kernels.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { MOST_UNITS = 400, REGIONS = 20, MOST_MICROSECONDS = 200, MOST_SECONDS = 20 };

int sleep_for_some_time(void) { return usleep((useconds_t)(rand() % MOST_MICROSECONDS)); }

static void count_units(void *counts, ptrdiff_t first, ptrdiff_t count, int thread)
{
    (void)thread;
    for (ptrdiff_t unit = first; unit < first + count; unit++)
        ((int *)counts)[unit]++;
}

int main(int argc, char **argv)
{
    static int counts[MOST_UNITS];
    int wrong = 0;
    srand(argc > 1 ? (unsigned)atoi(argv[1]) : 0);
    alarm(MOST_SECONDS); /* a region that never ends is a failure too */
    for (int region = 0; region < REGIONS; region++) {
        const int has_spans = region % 3 == 2;
        const ptrdiff_t units = has_spans ? 61 + region : 18;
        const Shares shares = has_spans ? (Shares){8, 64, 3} : (Shares){1, 1, 1};
        memset(counts, 0, sizeof counts);
        run_ranges(counts, count_units, units, shares, 3);
        for (ptrdiff_t unit = 0; unit < units; unit++)
            wrong += counts[unit] != 1;
    }
    printf("%d units were not run once\n", wrong);
    return 0;
}
