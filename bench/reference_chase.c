/* An independent pointer chase, to judge the probe's idle latency by; it shares no line with it.
 *
 *     reference_chase BYTES huge|base SAMPLES
 *
 * A list of all 64-byte lines of a buffer in random order (Fisher-Yates over an array of line
 * numbers, linked in that order and closed to a ring). One whole round warms up. Prints the
 * median, over samples of at least 0.1 s, of the ns that one step takes. */
#define _GNU_SOURCE
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>

struct line {
    struct line *next;
    char rest[64 - sizeof(struct line *)];
};

static double seconds(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return t.tv_sec + t.tv_nsec / 1e9;
}

static int ascending(const void *a, const void *b) {
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

int main(int argc, char **argv) {
    if (argc != 4)
        return 2;
    size_t n = strtoull(argv[1], NULL, 10) / sizeof(struct line);
    int samples = atoi(argv[3]);
    struct line *lines, *at;
    size_t *order = malloc(n * sizeof *order);
    double *ns = malloc((size_t)samples * sizeof *ns);
    if (!order || !ns || posix_memalign((void **)&lines, 2 << 20, n * sizeof *lines))
        return 3;
    madvise(lines, n * sizeof *lines, strcmp(argv[2], "huge") ? MADV_NOHUGEPAGE : MADV_HUGEPAGE);
    memset(lines, 0, n * sizeof *lines);
    for (size_t i = 0; i < n; i++)
        order[i] = i;
    srandom(20);
    for (size_t i = n - 1; i > 0; i--) {
        size_t j = (((size_t)random() << 31) | (size_t)random()) % (i + 1), held = order[i];
        order[i] = order[j];
        order[j] = held;
    }
    for (size_t i = 0; i < n; i++)
        lines[order[i]].next = &lines[order[(i + 1) % n]];
    free(order);
    at = lines;
    for (size_t i = 0; i < n; i++)
        at = at->next;
    for (int s = 0; s < samples; s++) {
        size_t steps = 0;
        double start = seconds(), now;
        do {
            for (int i = 0; i < 20000; i++)
                at = at->next;
            steps += 20000;
            now = seconds();
        } while (now - start < 0.1);
        ns[s] = (now - start) * 1e9 / steps;
    }
    qsort(ns, (size_t)samples, sizeof *ns, ascending);
    printf("%.6f %d\n", ns[samples / 2], at == NULL);
    return 0;
}
