/* The loops of kernels.py, one pass over memory each, with the same operations in the same order on the same doubles. */

#include <float.h>
#include <math.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#if FLT_EVAL_METHOD < 0 || FLT_EVAL_METHOD > 1 || defined(__FAST_MATH__)
#error "double arithmetic is not that of IEEE 754 here, and the lattice depends on it"
#endif

#include "correlation.h"
#include "walk.h"

static void walk_over(parallel call, unsigned threads, ptrdiff_t count, part part, void *task)
{
    walk_in_steps(call, threads, count, PART, part, task);
}

/* What OpenSSL exports, in this order. */
struct cipher {
    void *(*create)(void);                                                             /* EVP_CIPHER_CTX_new */
    void (*destroy)(void *);                                                           /* EVP_CIPHER_CTX_free */
    const void *(*aes)(void);                                                          /* EVP_aes_256_ctr */
    int (*start)(void *, const void *, void *, const uint8_t *, const uint8_t *);      /* EVP_EncryptInit_ex */
    int (*encrypt)(void *, uint8_t *, int *, const uint8_t *, int);                    /* EVP_EncryptUpdate */
};

/* Turn to the words with this number under the key of a context. */
static int turn_to(const struct cipher *cipher, void *context, uint64_t number)
{
    uint8_t counter[16] = {0};
    for (int i = 0; i < 8; i++)
        counter[i] = (uint8_t)(number >> (56 - 8 * i));
    return cipher->start(context, NULL, NULL, NULL, counter) == 1;
}

/* Take the next bytes. */
static int fill(const struct cipher *cipher, void *context, void *out, ptrdiff_t size)
{
    static const uint8_t zeros[1 << 13];  /* stays in the cache */
    uint8_t *next = out, *end = next + size;
    for (int length; next < end; next += length) {
        length = end - next < (ptrdiff_t)sizeof zeros ? (int)(end - next) : (int)sizeof zeros;
        int written = 0;
        if (cipher->encrypt(context, next, &written, zeros, length) != 1 || written != length)
            return 0;
    }
    return 1;
}

#define DRAWN ((ptrdiff_t)1 << 14)  /* values with words of their own number: PART of rejection.py */
#define SPARE(count) ((count) / 48 + 64)
#define HEIGHTS ((ptrdiff_t)256)

/* The rejection table, and the margin and tail that are left to Python, which has more digits. */
struct table {
    const int16_t *column;
    const double *level;
    double stddev, unit, margin;
    int64_t tail;
    int32_t certain, last;
};

static inline double curve_at(double point, double stddev)
{
    double z = point / stddev;
    return exp(-0.5 * (z * z));
}

/* Note the curve at every point, to check how exact it is; this is not worth threads. */
void curve(parallel call, unsigned threads, ptrdiff_t count, double stddev, const double *point, double *out)
{
    (void)call, (void)threads;
    for (ptrdiff_t i = 0; i < count; i++)
        out[i] = curve_at(point[i], stddev);
}

/* Put points into their rectangles, and append the numbers of uncertain ones, counted from first on. */
static ptrdiff_t propose(const struct table *table, const int32_t *restrict place, const uint16_t *restrict rectangle,
                         ptrdiff_t count, double *restrict out, int32_t *restrict uncertain, ptrdiff_t found,
                         ptrdiff_t first)
{
    const int16_t *restrict column = table->column;
    int32_t certain = table->certain;
    for (ptrdiff_t i = 0; i < count; i++) {
        out[i] = (double)(column[rectangle[i]] * ((int64_t)1 << 32) + place[i]) + (0x1p31 + 0.5);  /* all exact */
        uncertain[found] = (int32_t)(first + i);  /* overwritten if it is certain: cheaper than a branch */
        found += rectangle[i] >= certain;
    }
    return found;
}

/* What one part takes: too much for the stack of some threads. */
struct space {
    int32_t place[DRAWN + SPARE(DRAWN)], uncertain[DRAWN + SPARE(DRAWN) + 1];
    uint16_t rectangle[DRAWN + SPARE(DRAWN) + 3];
    int64_t heights[HEIGHTS];
    double spares[SPARE(DRAWN)], out[DRAWN];
};

