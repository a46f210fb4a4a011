/* Where the pages of new memory come to lie. Between "go" and "result" the memory is mapped and
 * every page of it touched, and nothing else of size happens: what the kernel counts meanwhile
 * is this allocation. A page lies where the policy of whoever touches it first says, or where
 * there was room (Documentation/admin-guide/mm/numa_memory_policy.rst).
 *
 *   touch          by a thread on each of the CPUs
 *   elsewhere      mapped here, touched by a thread on a CPU of another node
 *   fork           half is touched here; a child on a CPU of another node then writes to half of
 *                  that (copy on write) and touches what is left
 *   file           a file's pages, read here first; then read by a process on another node whose
 *                  memory is bound to that node
 *   oversubscribe  touched by a child that the kernel may kill when the memory runs out
 *   balance        memory that lies on another node is read here for some seconds */
#include "probe.h"

#include <errno.h>
#include <fcntl.h>
#include <sched.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

static const size_t UNIT = (size_t)2 << 20; /* no huge page is shared by two threads */

struct part {
    const char *name;
    struct placement placement;
    bool there;
};

static struct {
    const struct options *options;
    struct team *team;
    struct buffer *buffer;
    struct fill fill;
    struct level before, after;
    struct shared { /* with a child */
        atomic_ullong touched;
        struct part copied, fresh;
        size_t huge;
        atomic_bool ended;
    } *shared;
    struct part kept;
    struct placement sum;
    uint64_t moved; /* bytes that lie on another node than before */
    bool moved_known, killed;
    int *nodes_before;
    size_t nodes;
    double allocation_s;
    struct rusage usage;
    size_t huge;
} a;

static struct rusage usage_now(void) {
    struct rusage own, children;
    getrusage(RUSAGE_SELF, &own);
    getrusage(RUSAGE_CHILDREN, &children);
    own.ru_minflt += children.ru_minflt;
    own.ru_majflt += children.ru_majflt;
    return own;
}

static size_t part(size_t bytes, int index) {
    size_t unit = bytes / UNIT >= (size_t)a.team->size ? UNIT : page_size();
    return part_start(bytes, index, a.team->size, unit);
}

static void touch_part(void *context, int index) {
    const struct buffer *buffer = context;
    touch(buffer->base + part(buffer->bytes, index), buffer->base + part(buffer->bytes, index + 1));
}

static void read_part(void *context, int index) {
    const struct buffer *buffer = context;
    const char *end = buffer->base + part(buffer->bytes, index + 1);
    size_t page = page_size();
    for (volatile char *byte = buffer->base + part(buffer->bytes, index); byte < end; byte += page)
        (void)*byte;
}

static void map(void) {
    buffer_map(a.buffer, a.options->bytes, a.options->pages, a.options->memory_node);
}

static void *touch_all(void *context) {
    struct buffer *buffer = context;
    touch(buffer->base, buffer->base + buffer->bytes);
    return NULL;
}

static void *touch_bound(void *context) {
    policy_bind(a.options->other_node);
    return touch_all(context);
}

static void run_thread(int cpu, void *(*start)(void *)) {
    pthread_t thread;
    int error = thread_on_cpu(&thread, cpu, start, a.buffer);
    if (error)
        die(EXIT_FAILED, "no thread can be started on CPU %d: %s", cpu, strerror(error));
    pthread_join(thread, NULL);
}

static void move_to(int cpu) {
    size_t bytes = CPU_ALLOC_SIZE(MAX_CPUS);
    cpu_set_t *set = allocate(1, bytes);
    CPU_SET_S((size_t)cpu, bytes, set);
    if (sched_setaffinity(0, bytes, set) != 0)
        die(EXIT_FAILED, "CPU %d cannot be used: %s", cpu, strerror(errno));
    free(set);
}

