/* Tests of the model without QEMU: known answers, by arithmetic that stands beside each.
 *
 * Built with the sanitizers by the Makefile here; exits with 0 when all hold. */
#include "timing.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static int failures;
#define CHECK(condition, ...)                                                                      \
    do {                                                                                           \
        if (!(condition)) {                                                                        \
            failures++;                                                                            \
            printf("%s:%d: %s: ", __func__, __LINE__, #condition);                                 \
            printf(__VA_ARGS__);                                                                   \
            printf("\n");                                                                          \
        }                                                                                          \
    } while (0)

static const u64 NODE = (u64)2048 << 20, KIB = 1024, MIB = 1 << 20;
static const char *const TWO_NODES =
    "vcpus=8 nodes=2 sockets=2 node_mib=2048 low_mib=4096 latency_ns=85:136+136:85 "
    "memory_gbs=10 link_gbs=5 l2=256/8 l3=1024/16";

static const char *configure(const char *words, const char *more) {
    static char text[1024];
    char *list[64];
    int count = 0;
    snprintf(text, sizeof text, "%s %s", words, more);
    for (char *word = strtok(text, " "); word; word = strtok(NULL, " "))
        list[count++] = word;
    return config_read(count, list);
}

static void make(const char *more) {
    const char *why = configure(TWO_NODES, more);
    if (why) {
        printf("%s\n", why);
        exit(1);
    }
    if (!page && !counters_map(NULL, 0, NULL))
        exit(1);
    memset(page->of, 0, sizeof page->of);
    model_guest_addresses = true;
    model_make();
}

static void access_one(int vcpu, u64 address, bool store) { /* one instruction, as the plugin does */
    struct vcpu *c = &vcpus[vcpu];
    RELAXED_STORE(c->now_ps, c->now_ps + config.instruction_ps);
    if (!RELAXED_LOAD(c->filter_stale) && model_recent(c, address / LINE, store))
        return;
    model_access(c, address / LINE, address / LINE, store);
}

static bool near(double value, double wanted, double within) {
    return value >= wanted * (1 - within) && value <= wanted * (1 + within);
}

/* ---- latency ----------------------------------------------------------------------------- */

static double chase_ns(int vcpu, u64 base, u64 bytes) { /* each line once, in an order without streams */
    struct vcpu *c = &vcpus[vcpu];
    u64 lines = bytes / LINE, place = 0, began = c->now_ps;
    for (u64 i = 0; i < lines; i++) {
        place = (place + lines * 5 / 8 + 3) % lines;
        access_one(vcpu, base + place * LINE, false);
    }
    return (double)(c->now_ps - began) / 1000 / (double)lines;
}

static void test_a_dependent_load_takes_the_configured_latency(void) {
    make("");
    CHECK(near(chase_ns(0, 0, 16 * MIB), 85, 0.005), "local %g", chase_ns(0, 0, 16 * MIB));
    CHECK(near(chase_ns(0, NODE, 16 * MIB), 136, 0.005), "remote %g", chase_ns(0, NODE, 16 * MIB));
    vcpus[7].now_ps = vcpus[0].now_ps; /* no vCPU is ever more than a quantum behind */
    CHECK(near(chase_ns(7, 0, 16 * MIB), 136, 0.005), "of node 1 %g", chase_ns(7, 0, 16 * MIB));
    make("latency_ns=85:60+60:85");
    CHECK(near(chase_ns(0, NODE, 16 * MIB), 60, 0.005), "a remote node may be faster");
}

static void test_a_set_that_fits_stays_in_its_cache(void) {
    make("");
    chase_ns(0, 0, 16 * KIB);
    CHECK(near(chase_ns(0, 0, 16 * KIB), 0.2, 0.01), "L1: only the instruction");
    chase_ns(0, 0, 128 * KIB);
    CHECK(near(chase_ns(0, 0, 128 * KIB), 3, 0.15), "L2 %g", chase_ns(0, 0, 128 * KIB));
    chase_ns(0, 0, 512 * KIB);
    CHECK(near(chase_ns(0, 0, 512 * KIB), 15, 0.25), "L3 %g", chase_ns(0, 0, 512 * KIB));
}

static void test_bytes_are_counted_on_the_node_that_holds_them(void) {
    make("");
    chase_ns(0, NODE, 8 * MIB);
    u64 here = page->of[0].read_bytes[0], there = page->of[0].read_bytes[1];
    CHECK(here == 0 && near((double)there, 8.0 * (double)MIB, 0.005), "%lu %lu", here, there);
    CHECK(page->of[0].written_bytes[1] == 0, "nothing was written");
}

/* ---- bandwidth --------------------------------------------------------------------------- */

/* STREAM's triad by words of 8 bytes; page by page on the nodes that are given, in turn. */
static double triad_gbs(int threads, u64 bytes, int first, int nodes) {
    u64 words = bytes / 8, began = vcpus[0].now_ps, end = 0;
    for (int t = 1; t < threads; t++)
        vcpus[t].now_ps = began;
    for (u64 i = 0; i < words / (u64)threads; i += 8) /* a line of each thread in turn */
        for (int t = 0; t < threads; t++)
            for (u64 k = 0; k < 8; k++) {
                u64 offset = 8 * (words / (u64)threads * (u64)t + i + k), number = offset / 4096;
                u64 node = (u64)first + (nodes > 1 ? number % (u64)nodes : 0);
                for (u64 array = 0; array < 3; array++)
                    access_one(t, node * NODE + (array + 1) * 64 * MIB + offset, array == 2);
                vcpus[t].now_ps += 3 * config.instruction_ps;
            }
    for (int t = 0; t < threads; t++)
        end = vcpus[t].now_ps > end ? vcpus[t].now_ps : end;
    return 3.0 * (double)bytes / ((double)(end - began) / 1000);
}

/* A written line is read first: 4 lines of traffic for 3 that STREAM counts, 3 of them reads. */
static void test_triad_reaches_the_ceiling_of_memory_and_link(void) {
    make("");
    double local = triad_gbs(2, 8 * MIB, 0, 1), remote = triad_gbs(2, 8 * MIB, 1, 1);
    CHECK(near(local, 10.0 * 3 / 4, 0.03), "local %g GB/s of 7.5", local);
    CHECK(near(remote, 5.0 * 3 / 3, 0.03), "remote %g GB/s of 5", remote);
    make("memory_gbs=10:4");
    double slower = triad_gbs(2, 8 * MIB, 1, 1);
    CHECK(near(slower, 4.0 * 3 / 4, 0.03), "a slower controller: %g GB/s of 3", slower);
}

static void test_without_limits_bandwidth_is_the_cores(void) {
    make("memory_gbs=0 link_gbs=0");
    CHECK(triad_gbs(1, 4 * MIB, 0, 1) > 7.6, "it is above what 10 GB/s allow");
}

static void test_a_calendar_gives_each_slot_once_in_any_order(void) {
    enum { COUNT = 4000 };
    static u64 start[COUNT];
    const u64 line = 6400;
    calendar_set(MEMORY, line);
    unsigned random = 1;
    for (int i = 0; i < COUNT; i++) {
        random = random * 1103515245 + 12345;
        u64 t = (u64)i * line + random % (40 * line); /* out of order by up to 40 lines */
        u64 wait = calendar_reserve(MEMORY, t);
        start[i] = t + wait;
        CHECK(wait < 200 * line, "no phantom queue: waited %lu lines", wait / line);
    }
    u64 most = 0;
    for (int i = 0; i < COUNT; i++) {
        int within = 0; /* at most what the bandwidth allows in any stretch of two buckets */
        for (int k = 0; k < COUNT; k++)
            within += start[k] >= start[i] && start[k] < start[i] + 32 * line;
        most = (u64)within > most ? (u64)within : most;
    }
    CHECK(most <= 48, "%lu lines in the time of 32", most);
}

/* ---- coherence --------------------------------------------------------------------------- */

static double read_ns(int vcpu, u64 address) {
    u64 began = vcpus[vcpu].now_ps;
    access_one(vcpu, address, false);
    return (double)(vcpus[vcpu].now_ps - began) / 1000;
}

static void test_a_line_that_another_core_changed_comes_from_it(void) {
    make("prefetch_lines=0");
    access_one(0, 64 * KIB, true);
    double neighbour = read_ns(1, 64 * KIB);
    access_one(0, 128 * KIB, true);
    double other_node = read_ns(4, 128 * KIB);
    CHECK(near(neighbour, 50, 0.01), "near %g", neighbour);
    CHECK(near(other_node, 120, 0.01), "far %g", other_node);
    CHECK(page->of[1].transfers == 1 && page->of[4].transfers == 1, "both were counted");
    make("prefetch_lines=0 coherent=0");
    access_one(0, 64 * KIB, true);
    neighbour = read_ns(1, 64 * KIB);
    CHECK(!near(neighbour, 50, 0.01), "without coherence it is not");
}

/* ---- configuration ----------------------------------------------------------------------- */

static void test_a_wrong_configuration_is_refused_by_its_key(void) {
    static const char *const wrong[][2] = {
        {"vcpus=33", "vcpus=33"}, {"vcpus=7", "nodes"}, {"latency_ns=85:136", "latency_ns"},
        {"latency_ns=85:x+136:85", "latency_ns"}, {"memory_gbs=10:10:10x", "memory_gbs"},
        {"link_gbs=-1", "link_gbs"}, {"l3=1024", "l3"}, {"l3=0/16", "l3"}, {"l2=256/0", "l2"},
        {"quantum_ns=0", "quantum_ns"}, {"serial=2", "serial"}, {"stores=65", "stores"},
        {"colour=red", "colour"}, {"vcpus", "vcpus"}, {"sockets=3", "nodes"},
        {"instruction_ns=nan", "instruction_ns"},
    };
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
        const char *why = configure(TWO_NODES, wrong[i][0]);
        CHECK(why && strstr(why, wrong[i][1]), "%s: %s", wrong[i][0], why ? why : "accepted");
    }
    CHECK(!configure(TWO_NODES, ""), "what is right is not");
    char *words[] = {"vcpus=8", "nodes=2"};
    CHECK(counters_map(NULL, 2, words), "it is mapped");
    CHECK(!strcmp(page->configuration, "vcpus=8 nodes=2"), "%s", page->configuration);
}

