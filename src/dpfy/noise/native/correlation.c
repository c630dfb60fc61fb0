/* The loops of correlation.py, one pass over memory each, with the same operations in the same order on the same doubles. */

#include <float.h>
#include <stddef.h>
#include <stdint.h>

#if FLT_EVAL_METHOD < 0 || FLT_EVAL_METHOD > 1 || defined(__FAST_MATH__)
#error "double arithmetic is not that of IEEE 754 here, and the lattice depends on it"
#endif

#include "walk.h"

#define PART ((ptrdiff_t)2048)  /* numbers that a thread takes at once */
#define LARGEST 2147483647.0

static inline double rounded(double value)
{
    const double far = 0x1.8p52;  /* where neighbouring doubles are 1 apart */
    return (value + far) - far;
}

static inline double between(double value, double limit)
{
    return value < -limit ? -limit : value > limit ? limit : value;
}

struct bands {
    double *noise;
    ptrdiff_t rows, size;
    const double *coefficient;
    const ptrdiff_t *row;
    int32_t *ring;
    ptrdiff_t next;
    double unit;
};

static void bands_part(void *task, ptrdiff_t start, ptrdiff_t end)
{
    const struct bands *b = task;
    double sums[PART] = {0};
    double *restrict noise = b->noise + start;
    ptrdiff_t count = end - start;
    for (ptrdiff_t j = 0; j < b->rows; j++) {
        const int32_t *restrict past = b->ring + b->row[j] * b->size + start;
        double coefficient = b->coefficient[j];
        for (ptrdiff_t i = 0; i < count; i++)
            sums[i] += coefficient * past[i];
    }
    int32_t *restrict next = b->ring + b->next * b->size + start;
    double unit = b->unit, units = 1 / unit;  /* a power of two */
    for (ptrdiff_t i = 0; i < count; i++) {
        noise[i] -= rounded(sums[i] * unit);
        next[i] = (int32_t)between(rounded(noise[i] * units), LARGEST);
    }
}

/* Take what the last rows of a ring imply off fresh noise, in steps, and note the result in one of them. */
void bands(parallel call, unsigned threads, ptrdiff_t size, double *noise, ptrdiff_t rows, const double *coefficient,
           const ptrdiff_t *row, int32_t *ring, ptrdiff_t next, double unit)
{
    struct bands task = {noise, rows, size, coefficient, row, ring, next, unit};
    walk_in_steps(call, threads, size, PART, bands_part, &task);
}

struct decaying {
    double *noise;
    ptrdiff_t count, size;
    const double *decay, *scale, *limit;
    double *sum;
};

static void decaying_part(void *task, ptrdiff_t start, ptrdiff_t end)
{
    const struct decaying *d = task;
    double sums[PART] = {0};
    double *restrict noise = d->noise + start;
    ptrdiff_t count = end - start;
    for (ptrdiff_t j = 0; j < d->count; j++) {
        const double *restrict past = d->sum + j * d->size + start;
        double scale = d->scale[j];
        for (ptrdiff_t i = 0; i < count; i++)
            sums[i] += scale * past[i];
    }
    for (ptrdiff_t i = 0; i < count; i++)
        noise[i] -= rounded(sums[i]);
    for (ptrdiff_t j = 0; j < d->count; j++) {
        double *restrict sum = d->sum + j * d->size + start;
        double decay = d->decay[j], limit = d->limit[j];
        for (ptrdiff_t i = 0; i < count; i++)
            sum[i] = between(decay * sum[i] + noise[i], limit);
    }
}

/* Take what decaying sums of earlier rows imply off fresh noise, in steps, and add the result to them. */
void decaying(parallel call, unsigned threads, ptrdiff_t size, double *noise, ptrdiff_t count, const double *decay,
              const double *scale, const double *limit, double *sum)
{
    struct decaying task = {noise, count, size, decay, scale, limit, sum};
    walk_in_steps(call, threads, size, PART, decaying_part, &task);
}
