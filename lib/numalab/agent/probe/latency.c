/* Idle latency: one dependent load after the other, each to a place drawn at random.
 *
 * The places, one every stride bytes, form a single random cycle (S. Sattolo, An algorithm to
 * generate a random cyclic permutation, Information Processing Letters 22, 1986), so that no
 * prefetcher can tell the next. With the default stride each cache line is one place and the
 * whole buffer is visited. Every access leaves the page of the one before: with base pages
 * nearly each also misses the TLB and walks the page table, which the time then includes; with
 * huge pages far fewer do. So a latency is told with the pages that it was measured on. */
#include "probe.h"

#include "arch.h"

#include <sys/mman.h>
#include <time.h>

enum { BATCH = 32 };
static const double SAMPLE_S = 0.1;  /* least length of a sample */
static const double ROUND_LIMIT_S = 1.0; /* of warming up by going round the whole cycle */

static void **place(const struct chase *chase, size_t line) {
    return (void **)(void *)(chase->base + line * chase->stride);
}

static uint64_t xorshift(uint64_t *state) { /* xorshift64*, Vigna 2016 */
    *state ^= *state >> 12, *state ^= *state << 25, *state ^= *state >> 27;
    return *state * 2685821657736338717u;
}

/* Done by the measuring thread alone. Helpers would place pages elsewhere where placement is by
 * first touch, and would drive others' work onto this thread's CPU. */
void chase_build(struct chase *chase, const struct buffer *buffer, size_t stride) {
    size_t lines = buffer->bytes / stride;
    *chase = (struct chase){.base = buffer->base, .lines = lines, .stride = stride,
                            .position = buffer->base};
    if (lines > UINT32_MAX)
        die(EXIT_ARGUMENTS, "--bytes %zu: more than 2^32 places to chase; use a larger --stride",
            buffer->bytes);
    touch(buffer->base, buffer->base + buffer->bytes);
    struct buffer index;
    buffer_map(&index, lines * sizeof(uint32_t), PAGES_AUTO, -1);
    uint32_t *next = (uint32_t *)(void *)index.base;
    uint64_t state = 0x9e3779b97f4a7c15u;
    for (size_t i = 0; i < lines; i++)
        next[i] = (uint32_t)i;
    for (size_t i = lines - 1; i > 0;) { /* numbers are drawn ahead, so that swaps need not wait */
        size_t drawn[BATCH], n = i < BATCH ? i : BATCH;
        for (size_t d = 0; d < n; d++) {
            drawn[d] = (size_t)(((xorshift(&state) >> 32) * (uint64_t)(i - d)) >> 32);
            __builtin_prefetch(&next[drawn[d]], 1);
        }
        for (size_t d = 0; d < n; d++, i--) {
            uint32_t held = next[i];
            next[i] = next[drawn[d]];
            next[drawn[d]] = held;
        }
    }
    for (size_t i = 0; i < lines; i++)
        *place(chase, i) = place(chase, next[i]);
    munmap(index.base, index.bytes);
}

static __attribute__((noinline)) void *follow(void *position, size_t sixteens) {
#define STEP position = *(void **)position;
#define FOUR STEP STEP STEP STEP
    for (; sixteens; sixteens--) {
        FOUR FOUR FOUR FOUR
    }
    return position;
}

/* The thread's own time: what others did on its CPU meanwhile is not the memory's latency. */
static double own_time(void) {
    struct timespec t;
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
    return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

double chase_time(struct chase *chase, size_t steps) {
    double start = own_time();
    void *end = follow(chase->position, steps / 16);
    double took = own_time() - start;
    *(void *volatile *)&chase->position = end;
    return took;
}

size_t chase_steps(struct chase *chase, double seconds) {
    size_t steps = 1024;
    for (double took;; steps *= 4)
        if ((took = chase_time(chase, steps)) > seconds / 16)
            return ((size_t)((double)steps * seconds / took) / 16 + 1) * 16;
}

static bool flush(struct chase *chase) {
    bool flushed = true;
    char *end = chase->base + chase->lines * chase->stride;
    for (char *c = chase->base; flushed && c < end; c += LINE)
        flushed = line_flush(c);
    flush_end();
    return flushed;
}

/* What building left in the caches must not be measured. A short cycle is gone round once: after
 * that the caches are as they stay. Of a long one the caches are flushed instead, where a program
 * may; else the first ten seconds of the round must do. */
bool chase_warm(struct chase *chase) {
    size_t steps = chase_steps(chase, SAMPLE_S);
    double round_s = SAMPLE_S * (double)chase->lines / (double)steps;
    if (round_s > ROUND_LIMIT_S && flush(chase)) {
        chase_time(chase, steps);
        return true;
    }
    double began = now();
    for (size_t done = 0; done < chase->lines && now() - began < 10 * ROUND_LIMIT_S; done += steps)
        chase_time(chase, steps);
    return false;
}

static struct {
    struct chase chase;
    size_t steps;
    long samples;
    double *ns;
    bool flushed;
} l;

static void prepare(struct run *run) {
    const struct options *o = run->options;
    buffer_map(&run->buffers[0], o->bytes, o->pages, o->memory_node);
    run->buffer_count = 1;
    chase_build(&l.chase, &run->buffers[0], o->stride);
    double began = now();
    l.flushed = chase_warm(&l.chase);
    l.steps = chase_steps(&l.chase, SAMPLE_S * 1.05);
    run->warmup_s = now() - began;
    l.samples = (long)(o->seconds / SAMPLE_S + 0.5);
    if (l.samples < 3)
        l.samples = 3;
    l.ns = allocate((size_t)l.samples, sizeof *l.ns);
}

static void configure(struct run *run, struct json *j) {
    json_whole(j, "bytes", (long long)run->buffers[0].bytes);
    json_whole(j, "stride", (long long)l.chase.stride);
    json_truth(j, "flushed", l.flushed);
}

static void sample(void *context, int index) {
    (void)context;
    for (long i = 0; index == 0 && i < l.samples; i++)
        l.ns[i] = chase_time(&l.chase, l.steps) * 1e9 / (double)l.steps;
}

static void measure(struct run *run) {
    team_run(run->team, sample, NULL);
}

static void report(struct run *run, struct json *j) {
    (void)run;
    json_begin(j, "samples_ns", '[');
    for (long i = 0; i < l.samples; i++)
        json_real(j, NULL, l.ns[i]);
    json_end(j, ']');
    json_whole(j, "accesses_per_sample", (long long)l.steps);
}

const struct measurement LATENCY_MODE = {prepare, configure, measure, report, NULL};
