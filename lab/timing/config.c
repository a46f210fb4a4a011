/* The configuration: KEY=VALUE words, each checked; a host definition becomes them in qemu.py. */
#include "timing.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct configuration config;
static char wrong[256];
static double memory_gbs[MOST_NODES], link_gbs; /* GB/s; 0: no limit */

static const char *is_wrong(const char *key, const char *value, const char *wanted) {
    snprintf(wrong, sizeof wrong, "timing: %s=%.80s is not %s", key, value, wanted);
    return wrong;
}

static bool number(const char *text, char **end, double least, double most, double *out) {
    *out = strtod(text, end);
    return *end != text && *out >= least && *out <= most;
}

/* Rows parted by +, values by :, all within limits; returns how many values the rows have. */
static int matrix(const char *text, int rows, double least, double most, double *out) {
    char *end;
    int count = 0;
    for (const char *at = text;; at = end + 1, count++) {
        if (count >= rows * rows || !number(at, &end, least, most, &out[count]))
            return -1;
        char wanted = (count + 1) % rows ? ':' : '+';
        if (*end == 0)
            return count + 1;
        if (*end != wanted)
            return -1;
    }
}

static bool whole(const char *text, long least, long most, int *out) {
    char *end;
    long value = strtol(text, &end, 10);
    *out = (int)value;
    return *text && !*end && value >= least && value <= most;
}

static bool cache(const char *text, struct cache *out) { /* KiB/ways */
    char *end;
    double kib;
    int ways;
    if (!number(text, &end, 1, 1 << 20, &kib) || *end != '/' || !whole(end + 1, 1, 64, &ways))
        return false;
    out->ways = (unsigned)ways;
    out->sets = (unsigned)(kib * 1024 / LINE / ways);
    return out->sets > 0;
}

static u64 ps(double ns) {
    return (u64)(ns * 1000 + 0.5);
}

static u64 line_ps(double gbs) {
    return gbs > 0 ? (u64)(LINE * 1e3 / gbs + 0.5) : 0;
}

struct whole_key {
    const char *key;
    long least, most;
    int *out;
};
struct time_key {
    const char *key;
    double least, most; /* ns */
    u64 *out;
};

static const char *read_word(const char *key, const char *value, const char **latency) {
    static int node_mib, low_mib, coherent = 1, serial;
    const struct whole_key wholes[] = {
        {"vcpus", 1, MOST_VCPUS, &config.vcpus},
        {"nodes", 1, MOST_NODES, &config.nodes},
        {"sockets", 1, 8, &config.sockets},
        {"node_mib", 16, 1 << 24, &node_mib},
        {"low_mib", 16, 4096, &low_mib},
        {"prefetch_lines", 0, 1024, &config.prefetch_lines},
        {"stores", 1, MOST_STORES, &config.stores},
        {"coherent", 0, 1, &coherent},
        {"serial", 0, 1, &serial},
    };
    const struct time_key times[] = {
        {"instruction_ns", 0.001, 1000, &config.instruction_ps},
        {"quantum_ns", 10, 1e6, &config.quantum_ps},
        {"l2_ns", 0, 1e4, &config.l2_ps},
        {"l3_ns", 0, 1e4, &config.l3_ps},
        {"transfer_near_ns", 0, 1e5, &config.near_ps},
        {"transfer_far_ns", 0, 1e5, &config.far_ps},
    };
    const struct {
        const char *key;
        struct cache *out;
    } caches[] = {{"l1", &config.l1}, {"l2", &config.l2}, {"l3", &config.l3}};
    char *end;
    double value_ns;
    for (size_t i = 0; i < sizeof wholes / sizeof *wholes; i++)
        if (!strcmp(key, wholes[i].key)) {
            if (!whole(value, wholes[i].least, wholes[i].most, wholes[i].out))
                return is_wrong(key, value, "a whole number that this model takes");
            config.node_bytes = (u64)node_mib << 20;
            config.low_bytes = (u64)low_mib << 20;
            config.coherent = coherent;
            config.serial = serial;
            return NULL;
        }
    for (size_t i = 0; i < sizeof times / sizeof *times; i++)
        if (!strcmp(key, times[i].key)) {
            if (!number(value, &end, times[i].least, times[i].most, &value_ns) || *end)
                return is_wrong(key, value, "a time in ns that this model takes");
            *times[i].out = ps(value_ns);
            return NULL;
        }
    for (size_t i = 0; i < sizeof caches / sizeof *caches; i++)
        if (!strcmp(key, caches[i].key))
            return cache(value, caches[i].out) ? NULL : is_wrong(key, value, "KiB/WAYS");
    if (!strcmp(key, "latency_ns"))
        *latency = value;
    else if (!strcmp(key, "counters"))
        config.counters = value;
    else if (!strcmp(key, "link_gbs"))
        return number(value, &end, 0, 1e5, &link_gbs) && !*end ? NULL : is_wrong(key, value, "GB/s");
    else if (!strcmp(key, "memory_gbs")) { /* one for all nodes, or one for each */
        double each[MOST_NODES * MOST_NODES];
        int count = matrix(value, MOST_NODES, 0, 1e5, each);
        for (int i = 0; i < MOST_NODES; i++)
            memory_gbs[i] = count == 1 ? each[0] : i < count ? each[i] : -1;
        return count > 0 && count <= MOST_NODES ? NULL : is_wrong(key, value, "GB/s for each node");
    } else {
        snprintf(wrong, sizeof wrong, "timing: there is no key %.80s", key);
        return wrong;
    }
    return NULL;
}