/* Draw what draw_gaussians of rejection.py draws, unless it takes more digits, or points from the tail, or more to spare. */
static int draw_part(const struct cipher *cipher, void *context, uint64_t number, const struct table *table,
                     ptrdiff_t count, struct space *space, double *out)
{
    ptrdiff_t spare = SPARE(count), all = count + spare, rejected = 0, inside = 0;
    int32_t *place = space->place, *uncertain = space->uncertain;
    uint16_t *rectangle = space->rectangle;
    int64_t *heights = space->heights;
    double *spares = space->spares;
    ptrdiff_t bytes = (6 * all + 7) / 8 * 8;  /* of places and rectangles, and a whole number of words */
    if (!turn_to(cipher, context, number) || !fill(cipher, context, place, 4 * all)
        || !fill(cipher, context, rectangle, bytes - 4 * all))
        return 0;
    ptrdiff_t found = propose(table, place, rectangle, count, out, uncertain, 0, 0);
    found = propose(table, place + count, rectangle + count, spare, spares, uncertain, found, count);
    for (ptrdiff_t i = 0; i < found; i++) {
        if (i % HEIGHTS == 0 && !fill(cipher, context, heights, 8 * (found - i < HEIGHTS ? found - i : HEIGHTS)))
            return 0;
        int64_t height = heights[i % HEIGHTS];
        int32_t at = uncertain[i];
        double y = (table->level[rectangle[at] - table->certain] + (double)height * 0x1p-64) * table->unit;
        double curve = curve_at(at < count ? out[at] : spares[at - count], table->stddev);
        if (fabs(y - curve) <= table->margin * curve || (rectangle[at] == table->last && height < table->tail))
            return 0;
        uncertain[rejected] = at;
        rejected += y > curve;
        inside += y > curve && at < count;
    }
    ptrdiff_t next = 0, skipped = inside;
    for (ptrdiff_t i = 0; i < inside; i++) {
        for (; skipped < rejected && uncertain[skipped] - count == next; skipped++)
            next++;
        if (next == spare)
            return 0;
        out[uncertain[i]] = spares[next++];
    }
    return 1;
}

/* Sums that are part of one vector: of 53 bits, which are overwritten by what is released, or of 24, which stay as they
   are unless out is where they are. Times the factor, rounded to 24 bits, it goes to out, if there is one. */
struct piece {
    ptrdiff_t begin, end;
    double *values;
    const float *singles;
    double factor;
    float *out;
};

/* The noise of a vector with a past is correlated with it. */
struct vector {
    const struct piece *piece;
    ptrdiff_t pieces;
    double unit, grid, far;
    const struct past *past;
};

/* Noise in units, or in whole numbers of 32 bits; the one that there is not is NULL. A unit is a power of two. */
struct noise {
    const double *real;
    const int32_t *whole;
    double unit;
};

static inline double noise_at(const double *real, const int32_t *whole, double unit, ptrdiff_t i)
{
    return (real ? real[i] : whole[i]) * unit;
}

/* Round values to the lattice on which neighbouring doubles near far are, and then their sums with the noise. */
static void add_on_lattice(ptrdiff_t count, double *restrict values, const double *restrict real,
                           const int32_t *restrict whole, double unit, double far)
{
    for (ptrdiff_t i = 0; i < count; i++)
        values[i] = ((values[i] + far) + noise_at(real, whole, unit, i)) - far;
}

static void release(ptrdiff_t count, double *restrict values, const double *restrict real,
                    const int32_t *restrict whole, double unit, double far, double factor, float *restrict out)
{
    for (ptrdiff_t i = 0; i < count; i++) {
        double released = ((values[i] + far) + noise_at(real, whole, unit, i)) - far;
        values[i] = released;
        out[i] = (float)(released * factor);
    }
}

static void release_singles(ptrdiff_t count, const float *singles, const double *restrict real,
                            const int32_t *restrict whole, double unit, double far, double factor, float *out)
{
#pragma GCC ivdep
    for (ptrdiff_t i = 0; i < count; i++)
        out[i] = (float)(((((double)singles[i] + far) + noise_at(real, whole, unit, i)) - far) * factor);
}

