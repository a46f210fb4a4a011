/* The probe: one small program that measures a host's memory, the same way everywhere.
 * Linux, C11 with GNU extensions, pthreads, libc and nothing else. */
#ifndef PROBE_H
#define PROBE_H

#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

#define PROBE_VERSION "1.2"
#define PROBE_SCHEMA 2

enum { MAX_CPUS = 8192, MAX_NODES = 1024, MAX_POINTS = 64, LINE = 64 };
enum { EXIT_ARGUMENTS = 2, EXIT_MEMORY = 3, EXIT_TIME = 4, EXIT_FAILED = 5 };

enum mode { STREAM, LATENCY, LOADED, BANDWIDTH, CORE_TO_CORE, ALLOCATE, MODES };
/* What is allocated, and who touches it: see allocate.c. */
enum scenario { TOUCH, ELSEWHERE, FORK, READ_FILE, OVERSUBSCRIBE, BALANCE, SCENARIOS };
enum pages { PAGES_AUTO, PAGES_DEFAULT, PAGES_BASE, PAGES_THP, PAGES_HUGETLB };

/* Reads and writes in equal steps of a traffic: {2, 1} loads two lines and stores one. */
struct mix {
    const char *name;
    int reads, writes;
};

struct options {
    enum mode mode;
    int *cpus; /* in the order in which threads take them */
    int cpu_count;
    int threads; /* 0: one on each CPU */
    bool pin;
    size_t bytes; /* of each array of stream; of the buffer of the other modes */
    size_t stride;
    long repeats;
    double seconds; /* 0: not given */
    long delays[MAX_POINTS];
    int delay_count;
    const struct mix *mixes[MAX_POINTS];
    int mix_count;
    enum pages pages;
    int memory_node; /* -1: the memory policy in force */
    int max_cpus;
    double time_limit;
    bool wait;
    bool clock_later;  /* until "go" another clock runs: nothing is timed before */
    bool tour;         /* measure for each visit that standard input asks for */
    char *visit;       /* the name of the one under way, or NULL */
    enum scenario scenario;
    int home;                  /* the node of the CPUs, or -1 */
    int other_cpu, other_node; /* of another node, or -1 */
    size_t fill;               /* bytes of page cache; SIZE_MAX: until the node is full */
    bool drop;
    char *directory;
};

/* --- main.c, options.c, json.c, selftest.c */
_Noreturn void die(int status, const char *format, ...) __attribute__((format(printf, 2, 3)));
_Noreturn void finish(int status); /* without destructors: other threads still run */
void die_with(pid_t parent);       /* whose child the caller is */
double now(void); /* seconds, CLOCK_MONOTONIC */
void *allocate(size_t count, size_t size); /* zeroed; ends the program when there is none */

void options_read(struct options *options, int argc, char **argv);
void options_visit(struct options *options, char *line); /* "visit …", see --help */
const char *mode_name(enum mode mode);
const char *pages_name(enum pages pages);
const char *scenario_name(enum scenario scenario);
int cpus_parse(const char *text, int **cpus); /* their number, or -1: not a list of CPUs */
int cpu_siblings(int cpu, int **siblings); /* hardware threads of its core; their number or 0 */
char *cpus_format(const void *set); /* a set of MAX_CPUS in the kernel's list format */
int self_test(void);

struct json {
    FILE *out;
    bool comma;
};
void json_begin(struct json *j, const char *key, char bracket); /* key NULL: an element */
void json_end(struct json *j, char bracket);
void json_text(struct json *j, const char *key, const char *value); /* value NULL: null */
void json_whole(struct json *j, const char *key, long long value);
void json_real(struct json *j, const char *key, double value); /* not finite: null */
void json_truth(struct json *j, const char *key, bool value);
void json_line(struct json *j); /* ends and flushes the line */

