/*
 * The functions of libgomp that compiled kernels call, on pthreads, for ThreadSanitizer, which does
 * not see how the threads of libgomp wait for one another. Each region starts its threads and joins
 * them. Iterations are handed out by relaxed additions, which order nothing between threads, so
 * that no race of two iterations is hidden; each is followed by a yield, so that all take part.
 */
#define _POSIX_C_SOURCE 200809L
#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdbool.h>

enum { MOST_THREADS = 16, MOST_LOOPS = 4 };

typedef struct Team {
    void (*body)(void *);
    void *data;
    int size;
    pthread_barrier_t barrier;
    _Atomic long next[MOST_LOOPS]; /* how many chunks of each loop were taken */
} Team;

typedef struct Member {
    Team *team;
    int number;
} Member;

typedef struct Loop {
    int number;
    long start, end, increment, chunk;
} Loop;

static _Thread_local Member self;
static _Thread_local Loop loop;
static pthread_mutex_t atomic_lock = PTHREAD_MUTEX_INITIALIZER;
/* Parallel regions that ran on more than one thread. */
long regions_of_many_threads;

static void *run_member(void *member)
{
    self = *(Member *)member;
    loop = (Loop){.number = -1};
    pthread_barrier_wait(&self.team->barrier);
    self.team->body(self.team->data);
    return NULL;
}

void GOMP_parallel(void (*body)(void *), void *data, unsigned threads, unsigned flags)
{
    (void)flags;
    Team team = {.body = body, .data = data, .size = (int)threads};
    Member members[MOST_THREADS];
    pthread_t ids[MOST_THREADS];
    if (threads < 1 || threads > MOST_THREADS)
        __builtin_trap();
    pthread_barrier_init(&team.barrier, NULL, threads);
    for (int i = 0; i < team.size; i++)
        members[i] = (Member){&team, i};
    for (int i = 1; i < team.size; i++)
        if (pthread_create(&ids[i], NULL, run_member, &members[i]))
            __builtin_trap();
    run_member(&members[0]);
    for (int i = 1; i < team.size; i++)
        pthread_join(ids[i], NULL);
    pthread_barrier_destroy(&team.barrier);
    regions_of_many_threads += team.size > 1;
    self = (Member){0};
}

bool GOMP_loop_nonmonotonic_dynamic_next(long *start, long *end)
{
    const long step = loop.chunk * loop.increment;
    sched_yield();
    *start = loop.start + step * atomic_fetch_add_explicit(&self.team->next[loop.number], 1,
                                                           memory_order_relaxed);
    *end = *start + step > loop.end ? loop.end : *start + step;
    return *start < loop.end;
}

bool GOMP_loop_nonmonotonic_dynamic_start(long from, long to, long increment, long chunk,
                                          long *start, long *end)
{
    loop = (Loop){loop.number + 1, from, to, increment, chunk};
    if (loop.number == MOST_LOOPS || increment < 1)
        __builtin_trap();
    return GOMP_loop_nonmonotonic_dynamic_next(start, end);
}

void GOMP_barrier(void) { pthread_barrier_wait(&self.team->barrier); }
void GOMP_loop_end(void) { GOMP_barrier(); }
void GOMP_loop_end_nowait(void) {}
void GOMP_atomic_start(void) { pthread_mutex_lock(&atomic_lock); }
void GOMP_atomic_end(void) { pthread_mutex_unlock(&atomic_lock); }
int omp_get_thread_num(void) { return self.number; }
int omp_get_num_threads(void) { return self.team ? self.team->size : 1; }
