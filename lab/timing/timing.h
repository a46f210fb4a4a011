/* What the parts of the timing model share. See README.md for what is modelled and what is not.
 *
 * All times are in picoseconds (ps) of model time unless a name says otherwise; a line is 64 bytes
 * of physical memory, named by its address divided by 64. */
#ifndef TIMING_H
#define TIMING_H

#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

typedef uint64_t u64;
typedef uint32_t u32;

#define likely(x) __builtin_expect(!!(x), 1)
#define unlikely(x) __builtin_expect(!!(x), 0)
#define RELAXED_LOAD(x) __atomic_load_n(&(x), __ATOMIC_RELAXED)
#define RELAXED_STORE(x, v) __atomic_store_n(&(x), (v), __ATOMIC_RELAXED)

enum {
    MOST_VCPUS = 32, /* the directory of who holds a line has a bit for each */
    MOST_NODES = 16,
    MOST_LINKS = 64,
    MOST_STORES = 64,
    STREAMS = 16, /* that the prefetcher of a vCPU follows */
    FILTER = 16,  /* lines that a vCPU touched a moment ago */
    LINE = 64,    /* bytes */
    PAGE_BYTES = 1 << 20,
};
static const u64 NEVER = UINT64_MAX;

/* ---- config.c ---------------------------------------------------------------------------- */

struct cache {
    unsigned sets, ways;
};

struct configuration {
    int vcpus, nodes, vcpus_a_node, sockets;
    u64 node_bytes, low_bytes;               /* memory of a node; of the host below 4 GiB */
    u64 instruction_ps;
    u64 quantum_ps;                          /* no vCPU runs further ahead of the slowest */
    u64 latency_ps[MOST_NODES][MOST_NODES];  /* CPU node, memory node: of one dependent load */
    u64 memory_line_ps[MOST_NODES];          /* a controller is busy for a line; 0: no limit */
    u64 link_line_ps[MOST_LINKS];            /* the same of a link in one direction */
    int link[MOST_NODES][MOST_NODES];        /* from memory node j to CPU node i; -1: none */
    u64 l2_ps, l3_ps;                        /* of a hit */
    u64 near_ps, far_ps;                     /* of a line that another core has changed */
    struct cache l1, l2, l3;
    int prefetch_lines;                      /* that the prefetcher keeps ahead; 0: none */
    int stores;                              /* store misses outstanding before a store waits */
    bool coherent, serial;
    const char *counters;                    /* the file of the counters; NULL: memory only */
};
extern struct configuration config;

/* Reads KEY=VALUE words into config. Returns NULL, or what is wrong, in a buffer of its own. */
const char *config_read(int count, char *const *words);

/* ---- counters.c -------------------------------------------------------------------------- */

/* 512 bytes a vCPU; the agent reads this layout (agent/collectors/memory_model.py). */
struct counters {
    u64 virtual_ps, instructions, loads, stores, l1_misses, l2_misses, l3_misses, stall_ps, queue_ps,
        transfers, prefetched, waits;
    u64 read_bytes[MOST_NODES], written_bytes[MOST_NODES]; /* by the memory's node */
    u64 spare[20];
};
struct page {
    char magic[8]; /* "numatime" */
    u64 version, vcpus, nodes, on, gave_up, idle_ps, clock_ps, switches;
    u64 ticks_a_second; /* of this machine's time-stamp counter; numalab.lab reads it */
    u64 spare[54];
    struct counters of[64];
    char configuration[4096]; /* the words that the model was configured by */
};
extern struct page *page;

/* Maps the page, anew and empty but for the words. Returns false with errno. */
bool counters_map(const char *file, int count, char *const *words);
/* Empties the page again: a snapshot brings its own. */
void counters_begin(void);

/* ---- calendar.c -------------------------------------------------------------------------- */