/* Runs a job in a child; returns the status that waitpid gives. */
static int run_child(void (*job)(void)) {
    pid_t self = getpid(), child = fork();
    int status;
    if (child < 0)
        die(EXIT_FAILED, "no process can be started: %s", strerror(errno));
    if (child == 0) {
        die_with(self);
        job();
        _exit(0);
    }
    while (waitpid(child, &status, 0) != child)
        if (errno != EINTR)
            die(EXIT_FAILED, "the child cannot be waited for: %s", strerror(errno));
    return status;
}

static void must_end_well(int status) {
    if (status != 0)
        die(EXIT_FAILED, "the child %s %d", WIFSIGNALED(status) ? "was killed by signal" :
            "ended with status", WIFSIGNALED(status) ? WTERMSIG(status) : WEXITSTATUS(status));
}

static struct buffer stretch(size_t from, size_t to) {
    struct buffer one = *a.buffer;
    one.base += from;
    one.bytes = to - from;
    return one;
}

static void look(struct part *part, const char *name, size_t from, size_t to) {
    struct buffer one = stretch(from, to);
    placement_query(&part->placement, &one, 1);
    part->name = name;
    part->there = true;
}

static size_t half(size_t bytes) {
    return bytes / 2 / UNIT ? bytes / 2 / UNIT * UNIT : bytes / 2 / page_size() * page_size();
}

static void write_in_child(void) {
    size_t touched = half(a.buffer->bytes), copied = half(touched);
    move_to(a.options->other_cpu);
    touch(a.buffer->base, a.buffer->base + copied);
    touch(a.buffer->base + touched, a.buffer->base + a.buffer->bytes);
    look(&a.shared->copied, "copied", 0, copied);
    look(&a.shared->fresh, "new", touched, a.buffer->bytes);
}

static void touch_to_the_end(void) {
    char text[] = "1000";
    int file = open("/proc/self/oom_score_adj", O_WRONLY);
    if (file < 0 || write(file, text, sizeof text - 1) < 0)
        die(EXIT_FAILED, "oom_score_adj cannot be set: %s", strerror(errno));
    close(file);
    map();
    for (size_t at = 0; at < a.buffer->bytes; at += a.buffer->page) {
        a.buffer->base[at] = 0;
        atomic_store_explicit(&a.shared->touched, at + a.buffer->page, memory_order_relaxed);
    }
    buffer_inspect(a.buffer);
    a.shared->huge = a.buffer->huge;
    look(&a.shared->fresh, "new", 0, a.buffer->bytes);
    atomic_store(&a.shared->ended, true);
}

static void remember(void) {
    int *nodes;
    a.nodes = placement_nodes(&nodes, a.buffer);
    memcpy(a.nodes_before, nodes, a.nodes * sizeof *nodes);
}

static void compare(void) {
    int *nodes;
    size_t asked = placement_nodes(&nodes, a.buffer), moved = 0;
    if (!asked || asked != a.nodes)
        return;
    for (size_t i = 0; i < asked; i++)
        moved += nodes[i] != a.nodes_before[i];
    a.moved = (uint64_t)((double)moved * (double)a.buffer->bytes / (double)asked + 0.5);
    a.moved_known = true;
}

static void read_file_part(void *context, int index) {
    static const size_t most = (size_t)1 << 20;
    size_t at = part(a.buffer->bytes, index), end = part(a.buffer->bytes, index + 1);
    char *space = allocate(most, 1);
    for (ssize_t got; at < end; at += (size_t)got) {
        got = pread(*(int *)context, space, end - at < most ? end - at : most, (off_t)at);
        if (got <= 0)
            die(EXIT_FAILED, "the file cannot be read: %s", strerror(got ? errno : EIO));
    }
    free(space);
}

static void read_in_child(void) {
    move_to(a.options->other_cpu);
    policy_bind(a.options->other_node);
    for (size_t at = 0; at < a.buffer->bytes; at += page_size())
        (void)*(volatile char *)(a.buffer->base + at);
}

