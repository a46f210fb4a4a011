/* Watches in a guest that its clock never goes back: a thread on each CPU reads it in turn with all
 * others, while the first switches the memory model on and off. Prints what it saw; 0 if all held. */
#define _GNU_SOURCE
#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>
#include <unistd.h>

#define SWITCH(how) __asm__ volatile(".byte 0x0f, 0x1f, 0x80, " #how ", 0x6d, 0x75, 0x6e")
enum { SWITCHES = 8 };

static _Atomic uint64_t latest;
static atomic_long reads, backwards, worst_ns;
static long each;
static pthread_barrier_t all_are_there;

static void *watch(void *number) {
    long cpu = (long)(intptr_t)number;
    cpu_set_t one;
    CPU_ZERO(&one);
    CPU_SET((size_t)cpu, &one);
    if (sched_setaffinity(0, sizeof one, &one) != 0)
        abort();
    pthread_barrier_wait(&all_are_there);
    for (long i = 0; i < each; i++) {
        if (cpu == 0 && i % (each / SWITCHES) == 0) {
            if (i / (each / SWITCHES) % 2)
                SWITCH(2);
            else
                SWITCH(1);
        }
        struct timespec t;
        uint64_t seen = atomic_load(&latest);
        clock_gettime(CLOCK_MONOTONIC, &t);
        uint64_t now = (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
        if (now < seen) {
            atomic_fetch_add(&backwards, 1);
            if ((long)(seen - now) > atomic_load(&worst_ns))
                atomic_store(&worst_ns, (long)(seen - now));
        }
        while (seen < now && !atomic_compare_exchange_weak(&latest, &seen, now))
            ;
    }
    atomic_fetch_add(&reads, each);
    return NULL;
}

int main(int count, char **words) {
    long cpus = sysconf(_SC_NPROCESSORS_ONLN);
    pthread_t threads[1024];
    each = count > 1 ? atol(words[1]) : 20000;
    pthread_barrier_init(&all_are_there, NULL, (unsigned)cpus);
    for (long i = 0; i < cpus; i++)
        pthread_create(&threads[i], NULL, watch, (void *)(intptr_t)i);
    for (long i = 0; i < cpus; i++)
        pthread_join(threads[i], NULL);
    SWITCH(2);
    printf("%ld reads on %ld CPUs, %ld went back, by %ld ns at most\n", atomic_load(&reads), cpus,
           atomic_load(&backwards), atomic_load(&worst_ns));
    return backwards > 0;
}
