/* The four STREAM kernels by the STREAM run rules (J. D. McCalpin, Memory Bandwidth and Machine
 * Balance in Current High Performance Computers, IEEE TCCA Newsletter, December 1995): arrays of
 * double, the first repeat not counted, best of the others, results validated, bytes counted as
 * the kernel names them (a write that first reads its line counts once). A variant of STREAM,
 * not STREAM: results are to be labelled so.
 *
 * Every thread first touches the part of each array that it works on later. The arrays lie one
 * after the other in one mapping, as static arrays do. */
#include "probe.h"

#include <float.h>
#include <stdlib.h>

enum { KERNELS = 4, MOST_REPEATS = 10000 };
static const char *const KERNEL_NAMES[KERNELS] = {"copy", "scale", "add", "triad"};
static const int ARRAYS_MOVED[KERNELS] = {2, 2, 3, 3};
static const double SCALAR = 3.0;

/* Functions of their own with unaliased arrays: the compiler knows what it knows of STREAM's. */
#define KERNEL static __attribute__((noinline)) void
KERNEL copy(double *restrict c, const double *restrict a, ptrdiff_t n) {
    for (ptrdiff_t i = 0; i < n; i++)
        c[i] = a[i];
}
KERNEL scale(double *restrict b, const double *restrict c, double s, ptrdiff_t n) {
    for (ptrdiff_t i = 0; i < n; i++)
        b[i] = s * c[i];
}
KERNEL add(double *restrict c, const double *restrict a, const double *restrict b, ptrdiff_t n) {
    for (ptrdiff_t i = 0; i < n; i++)
        c[i] = a[i] + b[i];
}
KERNEL triad(double *restrict a, const double *restrict b, const double *restrict c, double s,
             ptrdiff_t n) {
    for (ptrdiff_t i = 0; i < n; i++)
        a[i] = b[i] + s * c[i];
}
KERNEL fill(double *a, double *b, double *c, ptrdiff_t n) {
    for (ptrdiff_t i = 0; i < n; i++)
        a[i] = 1.0, b[i] = 2.0, c[i] = 0.0;
}

static struct {
    double *a, *b, *c;
    size_t elements;
    const struct options *options;
    struct team *team;
    double (*times)[KERNELS];
    long repeats; /* made */
    atomic_bool more;
    double (*errors)[3]; /* by thread: sums of the deviations of a, b and c */
    double expected[3];
} s;

static void one_kernel(int kernel, size_t from, size_t to) {
    ptrdiff_t n = (ptrdiff_t)(to - from);
    double *a = s.a + from, *b = s.b + from, *c = s.c + from;
    switch (kernel) {
    case 0: copy(c, a, n); break;
    case 1: scale(b, c, SCALAR, n); break;
    case 2: add(c, a, b, n); break;
    default: triad(a, b, c, SCALAR, n);
    }
}

static size_t part(int index) {
    return part_start(s.elements, index, s.team->size, LINE / sizeof(double));
}

static void first_touch(void *context, int index) {
    (void)context;
    size_t from = part(index);
    fill(s.a + from, s.b + from, s.c + from, (ptrdiff_t)(part(index + 1) - from));
}

/* From barrier to barrier: the time of a kernel is that of its slowest thread. */
static void repeat_all(void *context, int index) {
    (void)context;
    size_t from = part(index), to = part(index + 1);
    double began = now(), start, end;
    for (long r = 0; atomic_load_explicit(&s.more, memory_order_relaxed); r++) {
        team_barrier(s.team);
        start = now();
        for (int kernel = 0; kernel < KERNELS; kernel++) {
            one_kernel(kernel, from, to);
            team_barrier(s.team);
            if (index == 0) {
                end = now();
                s.times[r][kernel] = end - start;
                start = end;
            }
        }
        if (index == 0) {
            s.repeats = r + 1;
            bool time_left = s.options->seconds > 0 && now() - began < s.options->seconds;
            bool more = r + 1 < s.options->repeats || (time_left && r + 1 < MOST_REPEATS);
            atomic_store_explicit(&s.more, more, memory_order_relaxed);
        }
        team_barrier(s.team);
    }
}

