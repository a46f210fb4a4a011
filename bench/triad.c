/* STREAM's triad over arrays larger than the caches, by as many threads as CPUs are allowed:
 * says "ready", waits for a line, prints the best rate of all passes in GB/s. It shares nothing
 * with the probe, so that what the collectors cost is measured on something independent. */
#define _GNU_SOURCE
#include <pthread.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

static double *a, *b, *c;
static long size, passes, threads;
static pthread_barrier_t barrier;
static double best = 1e30;

static double now(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

static void *work(void *argument) {
    long me = (long)argument, from = size * me / threads, to = size * (me + 1) / threads;
    for (long i = from; i < to; i++) { a[i] = 0; b[i] = 1; c[i] = 2; }
    pthread_barrier_wait(&barrier);
    if (me == 0) { puts("ready"); fflush(stdout); if (getchar() == EOF) exit(1); }
    for (long pass = 0; pass < passes; pass++) {
        pthread_barrier_wait(&barrier);
        double start = now();
        for (long i = from; i < to; i++) a[i] = b[i] + 3.0 * c[i];
        pthread_barrier_wait(&barrier);
        double took = now() - start;
        if (me == 0 && took < best) best = took;
    }
    return NULL;
}

int main(int argc, char **argv) {
    cpu_set_t allowed;
    if (argc != 3 || sched_getaffinity(0, sizeof allowed, &allowed)) return 2;
    size = atol(argv[1]);
    passes = atol(argv[2]);
    threads = CPU_COUNT(&allowed);
    a = malloc(size * sizeof *a); b = malloc(size * sizeof *b); c = malloc(size * sizeof *c);
    pthread_t *started = malloc(threads * sizeof *started);
    if (!a || !b || !c || !started) return 3;
    pthread_barrier_init(&barrier, NULL, threads);
    for (long i = 0; i < threads; i++) pthread_create(&started[i], NULL, work, (void *)i);
    for (long i = 0; i < threads; i++) pthread_join(started[i], NULL);
    printf("%.6f\n", 24.0 * size / best * 1e-9 + 0 * a[size / 2]);
    return 0;
}
