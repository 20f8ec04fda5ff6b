/*
 * Splits the units of an op over threads. No other file does this.
 *
 * A region ends when its units are done, not when every thread has arrived. The caller takes units
 * itself, every free worker takes units as well, and the caller only waits for units that a worker
 * has taken. So if the system delays a thread, the region is delayed by the units of that thread
 * only. A forked child has no workers and computes alone.
 *
 * The workers are the members of an OpenMP parallel region that never ends and that an extra thread
 * opens. If the compiler does not support OpenMP, they are pthreads. (Two OpenMP libraries in one
 * process may hang it.) While one Python thread uses the workers, the others run their units alone.
 */
#define _POSIX_C_SOURCE 200809L
#include "kernels.h"

static void run_alone(void *work, range_function run, ptrdiff_t count)
{
    if (count > 0)
        run(work, 0, count, 0);
}

#if defined(_OPENMP) || defined(LLAMA_BOLTS_PTHREADS)
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdatomic.h>
#include <time.h>

#if defined(_OPENMP)
#include <omp.h>

const char *threading(void) { return "OpenMP"; }
int openmp_version(void) { return _OPENMP; }
#else
const char *threading(void) { return "pthreads"; }
int openmp_version(void) { return 0; }
#endif

enum {
    MOST_WORKERS = MOST_THREADS - 1,
    MOST_SPANS = 64,
    /* Pauses of a spinning thread between two readings of the clock: about a microsecond. */
    PAUSES = 64,
    /* How long a worker spins for the next region, in nanoseconds. This is longer than the Python
     * code between two products, and than the sampling of a token. */
    WORKER_SPIN = 500 * 1000,
    /* How long the caller spins for the last units, in addition to half of the time
     * that its own units took. */
    CALLER_SPIN = 30 * 1000,
    /* If the time between two readings of the clock exceeds this, the thread was suspended. */
    AWAY = 60 * 1000,
    /* If this happens twice within TWICE nanoseconds, other programs are using the processors too,
     * and the processors count as shared for SHARED nanoseconds. (On any system, it happens now and
     * then.) */
    TWICE = 30 * 1000 * 1000,
    SHARED = 200 * 1000 * 1000
};

/* The next unit of a span and the number of its region, in one word, so that a late thread cannot
 * take units of a region that has ended. Each span has its own cache line. */
typedef struct Span {
    _Alignas(128) _Atomic uint64_t ticket; /* region * 2^32 + unit */
} Span;

static const uint64_t CLOSED = UINT32_MAX; /* larger than any unit */

static struct Pool {
    pthread_mutex_t in_use; /* locked by one caller at a time */
    pthread_mutex_t lock;   /* protects the two conditions */
    pthread_cond_t opened;  /* signals that a region was opened */
    pthread_cond_t done;    /* signals that all units of a region are done */
    _Atomic int sleeping_workers;
    _Atomic int caller_sleeps;
    _Atomic int64_t away; /* the last time a thread was suspended, from nanoseconds() */
    _Atomic int64_t shared_until;
    _Atomic int waiting; /* a Waiting */
    int started;         /* number of workers */

    /* The region. A caller changes it only while all spans are closed. */
    _Atomic(void *) work;
    _Atomic(range_function) run;
    _Atomic ptrdiff_t count;
    _Atomic ptrdiff_t smallest;
    _Atomic ptrdiff_t largest;
    _Atomic int spans;
    _Atomic int threads;

    _Alignas(128) _Atomic uint32_t region; /* the number of the last region that was opened */
    _Alignas(128) _Atomic ptrdiff_t left;  /* number of units that are not done */
    Span span[MOST_SPANS];
} pool = {.in_use = PTHREAD_MUTEX_INITIALIZER,
          .lock = PTHREAD_MUTEX_INITIALIZER,
          .opened = PTHREAD_COND_INITIALIZER,
          .done = PTHREAD_COND_INITIALIZER};

/* Read or write a member of the region. The value is at least as new as the ticket that the thread
 * read before it. If the value is newer, the thread cannot take units with that ticket. */
#define READ(member) atomic_load_explicit(&pool.member, memory_order_acquire)
#define WRITE(member, value) atomic_store_explicit(&pool.member, value, memory_order_release)

static void spin_pause(void)
{
#if defined(__x86_64__)
    __builtin_ia32_pause();
#elif defined(__aarch64__)
    __asm__ volatile("isb");
#endif
}

/* In test builds all threads take part, and start at arbitrary times. */
static void let_others_run(void)
{
#ifdef LLAMA_BOLTS_ALL_THREADS
    sched_yield();
#endif
}

static int64_t nanoseconds(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (int64_t)now.tv_sec * 1000000000 + now.tv_nsec;
}

void choose_waiting(Waiting waiting) { atomic_store(&pool.waiting, (int)waiting); }

/* Records that a thread was suspended. While the processors are shared, a waiting thread sleeps at
 * once, so that its processor is free for the thread that it waits for. */
static void note_away(int64_t now)
{
    const int64_t before = atomic_exchange(&pool.away, now);
    if (now - before < TWICE)
        atomic_store_explicit(&pool.shared_until, now + SHARED, memory_order_relaxed);
}

