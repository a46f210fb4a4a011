/* The command line. Whatever is wrong with it ends the program with a message and status 2. */
#include "probe.h"

#include <errno.h>
#include <sched.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static const char *const MODE_NAMES[MODES] = {"stream", "latency", "loaded", "bandwidth",
                                              "core-to-core", "allocate"};
static const char *const PAGES_NAMES[] = {"auto", "default", "base", "thp", "hugetlb"};
static const char *const SCENARIO_NAMES[SCENARIOS] = {"touch", "elsewhere",     "fork",
                                                      "file",  "oversubscribe", "balance"};

static const char USAGE[] =
    "usage: probe MODE [OPTION]...\n"
    "       probe --version | --help | --self-test\n"
    "\n"
    "modes\n"
    "  stream        copy, scale, add, triad by the STREAM run rules (a variant of STREAM)\n"
    "  latency       idle latency by a pointer chase in random order\n"
    "  loaded        the same on the first core while the others read and write, by injection delay\n"
    "  bandwidth     bandwidth of all threads by mix of reads and writes\n"
    "  core-to-core  time of a cache line's way from one CPU to another, for every pair\n"
    "  allocate      where the pages of new memory come to lie, and what that took\n"
    "\n"
    "options of every mode\n"
    "  --cpus LIST         CPUs in the order in which threads take them (default: the affinity\n"
    "                      mask, first hardware threads of all cores first)\n"
    "  --no-wait           do not wait for \"go\" before and \"quit\" after the measurement\n"
    "  --time-limit S      give up after S seconds, status 4\n"
    "options of every mode but core-to-core\n"
    "  --bytes N           size of the buffer; of each array in stream (64MiB is understood)\n"
    "  --pages KIND        auto (ask for transparent huge pages), default (ask for nothing),\n"
    "                      base, thp, hugetlb (from the pool)\n"
    "  --memory-node N     bind the buffer to a node (default: the policy in force)\n"
    "  --pin cpu|none      one thread on each CPU, or as the kernel schedules them\n"
    "options of some modes\n"
    "  --threads N         stream, loaded, bandwidth: number of threads (default: one a CPU)\n"
    "  --repeats N         stream: N times all kernels, the first not counted (default 10)\n"
    "  --seconds S         measured time in all, split evenly over delays, mixes or pairs\n"
    "                      (default 2); stream: go on after --repeats until S have passed\n"
    "  --stride N          latency, loaded: bytes between the places of the chase (default 64)\n"
    "  --delays N,N...     loaded: loop turns after every 512 bytes that a thread moves\n"
    "  --mixes M,M...      loaded, bandwidth: reads, writes, 1:1, 2:1, 3:1 (lines read : written)\n"
    "  --clock-later       loaded: do not time a turn, for until \"go\" another clock runs\n"
    "  --max-cpus N        core-to-core: only the first N CPUs\n"
    "  --tour              latency, bandwidth: measure again and again, as often as standard input\n"
    "                      says \"visit NAME CPUS THREADS NODE BYTES\": by that many threads on the\n"
    "                      first of these CPUs, on a buffer of that size on the node, which is\n"
    "                      made once and kept\n"
    "options of allocate\n"
    "  --scenario NAME     touch, elsewhere (touched on --other-cpu), fork (the child writes on\n"
    "                      --other-cpu), file (read here, then on --other-cpu), oversubscribe\n"
    "                      (by a child that may be killed), balance (memory on --other-node is\n"
    "                      read here for --seconds)\n"
    "  --home N            the node of the CPUs: the one that is filled and watched\n"
    "  --other-cpu N, --other-node N\n"
    "                      a CPU of another node, and that node\n"
    "  --fill N|node       first read so many bytes of a file into the page cache of the node;\n"
    "                      node: until it is full\n"
    "  --drop              then drop the page cache of the host (needs root)\n"
    "  --directory DIR     where the file is (default /var/tmp); it has no name and no content\n";

const char *mode_name(enum mode mode) {
    return MODE_NAMES[mode];
}

const char *pages_name(enum pages pages) {
    return PAGES_NAMES[pages];
}

const char *scenario_name(enum scenario scenario) {
    return SCENARIO_NAMES[scenario];
}

