/*
 * Work is split over threads in this one place: by OpenMP where the compiler has it; else, so that
 * no OpenMP library has to be shipped (two of them in one process may hang it), by a pool of
 * pthreads; else not at all.
 *
 * The pool has no barrier: a region is open while the caller runs units, workers join it if they
 * wake in time, and the caller waits for those that have. So a thread that the system holds up, or
 * a forked child that has none, costs nothing. While one Python thread uses the pool, another one
 * runs its units alone.
 */
#define _POSIX_C_SOURCE 200809L
#include "kernel_set.h"

static void run_alone(void *work, unit_function run, ptrdiff_t count)
{
    for (ptrdiff_t unit = 0; unit < count; unit++)
        run(work, unit, 0);
}

#if defined(_OPENMP)
#include <omp.h>

const char *threading(void) { return "OpenMP"; }
int openmp_version(void) { return _OPENMP; }

void run_units(void *work, unit_function run, ptrdiff_t count, ptrdiff_t chunk, int threads)
{
    if (threads < 2 || count <= chunk) {
        run_alone(work, run, count);
        return;
    }
#pragma omp parallel for schedule(dynamic, chunk) num_threads(threads)
    for (ptrdiff_t unit = 0; unit < count; unit++)
        run(work, unit, omp_get_thread_num());
}

#elif defined(LLAMA_BOLTS_PTHREADS)
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdatomic.h>
#include <time.h>

enum {
    MOST_WORKERS = 255,
    /* How long a thread spins before it sleeps: longer than the Python between two products. */
    SPIN_NANOSECONDS = 200000
};

typedef struct Worker {
    int number;
    unsigned seen; /* the last region that it joined */
} Worker;

static struct Pool {
    pthread_mutex_t in_use, lock;        /* the lock is for the two conditions */
    pthread_cond_t opened, left;         /* a region was opened; its last worker left it */
    _Atomic int idle_workers, idle_user; /* how many sleep until then */
    _Atomic unsigned region;             /* odd while one is open */
    _Atomic int active;                  /* workers that may be in it */
    _Atomic int threads;
    int started;
    Worker workers[MOST_WORKERS];
    /* Of the region. */
    void *work;
    unit_function run;
    ptrdiff_t count, chunk;
    _Atomic ptrdiff_t next; /* the first unit that nobody has taken */
} pool = {.in_use = PTHREAD_MUTEX_INITIALIZER,
          .lock = PTHREAD_MUTEX_INITIALIZER,
          .opened = PTHREAD_COND_INITIALIZER,
          .left = PTHREAD_COND_INITIALIZER};

const char *threading(void) { return "pthreads"; }
int openmp_version(void) { return 0; }

static void spin_pause(void)
{
#if defined(__x86_64__)
    __builtin_ia32_pause();
#elif defined(__aarch64__)
    __asm__ volatile("isb");
#endif
}

static int64_t nanoseconds(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (int64_t)now.tv_sec * 1000000000 + now.tv_nsec;
}

static int has_region(const Worker *worker)
{
    const unsigned region = atomic_load(&pool.region);
    return region % 2 && region != worker->seen && worker->number < atomic_load(&pool.threads);
}

static int all_have_left(const Worker *worker)
{
    (void)worker;
    return atomic_load(&pool.active) == 0;
}

/* Spins, and then sleeps, until it holds. Who makes it hold then looks at `idle`: one of the two
 * sees what the other has written. */
static void wait_until(int (*holds)(const Worker *worker), const Worker *worker,
                       pthread_cond_t *changed, _Atomic int *idle)
{
    const int64_t end = nanoseconds() + SPIN_NANOSECONDS;
    do {
        if (holds(worker))
            return;
        spin_pause();
    } while (nanoseconds() < end);
    pthread_mutex_lock(&pool.lock);
    atomic_fetch_add(idle, 1);
    while (!holds(worker))
        pthread_cond_wait(changed, &pool.lock);
    atomic_fetch_sub(idle, 1);
    pthread_mutex_unlock(&pool.lock);
}

static void wake(pthread_cond_t *changed, _Atomic int *idle)
{
    if (atomic_load(idle) == 0)
        return;
    pthread_mutex_lock(&pool.lock);
    pthread_cond_broadcast(changed);
    pthread_mutex_unlock(&pool.lock);
}

static void take_units(int thread)
{
    for (ptrdiff_t unit, end;;) {
        unit = atomic_fetch_add_explicit(&pool.next, pool.chunk, memory_order_relaxed);
        end = min_size(unit + pool.chunk, pool.count);
        if (unit >= end)
            return;
        for (; unit < end; unit++)
            pool.run(pool.work, unit, thread);
#ifdef LLAMA_BOLTS_ALL_THREADS /* test builds: all take part */
        sched_yield();
#endif
    }
}

static void *work_for_ever(void *argument)
{
    Worker *self = argument;
    for (;;) {
        wait_until(has_region, self, &pool.opened, &pool.idle_workers);
        /* First active, then a look whether the region is still open: its user closes it, and then
         * looks whether anybody is active. */
        atomic_fetch_add(&pool.active, 1);
        self->seen = atomic_load(&pool.region);
        if (self->seen % 2 && self->number < atomic_load(&pool.threads))
            take_units(self->number);
        if (atomic_fetch_sub(&pool.active, 1) == 1)
            wake(&pool.left, &pool.idle_user);
    }
    return NULL;
}

/* Signals are for the threads of Python, but for that of a page which cannot be read. */
static void start_workers(int wanted)
{
#ifndef _WIN32
    sigset_t all, before;
    sigfillset(&all);
    sigdelset(&all, SIGBUS);
    sigdelset(&all, SIGSEGV);
    pthread_sigmask(SIG_SETMASK, &all, &before);
#endif
    for (; pool.started < min_size(wanted, MOST_WORKERS); pool.started++) {
        pthread_t id;
        Worker *worker = &pool.workers[pool.started];
        worker->number = pool.started + 1;
        if (pthread_create(&id, NULL, work_for_ever, worker))
            break;
        pthread_detach(id);
    }
#ifndef _WIN32
    pthread_sigmask(SIG_SETMASK, &before, NULL);
#endif
}

void run_units(void *work, unit_function run, ptrdiff_t count, ptrdiff_t chunk, int threads)
{
    if (threads < 2 || count <= chunk || pthread_mutex_trylock(&pool.in_use)) {
        run_alone(work, run, count);
        return;
    }
    if (pool.started < threads - 1)
        start_workers(threads - 1);
    pool.work = work;
    pool.run = run;
    pool.count = count;
    pool.chunk = chunk;
    atomic_store(&pool.next, 0);
    atomic_store(&pool.threads, threads);
    atomic_fetch_add(&pool.region, 1);
    wake(&pool.opened, &pool.idle_workers);
#ifdef LLAMA_BOLTS_ALL_THREADS
    while (atomic_load(&pool.active) == 0 && atomic_load(&pool.next) < count)
        sched_yield();
#endif
    take_units(0);
    atomic_fetch_add(&pool.region, 1);
    wait_until(all_have_left, NULL, &pool.left, &pool.idle_user);
    pthread_mutex_unlock(&pool.in_use);
}

#else

const char *threading(void) { return "serial"; }
int openmp_version(void) { return 0; }

void run_units(void *work, unit_function run, ptrdiff_t count, ptrdiff_t chunk, int threads)
{
    (void)chunk, (void)threads;
    run_alone(work, run, count);
}
#endif