/* A memory controller or a link that takes line_ps for each line. */
void calendar_set(int which, u64 line_ps);
/* Takes the first free slot at or after t; returns how long the request waits for it. */
u64 calendar_reserve(int which, u64 t);
enum { MEMORY = 0, LINK = MOST_NODES }; /* calendars of memory controllers, of links */

/* ---- model.c ----------------------------------------------------------------------------- */

struct line {
    u64 tag; /* line number << 2 | OWNED | DIRTY; 0 is empty */
    u64 ready_ps;
};
struct stream { /* the next line of it, virtual and physical; how far it was fetched ahead */
    u64 next_virtual, next_physical, ahead;
    int hits;
    bool crosses; /* its last page was followed by its physical neighbour */
};
struct vcpu {
    u64 now_ps, limit_ps;
    struct counters *n;
    struct line *l1, *l2;
    int node, index;
    atomic_int running; /* not halted, and in no wait for a condition */
    pthread_cond_t *_Atomic waits_for;
    u64 store_ready_ps[MOST_STORES];
    unsigned next_store, next_stream;
    struct stream stream[STREAMS];
    int filter_stale; /* another core took a line */
    u64 filter[FILTER]; /* virtual line << 1 | owned */
} __attribute__((aligned(128)));
extern struct vcpu vcpus[MOST_VCPUS];

/* Makes caches, calendars and vCPUs as configured; page must be mapped. */
void model_make(void);
/* The node of a physical address as the plugin gives it; -1: not a node's memory. */
int model_node(u64 physical);
/* One load or store of a vCPU: moves its clock on by what it waits. */
void model_access(struct vcpu *c, u64 virtual_line, u64 line, bool store);
/* Tells whether a vCPU touched this virtual line a moment ago, so that nothing needs modelling. */
static inline bool model_recent(struct vcpu *c, u64 virtual_line, bool store) {
    u64 held = c->filter[virtual_line % FILTER];
    return held >> 1 == virtual_line && (!store || (held & 1));
}
void model_forget(struct vcpu *c);
/* QEMU 7.2 names memory by its block, 10 by the guest's physical address. */
extern bool model_guest_addresses;

/* ---- clock.c ----------------------------------------------------------------------------- */

extern atomic_bool model_on;  /* the model drives the clock */
extern _Thread_local struct vcpu *me;
extern _Thread_local bool is_main_loop;

u64 clock_real_ns(void);
u64 clock_now_ps(void); /* what this thread is told; never less than what any was told before */
u64 clock_raise(u64 ps);
void clock_real_from(u64 ps); /* real time goes on from there; under running_lock */
void clock_idle_until(u64 ps); /* counts what has passed since, in which no vCPU ran */
void clock_begin(void);
u64 clock_ticks_a_second(void); /* of the time-stamp counter, as far as it was seen; 0: unknown */
void clock_trap_tsc(void);    /* of this thread, once the guest's counter follows the model */
void clock_follow(u64 ps);    /* from now on the guest's counter follows the model */
void clock_catch_reads(void); /* install the handler of trapped reads */
void clock_wake_main_loop(void);
void clock_check_deadline(void);

/* ---- sync.c ------------------------------------------------------------------------------ */

extern atomic_flag running_lock;
extern atomic_int running_count;

void sync_begin(void);
void sync_is(int index);                /* this thread is that vCPU's */
void sync_leave(struct vcpu *c);        /* it is halted, or waits for a condition */
void sync_start(u64 now);               /* the model is switched on: all vCPUs stand at now */
void sync_stop(void);
void sync_wait(struct vcpu *c);         /* until no vCPU is a quantum behind */
u64 sync_least(const struct vcpu *but); /* time of the slowest running vCPU; NEVER: none runs */

static inline void relax(void) {
#if defined __x86_64__
    __builtin_ia32_pause();
#elif defined __aarch64__
    __asm__ volatile("yield");
#endif
}
void spin_lock(atomic_flag *flag);
static inline void spin_unlock(atomic_flag *flag) {
    atomic_flag_clear_explicit(flag, memory_order_release);
}

#endif
