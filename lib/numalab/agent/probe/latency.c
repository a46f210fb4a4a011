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

#include <stdlib.h>
#include <sys/mman.h>
#include <time.h>

enum { BATCH = 32 };
static const double SAMPLE_S = 0.1, LEAST_SAMPLE_S = 0.01; /* length of a sample */
enum { LEAST_SAMPLES = 3 };
static const double SETTLE_S = 0.02;
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

/* The second chase: it leaves a reach of 1 MiB, which the TLB of any processor of today covers
 * with base pages of 4 KiB, only after SEEN lines of each of its pages, so that one access in SEEN
 * at most misses the TLB. In a stay it visits one line in four of a page, and all pages of the
 * reach before any of them again: what a prefetcher fetches around an access is not visited soon.
 * Its pointers are the second ones of the lines that the first chase uses as well. */
enum { REACH = 1 << 20, PAGE = 4096, PAGES = REACH / PAGE, APART = 4, SEEN = PAGE / LINE / APART };

static void shuffle(uint32_t *numbers, size_t count, uint64_t *state) { /* Fisher and Yates */
    for (size_t i = 0; i < count; i++)
        numbers[i] = (uint32_t)i;
    for (size_t i = count; i > 1; i--) {
        size_t drawn = (size_t)(((xorshift(state) >> 32) * (uint64_t)i) >> 32);
        uint32_t held = numbers[i - 1];
        numbers[i - 1] = numbers[drawn];
        numbers[drawn] = held;
    }
}

void chase_in_reach(struct chase *chase, const struct buffer *buffer) {
    size_t reaches = (buffer->bytes + REACH - 1) / REACH, visited = 0;
    uint32_t *order = allocate(reaches, sizeof *order), pages[PAGES], lines[SEEN];
    uint64_t state = 0x2545f4914f6cdd1du;
    void **first = NULL, **last = NULL;
    for (size_t round = 0; round < APART; round++) {
        shuffle(order, reaches, &state);
        for (size_t stay = 0; stay < reaches; stay++) {
            shuffle(lines, SEEN, &state);
            for (size_t pass = 0; pass < SEEN; pass++) {
                shuffle(pages, PAGES, &state);
                for (size_t i = 0; i < PAGES; i++) {
                    size_t at = (size_t)order[stay] * REACH + (size_t)pages[i] * PAGE +
                                (lines[pass] * APART + round) * LINE;
                    void **next = (void **)(void *)(buffer->base + at) + 1;
                    if (at + LINE > buffer->bytes)
                        continue;
                    if (last)
                        *last = next;
                    else
                        first = next;
                    last = next;
                    visited++;
                }
            }
        }
    }
    *last = first;
    free(order);
    *chase = (struct chase){.base = buffer->base, .lines = visited, .stride = LINE,
                            .position = first};
}

enum { ANYWHERE, IN_REACH, CHASES };
static const char *const SAMPLES_OF[CHASES] = {"samples_ns", "tlb_local_samples_ns"};

/* A buffer with its chases. On a tour it is kept for the next visit of its node, and the chases
 * go on from where they stopped: the lines that the caches hold are then those behind them. */
struct kept {
    struct buffer buffer;
    struct chase chases[CHASES];
    bool flushed;
};

static struct {
    struct kept *on;
    double sample_s;
    long samples;
    size_t steps[CHASES];
    double *ns[CHASES];
} l;

static void build(struct kept *kept, const struct options *o) {
    if (kept->buffer.bytes)
        munmap(kept->buffer.base, kept->buffer.bytes);
    buffer_map(&kept->buffer, o->bytes, o->pages, o->memory_node);
    chase_build(&kept->chases[ANYWHERE], &kept->buffer, o->stride);
    chase_in_reach(&kept->chases[IN_REACH], &kept->buffer);
    buffer_inspect(&kept->buffer);
}

static void prepare(struct run *run) {
    static struct kept kept[MAX_NODES + 1]; /* by node */
    const struct options *o = run->options;
    l.on = &kept[o->memory_node + 1];
    bool made = l.on->buffer.bytes == o->bytes;
    if (!made)
        build(l.on, o);
    double began = now();
    if (!made)
        l.on->flushed = chase_warm(&l.on->chases[ANYWHERE]);
    double each = o->seconds / CHASES;
    l.sample_s = each / LEAST_SAMPLES < SAMPLE_S ? each / LEAST_SAMPLES : SAMPLE_S;
    l.sample_s = l.sample_s > LEAST_SAMPLE_S ? l.sample_s : LEAST_SAMPLE_S;
    l.samples = (long)(each / l.sample_s + 0.5);
    if (l.samples < LEAST_SAMPLES)
        l.samples = LEAST_SAMPLES;
    for (int c = 0; c < CHASES; c++) {
        l.steps[c] = chase_steps(&l.on->chases[c], l.sample_s);
        free(l.ns[c]);
        l.ns[c] = allocate((size_t)l.samples, sizeof *l.ns[c]);
    }
    run->warmup_s = now() - began;
    run->buffers[0] = l.on->buffer;
    run->buffer_count = 1;
}

static void configure(struct run *run, struct json *j) {
    json_whole(j, "bytes", (long long)run->buffers[0].bytes);
    json_whole(j, "stride", (long long)l.on->chases[ANYWHERE].stride);
    json_truth(j, "flushed", l.on->flushed);
}

static void sample(void *context, int index) {
    (void)context;
    for (int c = 0; index == 0 && c < CHASES; c++) {
        struct chase *chase = &l.on->chases[c];
        double settled = now() + SETTLE_S; /* this CPU has just been idle */
        while (now() < settled)
            chase_time(chase, 1024);
        for (long i = 0; i < l.samples; i++)
            l.ns[c][i] = chase_time(chase, l.steps[c]) * 1e9 / (double)l.steps[c];
    }
}

static void measure(struct run *run) {
    team_run(run->team, sample, NULL);
}

static void report(struct run *run, struct json *j) {
    (void)run;
    for (int c = 0; c < CHASES; c++) {
        json_begin(j, SAMPLES_OF[c], '[');
        for (long i = 0; i < l.samples; i++)
            json_real(j, NULL, l.ns[c][i]);
        json_end(j, ']');
    }
    json_whole(j, "accesses_per_sample", (long long)l.steps[ANYWHERE]);
}

const struct measurement LATENCY_MODE = {prepare, configure, measure, report, NULL};
