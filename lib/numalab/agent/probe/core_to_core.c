/* Core-to-core latency: two threads hand a cache line to and fro by compare-and-swap, each
 * waiting by trying, as nviennot/core-to-core-latency does; half a round trip is one way. The
 * line belongs to a page that the pair's first CPU touched first.
 *
 * A figure is the median of nine samples. Their number of round trips grows until the 96 % interval
 * of that median (its second to its eighth value, by the binomial distribution) is within 2 % of it
 * to either side, or a sample has as many as that tool gives a pair in all, 300,000, divided by
 * nine. The nine that differ least count; if these differ by much more there is no figure: the host
 * had other work, and the reason says so.
 *
 * Nobody waits for ever: a partner that does not answer (its CPU went offline, or is kept from
 * running) ends the pair after a time, with the reason in place of the figure. */
#include "probe.h"

#include "arch.h"

#include <math.h>
#include <sched.h>
#include <stdlib.h>
#include <string.h>

enum { SAMPLES = 9, WARM_TRIPS = 100, LEAST_TRIPS = 1000, MOST_TRIPS = 32000, CHECK = 4096 };
enum { EMPTY, PING, PONG, STOP }; /* the line's values */
static const double WARM_S = 0.5e-3;    /* for cores to come to their speed */
static const double STEADY = 0.02, UNSTEADY = 0.25; /* half of the interval, over the median */
static const double LEAST_S = 0.02, MOST_S = 1.0; /* of the time that a pair may take to settle */
static const double PATIENCE_S = 1.0;             /* beyond it, with a CPU that does not answer */

struct pair {
    int cpu[2], ran_on[2]; /* ran_on -1: it was moved */
    atomic_int *line;
    atomic_int here; /* threads that have arrived */
    double budget_s, deadline, ns[SAMPLES], spread;
    long trips; /* of each sample */
    bool measured;
};

struct result {
    float ns[SAMPLES];
    int trips;
    const char *reason; /* NULL: measured */
};

static struct {
    const struct options *options;
    char *lines; /* a page for each first CPU */
    const char **unusable;
    struct result *results; /* of pair (i, j), i < j, at i * n + j */
} c;

/* Waits for the value `mine` and makes it `other`'s; false: stopped, or the time is up. */
static bool hand_over(struct pair *pair, int mine, int other) {
    for (long tries = 1;; tries++) {
        int seen = mine;
        if (atomic_compare_exchange_strong_explicit(pair->line, &seen, other,
                                                    memory_order_acq_rel, memory_order_acquire))
            return true;
        if (seen == STOP)
            return false;
        if (tries % CHECK == 0) { /* a host may have fewer CPUs than it shows: let others run */
            if (now() > pair->deadline)
                return false;
            sched_yield();
        }
    }
}

static bool meet(struct pair *pair) {
    atomic_fetch_add(&pair->here, 1);
    while (atomic_load(&pair->here) < 2) {
        if (now() > pair->deadline)
            return false;
        sched_yield();
    }
    return true;
}

/* Seconds that a number of round trips takes, or 0 when the partner does not answer. */
static double round_trips(struct pair *pair, long count) {
    double start = now();
    for (long i = 0; i < count; i++)
        if (!hand_over(pair, PING, PONG))
            return 0;
    while (atomic_load_explicit(pair->line, memory_order_acquire) != PING)
        if (now() > pair->deadline)
            return 0;
    return now() - start;
}

static int by_size(const void *a, const void *b) {
    double one = *(const double *)a, other = *(const double *)b;
    return (one > other) - (one < other);
}

/* Half of the interval of the median of all samples, as a share of that median. */
static double spread(const double *samples) {
    double sorted[SAMPLES];
    memcpy(sorted, samples, sizeof sorted);
    qsort(sorted, SAMPLES, sizeof *sorted, by_size);
    return (sorted[SAMPLES - 2] - sorted[1]) / 2 / sorted[SAMPLES / 2];
}

static bool all_samples(struct pair *pair) {
    double began = now(), took, samples[SAMPLES], half;
    pair->spread = INFINITY;
    do {
        if (round_trips(pair, WARM_TRIPS) <= 0)
            return false;
    } while (now() - began < WARM_S);
    long trips = LEAST_TRIPS;
    while (pair->spread > STEADY && trips <= MOST_TRIPS) {
        for (int i = 0; i < SAMPLES; i++) {
            if ((took = round_trips(pair, trips)) <= 0)
                return false;
            samples[i] = took * 1e9 / (double)trips / 2;
        }
        if ((half = spread(samples)) < pair->spread) {
            memcpy(pair->ns, samples, sizeof samples);
            pair->spread = half, pair->trips = trips;
        }
        if (now() - began > pair->budget_s)
            break;
        trips = half > UNSTEADY ? LEAST_TRIPS : 2 * trips; /* short ones fit between other work */
    }
    return true;
}

static void *first(void *argument) {
    struct pair *pair = argument;
    pair->ran_on[0] = sched_getcpu();
    atomic_store_explicit(pair->line, PING, memory_order_release);
    if (meet(pair))
        pair->measured = all_samples(pair);
    atomic_store_explicit(pair->line, STOP, memory_order_release);
    if (sched_getcpu() != pair->ran_on[0])
        pair->ran_on[0] = -1;
    return NULL;
}