/* What the words leave out: an intel-like host of two nodes without a latency matrix is refused. */
static void defaults(void) {
    config = (struct configuration){
        .vcpus = 1, .nodes = 1, .sockets = 1, .instruction_ps = 200, .quantum_ps = 4000000,
        .l2_ps = 3000, .l3_ps = 15000, .near_ps = 50000, .far_ps = 120000,
        .l1 = {64, 8}, .l2 = {512, 8}, .l3 = {1024, 16},
        .prefetch_lines = 32, .stores = 10, .coherent = true,
    };
    for (int i = 0; i < MOST_NODES; i++)
        memory_gbs[i] = 10;
    link_gbs = 5;
}

static const char *derive(const char *latency) {
    double ns[MOST_NODES * MOST_NODES];
    int n = config.nodes, each = n / config.sockets;
    if (n % config.sockets || config.vcpus % n)
        return is_wrong("nodes", "…", "a number that divides the vCPUs, and that the sockets divide");
    if (!config.node_bytes || !config.low_bytes)
        return is_wrong("node_mib, low_mib", "", "given");
    if (!latency || matrix(latency, n, 0.1, 1e5, ns) != n * n)
        return is_wrong("latency_ns", latency ? latency : "", "a row of values for each node");
    config.vcpus_a_node = config.vcpus / n;
    for (int i = 0; i < n; i++) {
        if (memory_gbs[i] < 0)
            return is_wrong("memory_gbs", "…", "given for each node");
        config.memory_line_ps[i] = line_ps(memory_gbs[i]);
        for (int j = 0; j < n; j++) {
            int from = j / each, to = i / each; /* one link each way between two sockets */
            config.latency_ps[i][j] = ps(ns[i * n + j]);
            config.link[i][j] = from == to ? -1 : to * config.sockets + from;
            if (from != to)
                config.link_line_ps[config.link[i][j]] = line_ps(link_gbs);
        }
    }
    return NULL;
}

const char *config_read(int count, char *const *words) {
    const char *latency = NULL, *why = NULL;
    defaults();
    for (int i = 0; i < count && !why; i++) {
        char key[32] = "";
        const char *value = strchr(words[i], '=');
        size_t length = value ? (size_t)(value - words[i]) : sizeof key;
        if (length >= sizeof key)
            return is_wrong(words[i], "", "KEY=VALUE");
        memcpy(key, words[i], length);
        why = read_word(key, value + 1, &latency);
    }
    return why ? why : derive(latency);
}
