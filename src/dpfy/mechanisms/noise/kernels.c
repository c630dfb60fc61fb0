/* The loops of kernels.py, one pass over memory each, with the same operations in the same order on the same doubles.

   A loop is divided into parts that threads take one after the other. Nothing depends on who takes which. */

#include <float.h>
#include <math.h>
#include <stdatomic.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#if FLT_EVAL_METHOD < 0 || FLT_EVAL_METHOD > 1 || defined(__FAST_MATH__)
#error "double arithmetic is not that of IEEE 754 here, and the lattice depends on it"
#endif

#define PART ((ptrdiff_t)2048)  /* numbers that a thread takes at once */

/* Calls a function on several threads and waits for all of them: GOMP_parallel of OpenMP. */
typedef void (*team)(void (*)(void *), void *, unsigned, unsigned);

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

static void walk_in_steps(team call, unsigned threads, ptrdiff_t count, ptrdiff_t step, part part, void *task)
{
    struct walk walk = {part, task, count, step, 0};
    if (call && threads > 1 && count > step)
        call(take_parts, &walk, threads, 0);
    else
        take_parts(&walk);
}

static void walk_over(team call, unsigned threads, ptrdiff_t count, part part, void *task)
{
    walk_in_steps(call, threads, count, PART, part, task);
}

/* Every part has noted some positions from its start on, and how many: bring them together. */
static ptrdiff_t gathered(ptrdiff_t count, const ptrdiff_t *found, ptrdiff_t *position)
{
    ptrdiff_t total = 0;
    for (ptrdiff_t start = 0; start < count; start += PART) {
        memmove(position + total, position + start, (size_t)found[start / PART] * sizeof *position);
        total += found[start / PART];
    }
    return total;
}

struct proposal {
    const int32_t *place;
    const uint16_t *rectangle;
    const int16_t *column;
    int32_t certain;
    double *out;
    ptrdiff_t *position, *found;
};

static void propose_part(void *task, ptrdiff_t start, ptrdiff_t end)
{
    const struct proposal *p = task;
    const int32_t *restrict place = p->place;
    const uint16_t *restrict rectangle = p->rectangle;
    const int16_t *restrict column = p->column;
    double *restrict out = p->out;
    ptrdiff_t *restrict position = p->position + start, found = 0, certain = p->certain;
    for (ptrdiff_t i = start; i < end; i++) {
        out[i] = (double)(column[rectangle[i]] * ((int64_t)1 << 32) + place[i]) + (0x1p31 + 0.5);  /* all exact */
        position[found] = i;  /* overwritten if it is certain: cheaper than a branch that is hard to predict */
        found += rectangle[i] >= certain;
    }
    p->found[start / PART] = found;
}

/* Put points into their rectangles, and return how many of these are uncertain; position begins with where they are. */
ptrdiff_t propose(team call, unsigned threads, ptrdiff_t count, const int32_t *place, const uint16_t *rectangle,
                  const int16_t *column, int32_t certain, double *out, ptrdiff_t *position)
{
    ptrdiff_t found[count / PART + 1];
    struct proposal task = {place, rectangle, column, certain, out, position, found};
    walk_over(call, threads, count, propose_part, &task);
    return gathered(count, found, position);
}

struct verdict {
    const ptrdiff_t *position;
    const double *point;
    const uint16_t *rectangle;
    const int64_t *height;
    const double *level;
    int32_t certain;
    double stddev, unit, margin;
    uint8_t *above;
    ptrdiff_t *close, *found;
};

static void judge_part(void *task, ptrdiff_t start, ptrdiff_t end)
{
    const struct verdict v = *(const struct verdict *)task;
    ptrdiff_t found = 0;
    for (ptrdiff_t i = start; i < end; i++) {
        double y = (v.level[v.rectangle[v.position[i]] - v.certain] + (double)v.height[i] * 0x1p-64) * v.unit;
        double z = v.point[v.position[i]] / v.stddev, curve = exp(-0.5 * (z * z));
        v.above[i] = y > curve;
        v.close[start + found] = i;
        found += fabs(y - curve) <= v.margin * curve;
    }
    v.found[start / PART] = found;
}