/* ---- many threads ------------------------------------------------------------------------ */

static _Atomic u64 most_ahead;
static pthread_barrier_t all_are_there;

static void *run_vcpu(void *index) {
    int number = (int)(intptr_t)index;
    unsigned random = (unsigned)number + 1;
    u64 told = 0;
    sync_is(number);
    pthread_barrier_wait(&all_are_there);
    for (int i = 0; i < 20000; i++) {
        random = random * 1103515245 + 12345;
        RELAXED_STORE(me->now_ps, me->now_ps + random % 5000 + (number == 1 ? 4000 : 0));
        access_one(number, (u64)(random >> 8) % (i % 2 ? 64 : NODE / 64) * 64, random & 1);
        if (me->now_ps > me->limit_ps)
            sync_wait(me);
        u64 least = sync_least(me), now = clock_now_ps();
        CHECK(now >= told, "the clock went back");
        told = now;
        if (least != NEVER && me->now_ps > least) {
            u64 ahead = me->now_ps - least;
            if (ahead > atomic_load(&most_ahead))
                atomic_store(&most_ahead, ahead);
        }
    }
    sync_leave(me);
    return NULL;
}

static void test_no_vcpu_runs_far_ahead_and_no_clock_goes_back(const char *mode) {
    make(mode);
    atomic_store(&running_count, 0);
    sync_start(0);
    atomic_store(&model_on, true);
    pthread_t threads[4];
    atomic_store(&most_ahead, 0);
    pthread_barrier_init(&all_are_there, NULL, 4);
    for (int i = 0; i < 4; i++)
        atomic_store(&vcpus[i].running, 0);
    for (int i = 0; i < 4; i++)
        pthread_create(&threads[i], NULL, run_vcpu, (void *)(intptr_t)i);
    for (int i = 0; i < 4; i++)
        pthread_join(threads[i], NULL);
    atomic_store(&model_on, false);
    /* a quantum, and what passes between two looks: a quarter of one and an access */
    if (page->gave_up == 0)
        CHECK(atomic_load(&most_ahead) <= config.quantum_ps * 3 / 2 + 1000000, "%s: %lu ns ahead", mode,
              atomic_load(&most_ahead) / 1000);
    page->gave_up = 0;
}