static void expect(long repeats) {
    double a = 1.0, b = 2.0, c = 0.0;
    for (long r = 0; r < repeats; r++) {
        c = a;
        b = SCALAR * c;
        c = a + b;
        a = b + SCALAR * c;
    }
    s.expected[0] = a, s.expected[1] = b, s.expected[2] = c;
}

static void compare(void *context, int index) {
    (void)context;
    double sum[3] = {0};
    for (size_t i = part(index); i < part(index + 1); i++) {
        sum[0] += __builtin_fabs(s.a[i] - s.expected[0]);
        sum[1] += __builtin_fabs(s.b[i] - s.expected[1]);
        sum[2] += __builtin_fabs(s.c[i] - s.expected[2]);
    }
    for (int array = 0; array < 3; array++)
        s.errors[index][array] = sum[array];
}

/* As stream.c does: the average relative error of each array is below 1e-13. The values grow
 * 15-fold each repeat and overflow to infinity after 260; then only equality is asked. */
static double worst_error(void) {
    double worst = 0;
    for (int array = 0; array < 3; array++) {
        double sum = 0;
        for (int thread = 0; thread < s.team->size; thread++)
            sum += s.errors[thread][array];
        double error = sum / (double)s.elements / __builtin_fabs(s.expected[array]);
        if (!(error <= worst))
            worst = error;
    }
    return worst;
}

static void prepare(struct run *run) {
    const struct options *o = run->options;
    s.options = o;
    s.team = run->team;
    s.elements = o->bytes / sizeof(double);
    buffer_map(&run->buffers[0], 3 * s.elements * sizeof(double), o->pages, o->memory_node);
    run->buffer_count = 1;
    s.a = (double *)(void *)run->buffers[0].base;
    s.b = s.a + s.elements;
    s.c = s.b + s.elements;
    long most = o->seconds > 0 ? MOST_REPEATS : o->repeats;
    s.times = allocate((size_t)most, sizeof *s.times);
    s.errors = allocate((size_t)s.team->size, sizeof *s.errors);
    team_run(s.team, first_touch, NULL);
}

static void configure(struct run *run, struct json *j) {
    (void)run;
    json_whole(j, "array_bytes", (long long)(s.elements * sizeof(double)));
    json_whole(j, "repeats", s.options->repeats);
}

static void measure(struct run *run) {
    (void)run;
    atomic_store(&s.more, true);
    team_run(s.team, repeat_all, NULL);
}

static void report(struct run *run, struct json *j) {
    (void)run;
    expect(s.repeats);
    team_run(s.team, compare, NULL);
    double error = worst_error();
    if (!(error < 1e-13))
        die(EXIT_FAILED, "the arrays are wrong after %ld repeats (relative error %g): this host "
            "computes or stores wrongly", s.repeats, error);
    json_begin(j, "kernels", '[');
    for (int kernel = 0; kernel < KERNELS; kernel++) {
        json_begin(j, NULL, '{');
        json_text(j, "kernel", KERNEL_NAMES[kernel]);
        json_whole(j, "bytes", (long long)(s.elements * sizeof(double)) * ARRAYS_MOVED[kernel]);
        json_begin(j, "times_s", '[');
        for (long r = 0; r < s.repeats; r++)
            json_real(j, NULL, s.times[r][kernel]);
        json_end(j, ']');
        json_end(j, '}');
    }
    json_end(j, ']');
    json_real(j, "relative_error", error);
}

const struct measurement STREAM_MODE = {prepare, configure, measure, report, NULL};

bool stream_kernels_right(size_t elements) {
    struct options options = {.pin = false};
    struct team team;
    team_start(&team, &options, 1);
    s.team = &team;
    s.elements = elements;
    s.a = allocate(3 * elements, sizeof(double));
    s.b = s.a + elements;
    s.c = s.b + elements;
    s.errors = allocate(1, sizeof *s.errors);
    first_touch(NULL, 0);
    for (int kernel = 0; kernel < 3 * KERNELS; kernel++)
        one_kernel(kernel % KERNELS, 0, elements);
    expect(3);
    compare(NULL, 0);
    bool right = worst_error() < 1e-13;
    s.b[elements - 1] += 1e6 * (double)elements; /* a wrong result must be seen */
    compare(NULL, 0);
    right = right && !(worst_error() < 1e-13);
    free(s.a);
    free(s.errors);
    free(team.workers);
    return right;
}
