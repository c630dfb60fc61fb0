/* The gradients of a convolution's weight, record by record.

   An image is laid out with its channels side by side and zeros around it. The window that one run of taps sees from a
   position is then one piece of memory, so that nothing is unfolded: a run's gradient is the sum over positions of
   small[channel][position] times that piece. */

#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "walk.h"

#ifdef __AVX512F__
#define LANES 16
#else
#define LANES 8
#endif

#define MOST_ROWS 12
#define MOST_LANES (3 * LANES)
#define TOGETHER 16  /* channels that are laid out in one go */

typedef float lanes __attribute__((vector_size(4 * LANES), aligned(4), may_alias));

/* Sums over positions, ROWS channels of small by WIDE vectors of the window, all of them in registers. */
#define PRODUCT(NAME, ROWS, WIDE)                                                                                      \
    static void NAME(ptrdiff_t positions, const int32_t *restrict position, const float *restrict small,               \
                     const float *restrict image, ptrdiff_t rows, ptrdiff_t width, float *restrict out,                \
                     ptrdiff_t stride)                                                                                 \
    {                                                                                                                  \
        lanes sum[ROWS][WIDE] = {0};                                                                                   \
        for (ptrdiff_t p = 0; p < positions; p++) {                                                                    \
            const float *window = image + position[p];                                                                 \
            lanes seen[WIDE];                                                                                          \
            for (int j = 0; j < WIDE; j++)                                                                             \
                seen[j] = *(const lanes *)(window + j * LANES);                                                        \
            for (int i = 0; i < ROWS; i++)                                                                             \
                for (int j = 0; j < WIDE; j++)                                                                         \
                    sum[i][j] += small[i * positions + p] * seen[j];                                                   \
        }                                                                                                              \
        for (ptrdiff_t i = 0; i < ROWS && i < rows; i++)                                                               \
            memcpy(out + i * stride, sum[i], sizeof(float) * (width < WIDE * LANES ? width : WIDE * LANES));           \
    }

PRODUCT(four_by_three, 4, 3)
PRODUCT(six_by_two, 6, 2)
PRODUCT(twelve_by_one, 12, 1)

struct images {
    ptrdiff_t channels, pixels;
    const int32_t *place;  /* of every pixel in the laid out image */
    ptrdiff_t size;        /* of a laid out image */
    const float *numbers;
};

struct convolution {
    struct images image;
    ptrdiff_t channels, positions;
    const float *small;
    const int32_t *position;  /* of a window in the laid out image */
    ptrdiff_t runs, width;
    const int32_t *run;  /* where a run of taps begins in a window */
    float *out;
    _Atomic int failed;
};

static void lay_out(const struct images *images, ptrdiff_t item, float *restrict out)
{
    ptrdiff_t channels = images->channels, pixels = images->pixels;
    const int32_t *restrict place = images->place;
    for (ptrdiff_t first = 0; first < channels; first += TOGETHER) {
        const float *restrict from = images->numbers + (item * channels + first) * pixels;
        ptrdiff_t few = channels - first < TOGETHER ? channels - first : TOGETHER;
        for (ptrdiff_t q = 0; q < pixels; q++)
            for (ptrdiff_t c = 0; c < few; c++)
                out[place[q] + first + c] = from[c * pixels + q];
    }
}

/* Form the gradients of some channels of small; there is memory for MOST_ROWS of them, and behind the image. */
static ptrdiff_t form_rows(const struct convolution *c, const float *small, const float *image, ptrdiff_t rows,
                           float *out)
{
    ptrdiff_t stride = c->runs * c->width, done = 4;
    for (ptrdiff_t run = 0; run < c->runs; run++)
        for (ptrdiff_t at = 0; at < c->width;) {
            const float *windows = image + c->run[run] + at;
            float *there = out + run * c->width + at;
            ptrdiff_t left = c->width - at;
            if (c->width <= LANES) {
                twelve_by_one(c->positions, c->position, small, windows, rows, left, there, stride);
                at += LANES, done = 12;
            } else if (c->width <= 2 * LANES) {
                six_by_two(c->positions, c->position, small, windows, rows, left, there, stride);
                at += 2 * LANES, done = 6;
            } else {
                four_by_three(c->positions, c->position, small, windows, rows, left, there, stride);
                at += 3 * LANES;
            }
        }
    return done;
}

static void form_items(void *task, ptrdiff_t first, ptrdiff_t last)
{
    struct convolution *c = task;
    ptrdiff_t numbers = c->channels * c->positions, stride = c->runs * c->width;
    float *image = calloc((size_t)(c->image.size + MOST_LANES), sizeof *image);
    float *rest = calloc((size_t)(MOST_ROWS * c->positions), sizeof *rest);
    for (ptrdiff_t item = first; item < last && image && rest; item++) {
        const float *small = c->small + item * numbers;
        lay_out(&c->image, item, image);
        for (ptrdiff_t done = 0; done < c->channels;) {
            const float *these = small + done * c->positions;
            ptrdiff_t rows = c->channels - done;
            if (rows < MOST_ROWS)  /* a product reads rows that are not there */
                these = memcpy(rest, these, sizeof *rest * (size_t)(rows * c->positions));
            done += form_rows(c, these, image, rows, c->out + (item * c->channels + done) * stride);
        }
    }
    if (!image || !rest)
        c->failed = 1;
    free(image);
    free(rest);
}

/* Write the gradients [items, channels of small, runs, width], and return whether there was memory to do so. */
int weight_gradients(parallel call, unsigned threads, ptrdiff_t items, ptrdiff_t channels, ptrdiff_t pixels,
                     const int32_t *place, ptrdiff_t size, const float *image, ptrdiff_t rows, ptrdiff_t positions,
                     const int32_t *position, const float *small, ptrdiff_t runs, const int32_t *run, ptrdiff_t width,
                     float *out)
{
    struct convolution task = {{channels, pixels, place, size, image}, rows, positions, small, position, runs, width,
                               run, out, 0};
    walk_in_steps(call, threads, items, 4, form_items, &task);
    return !task.failed;
}