/* Add noise, as it is, to some coordinates of a vector. */
static void add_as_it_is(const struct vector *vector, ptrdiff_t start, ptrdiff_t count, struct noise noise)
{
    double unit = noise.unit, far = vector->far;
    for (ptrdiff_t i = 0; i < vector->pieces; i++) {
        const struct piece *p = vector->piece + i;
        ptrdiff_t first = start > p->begin ? start : p->begin;
        ptrdiff_t last = start + count < p->end ? start + count : p->end;
        if (first >= last)
            continue;
        ptrdiff_t at = first - p->begin, length = last - first;
        const double *real = noise.real ? noise.real + (first - start) : NULL;
        const int32_t *whole = noise.whole ? noise.whole + (first - start) : NULL;
        if (p->singles)
            release_singles(length, p->singles + at, real, whole, unit, far, p->factor, p->out + at);
        else if (p->out)
            release(length, p->values + at, real, whole, unit, far, p->factor, p->out + at);
        else
            add_on_lattice(length, p->values + at, real, whole, unit, far);
    }
}

/* Add the noise of some coordinates of a vector; the next piece is correlated while the last one is in the cache. */
static void add_to(const struct vector *vector, ptrdiff_t start, ptrdiff_t count, struct noise noise)
{
    if (!vector->past) {
        add_as_it_is(vector, start, count, noise);
        return;
    }
    double row[PART], steps = noise.unit / vector->grid;  /* of powers of two */
    for (ptrdiff_t first = 0; first < count; first += PART) {
        ptrdiff_t length = count - first < PART ? count - first : PART;
        const double *real = noise.real ? noise.real + first : NULL;
        const int32_t *whole = noise.whole ? noise.whole + first : NULL;
        for (ptrdiff_t i = 0; i < length; i++)
            row[i] = rounded(noise_at(real, whole, steps, i));
        correlate_part(vector->past, start + first, length, row);
        add_as_it_is(vector, start + first, length, (struct noise){row, NULL, vector->grid});
    }
}

struct correlation {
    const struct past *past;
    ptrdiff_t start;
    double *noise;
};

static void correlate_parts(void *task, ptrdiff_t first, ptrdiff_t last)
{
    const struct correlation *c = task;
    correlate_part(c->past, c->start + first, last - first, c->noise + first);
}

/* Turn fresh noise of the coordinates from start on, in whole steps, into a row in place. */
void correlate(parallel call, unsigned threads, ptrdiff_t count, const struct past *past, ptrdiff_t start, double *noise)
{
    struct correlation task = {past, start, noise};
    walk_over(call, threads, count, correlate_parts, &task);
}

struct addition {
    const struct vector *vector;
    ptrdiff_t start;
    const double *noise;
};

static void add_part(void *task, ptrdiff_t first, ptrdiff_t last)
{
    const struct addition *a = task;
    add_to(a->vector, a->start + first, last - first, (struct noise){a->noise + first, NULL, a->vector->unit});
}

/* Add noise to the coordinates of a vector from start on. */
void add(parallel call, unsigned threads, ptrdiff_t count, const struct vector *vector, ptrdiff_t start,
         const double *noise)
{
    struct addition task = {vector, start, noise};
    walk_over(call, threads, count, add_part, &task);
}

/* Noise in steps of the lattice: the low 32 bits of every number, and the multiples of 2^32 that a few have besides. */
struct steps {
    const int32_t *low;
    double cells;  /* in a step */
    ptrdiff_t far;
    const int32_t *place;  /* of these few, in order */
    const double *rest;
};

struct addition_of_steps {
    const struct vector *vector;
    ptrdiff_t start;
    const struct steps *steps;
};

/* Return which of the few is the first at a place or after it. */
static ptrdiff_t first_at(const struct steps *steps, ptrdiff_t place)
{
    ptrdiff_t low = 0, high = steps->far;
    while (low < high) {
        ptrdiff_t middle = (low + high) / 2;
        if (steps->place[middle] < place)
            low = middle + 1;
        else
            high = middle;
    }
    return low;
}

static void add_part_of_steps(void *task, ptrdiff_t first, ptrdiff_t last)
{
    const struct addition_of_steps *a = task;
    const struct steps *steps = a->steps;
    double unit = steps->cells * a->vector->unit;  /* of powers of two: all products are exact */
    ptrdiff_t far = first_at(steps, first);
    if (far == steps->far || steps->place[far] >= last) {
        add_to(a->vector, a->start + first, last - first, (struct noise){NULL, steps->low + first, unit});
        return;
    }
    double noise[PART];
    for (ptrdiff_t i = first; i < last; i++)
        noise[i - first] = steps->low[i];
    for (; far < steps->far && steps->place[far] < last; far++)
        noise[steps->place[far] - first] += steps->rest[far];
    add_to(a->vector, a->start + first, last - first, (struct noise){noise, NULL, unit});
}