static void map_file(int file) {
    void *base = mmap(NULL, a.options->bytes, PROT_READ, MAP_SHARED, file, 0);
    if (base == MAP_FAILED)
        die(EXIT_MEMORY, "the file cannot be mapped: %s", strerror(errno));
    *a.buffer = (struct buffer){.base = base, .bytes = a.options->bytes, .page = page_size()};
}

static void read_on(void *context, int index) {
    double end = now() + a.options->seconds;
    (void)context;
    while (now() < end)
        read_part(a.buffer, index);
}

static void prepare(struct run *run) {
    const struct options *o = run->options;
    struct buffer like = {.bytes = o->bytes, .page = page_size()};
    a.options = o;
    a.team = run->team;
    a.buffer = &run->buffers[0];
    a.fill.file = -1;
    a.shared = mmap(NULL, sizeof *a.shared, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS,
                    -1, 0);
    if (a.shared == MAP_FAILED)
        die(EXIT_MEMORY, "not enough memory: %s", strerror(errno));
    memset(a.shared, 0, sizeof *a.shared);
    size_t asked = placement_reserve(&like);
    if (o->scenario == READ_FILE || o->scenario == BALANCE || o->scenario == FORK) {
        a.nodes_before = allocate(asked, sizeof *a.nodes_before);
        touch((char *)a.nodes_before, (char *)(a.nodes_before + asked));
    }
    if (o->fill)
        fill_node(&a.fill, o);
    if (o->scenario == BALANCE) {
        map();
        run_thread(o->cpus[0], touch_bound);
        remember();
    }
    if (o->home >= 0)
        a.before = level_read(o->home);
}

static void configure(struct run *run, struct json *j) {
    const struct options *o = run->options;
    json_truth(j, "nothing_yet", true);
    json_text(j, "scenario", scenario_name(o->scenario));
    json_whole(j, "bytes", (long long)o->bytes);
    if (o->home >= 0)
        json_whole(j, "home", o->home);
    else
        json_text(j, "home", NULL);
    bool allowed[MAX_NODES] = {false};
    nodes_allowed(allowed);
    json_begin(j, "memory_nodes", '[');
    for (int node = 0; node < MAX_NODES; node++)
        if (allowed[node])
            json_whole(j, NULL, node);
    json_end(j, ']');
    if (!o->fill) {
        json_text(j, "fill", NULL);
        return;
    }
    json_begin(j, "fill", '{');
    json_whole(j, "node", o->home);
    json_whole(j, "node_bytes", (long long)a.fill.before.total);
    json_whole(j, "read_bytes", (long long)a.fill.read);
    json_whole(j, "free_before", (long long)a.fill.before.free);
    json_whole(j, "free_after", (long long)a.fill.after.free);
    json_whole(j, "page_cache_before", (long long)a.fill.before.page_cache);
    json_whole(j, "page_cache_after", (long long)a.fill.after.page_cache);
    json_whole(j, "usable_after", (long long)a.fill.usable);
    json_truth(j, "dropped", o->drop);
    json_end(j, '}');
}

static void add(struct placement *sum, const struct placement *one) {
    for (int node = 0; node < MAX_NODES; node++)
        sum->bytes[node] += one->bytes[node];
    sum->absent += one->absent, sum->unknown += one->unknown;
    sum->pages += one->pages, sum->sampled += one->sampled;
    sum->reason = sum->reason ? sum->reason : one->reason;
}

static void measure_fork(void) {
    size_t touched = half(a.buffer->bytes);
    struct buffer mine = stretch(0, touched), *whole = a.buffer;
    team_run(a.team, touch_part, &mine);
    a.buffer = &mine;
    remember();
    a.buffer = whole;
    must_end_well(run_child(write_in_child));
    a.buffer = &mine;
    compare();
    a.buffer = whole;
    look(&a.kept, "parent", 0, touched);
    add(&a.sum, &a.kept.placement);
    add(&a.sum, &a.shared->copied.placement);
    add(&a.sum, &a.shared->fresh.placement);
}

