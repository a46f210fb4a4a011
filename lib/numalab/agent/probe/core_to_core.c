/* Core-to-core latency: two threads hand a cache line to and fro by compare-and-swap, each
 * waiting by trying, as nviennot/core-to-core-latency does; half a round trip is one way. The
 * line belongs to a page that the pair's first CPU touched first.
 *
 * Nobody waits for ever: a partner that does not answer (its CPU went offline, or is kept from
 * running) ends the pair after a time, with the reason in place of the figure. */
#include "probe.h"

#include "arch.h"

#include <sched.h>
#include <stdlib.h>
#include <string.h>

enum { SAMPLES = 7, LEAST_TRIPS = 50, MOST_TRIPS = 1000000, CHECK = 4096 };
enum { EMPTY, PING, PONG, STOP }; /* the line's values */
static const double PATIENCE_S = 1.0;   /* for one pair, beyond its budget */
static const double START_S = 100e-6;   /* about what starting two threads takes */

struct pair {
    int cpu[2], ran_on[2]; /* ran_on -1: it was moved */
    atomic_int *line;
    atomic_int here; /* threads that have arrived */
    double budget_s, deadline, ns[SAMPLES];
    bool measured;
};

struct result {
    float ns[SAMPLES];
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

static bool all_samples(struct pair *pair) {
    double took = round_trips(pair, LEAST_TRIPS); /* warms up, and tells how long a trip takes */
    if (took <= 0)
        return false;
    double fit = pair->budget_s / SAMPLES * LEAST_TRIPS / took;
    long count = fit < LEAST_TRIPS ? LEAST_TRIPS : fit > MOST_TRIPS ? MOST_TRIPS : (long)fit;
    for (int i = 0; i < SAMPLES; i++) {
        if ((took = round_trips(pair, count)) <= 0)
            return false;
        pair->ns[i] = took * 1e9 / (double)count / 2;
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
    pair->deadline = now() + PATIENCE_S + 3 * pair->budget_s;
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
    return pair->measured ? NULL : "the other CPU did not answer in time";
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
    double each = c.options->seconds / ((double)n * (n - 1) / 2) - START_S;
    struct pair pair = {.budget_s = each > 0 ? each : 0};
    for (int i = 0; i < n; i++)
        for (int k = i + 1; k < n; k++) {
            struct result *result = &c.results[(size_t)i * (size_t)n + (size_t)k];
            if (c.unusable[i] || c.unusable[k]) {
                result->reason = "no thread can be started on one of the two CPUs";
                continue;
            }
            pair.cpu[0] = c.options->cpus[i], pair.cpu[1] = c.options->cpus[k];
            pair.line = (atomic_int *)(void *)(c.lines + (size_t)i * page_size());
            pair.measured = false;
            result->reason = measure_pair(&pair);
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