/* Add noise in steps to the coordinates of a vector from start on. */
void add_steps(parallel call, unsigned threads, ptrdiff_t count, const struct vector *vector, ptrdiff_t start,
               const int32_t *low, double cells, ptrdiff_t far, const int32_t *place, const double *rest)
{
    struct steps steps = {low, cells, far, place, rest};
    struct addition_of_steps task = {vector, start, &steps};
    walk_over(call, threads, count, add_part_of_steps, &task);
}

/* Noise in steps of the lattice while it is written: see struct steps. */
struct rounding {
    double cells;
    int32_t *low, *place;
    double *rest;
    ptrdiff_t far;
};

/* Round noise to whole steps; note the places and the rests of those that 32 bits do not hold. */
static void round_to_steps(struct rounding *r, ptrdiff_t begin, ptrdiff_t count, const double *restrict noise)
{
    const double steps = 1 / r->cells;  /* a power of two, as cells are: the product is the quotient */
    const double far_away = 0x1.8p52;  /* where neighbouring doubles are 1 apart, and the low bits are those of a sum */
    int32_t *restrict low = r->low + begin;
    for (ptrdiff_t start = 0; start < count; start += PART) {
        ptrdiff_t end = start + PART < count ? start + PART : count;
        int large = 0;
        for (ptrdiff_t i = start; i < end; i++) {
            double sum = noise[i] * steps + far_away;
            int64_t bits;
            memcpy(&bits, &sum, sizeof bits);
            low[i] = (int32_t)bits;
            large |= sum - far_away != low[i];
        }
        for (ptrdiff_t i = start; large && i < end; i++) {
            double rest = rint(noise[i] * steps) - low[i];
            r->place[r->far] = (int32_t)(begin + i);  /* overwritten if there is none; there is room for one more */
            r->rest[r->far] = rest;
            r->far += rest != 0;
        }
    }
}

struct drawing {
    const struct cipher *cipher;
    const uint8_t *key;
    const struct table *table;
    ptrdiff_t count;
    double *buffer;
    const struct vector *vector;
    ptrdiff_t start;
    struct rounding *rounding;
    uint8_t *left;
};

static void draw_parts(void *task, ptrdiff_t first, ptrdiff_t last)
{
    const struct drawing *d = task;
    struct space *space = malloc(sizeof *space);
    void *context = d->cipher->create();
    int ready = space && context && d->cipher->start(context, d->cipher->aes(), NULL, d->key, NULL) == 1;
    for (ptrdiff_t number = first; number < last; number++) {
        ptrdiff_t begin = number * DRAWN, count = d->count - begin < DRAWN ? d->count - begin : DRAWN;
        double *out = !ready ? NULL : d->buffer ? d->buffer + begin : space->out;
        d->left[number] = !(ready && draw_part(d->cipher, context, (uint64_t)number, d->table, count, space, out));
        if (d->left[number])
            continue;
        if (d->rounding)
            round_to_steps(d->rounding, begin, count, out);
        if (d->vector)
            add_to(d->vector, d->start + begin, count, (struct noise){out, NULL, d->vector->unit});
    }
    d->cipher->destroy(context);
    free(space);
}

/* Draw noise, into a buffer, or else for the coordinates of a vector from start on, and note which parts are left. */
void draw(parallel call, unsigned threads, ptrdiff_t count, const struct cipher *cipher, const uint8_t *key,
          const struct table *table, double *buffer, const struct vector *vector, ptrdiff_t start, uint8_t *left)
{
    struct drawing task = {cipher, key, table, count, vector ? NULL : buffer, vector, start, NULL, left};
    walk_in_steps(call, threads, (count + DRAWN - 1) / DRAWN, 4, draw_parts, &task);
}

/* Draw noise in steps of the lattice, and note which parts are left; return how many numbers have a rest. On this thread:
   their places are in order. */
ptrdiff_t draw_steps(parallel call, unsigned threads, ptrdiff_t count, const struct cipher *cipher, const uint8_t *key,
                     const struct table *table, double cells, int32_t *low, int32_t *place, double *rest, uint8_t *left)
{
    (void)call, (void)threads;
    struct rounding rounding = {cells, low, place, rest, 0};
    struct drawing task = {cipher, key, table, count, NULL, NULL, 0, &rounding, left};
    draw_parts(&task, 0, (count + DRAWN - 1) / DRAWN);
    return rounding.far;
}