/* --- memory.c */
struct buffer {
    char *base;
    size_t bytes;
    size_t page; /* of the kernel for this mapping: base page size, or that of hugetlbfs */
    size_t huge; /* bytes that transparent huge pages hold; known after buffer_inspect */
    bool inspected;
};
struct placement {
    uint64_t bytes[MAX_NODES];
    uint64_t absent, unknown; /* bytes not present; bytes that move_pages refused to place */
    long pages, sampled;
    const char *reason; /* why there is no placement, or NULL */
};
size_t page_size(void);
void memory_check(size_t need); /* ends the program when the host cannot hold that much */
void buffer_map(struct buffer *buffer, size_t bytes, enum pages pages, int memory_node);
void buffer_inspect(struct buffer *buffer);
void placement_query(struct placement *placement, const struct buffer *buffers, int count);
size_t placement_nodes(int **nodes, const struct buffer *buffer); /* of the same pages each time */
size_t placement_reserve(const struct buffer *buffer); /* takes the memory that asking needs */
int nodes_allowed(bool allowed[MAX_NODES]); /* with memory; their number, 0: unknown */
void policy_bind(int node);                          /* of the calling thread from now on */
void touch(char *from, char *to); /* one write to every base page */

/* --- team.c */
struct worker {
    struct team *team;
    int index, cpu; /* cpu -1: not pinned */
    int cpu_before, cpu_after;
    pthread_t thread;
};
typedef void (*work_fn)(void *context, int index);
struct team {
    int size;
    struct worker *workers;
    pthread_mutex_t lock;
    pthread_cond_t wake;
    unsigned long round; /* of jobs, under the lock */
    bool ending;         /* under the lock */
    work_fn job;
    void *context;
    _Alignas(LINE) atomic_int arrived;
    _Alignas(LINE) atomic_uint generation;
};
void team_start(struct team *team, const struct options *options, int size);
void team_run(struct team *team, work_fn job, void *context); /* the caller is worker 0 */
void team_end(struct team *team);                         /* all but the caller */
void team_barrier(struct team *team);                     /* inside a job, by every worker */
void team_report(struct team *team, struct json *j);
int thread_on_cpu(pthread_t *thread, int cpu, void *(*start)(void *), void *argument);
size_t part_start(size_t total, int index, int parts, size_t unit); /* a static partition */

/* --- latency.c: the chase, which loaded.c uses as well */
struct chase {
    char *base;
    size_t lines, stride;
    void *position;
};
void chase_build(struct chase *chase, const struct buffer *buffer, size_t stride);
void chase_in_reach(struct chase *chase, const struct buffer *buffer);
bool chase_warm(struct chase *chase);                    /* true: the caches were flushed */
double chase_time(struct chase *chase, size_t steps);    /* seconds of the thread's time */
size_t chase_steps(struct chase *chase, double seconds); /* a number that takes so long */

/* --- traffic.c */
extern const struct mix MIXES[];
extern const int MIX_COUNT;
extern const char *const STORE_KIND;
size_t traffic_stream_bytes(size_t part, const struct mix *mix);
void traffic_move(char *part, size_t stream, size_t from, size_t to, const struct mix *mix);

/* --- the modes */
struct run {
    const struct options *options;
    struct team *team;
    struct buffer buffers[2];
    int buffer_count;
    const struct placement *placement; /* in place of a query, or NULL */
    double warmup_s, measure_s;
};
struct measurement {
    void (*prepare)(struct run *run); /* maps, touches, warms up */
    void (*configure)(struct run *run, struct json *j);
    void (*measure)(struct run *run);
    void (*report)(struct run *run, struct json *j);
    void (*rows)(struct run *run, struct json *j); /* lines before the result, or NULL */
};
extern const struct measurement STREAM_MODE, LATENCY_MODE, LOADED_MODE, BANDWIDTH_MODE,
    CORE_TO_CORE_MODE, ALLOCATE_MODE;

/* --- fill.c: page cache */
struct level {
    uint64_t total, free, page_cache; /* bytes of a node */
};
struct fill {
    uint64_t read; /* bytes of the file that were read */
    struct level before, after;
    uint64_t usable; /* bytes that could still be had there without reclaim */
    int file;        /* while it is open its pages stay; -1: there is none */
};
struct level level_read(int node);
int file_open(const char *directory, uint64_t bytes); /* unlinked, sparse */
void fill_node(struct fill *fill, const struct options *options);
uint64_t zones_usable(FILE *zoneinfo, int node, size_t page); /* for the self-test */

/* stream.c, for the self-test */
bool stream_kernels_right(size_t elements);

#endif
