/* Latency under load: the first thread chases as in latency.c while all others read a buffer of
 * their own in sequence, pausing after every 512 bytes for a number of turns of an empty loop.
 * For each pause: the latency, and the bandwidth that the others drew meanwhile. */
#include "probe.h"

#include "arch.h"

#include <stdlib.h>

enum { SAMPLES = 3, STEP_BYTES = 512 };
static const double SETTLE_S = 0.02;

struct count {
    _Alignas(LINE) atomic_ullong bytes;
};

static struct {
    const struct options *options;
    struct team *team;
    struct chase chase;
    bool flushed;
    char *traffic;
    size_t traffic_bytes;
    struct count *counts;
    double turn_ns, sample_s;
    atomic_bool stop;
    atomic_long delay;
    double latency_ns[MAX_POINTS][SAMPLES], bandwidth_gbs[MAX_POINTS][SAMPLES];
} d;

static void wait_turns(long turns) {
    for (; turns > 0; turns--)
        __asm__ volatile("");
}

/* The chaser has no part. */
static char *part(int index) {
    return d.traffic + part_start(d.traffic_bytes, index - 1, d.team->size - 1, 4096);
}

static void first_touch(void *context, int index) {
    (void)context;
    if (index > 0)
        touch(part(index), part(index + 1));
}

static void inject(int index) {
    char *own = part(index);
    size_t bytes = (size_t)(part(index + 1) - own) / STEP_BYTES * STEP_BYTES;
    unsigned long long moved = 0;
    for (size_t at = 0; !atomic_load_explicit(&d.stop, memory_order_relaxed);) {
        traffic_move(own, bytes, at, at + STEP_BYTES, &MIXES[0]);
        at = at + STEP_BYTES < bytes ? at + STEP_BYTES : 0;
        moved += STEP_BYTES;
        atomic_store_explicit(&d.counts[index].bytes, moved, memory_order_relaxed);
        wait_turns(atomic_load_explicit(&d.delay, memory_order_relaxed));
    }
}

static unsigned long long total(void) {
    unsigned long long sum = 0;
    for (int i = 1; i < d.team->size; i++)
        sum += atomic_load_explicit(&d.counts[i].bytes, memory_order_relaxed);
    return sum;
}

static void chase_all(void) {
    for (int point = 0; point < d.options->delay_count; point++) {
        atomic_store_explicit(&d.delay, d.options->delays[point], memory_order_relaxed);
        double settled = now() + SETTLE_S;
        while (now() < settled)
            chase_time(&d.chase, 1024);
        size_t steps = chase_steps(&d.chase, d.sample_s);
        for (int sample = 0; sample < SAMPLES; sample++) {
            unsigned long long before = total();
            double start = now(), took = chase_time(&d.chase, steps);
            double window = now() - start;
            d.latency_ns[point][sample] = took * 1e9 / (double)steps;
            d.bandwidth_gbs[point][sample] = (double)(total() - before) / window / 1e9;
        }
    }
    atomic_store_explicit(&d.stop, true, memory_order_relaxed);
}

static void run_all(void *context, int index) {
    (void)context;
    team_barrier(d.team);
    if (index == 0)
        chase_all();
    else
        inject(index);
}

static void prepare(struct run *run) {
    const struct options *o = run->options;
    d.options = o;
    d.team = run->team;
    for (int i = 0; i < 2; i++)
        buffer_map(&run->buffers[i], o->bytes, o->pages, o->memory_node);
    run->buffer_count = 2;
    d.traffic = run->buffers[1].base;
    d.traffic_bytes = run->buffers[1].bytes;
    d.counts = aligned_alloc(LINE, (size_t)d.team->size * sizeof *d.counts);
    if (!d.counts)
        die(EXIT_MEMORY, "not enough memory for the counters of %d threads", d.team->size);
    for (int i = 0; i < d.team->size; i++)
        atomic_init(&d.counts[i].bytes, 0);
    d.sample_s = o->seconds / o->delay_count / SAMPLES;
    if (d.sample_s < 0.05)
        d.sample_s = 0.05;
    team_run(d.team, first_touch, NULL);
    chase_build(&d.chase, &run->buffers[0], o->stride);
    double began = now();
    d.flushed = chase_warm(&d.chase);
    double start = now();
    wait_turns(10000000);
    d.turn_ns = (now() - start) * 1e9 / 1e7;
    run->warmup_s = now() - began;
}

static void configure(struct run *run, struct json *j) {
    json_whole(j, "bytes", (long long)run->buffers[0].bytes);
    json_whole(j, "stride", (long long)d.chase.stride);
    json_truth(j, "flushed", d.flushed);
    json_real(j, "delay_turn_ns", d.turn_ns);
}

static void measure(struct run *run) {
    (void)run;
    atomic_store(&d.stop, false);
    team_run(d.team, run_all, NULL);
}

static void samples(struct json *j, const char *key, const double *values) {
    json_begin(j, key, '[');
    for (int sample = 0; sample < SAMPLES; sample++)
        json_real(j, NULL, values[sample]);
    json_end(j, ']');
}

static void report(struct run *run, struct json *j) {
    (void)run;
    json_begin(j, "delays", '[');
    for (int point = 0; point < d.options->delay_count; point++) {
        json_begin(j, NULL, '{');
        json_whole(j, "delay", d.options->delays[point]);
        samples(j, "latency_ns", d.latency_ns[point]);
        samples(j, "bandwidth_gbs", d.bandwidth_gbs[point]);
        json_end(j, '}');
    }
    json_end(j, ']');
}

const struct measurement LOADED_MODE = {prepare, configure, measure, report, NULL};
