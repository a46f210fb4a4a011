/* The four STREAM kernels by the STREAM run rules (J. D. McCalpin, Memory Bandwidth and Machine
 * Balance in Current High Performance Computers, IEEE TCCA Newsletter, December 1995): arrays of
 * double, the first repeat not counted, best of the others, results validated, bytes counted as
 * the kernel names them (a write that first reads its line counts once). A variant of STREAM,
 * not STREAM: results are to be labelled so.
 *
 * Each kernel runs in two ways: with ordinary stores, for which a processor that does not see whole
 * lines being written first reads each line; and, as NAME_nt, with stores that bypass the caches
 * (NON_TEMPORAL in arch.h), where the processor has them. Left to itself a compiler makes of copy a
 * call of memcpy, which takes the one or the other by the size of the array.
 *
 * Every thread first touches the part of each array that it works on later. The arrays lie one
 * after the other in one mapping, as static arrays do. */
#include "probe.h"

#include "arch.h"

#include <stdlib.h>

enum { COPY, SCALE, ADD, TRIAD, ORDINARY, MOST_REPEATS = 10000 };
#if defined(NON_TEMPORAL)
enum { KERNELS = 2 * ORDINARY };
#else
enum { KERNELS = ORDINARY };
#endif
static const char *const KERNEL_NAMES[2 * ORDINARY] = {
    "copy", "scale", "add", "triad", "copy_nt", "scale_nt", "add_nt", "triad_nt"};
static const int ARRAYS_MOVED[ORDINARY] = {2, 2, 3, 3};
static const double SCALAR = 3.0;

#if defined(__clang__)
#define NO_MEMCPY no_builtin("memcpy")
#else
#define NO_MEMCPY optimize("no-tree-loop-distribute-patterns")
#endif

/* Functions of their own with unaliased arrays: the compiler knows what it knows of STREAM's. */
#define KERNEL static __attribute__((noinline, NO_MEMCPY)) void
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

#if defined(NON_TEMPORAL)
typedef double two __attribute__((vector_size(16), may_alias));

static inline __attribute__((always_inline)) two value(int kernel, two x, two y) {
    switch (kernel) {
    case COPY: return x;
    case SCALE: return SCALAR * x;
    case ADD: return x + y;
    default: return x + SCALAR * y;
    }
}

/* `to` is line-aligned. The last elements, less than half a line, are stored as usual. */
static inline __attribute__((always_inline)) void past_caches(int kernel, double *restrict to,
                                                              const double *restrict x,
                                                              const double *restrict y,
                                                              ptrdiff_t n) {
    ptrdiff_t i = 0;
    for (; i + 4 <= n; i += 4) {
        const two *xs = (const void *)(x + i), *ys = (const void *)(y + i);
        store_past_caches(to + i, (sixteen)value(kernel, xs[0], ys[0]),
                          (sixteen)value(kernel, xs[1], ys[1]));
    }
    for (; i < n; i++)
        to[i] = value(kernel, (two){x[i]}, (two){y[i]})[0];
    stores_end();
}

KERNEL copy_nt(double *restrict c, const double *restrict a, ptrdiff_t n) {
    past_caches(COPY, c, a, a, n);
}
KERNEL scale_nt(double *restrict b, const double *restrict c, ptrdiff_t n) {
    past_caches(SCALE, b, c, c, n);
}
KERNEL add_nt(double *restrict c, const double *restrict a, const double *restrict b,
              ptrdiff_t n) {
    past_caches(ADD, c, a, b, n);
}
KERNEL triad_nt(double *restrict a, const double *restrict b, const double *restrict c,
                ptrdiff_t n) {
    past_caches(TRIAD, a, b, c, n);
}
#endif

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
    case COPY: copy(c, a, n); break;
    case SCALE: scale(b, c, SCALAR, n); break;
    case ADD: add(c, a, b, n); break;
    case TRIAD: triad(a, b, c, SCALAR, n); break;
#if defined(NON_TEMPORAL)
    case ORDINARY + COPY: copy_nt(c, a, n); break;
    case ORDINARY + SCALE: scale_nt(b, c, n); break;
    case ORDINARY + ADD: add_nt(c, a, b, n); break;
    default: triad_nt(a, b, c, n);
#endif
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

/* The time of a kernel is that of its slowest thread, as in stream.c: the clock is read before any
 * thread may begin and after all have ended. Read behind the barrier that lets them begin, by a
 * thread that just then serves an interrupt, it would miss what the others have done by then. */
static void repeat_all(void *context, int index) {
    (void)context;
    size_t from = part(index), to = part(index + 1);
    double began = now(), start = 0;
    for (long r = 0; atomic_load_explicit(&s.more, memory_order_relaxed); r++) {
        for (int kernel = 0; kernel < KERNELS; kernel++) {
            if (index == 0)
                start = now();
            team_barrier(s.team);
            one_kernel(kernel, from, to);
            team_barrier(s.team);
            if (index == 0)
                s.times[r][kernel] = now() - start;
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
    for (long r = 0; r < repeats * (KERNELS / ORDINARY); r++) {
        c = a;
        b = SCALAR * c;
        c = a + b;
        a = b + SCALAR * c;
    }
    s.expected[0] = a, s.expected[1] = b, s.expected[2] = c;
}

/* Of values beyond the largest number only equality can be asked. */
static double deviation(double found, double expected) {
    return found == expected ? 0 : __builtin_fabs(found - expected);
}

static void compare(void *context, int index) {
    (void)context;
    double sum[3] = {0};
    for (size_t i = part(index); i < part(index + 1); i++) {
        sum[0] += deviation(s.a[i], s.expected[0]);
        sum[1] += deviation(s.b[i], s.expected[1]);
        sum[2] += deviation(s.c[i], s.expected[2]);
    }
    for (int array = 0; array < 3; array++)
        s.errors[index][array] = sum[array];
}

/* As stream.c does: the average relative error of each array is below 1e-13. The values grow
 * 15-fold with every four kernels and are infinite after 260 times. */
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

static size_t room(size_t elements) { /* every array begins with a line of its own */
    size_t line = LINE / sizeof(double);
    return (elements + line - 1) / line * line;
}

static void lay_out(void *base) {
    s.a = base;
    s.b = s.a + room(s.elements);
    s.c = s.b + room(s.elements);
}

static void prepare(struct run *run) {
    const struct options *o = run->options;
    s.options = o;
    s.team = run->team;
    s.elements = o->bytes / sizeof(double);
    buffer_map(&run->buffers[0], 3 * room(s.elements) * sizeof(double), o->pages, o->memory_node);
    run->buffer_count = 1;
    lay_out(run->buffers[0].base);
    long most = o->seconds > 0 ? MOST_REPEATS : o->repeats;
    s.times = allocate((size_t)most, sizeof *s.times);
    s.errors = allocate((size_t)s.team->size, sizeof *s.errors);
    team_run(s.team, first_touch, NULL);
}

static void configure(struct run *run, struct json *j) {
    (void)run;
#if defined(NON_TEMPORAL)
    json_text(j, "non_temporal", NON_TEMPORAL);
#else
    json_text(j, "non_temporal", NULL);
#endif
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
        json_whole(j, "bytes", (long long)(s.elements * sizeof(double)) * ARRAYS_MOVED[kernel % ORDINARY]);
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
    void *arrays = aligned_alloc(LINE, 3 * room(elements) * sizeof(double));
    if (!arrays)
        die(EXIT_MEMORY, "not enough memory for the self-test");
    lay_out(arrays);
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
