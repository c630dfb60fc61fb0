/* The loops of past.py, with the same operations in the same order on the same doubles. */

#ifndef DPFY_CORRELATION
#define DPFY_CORRELATION

#include <stddef.h>
#include <stdint.h>

#define PART ((ptrdiff_t)2048)  /* numbers that a thread takes at once */
#define FEW 16
#define LARGEST 2147483647.0

enum kind { BAND, SUMS, NODES };

/* What a row of noise rests on: rows of 32 bits for a band, else of doubles. What a kind does not have is NULL. */
struct past {
    int32_t kind;
    ptrdiff_t rows;
    void *const *row;
    void *target;
    const double *weight, *decay, *limit;
    double unit;
};

static inline double rounded(double value)
{
    const double far = 0x1.8p52;  /* where neighbouring doubles are 1 apart */
    return (value + far) - far;
}

static inline double between(double value, double limit)
{
    return value < -limit ? -limit : value > limit ? limit : value;
}

/* Take rows off FEW numbers or less. Inlined, or else FEW would not be a constant, and sums not in registers. */
__attribute__((always_inline)) static inline void few_with_band(const struct past *past, ptrdiff_t start, int count,
                                                                double *noise)
{
    double sums[FEW] = {0};
    for (ptrdiff_t j = 0; j < past->rows; j++) {
        const int32_t *row = (const int32_t *)past->row[j] + start;
        double weight = past->weight[j];
        for (int i = 0; i < count; i++)
            sums[i] += weight * row[i];
    }
    int32_t *target = (int32_t *)past->target + start;
    double unit = past->unit, units = 1 / unit;  /* a power of two */
    for (int i = 0; i < count; i++) {
        noise[i] -= rounded(sums[i] * unit);
        target[i] = (int32_t)between(rounded(noise[i] * units), LARGEST);
    }
}

/* All rows side by side: one after the other takes twice as long, even if the sums stay in the cache. */
static void correlate_with_band(const struct past *past, ptrdiff_t start, ptrdiff_t count, double *noise)
{
    ptrdiff_t i = 0;
    for (; i + FEW <= count; i += FEW)
        few_with_band(past, start + i, FEW, noise + i);
    few_with_band(past, start + i, (int)(count - i), noise + i);
}

static void correlate_with_sums(const struct past *past, ptrdiff_t start, ptrdiff_t count, double *restrict noise)
{
    double sums[PART] = {0};
    for (ptrdiff_t j = 0; j < past->rows; j++) {
        const double *restrict row = (const double *)past->row[j] + start;
        double weight = past->weight[j];
        for (ptrdiff_t i = 0; i < count; i++)
            sums[i] += weight * row[i];
    }
    for (ptrdiff_t i = 0; i < count; i++)
        noise[i] -= rounded(sums[i]);
    for (ptrdiff_t j = 0; j < past->rows; j++) {
        double *restrict row = (double *)past->row[j] + start;
        double decay = past->decay[j], limit = past->limit[j];
        for (ptrdiff_t i = 0; i < count; i++)
            row[i] = between(decay * row[i] + noise[i], limit);
    }
}

static void correlate_with_nodes(const struct past *past, ptrdiff_t start, ptrdiff_t count, double *restrict noise)
{
    double sums[PART] = {0};
    for (ptrdiff_t j = 0; j < past->rows; j++) {
        const double *restrict row = (const double *)past->row[j] + start;
        for (ptrdiff_t i = 0; i < count; i++)
            sums[i] += row[i];
    }
    double *restrict target = (double *)past->target + start;
    for (ptrdiff_t i = 0; i < count; i++) {
        target[i] = noise[i];
        noise[i] -= sums[i];
    }
}

/* Turn fresh noise of at most PART coordinates, in whole steps, into a row in place, and remember what it implies. */
static void correlate_part(const struct past *past, ptrdiff_t start, ptrdiff_t count, double *noise)
{
    if (past->kind == BAND)
        correlate_with_band(past, start, count, noise);
    else if (past->kind == SUMS)
        correlate_with_sums(past, start, count, noise);
    else
        correlate_with_nodes(past, start, count, noise);
}

#endif
