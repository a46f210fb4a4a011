/* Bandwidth of all threads over the buffer, by mix of reads and writes. Bytes are counted as the
 * program loads and stores them. All threads run through; the first one reads the clock and
 * everybody's counts, so that no start and no end is inside a sample. */
#include "probe.h"

#include "arch.h"

#include <stdlib.h>
#include <sys/mman.h>

static const size_t BLOCK = 16 * 1024; /* bytes of each stream between two looks at the clock */
static const double SETTLE_S = 0.02, LEAST_SAMPLE_S = 0.001; /* a sample's settling is no longer */

struct count {
    _Alignas(LINE) atomic_ullong bytes;
};

static struct {
    const struct options *options;
    struct team *team;
    char *base;
    size_t bytes;
    struct count *counts;
    atomic_bool stop;
    const struct mix *mix;
    int mix_index, samples;
    double sample_s, (*gbs)[MAX_POINTS]; /* [sample][mix] */
} b;

static size_t part(int index) {
    return part_start(b.bytes, index, b.team->size, 4096);
}

static void first_touch(void *context, int index) {
    (void)context;
    touch(b.base + part(index), b.base + part(index + 1));
}

static unsigned long long total(void) {
    unsigned long long sum = 0;
    for (int i = 0; i < b.team->size; i++)
        sum += atomic_load_explicit(&b.counts[i].bytes, memory_order_relaxed);
    return sum;
}

static void run_mix(void *context, int index) {
    (void)context;
    char *own = b.base + part(index);
    size_t stream = traffic_stream_bytes(part(index + 1) - part(index), b.mix);
    unsigned long long moved = 0, before = 0;
    int sample = -1; /* the time before the first is for settling */
    double started = now();
    team_barrier(b.team);
    for (size_t at = 0; !atomic_load_explicit(&b.stop, memory_order_relaxed);) {
        size_t end = at + BLOCK < stream ? at + BLOCK : stream;
        traffic_move(own, stream, at, end, b.mix);
        moved += (end - at) * (size_t)(b.mix->reads + b.mix->writes);
        atomic_store_explicit(&b.counts[index].bytes, moved, memory_order_relaxed);
        at = end < stream ? end : 0;
        if (index != 0)
            continue;
        double clock = now(), took = clock - started;
        if (took < (sample < 0 && SETTLE_S < b.sample_s ? SETTLE_S : b.sample_s))
            continue;
        unsigned long long sum = total();
        if (sample >= 0)
            b.gbs[sample][b.mix_index] = (double)(sum - before) / took / 1e9;
        if (++sample == b.samples)
            atomic_store_explicit(&b.stop, true, memory_order_relaxed);
        before = sum;
        started = clock;
    }
}

static void prepare(struct run *run) {
    static struct buffer kept[MAX_NODES + 1]; /* of the visits before, by node */
    const struct options *o = run->options;
    struct buffer *buffer = &kept[o->memory_node + 1];
    bool made = buffer->bytes == o->bytes;
    b.options = o;
    b.team = run->team;
    if (!made && buffer->bytes)
        munmap(buffer->base, buffer->bytes);
    if (!made)
        buffer_map(buffer, o->bytes, o->pages, o->memory_node);
    b.base = buffer->base;
    b.bytes = o->bytes;
    free(b.counts);
    free(b.gbs);
    b.counts = aligned_alloc(LINE, (size_t)b.team->size * sizeof *b.counts);
    if (!b.counts)
        die(EXIT_MEMORY, "not enough memory for the counters of %d threads", b.team->size);
    double each = o->seconds / o->mix_count;
    b.samples = each >= 1 ? 10 : each >= 0.3 ? 5 : 3;
    b.sample_s = each / b.samples > LEAST_SAMPLE_S ? each / b.samples : LEAST_SAMPLE_S;
    b.gbs = allocate((size_t)b.samples, sizeof *b.gbs);
    if (!made) {
        team_run(b.team, first_touch, NULL);
        buffer_inspect(buffer);
    }
    run->buffers[0] = *buffer;
    run->buffer_count = 1;
}

static void configure(struct run *run, struct json *j) {
    json_whole(j, "bytes", (long long)run->buffers[0].bytes);
    json_real(j, "sample_s", b.sample_s);
    json_text(j, "stores", STORE_KIND);
}

static void measure(struct run *run) {
    (void)run;
    for (b.mix_index = 0; b.mix_index < b.options->mix_count; b.mix_index++) {
        b.mix = b.options->mixes[b.mix_index];
        for (int i = 0; i < b.team->size; i++)
            atomic_init(&b.counts[i].bytes, 0);
        atomic_store(&b.stop, false);
        team_run(b.team, run_mix, NULL);
    }
}

static void report(struct run *run, struct json *j) {
    (void)run;
    json_begin(j, "mixes", '[');
    for (int mix = 0; mix < b.options->mix_count; mix++) {
        json_begin(j, NULL, '{');
        json_text(j, "mix", b.options->mixes[mix]->name);
        json_begin(j, "samples_gbs", '[');
        for (int sample = 0; sample < b.samples; sample++)
            json_real(j, NULL, b.gbs[sample][mix]);
        json_end(j, ']');
        json_end(j, '}');
    }
    json_end(j, ']');
}

const struct measurement BANDWIDTH_MODE = {prepare, configure, measure, report, NULL};