static long long whole(const char *option, const char *text, long long least, long long most) {
    char *end;
    errno = 0;
    long long value = strtoll(text, &end, 10);
    if (*text < '0' || *text > '9' || *end || errno || value < least || value > most)
        die(EXIT_ARGUMENTS, "%s %.80s: not a whole number from %lld to %lld", option, text, least,
            most);
    return value;
}

static double seconds(const char *option, const char *text) {
    char *end;
    double value = strtod(text, &end);
    if (text[strspn(text, "0123456789.")] || !*text || *end || !(value > 0 && value <= 1e6))
        die(EXIT_ARGUMENTS, "%s %.80s: not a number of seconds above 0", option, text);
    return value;
}

static size_t size(const char *option, const char *text) {
    static const char *const units[] = {"", "KiB", "MiB", "GiB"};
    char *end;
    errno = 0;
    unsigned long long value = strtoull(text, &end, 10);
    if (*text >= '0' && *text <= '9' && !errno)
        for (int i = 0; i < 4; i++)
            if (strcmp(end, units[i]) == 0 && value <= (SIZE_MAX >> (10 * i)))
                return (size_t)(value << (10 * i));
    die(EXIT_ARGUMENTS, "%s %.80s: not a size in bytes (4096, 64MiB, 2GiB)", option, text);
}

static int word(const char *option, const char *text, const char *const *words, int count) {
    for (int i = 0; i < count; i++)
        if (strcmp(text, words[i]) == 0)
            return i;
    die(EXIT_ARGUMENTS, "%s %.80s: no such choice (see --help)", option, text);
}

/* Takes the next part of a comma-separated text; NULL at its end. The text is overwritten. */
static char *next_part(char **rest) {
    return *rest ? strsep(rest, ",") : NULL;
}

int cpus_parse(const char *text, int **cpus) {
    char *copy = strdup(text), *rest = copy, *part;
    bool *seen = allocate(MAX_CPUS, sizeof *seen);
    int count = 0;
    *cpus = allocate(MAX_CPUS, sizeof **cpus);
    while (copy && count >= 0 && (part = next_part(&rest))) {
        char *end = part;
        long first = *part >= '0' && *part <= '9' ? strtol(part, &end, 10) : -1, last = first;
        if (*end == '-')
            last = end[1] >= '0' && end[1] <= '9' ? strtol(end + 1, &end, 10) : -1;
        if (*end || first < 0 || last < first || last >= MAX_CPUS)
            count = -1;
        for (long cpu = first; count >= 0 && cpu <= last; cpu++) {
            if (seen[cpu])
                count = -1;
            else
                (*cpus)[count++] = (int)cpu, seen[cpu] = true;
        }
    }
    free(seen);
    free(copy);
    return count;
}

char *cpus_format(const void *set) {
    size_t bytes = CPU_ALLOC_SIZE(MAX_CPUS), room = MAX_CPUS * 6, used = 0;
    char *text = allocate(room, 1);
    for (int cpu = 0; cpu < MAX_CPUS; cpu++) {
        int last = cpu;
        if (!CPU_ISSET_S((size_t)cpu, bytes, (const cpu_set_t *)set))
            continue;
        while (last + 1 < MAX_CPUS && CPU_ISSET_S((size_t)last + 1, bytes, (const cpu_set_t *)set))
            last++;
        const char *comma = used ? "," : "";
        if (last > cpu)
            used += (size_t)snprintf(text + used, room - used, "%s%d-%d", comma, cpu, last);
        else
            used += (size_t)snprintf(text + used, room - used, "%s%d", comma, cpu);
        cpu = last;
    }
    return text;
}

int cpu_siblings(int cpu, int **siblings) {
    char path[96], line[4096] = "";
    snprintf(path, sizeof path, "/sys/devices/system/cpu/cpu%d/topology/thread_siblings_list",
             cpu);
    FILE *file = fopen(path, "r");
    if (file && fgets(line, sizeof line, file))
        line[strcspn(line, "\n")] = 0;
    if (file)
        fclose(file);
    int count = cpus_parse(line, siblings);
    return count < 0 ? 0 : count;
}