struct addends {
    const int32_t *numbers;
    _Atomic int64_t sum;
};

static void total_part(void *task, ptrdiff_t start, ptrdiff_t end)
{
    struct addends *a = task;
    int64_t sum = 0;
    for (ptrdiff_t i = start; i < end; i++)
        sum += a->numbers[i];
    atomic_fetch_add(&a->sum, sum);
}

struct numbers {
    const int32_t *first;
    ptrdiff_t count;
};

/* Add up the numbers of 32 bits of every array in 64. */
void totals(parallel call, unsigned threads, ptrdiff_t count, const struct numbers *array, int64_t *out)
{
    for (ptrdiff_t i = 0; i < count; i++) {
        struct addends task = {array[i].first, 0};
        walk_over(call, threads, array[i].count, total_part, &task);
        out[i] = task.sum;
    }
}

struct search {
    const int32_t *bits;
    _Atomic int found;
};

static void search_part(void *task, ptrdiff_t start, ptrdiff_t end)
{
    struct search *s = task;
    const int32_t exponent = 0x7f800000;  /* all of its bits are set in infinite numbers and NaN alone */
    int found = 0;
    for (ptrdiff_t i = start; i < end; i++)
        found |= (s->bits[i] & exponent) == exponent;
    if (found)
        s->found = 1;
}

/* Return whether all floats of 32 bits of all arrays are finite. */
int are_finite(parallel call, unsigned threads, ptrdiff_t count, const struct numbers *array)
{
    for (ptrdiff_t i = 0; i < count; i++) {
        struct search task = {array[i].first, 0};
        walk_over(call, threads, array[i].count, search_part, &task);
        if (task.found)
            return 0;
    }
    return 1;
}

struct rows {
    const float *numbers;  /* of all rows, one row after the other */
    ptrdiff_t width, count, chosen;
    const ptrdiff_t *row;
    const double *weight;
    double *out;
};

static void measure_part(void *task, ptrdiff_t start, ptrdiff_t end)
{
    const struct rows *r = task;
    for (ptrdiff_t i = start; i < end; i++) {
        const float *restrict row = r->numbers + i * r->width;
        double sums[8] = {0};
        ptrdiff_t j = 0;
        for (; j + 8 <= r->width; j += 8)
            for (int k = 0; k < 8; k++)
                sums[k] += (double)row[j + k] * (double)row[j + k];  /* the product is exact */
        for (; j < r->width; j++)
            sums[0] += (double)row[j] * (double)row[j];
        r->out[i] = ((sums[0] + sums[1]) + (sums[2] + sums[3])) + ((sums[4] + sums[5]) + (sums[6] + sums[7]));
    }
}

/* Note the squared norm of every row. */
void measure(parallel call, unsigned threads, ptrdiff_t count, ptrdiff_t width, const float *numbers, double *out)
{
    struct rows task = {.numbers = numbers, .width = width, .out = out};
    walk_in_steps(call, threads, count, 1, measure_part, &task);
}

static ptrdiff_t parts_in(ptrdiff_t width)
{
    return (width + PART - 1) / PART;
}

static void weigh_part(void *task, ptrdiff_t first, ptrdiff_t last)
{
    const struct rows *r = task;
    for (ptrdiff_t part = first; part < last; part++) {
        ptrdiff_t block = part / parts_in(r->width), start = part % parts_in(r->width) * PART;
        ptrdiff_t length = r->width - start < PART ? r->width - start : PART;
        double sums[PART] = {0};
        for (ptrdiff_t i = 0; i < r->chosen; i++) {
            const float *restrict row = r->numbers + (block * r->count + r->row[i]) * r->width + start;
            double weight = r->weight[i];
            for (ptrdiff_t j = 0; j < length; j++)
                sums[j] += weight * (double)row[j];
        }
        memcpy(r->out + block * r->width + start, sums, (size_t)length * sizeof *sums);
    }
}

/* Note, for every block of count rows, the sum of the chosen ones times their weights. */
void weigh(parallel call, unsigned threads, ptrdiff_t blocks, ptrdiff_t count, ptrdiff_t width, const float *numbers,
           ptrdiff_t chosen, const ptrdiff_t *row, const double *weight, double *out)
{
    struct rows task = {numbers, width, count, chosen, row, weight, out};
    walk_in_steps(call, threads, blocks * parts_in(width), 1, weigh_part, &task);
}