static void *second(void *argument) {
    struct pair *pair = argument;
    pair->ran_on[1] = sched_getcpu();
    if (meet(pair))
        while (hand_over(pair, PONG, PING)) {
        }
    if (sched_getcpu() != pair->ran_on[1])
        pair->ran_on[1] = -1;
    return NULL;
}

static const char *measure_pair(struct pair *pair) {
    pthread_t threads[2];
    void *(*const starts[2])(void *) = {first, second};
    int error = 0, started = 0;
    atomic_store(pair->line, EMPTY);
    atomic_init(&pair->here, 0);
    pair->deadline = now() + PATIENCE_S + 3 * pair->budget_s; /* the last doubling may go over */
    while (started < 2 && !error)
        if (!(error = thread_on_cpu(&threads[started], pair->cpu[started], starts[started], pair)))
            started++;
    if (error)
        pair->deadline = 0; /* who has started need not wait; read late at worst, after a second */
    for (int i = 0; i < started; i++)
        pthread_join(threads[i], NULL);
    if (error)
        return "a thread could not be started on one of the two CPUs";
    if (pair->ran_on[0] != pair->cpu[0] || pair->ran_on[1] != pair->cpu[1])
        return "a thread did not stay on its CPU";
    if (!pair->measured)
        return "the other CPU did not answer in time";
    return pair->spread <= UNSTEADY ? NULL : "the samples differ too much: the host had other work";
}

static void *touch_one(void *line) {
    touch(line, (char *)line + 1);
    return NULL;
}

static void prepare(struct run *run) {
    const struct options *o = run->options;
    c.options = o;
    size_t n = (size_t)o->cpu_count, page = page_size();
    buffer_map(&run->buffers[0], n * page, PAGES_BASE, -1);
    run->buffer_count = 1;
    c.lines = run->buffers[0].base;
    c.unusable = allocate(n, sizeof *c.unusable);
    c.results = allocate(n * n, sizeof *c.results);
    for (size_t i = 0; i < n; i++) {
        pthread_t thread;
        int error = thread_on_cpu(&thread, o->cpus[i], touch_one, c.lines + i * page);
        if (error)
            c.unusable[i] = strerror(error);
        else
            pthread_join(thread, NULL);
    }
}

static void configure(struct run *run, struct json *j) {
    (void)run;
    json_whole(j, "samples", SAMPLES);
}

static void measure(struct run *run) {
    (void)run;
    int n = c.options->cpu_count;
    double each = 3 * c.options->seconds / ((double)n * (n - 1) / 2);
    double latest = now() + 2 * c.options->seconds + PATIENCE_S;
    struct pair pair = {.budget_s = each < LEAST_S ? LEAST_S : each > MOST_S ? MOST_S : each};
    for (int i = 0; i < n; i++)
        for (int k = i + 1; k < n; k++) {
            struct result *result = &c.results[(size_t)i * (size_t)n + (size_t)k];
            if (c.unusable[i] || c.unusable[k]) {
                result->reason = "no thread can be started on one of the two CPUs";
                continue;
            }
            if (now() > latest) {
                result->reason = "pairs before it took all the time: the host had other work";
                continue;
            }
            pair.cpu[0] = c.options->cpus[i], pair.cpu[1] = c.options->cpus[k];
            pair.line = (atomic_int *)(void *)(c.lines + (size_t)i * page_size());
            pair.measured = false;
            result->reason = measure_pair(&pair);
            result->trips = (int)(SAMPLES * pair.trips);
            for (int s = 0; s < SAMPLES; s++)
                result->ns[s] = (float)pair.ns[s];
        }
}

/* A line of output for each first CPU: a host with many CPUs has very many pairs. */
static void rows(struct run *run, struct json *j) {
    (void)run;
    int n = c.options->cpu_count;
    for (int i = 0; i + 1 < n; i++) {
        json_begin(j, NULL, '{');
        json_text(j, "event", "row");
        json_whole(j, "from", c.options->cpus[i]);
        json_begin(j, "pairs", '[');
        for (int k = i + 1; k < n; k++) {
            const struct result *result = &c.results[(size_t)i * (size_t)n + (size_t)k];
            json_begin(j, NULL, '{');
            json_whole(j, "to", c.options->cpus[k]);
            json_whole(j, "round_trips", result->reason ? 0 : result->trips);
            json_begin(j, "samples_ns", '[');
            for (int s = 0; s < SAMPLES && !result->reason; s++)
                json_real(j, NULL, (double)result->ns[s]);
            json_end(j, ']');
            json_text(j, "reason", result->reason);
            json_end(j, '}');
        }
        json_end(j, ']');
        json_end(j, '}');
        json_line(j);
    }
}

static void report(struct run *run, struct json *j) {
    (void)run;
    json_whole(j, "rows", c.options->cpu_count - 1);
}

const struct measurement CORE_TO_CORE_MODE = {prepare, configure, measure, report, rows};