/* How long to spin: `most`, unless the processors are shared or the user has chosen otherwise. */
static int64_t spin_limit(int64_t now, int64_t most)
{
    switch ((Waiting)atomic_load_explicit(&pool.waiting, memory_order_relaxed)) {
    case WAITING_ACTIVE: return INT64_MAX;
    case WAITING_PASSIVE: return 0;
    case WAITING_ADAPTIVE: break;
    }
    return now < atomic_load_explicit(&pool.shared_until, memory_order_relaxed) ? 0 : most;
}

/* The first unit of a span. */
static ptrdiff_t span_start(ptrdiff_t count, int spans, int span) { return count * span / spans; }

/* Takes some units of a span. Returns their number, or 0 if no unit is left for this thread. */
static ptrdiff_t take(int span, int thread, ptrdiff_t *first)
{
    uint64_t ticket = atomic_load_explicit(&pool.span[span].ticket, memory_order_acquire);
    for (;;) {
        const ptrdiff_t unit = (ptrdiff_t)(ticket & UINT32_MAX);
        const int spans = READ(spans);
        const ptrdiff_t left = span_start(READ(count), spans, span + 1) - unit;
        const int threads = READ(threads); /* a late worker may see a region with fewer threads */
        if (span >= spans || thread >= threads || left <= 0)
            return 0;
        /* Threads take fewer units towards the end, so that all threads end together. */
        const ptrdiff_t smallest = READ(smallest);
        const ptrdiff_t share = ceil_div(left * spans, 4 * (ptrdiff_t)threads);
        /* Take whole tiles of 4 weight rows. */
        const ptrdiff_t even = share <= smallest ? smallest : ceil_div(share, 4) * 4;
        const ptrdiff_t taken = min_size(min_size(even, READ(largest)), left);
        if (atomic_compare_exchange_weak(&pool.span[span].ticket, &ticket,
                                         ticket + (uint64_t)taken)) {
            *first = unit;
            return taken;
        }
    }
}

static void end_units(ptrdiff_t units)
{
    if (atomic_fetch_sub(&pool.left, units) != units || !atomic_load(&pool.caller_sleeps))
        return;
    pthread_mutex_lock(&pool.lock);
    pthread_cond_broadcast(&pool.done);
    pthread_mutex_unlock(&pool.lock);
}

/* Takes units until none are left. The thread's own span comes first, because the thread has
 * already prefetched its next rows. */
static void take_units(int thread)
{
    const int spans = READ(spans);
    for (int i = 0; i < spans; i++) {
        const int span = (thread + i) % spans;
        ptrdiff_t first;
        for (ptrdiff_t units; (units = take(span, thread, &first));) {
            const range_function run = READ(run);
            run(READ(work), first, units, thread);
            end_units(units);
            let_others_run();
        }
    }
}

typedef int (*condition)(uint32_t seen, int thread);

/* Whether a region is open that the worker has not seen and that includes the worker. */
static int has_region(uint32_t seen, int thread)
{
    return atomic_load(&pool.region) != seen && READ(threads) > thread;
}

static int all_are_done(uint32_t seen, int thread)
{
    (void)seen, (void)thread;
    return atomic_load(&pool.left) == 0;
}

/* Spins until the condition holds, or for about `most` nanoseconds. Returns whether it holds. */
static int spin_until(condition holds, uint32_t seen, int thread, int64_t most)
{
    const int64_t start = nanoseconds();
    for (int64_t before = start, now;; before = now) {
        for (int pause = 0; pause < PAUSES; pause++) {
            if (holds(seen, thread))
                return 1;
            spin_pause();
        }
        now = nanoseconds();
        if (now - before > AWAY)
            note_away(now);
        if (now - start >= spin_limit(now, most))
            return 0;
    }
}

/* Spins, and then sleeps, until there is a region for the worker. The worker first counts itself as
 * sleeping and then looks for a region; the thread that opens a region does so first and then looks
 * for sleeping workers. So at least one of them sees the other's write. */
static void wait_for_region(uint32_t seen, int thread)
{
    if (spin_until(has_region, seen, thread, WORKER_SPIN))
        return;
    pthread_mutex_lock(&pool.lock);
    atomic_fetch_add(&pool.sleeping_workers, 1);
    while (!has_region(seen, thread))
        pthread_cond_wait(&pool.opened, &pool.lock);
    atomic_fetch_sub(&pool.sleeping_workers, 1);
    pthread_mutex_unlock(&pool.lock);
}

/* Spins, and then sleeps, until the last units of a region are done that the caller opened at the
 * time `opened`. A worker takes few units compared with the caller. If they take longer than half
 * of the caller's time, the worker was suspended. */
static void wait_for_units(int64_t opened)
{
    if (all_are_done(0, 0))
        return;
    const int64_t now = nanoseconds();
    const int64_t most = CALLER_SPIN + (now - opened) / 2;
    if (spin_until(all_are_done, 0, 0, most))
        return;
    if (spin_limit(now, most) > 0)
        note_away(nanoseconds());
    pthread_mutex_lock(&pool.lock);
    atomic_exchange(&pool.caller_sleeps, 1); /* prevents reordering, as in open_region */
    while (!all_are_done(0, 0))
        pthread_cond_wait(&pool.done, &pool.lock);
    atomic_store(&pool.caller_sleeps, 0);
    pthread_mutex_unlock(&pool.lock);
}