/* The rank of a CPU among the hardware threads of its core that are in the set; 0 if unknown. */
static int thread_rank(int cpu, const cpu_set_t *set) {
    int *siblings, rank = 0, count = cpu_siblings(cpu, &siblings);
    for (int i = 0; i < count; i++)
        rank += siblings[i] < cpu && CPU_ISSET_S((size_t)siblings[i], CPU_ALLOC_SIZE(MAX_CPUS), set);
    free(siblings);
    return rank;
}

static void choose_cpus(struct options *options, const char *list) {
    size_t bytes = CPU_ALLOC_SIZE(MAX_CPUS);
    cpu_set_t *allowed = allocate(1, bytes);
    if (sched_getaffinity(0, bytes, allowed) != 0)
        die(EXIT_FAILED, "the CPUs that may be used cannot be read: %s", strerror(errno));
    if (list) {
        options->cpu_count = cpus_parse(list, &options->cpus);
        if (options->cpu_count < 1)
            die(EXIT_ARGUMENTS, "--cpus %.80s: not a list of CPUs, each once (0-3,8)", list);
        for (int i = 0; i < options->cpu_count; i++)
            if (!CPU_ISSET_S((size_t)options->cpus[i], bytes, allowed))
                die(EXIT_ARGUMENTS, "--cpus: CPU %d is not among those that may be used (%s)",
                    options->cpus[i], cpus_format(allowed));
    } else {
        int *rank = allocate(MAX_CPUS, sizeof *rank), highest = 0;
        for (int cpu = 0; cpu < MAX_CPUS; cpu++) {
            rank[cpu] = -1;
            if (CPU_ISSET_S((size_t)cpu, bytes, allowed))
                rank[cpu] = thread_rank(cpu, allowed);
            highest = rank[cpu] > highest ? rank[cpu] : highest;
        }
        options->cpus = allocate(MAX_CPUS, sizeof *options->cpus);
        for (int r = 0; r <= highest; r++)
            for (int cpu = 0; cpu < MAX_CPUS; cpu++)
                if (rank[cpu] == r)
                    options->cpus[options->cpu_count++] = cpu;
        free(rank);
    }
    free(allowed);
}

static void read_delays(struct options *options, char *text) {
    for (char *part; (part = next_part(&text));) {
        if (options->delay_count == MAX_POINTS)
            die(EXIT_ARGUMENTS, "--delays: more than %d", MAX_POINTS);
        options->delays[options->delay_count++] = (long)whole("--delays", part, 0, 100000000);
    }
}

static void read_mixes(struct options *options, char *text) {
    for (char *part; (part = next_part(&text));) {
        const struct mix *found = NULL;
        for (int i = 0; i < MIX_COUNT; i++)
            if (strcmp(part, MIXES[i].name) == 0)
                found = &MIXES[i];
        if (!found)
            die(EXIT_ARGUMENTS, "--mixes %.80s: no such mix (reads, writes, 1:1, 2:1, 3:1)", part);
        if (options->mix_count == MAX_POINTS)
            die(EXIT_ARGUMENTS, "--mixes: more than %d", MAX_POINTS);
        options->mixes[options->mix_count++] = found;
    }
}

enum {
    ALL = (1 << MODES) - 1,
    MEMORY = ALL & ~(1 << CORE_TO_CORE),
    TEAM = MEMORY & ~(1 << LATENCY),
    CHASE = 1 << LATENCY | 1 << LOADED
};
static const struct option {
    const char *name;
    int modes;
    bool has_value;
} OPTIONS[] = {
    {"--cpus", ALL, true},          {"--no-wait", ALL, false},
    {"--time-limit", ALL, true},    {"--bytes", MEMORY, true},
    {"--pages", MEMORY, true},      {"--memory-node", MEMORY, true},
    {"--pin", MEMORY, true},        {"--threads", TEAM, true},
    {"--repeats", 1 << STREAM, true}, {"--seconds", ALL, true},
    {"--stride", CHASE, true},      {"--delays", 1 << LOADED, true},
    {"--mixes", 1 << BANDWIDTH | 1 << LOADED, true}, {"--max-cpus", 1 << CORE_TO_CORE, true},
    {"--scenario", 1 << ALLOCATE, true}, {"--home", 1 << ALLOCATE, true},
    {"--other-cpu", 1 << ALLOCATE, true}, {"--other-node", 1 << ALLOCATE, true},
    {"--fill", 1 << ALLOCATE, true}, {"--drop", 1 << ALLOCATE, false},
    {"--directory", 1 << ALLOCATE, true}, {"--clock-later", 1 << LOADED, false},
    {"--tour", 1 << LATENCY | 1 << BANDWIDTH, false},
};