/* Tell which points of uncertain rectangles are above the curve, and return how many are too close to it to tell;
   close begins with them, counted as in position. */
ptrdiff_t judge(team call, unsigned threads, ptrdiff_t count, const ptrdiff_t *position, const double *point,
                const uint16_t *rectangle, const int64_t *height, const double *level, int32_t certain, double stddev,
                double unit, double margin, uint8_t *above, ptrdiff_t *close)
{
    ptrdiff_t found[count / PART + 1];
    struct verdict task = {position, point, rectangle, height, level, certain, stddev, unit, margin, above, close,
                           found};
    walk_over(call, threads, count, judge_part, &task);
    return gathered(count, found, close);
}

struct addition {
    double *values;
    const float *singles;
    const double *noise;
    double unit, far, factor;
    float *out;
};

static void add_part(void *task, ptrdiff_t start, ptrdiff_t end)
{
    const struct addition *a = task;
    double *restrict values = a->values;
    const double *restrict noise = a->noise;
    double unit = a->unit, far = a->far;
    for (ptrdiff_t i = start; i < end; i++)
        values[i] = ((values[i] + far) + noise[i] * unit) - far;
}

/* Round values to the lattice on which neighbouring doubles near far are, and then their sums with unit times noise. */
void add_on_lattice(team call, unsigned threads, ptrdiff_t count, double *values, const double *noise, double unit,
                    double far)
{
    struct addition task = {.values = values, .noise = noise, .unit = unit, .far = far};
    walk_over(call, threads, count, add_part, &task);
}

static void release_part(void *task, ptrdiff_t start, ptrdiff_t end)
{
    const struct addition *a = task;
    double *restrict values = a->values;
    const double *restrict noise = a->noise;
    float *restrict out = a->out;
    double unit = a->unit, far = a->far, factor = a->factor;
    for (ptrdiff_t i = start; i < end; i++) {
        double released = ((values[i] + far) + noise[i] * unit) - far;
        values[i] = released;
        out[i] = (float)(released * factor);
    }
}

/* The same, and round what comes out of it times a factor to 24 bits. */
void release(team call, unsigned threads, ptrdiff_t count, double *values, const double *noise, double unit, double far,
             double factor, float *out)
{
    struct addition task = {values, NULL, noise, unit, far, factor, out};
    walk_over(call, threads, count, release_part, &task);
}

static void release_singles_part(void *task, ptrdiff_t start, ptrdiff_t end)
{
    const struct addition *a = task;
    const float *singles = a->singles;
    const double *restrict noise = a->noise;
    float *out = a->out;  /* which may be where the sums are */
    double unit = a->unit, far = a->far, factor = a->factor;
#pragma GCC ivdep
    for (ptrdiff_t i = start; i < end; i++)
        out[i] = (float)(((((double)singles[i] + far) + noise[i] * unit) - far) * factor);
}

/* The same for sums of 24 bits, which stay as they are unless out is where they are. */
void release_singles(team call, unsigned threads, ptrdiff_t count, const float *sums, const double *noise, double unit,
                     double far, double factor, float *out)
{
    struct addition task = {NULL, sums, noise, unit, far, factor, out};
    walk_over(call, threads, count, release_singles_part, &task);
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

/* Add up numbers of 32 bits in 64. */
int64_t total(team call, unsigned threads, ptrdiff_t count, const int32_t *numbers)
{
    struct addends task = {numbers, 0};
    walk_over(call, threads, count, total_part, &task);
    return task.sum;
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
void measure(team call, unsigned threads, ptrdiff_t count, ptrdiff_t width, const float *numbers, double *out)
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
void weigh(team call, unsigned threads, ptrdiff_t blocks, ptrdiff_t count, ptrdiff_t width, const float *numbers,
           ptrdiff_t chosen, const ptrdiff_t *row, const double *weight, double *out)
{
    struct rows task = {numbers, width, count, chosen, row, weight, out};
    walk_in_steps(call, threads, blocks * parts_in(width), 1, weigh_part, &task);
}
