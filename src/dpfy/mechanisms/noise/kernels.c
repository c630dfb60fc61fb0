/* The loops of kernels.py, one pass over memory each, with the same operations in the same order on the same doubles. */

#include <float.h>
#include <math.h>
#include <stddef.h>
#include <stdint.h>

#if FLT_EVAL_METHOD < 0 || FLT_EVAL_METHOD > 1 || defined(__FAST_MATH__)
#error "double arithmetic is not that of IEEE 754 here, and the lattice depends on it"
#endif

/* Put points into their rectangles, and return how many of these are uncertain; position begins with where they are. */
ptrdiff_t propose(ptrdiff_t count, const int32_t *restrict place, const uint16_t *restrict rectangle,
                  const int16_t *restrict column, int32_t certain, double *restrict out, ptrdiff_t *restrict position)
{
    ptrdiff_t found = 0;
    for (ptrdiff_t i = 0; i < count; i++) {
        out[i] = (double)(column[rectangle[i]] * ((int64_t)1 << 32) + place[i]) + (0x1p31 + 0.5);  /* all exact */
        position[found] = i;  /* overwritten if it is certain: cheaper than a branch that is hard to predict */
        found += rectangle[i] >= certain;
    }
    return found;
}

/* Tell which points of uncertain rectangles are above the curve, and return how many are too close to it to tell;
   close begins with them, counted as in position. */
ptrdiff_t judge(ptrdiff_t count, const ptrdiff_t *restrict position, const double *restrict point,
                const uint16_t *restrict rectangle, const int64_t *restrict height, const double *restrict level,
                int32_t certain, double stddev, double unit, double margin, uint8_t *restrict above,
                ptrdiff_t *restrict close)
{
    ptrdiff_t found = 0;
    for (ptrdiff_t i = 0; i < count; i++) {
        double y = (level[rectangle[position[i]] - certain] + (double)height[i] * 0x1p-64) * unit;
        double z = point[position[i]] / stddev, curve = exp(-0.5 * (z * z));
        above[i] = y > curve;
        close[found] = i;
        found += fabs(y - curve) <= margin * curve;
    }
    return found;
}

/* Round values to the lattice on which neighbouring doubles near far are, and then their sums with unit times noise. */
void add_on_lattice(ptrdiff_t count, double *restrict values, const double *restrict noise, double unit, double far)
{
    for (ptrdiff_t i = 0; i < count; i++)
        values[i] = ((values[i] + far) + noise[i] * unit) - far;
}

/* Multiply values by a factor and round the products to 24 bits. */
void scale(ptrdiff_t count, const double *restrict values, double factor, float *restrict out)
{
    for (ptrdiff_t i = 0; i < count; i++)
        out[i] = (float)(values[i] * factor);
}

/* Add up numbers of 32 bits in 64. */
int64_t total(ptrdiff_t count, const int32_t *restrict numbers)
{
    int64_t sum = 0;
    for (ptrdiff_t i = 0; i < count; i++)
        sum += numbers[i];
    return sum;
}