static const struct option *find_option(const char *text, size_t length, enum mode mode) {
    for (size_t i = 0; i < sizeof OPTIONS / sizeof *OPTIONS; i++)
        if (strlen(OPTIONS[i].name) == length && strncmp(text, OPTIONS[i].name, length) == 0) {
            if (OPTIONS[i].modes >> mode & 1)
                return &OPTIONS[i];
            die(EXIT_ARGUMENTS, "%s is no option of %s", OPTIONS[i].name, mode_name(mode));
        }
    die(EXIT_ARGUMENTS, "unknown option %.80s (see --help)", text);
}

static void set(struct options *o, const char **list, const char *name, char *value) {
    static const char *const pins[] = {"none", "cpu"};
    if (!strcmp(name, "--cpus"))
        *list = value;
    else if (!strcmp(name, "--no-wait"))
        o->wait = false;
    else if (!strcmp(name, "--time-limit"))
        o->time_limit = seconds(name, value);
    else if (!strcmp(name, "--bytes"))
        o->bytes = size(name, value);
    else if (!strcmp(name, "--pages"))
        o->pages = (enum pages)word(name, value, PAGES_NAMES, 5);
    else if (!strcmp(name, "--memory-node"))
        o->memory_node = (int)whole(name, value, 0, MAX_NODES - 1);
    else if (!strcmp(name, "--pin"))
        o->pin = word(name, value, pins, 2) == 1;
    else if (!strcmp(name, "--threads"))
        o->threads = (int)whole(name, value, 1, MAX_CPUS);
    else if (!strcmp(name, "--repeats"))
        o->repeats = (long)whole(name, value, 2, 10000);
    else if (!strcmp(name, "--seconds"))
        o->seconds = seconds(name, value);
    else if (!strcmp(name, "--stride"))
        o->stride = size(name, value);
    else if (!strcmp(name, "--delays"))
        read_delays(o, value);
    else if (!strcmp(name, "--mixes"))
        read_mixes(o, value);
    else if (!strcmp(name, "--scenario"))
        o->scenario = (enum scenario)word(name, value, SCENARIO_NAMES, SCENARIOS);
    else if (!strcmp(name, "--home"))
        o->home = (int)whole(name, value, 0, MAX_NODES - 1);
    else if (!strcmp(name, "--other-cpu"))
        o->other_cpu = (int)whole(name, value, 0, MAX_CPUS - 1);
    else if (!strcmp(name, "--other-node"))
        o->other_node = (int)whole(name, value, 0, MAX_NODES - 1);
    else if (!strcmp(name, "--fill"))
        o->fill = strcmp(value, "node") ? size(name, value) : SIZE_MAX;
    else if (!strcmp(name, "--drop"))
        o->drop = true;
    else if (!strcmp(name, "--clock-later"))
        o->clock_later = true;
    else if (!strcmp(name, "--tour"))
        o->tour = true;
    else if (!strcmp(name, "--directory"))
        o->directory = value;
    else
        o->max_cpus = (int)whole(name, value, 2, MAX_CPUS);
}