static void measure_file(void) {
    int file = file_open(a.options->directory, a.options->bytes);
    a.buffer->bytes = a.options->bytes;
    team_run(a.team, read_file_part, &file);
    map_file(file);
    read_part(a.buffer, 0);
    team_run(a.team, read_part, a.buffer);
    close(file);
    remember();
    must_end_well(run_child(read_in_child));
    compare();
}

static void measure_oversubscribe(void) {
    int status = run_child(touch_to_the_end);
    a.killed = WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL;
    if (!a.killed)
        must_end_well(status);
    a.huge = a.shared->huge;
    if (a.killed)
        a.sum.reason = "the kernel killed the process that held them";
    else
        add(&a.sum, &a.shared->fresh.placement);
}

static void measure(struct run *run) {
    struct rusage before = usage_now();
    double start = now();
    switch (a.options->scenario) {
    case TOUCH:
        map();
        team_run(a.team, touch_part, a.buffer);
        break;
    case ELSEWHERE:
        map();
        run_thread(a.options->other_cpu, touch_all);
        break;
    case FORK:
        map();
        measure_fork();
        break;
    case READ_FILE: measure_file(); break;
    case OVERSUBSCRIBE: measure_oversubscribe(); break;
    default: team_run(a.team, read_on, NULL);
    }
    a.allocation_s = now() - start;
    a.usage = usage_now();
    a.usage.ru_minflt -= before.ru_minflt;
    a.usage.ru_majflt -= before.ru_majflt;
    if (a.options->home >= 0)
        a.after = level_read(a.options->home);
    if (a.options->scenario == BALANCE)
        compare();
    if (a.options->scenario == FORK || a.options->scenario == OVERSUBSCRIBE)
        run->placement = &a.sum;
    if (a.options->scenario != OVERSUBSCRIBE) {
        run->buffer_count = 1;
        buffer_inspect(a.buffer);
        a.huge = a.buffer->huge;
    }
}

static void report_part(struct json *j, const struct part *part) {
    if (!part->there || part->placement.reason)
        return;
    json_begin(j, part->name, '{');
    for (int node = 0; node < MAX_NODES; node++) {
        char name[16];
        snprintf(name, sizeof name, "%d", node);
        if (part->placement.bytes[node])
            json_whole(j, name, (long long)part->placement.bytes[node]);
    }
    json_end(j, '}');
}

static void report_level(struct json *j, const char *name, struct level level) {
    if (a.options->home < 0) {
        json_text(j, name, NULL);
        return;
    }
    json_begin(j, name, '{');
    json_whole(j, "free", (long long)level.free);
    json_whole(j, "page_cache", (long long)level.page_cache);
    json_end(j, '}');
}

static void report(struct run *run, struct json *j) {
    (void)run;
    json_real(j, "allocation_s", a.allocation_s);
    json_whole(j, "minor_faults", a.usage.ru_minflt);
    json_whole(j, "major_faults", a.usage.ru_majflt);
    json_whole(j, "transparent_huge_bytes", (long long)a.huge);
    report_level(j, "before", a.before);
    report_level(j, "after", a.after);
    if (a.moved_known)
        json_whole(j, "moved_bytes", (long long)a.moved);
    else
        json_text(j, "moved_bytes", NULL);
    json_truth(j, "killed", a.killed);
    json_whole(j, "touched_bytes", a.options->scenario == OVERSUBSCRIBE
                                       ? (long long)atomic_load(&a.shared->touched)
                                       : (long long)a.options->bytes);
    json_begin(j, "parts", '{');
    report_part(j, &a.kept);
    report_part(j, &a.shared->copied);
    report_part(j, a.options->scenario == FORK ? &a.shared->fresh : &(struct part){0});
    json_end(j, '}');
}

const struct measurement ALLOCATE_MODE = {prepare, configure, measure, report, NULL};
