/* A loop in parts that threads take one after the other. No result depends on which thread takes which part. */

#ifndef DPFY_WALK
#define DPFY_WALK

#include <stdatomic.h>
#include <stddef.h>

/* Calls a function on several threads and waits for all of them: GOMP_parallel of OpenMP. */
typedef void (*parallel)(void (*)(void *), void *, unsigned, unsigned);

typedef void (*part)(void *task, ptrdiff_t start, ptrdiff_t end);

struct walk {
    part part;
    void *task;
    ptrdiff_t count, step;
    _Atomic ptrdiff_t next;
};

static void take_parts(void *shared)
{
    struct walk *walk = shared;
    ptrdiff_t step = walk->step;
    for (ptrdiff_t start; (start = atomic_fetch_add(&walk->next, step)) < walk->count;)
        walk->part(walk->task, start, start + step < walk->count ? start + step : walk->count);
}

static void walk_in_steps(parallel call, unsigned threads, ptrdiff_t count, ptrdiff_t step, part part, void *task)
{
    struct walk walk = {part, task, count, step, 0};
    if (call && threads > 1 && count > step)
        call(take_parts, &walk, threads, 0);
    else
        take_parts(&walk);
}

#endif