static void complete(struct options *o) {
    if (o->max_cpus && o->cpu_count > o->max_cpus)
        o->cpu_count = o->max_cpus;
    if (o->mode == LATENCY)
        o->threads = 1;
    if (o->mode == CORE_TO_CORE)
        o->pages = PAGES_BASE;
    if (!o->threads)
        o->threads = o->cpu_count;
    if (o->pin && o->threads > o->cpu_count)
        die(EXIT_ARGUMENTS, "--threads %d: only %d CPUs may be used (each takes one thread)",
            o->threads, o->cpu_count);
    if (o->mode == LOADED && o->threads < 2)
        die(EXIT_ARGUMENTS, "loaded needs 2 threads: one measures while the others read");
    if (o->mode == CORE_TO_CORE && o->cpu_count < 2)
        die(EXIT_ARGUMENTS, "core-to-core needs 2 CPUs");
    if (o->stride < LINE || o->stride > 1 << 20 || (o->stride & (o->stride - 1)))
        die(EXIT_ARGUMENTS, "--stride %zu: not a power of two from 64 to 1048576", o->stride);
    if (o->mode == ALLOCATE && o->fill && o->home < 0)
        die(EXIT_ARGUMENTS, "--fill: --home must name the node");
    if (o->mode == ALLOCATE && o->scenario != TOUCH && o->scenario != OVERSUBSCRIBE &&
        (o->other_cpu < 0 || o->other_node < 0))
        die(EXIT_ARGUMENTS, "--scenario %s: --other-cpu and --other-node must name another node",
            SCENARIO_NAMES[o->scenario]);
    size_t least = 64 * 1024 * (size_t)o->threads;
    if (o->mode != CORE_TO_CORE && o->bytes < least)
        die(EXIT_ARGUMENTS, "--bytes %zu: less than %zu, the least for %d threads", o->bytes,
            least, o->threads);
    if (o->mode != CORE_TO_CORE && o->bytes / 8 > SIZE_MAX / 64)
        die(EXIT_MEMORY, "not enough memory: --bytes %zu", o->bytes);
    if (o->mode != STREAM && o->seconds == 0)
        o->seconds = 2;
    if (!o->delay_count)
        o->delays[o->delay_count++] = 0;
    if (!o->mix_count)
        o->mixes[o->mix_count++] = &MIXES[0];
}

void options_visit(struct options *o, char *line) {
    char *words[6] = {NULL}, *rest = line;
    for (int i = 0; i < 6; i++)
        words[i] = strsep(&rest, " ");
    if (!words[5] || rest || !*words[1])
        die(EXIT_ARGUMENTS, "\"visit NAME CPUS THREADS NODE BYTES\" was expected on standard input");
    free(o->cpus);
    free(o->visit);
    o->visit = strdup(words[1]);
    o->cpu_count = cpus_parse(words[2], &o->cpus);
    if (o->cpu_count < 1)
        die(EXIT_ARGUMENTS, "visit: %.80s: not a list of CPUs, each once (0-3,8)", words[2]);
    o->threads = (int)whole("visit: threads", words[3], 1, o->cpu_count);
    o->memory_node = (int)whole("visit: node", words[4], 0, MAX_NODES - 1);
    o->bytes = size("visit: bytes", words[5]);
    complete(o);
}

void options_read(struct options *o, int argc, char **argv) {
    const char *list = NULL;
    *o = (struct options){.pin = true,
                          .bytes = (size_t)64 << 20,
                          .stride = LINE,
                          .repeats = 10,
                          .memory_node = -1,
                          .home = -1,
                          .other_cpu = -1,
                          .other_node = -1,
                          .directory = "/var/tmp",
                          .wait = true};
    if (argc < 2)
        die(EXIT_ARGUMENTS, "no mode is named (see --help)");
    if (argc == 2 && !strcmp(argv[1], "--version")) {
        puts("numalab probe " PROBE_VERSION);
        finish(0);
    }
    if (argc == 2 && !strcmp(argv[1], "--help")) {
        fputs(USAGE, stdout);
        finish(0);
    }
    if (argc == 2 && !strcmp(argv[1], "--self-test"))
        finish(self_test());
    o->mode = (enum mode)word("mode", argv[1], MODE_NAMES, MODES);
    for (int i = 2; i < argc; i++) {
        char *value = strchr(argv[i], '=');
        size_t length = value ? (size_t)(value - argv[i]) : strlen(argv[i]);
        const struct option *option = find_option(argv[i], length, o->mode);
        if (value && !option->has_value)
            die(EXIT_ARGUMENTS, "%s takes no value", option->name);
        if (option->has_value && !value && i + 1 >= argc)
            die(EXIT_ARGUMENTS, "%s needs a value", option->name);
        set(o, &list, option->name, value ? value + 1 : option->has_value ? argv[++i] : NULL);
    }
    choose_cpus(o, list);
    complete(o);
}