static void work_for_ever(int thread)
{
    for (uint32_t seen = 0;;) {
        wait_for_region(seen, thread);
        seen = atomic_load(&pool.region);
        let_others_run();
        take_units(thread);
    }
}

/* Workers that start together. */
typedef struct Crew {
    int first, count;
} Crew;

static void *begin_crew(void *argument)
{
    const Crew crew = *(const Crew *)argument;
#if defined(_OPENMP)
#pragma omp parallel num_threads(crew.count)
    work_for_ever(crew.first + omp_get_thread_num());
#else
    work_for_ever(crew.first);
#endif
    return NULL;
}

/* Starts workers. They block all signals, because Python's threads handle them,
 * except SIGBUS and SIGSEGV. */
static void start_workers(int wanted)
{
    static Crew crews[MOST_WORKERS];
    wanted = wanted < MOST_WORKERS ? wanted : MOST_WORKERS;
#ifndef _WIN32
    sigset_t all, before;
    sigfillset(&all);
    sigdelset(&all, SIGBUS);
    sigdelset(&all, SIGSEGV);
    pthread_sigmask(SIG_SETMASK, &all, &before);
#endif
    while (pool.started < wanted) {
        pthread_t id;
        Crew *crew = &crews[pool.started];
        crew->first = pool.started + 1;
        crew->count = 1;
#if defined(_OPENMP)
        crew->count = wanted - pool.started;
#endif
        if (pthread_create(&id, NULL, begin_crew, crew))
            break;
        pthread_detach(id);
        pool.started += crew->count;
    }
#ifndef _WIN32
    pthread_sigmask(SIG_SETMASK, &before, NULL);
#endif
}

static void open_region(void *work, range_function run, ptrdiff_t count, Shares shares, int threads)
{
    /* Also close the spans that the last region did not use. The ticket of an unused span is 0,
     * like the ticket of an open span, and a late worker may see the new number of spans before the
     * new tickets. */
    const int spans = READ(spans) > shares.spans ? READ(spans) : shares.spans;
    for (int span = 0; span < spans; span++)
        atomic_store_explicit(&pool.span[span].ticket, CLOSED, memory_order_release);
    WRITE(work, work);
    WRITE(run, run);
    WRITE(count, count);
    WRITE(smallest, shares.smallest);
    WRITE(largest, shares.largest);
    WRITE(spans, shares.spans);
    WRITE(threads, threads);
    WRITE(left, count);
    let_others_run();
    const uint32_t region = READ(region) + 1;
    for (int span = 0; span < shares.spans; span++) {
        const uint64_t first = (uint64_t)span_start(count, shares.spans, span);
        atomic_store_explicit(&pool.span[span].ticket, (uint64_t)region << 32 | first,
                              memory_order_release);
    }
    /* An exchange, because no processor or emulator may move a later read before it. */
    atomic_exchange(&pool.region, region);
    if (atomic_load(&pool.sleeping_workers) == 0)
        return;
    pthread_mutex_lock(&pool.lock);
    pthread_cond_broadcast(&pool.opened);
    pthread_mutex_unlock(&pool.lock);
}

void run_ranges(void *work, range_function run, ptrdiff_t count, Shares shares, int threads)
{
    if (threads < 2 || count <= shares.smallest || count >= UINT32_MAX
        || pthread_mutex_trylock(&pool.in_use)) {
        run_alone(work, run, count);
        return;
    }
    if (pool.started < threads - 1)
        start_workers(threads - 1);
    shares.spans = (int)min_size(shares.spans, MOST_SPANS);
    const int64_t opened = nanoseconds();
    open_region(work, run, count, shares, threads);
#ifdef LLAMA_BOLTS_ALL_THREADS
    while (pool.started && atomic_load(&pool.left) == count)
        sched_yield();
#endif
    take_units(0);
    wait_for_units(opened);
    pthread_mutex_unlock(&pool.in_use);
}

#else

const char *threading(void) { return "serial"; }
int openmp_version(void) { return 0; }
void choose_waiting(Waiting waiting) { (void)waiting; }

void run_ranges(void *work, range_function run, ptrdiff_t count, Shares shares, int threads)
{
    (void)shares, (void)threads;
    run_alone(work, run, count);
}
#endif

/* An op whose function runs one unit at a time. */
typedef struct Units {
    void *work;
    unit_function run;
} Units;

static void run_each(void *units, ptrdiff_t first, ptrdiff_t count, int thread)
{
    const Units *each = units;
    for (ptrdiff_t unit = first; unit < first + count; unit++)
        each->run(each->work, unit, thread);
}

void run_units(void *work, unit_function run, ptrdiff_t count, ptrdiff_t chunk, int threads)
{
    Units units = {work, run};
    run_ranges(&units, run_each, count, (Shares){chunk, chunk, 1}, threads);
}