static void wait_ms(long ms) { /* as QEMU's thread of a halted vCPU does */
    static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
    static pthread_cond_t never = PTHREAD_COND_INITIALIZER;
    struct timespec until;
    clock_gettime(CLOCK_REALTIME, &until);
    long ns = until.tv_nsec + ms * 1000000;
    until.tv_sec += ns / 1000000000;
    until.tv_nsec = ns % 1000000000;
    pthread_mutex_lock(&mutex);
    pthread_cond_timedwait(&never, &mutex, &until);
    pthread_mutex_unlock(&mutex);
}

static void test_time_in_which_no_vcpu_runs_is_counted(void) {
    make("");
    atomic_store(&running_count, 0);
    sync_start(0);
    atomic_store(&model_on, true);
    page->idle_ps = 0;
    sync_is(0);
    wait_ms(5);
    u64 idle = page->idle_ps;
    CHECK(idle >= (u64)4 * 1000000000, "%lu us", idle / 1000000);
    atomic_store(&vcpus[1].running, 1); /* another runs */
    atomic_fetch_add(&running_count, 1);
    wait_ms(5);
    CHECK(page->idle_ps == idle, "%lu us more", (page->idle_ps - idle) / 1000000);
    atomic_store(&vcpus[1].running, 0);
    sync_leave(me);
    atomic_store(&model_on, false);
    me = NULL;
}

int main(void) {
    sync_begin();
    clock_begin();
    is_main_loop = false;
    test_a_dependent_load_takes_the_configured_latency();
    test_a_set_that_fits_stays_in_its_cache();
    test_bytes_are_counted_on_the_node_that_holds_them();
    test_triad_reaches_the_ceiling_of_memory_and_link();
    test_without_limits_bandwidth_is_the_cores();
    test_a_calendar_gives_each_slot_once_in_any_order();
    test_a_line_that_another_core_changed_comes_from_it();
    test_a_wrong_configuration_is_refused_by_its_key();
    test_time_in_which_no_vcpu_runs_is_counted();
    test_no_vcpu_runs_far_ahead_and_no_clock_goes_back("serial=0");
    test_no_vcpu_runs_far_ahead_and_no_clock_goes_back("serial=1");
    printf(failures ? "%d checks failed\n" : "all checks hold\n", failures);
    return failures ? 1 : 0;
}
