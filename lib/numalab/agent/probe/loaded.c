/* Latency under load: the first thread chases as in latency.c while all others read a buffer of
 * their own in sequence, or read and write it in a mix, pausing after about 512 bytes for a number
 * of turns of an empty loop. For each mix and pause: the latency, and the bandwidth that the others
 * drew meanwhile.
 *
 * Hardware threads of the first one's core sleep: what they do would slow the chase by sharing the
 * core, and not by the memory. */
#include "probe.h"

#include "arch.h"

#include <math.h>
#include <stdlib.h>
#include <time.h>

enum { SAMPLES = 3, STEP_LINES = 8 };
static const double SETTLE_S = 0.02, LEAST_SAMPLE_S = 0.001; /* a sample's settling is no longer */

struct count {
    _Alignas(LINE) atomic_ullong bytes;
};

struct point {
    double latency_ns[SAMPLES], bandwidth_gbs[SAMPLES];
};

static struct {
    const struct options *options;
    struct team *team;
    struct chase chase;
    bool flushed;
    char *traffic;
    size_t traffic_bytes;
    struct count *counts;
    int *places; /* of each thread among those that inject, or -1 */
    int injectors;
    double turn_ns, sample_s;
    atomic_bool stop;
    atomic_long delay;
    atomic_int mix;
    struct point *points; /* of mix m and delay n at m * delay_count + n */
} d;

static void wait_turns(long turns) {
    for (; turns > 0; turns--)
        __asm__ volatile("");
}

static char *part(int place) {
    return d.traffic + part_start(d.traffic_bytes, place, d.injectors, 4096);
}

static void first_touch(void *context, int index) {
    (void)context;
    if (d.places[index] >= 0)
        touch(part(d.places[index]), part(d.places[index] + 1));
}

static void choose_injectors(void) {
    int chaser = d.team->workers[0].cpu, *siblings, count = 0;
    if (chaser >= 0)
        count = cpu_siblings(chaser, &siblings);
    for (int i = 0; i < d.team->size; i++) {
        bool shares = i == 0;
        for (int k = 0; k < count; k++)
            shares = shares || siblings[k] == d.team->workers[i].cpu;
        d.places[i] = shares ? -1 : d.injectors++;
    }
    if (chaser >= 0)
        free(siblings);
    if (!d.injectors)
        die(EXIT_ARGUMENTS, "loaded needs 2 cores: one measures while the others read");
}

static void inject(int index) {
    char *own = part(d.places[index]);
    size_t bytes = (size_t)(part(d.places[index] + 1) - own), stream = 0, step = 0, at = 0;
    const struct mix *mix = NULL;
    unsigned long long moved = 0;
    while (!atomic_load_explicit(&d.stop, memory_order_relaxed)) {
        const struct mix *wanted =
            d.options->mixes[atomic_load_explicit(&d.mix, memory_order_relaxed)];
        if (mix != wanted) {
            mix = wanted, at = 0;
            stream = traffic_stream_bytes(bytes, mix);
            step = (size_t)(STEP_LINES / (mix->reads + mix->writes)) * LINE;
        }
        size_t end = at + step < stream ? at + step : stream;
        traffic_move(own, stream, at, end, mix);
        moved += (end - at) * (size_t)(mix->reads + mix->writes);
        at = end < stream ? end : 0;
        atomic_store_explicit(&d.counts[index].bytes, moved, memory_order_relaxed);
        wait_turns(atomic_load_explicit(&d.delay, memory_order_relaxed));
    }
}

static void sleep_through(void) {
    static const struct timespec nap = {0, 20000000};
    while (!atomic_load_explicit(&d.stop, memory_order_relaxed))
        nanosleep(&nap, NULL);
}

static unsigned long long total(void) {
    unsigned long long sum = 0;
    for (int i = 1; i < d.team->size; i++)
        sum += atomic_load_explicit(&d.counts[i].bytes, memory_order_relaxed);
    return sum;
}

static void chase_all(void) {
    for (int i = 0; i < d.options->mix_count * d.options->delay_count; i++) {
        struct point *point = &d.points[i];
        atomic_store_explicit(&d.mix, i / d.options->delay_count, memory_order_relaxed);
        atomic_store_explicit(&d.delay, d.options->delays[i % d.options->delay_count],
                              memory_order_relaxed);
        double settled = now() + (d.sample_s < SETTLE_S ? d.sample_s : SETTLE_S);
        while (now() < settled)
            chase_time(&d.chase, 1024);
        size_t steps = chase_steps(&d.chase, d.sample_s);
        for (int sample = 0; sample < SAMPLES; sample++) {
            unsigned long long before = total();
            double start = now(), took = chase_time(&d.chase, steps);
            double window = now() - start;
            point->latency_ns[sample] = took * 1e9 / (double)steps;
            point->bandwidth_gbs[sample] = (double)(total() - before) / window / 1e9;
        }
    }
    atomic_store_explicit(&d.stop, true, memory_order_relaxed);
}

static void run_all(void *context, int index) {
    (void)context;
    team_barrier(d.team);
    if (index == 0)
        chase_all();
    else if (d.places[index] >= 0)
        inject(index);
    else
        sleep_through();
}

static void prepare(struct run *run) {
    const struct options *o = run->options;
    d.options = o;
    d.team = run->team;
    d.places = allocate((size_t)d.team->size, sizeof *d.places);
    d.points = allocate((size_t)(o->mix_count * o->delay_count), sizeof *d.points);
    choose_injectors();
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
    d.sample_s = o->seconds / (o->mix_count * o->delay_count) / SAMPLES;
    if (d.sample_s < LEAST_SAMPLE_S)
        d.sample_s = LEAST_SAMPLE_S;
    team_run(d.team, first_touch, NULL);
    chase_build(&d.chase, &run->buffers[0], o->stride);
    double began = now();
    d.flushed = chase_warm(&d.chase);
    d.turn_ns = NAN;
    if (!o->clock_later) {
        double start = now();
        wait_turns(10000000);
        d.turn_ns = (now() - start) * 1e9 / 1e7;
    }
    run->warmup_s = now() - began;
}

static void configure(struct run *run, struct json *j) {
    json_whole(j, "bytes", (long long)run->buffers[0].bytes);
    json_whole(j, "stride", (long long)d.chase.stride);
    json_truth(j, "flushed", d.flushed);
    json_real(j, "delay_turn_ns", d.turn_ns);
    json_whole(j, "injectors", d.injectors);
    json_text(j, "stores", STORE_KIND);
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
    json_begin(j, "points", '[');
    for (int i = 0; i < d.options->mix_count * d.options->delay_count; i++) {
        json_begin(j, NULL, '{');
        json_text(j, "mix", d.options->mixes[i / d.options->delay_count]->name);
        json_whole(j, "delay", d.options->delays[i % d.options->delay_count]);
        samples(j, "latency_ns", d.points[i].latency_ns);
        samples(j, "bandwidth_gbs", d.points[i].bandwidth_gbs);
        json_end(j, '}');
    }
    json_end(j, ']');
}

const struct measurement LOADED_MODE = {prepare, configure, measure, report, NULL};
