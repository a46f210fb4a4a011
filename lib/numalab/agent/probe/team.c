/* Threads: one pinned on each CPU, jobs that all of them run at once, a barrier. */
#include "probe.h"

#include "arch.h"

#include <errno.h>
#include <sched.h>
#include <stdlib.h>
#include <string.h>

size_t part_start(size_t total, int index, int parts, size_t unit) {
    size_t units = total / unit;
    size_t whole = units / (size_t)parts, rest = units % (size_t)parts, i = (size_t)index;
    return index == parts ? total : unit * (whole * i + (i < rest ? i : rest));
}

/* Spins briefly, then lets others run: there may be fewer free CPUs than threads. */
void team_barrier(struct team *team) {
    unsigned generation = atomic_load_explicit(&team->generation, memory_order_acquire);
    if (atomic_fetch_add_explicit(&team->arrived, 1, memory_order_acq_rel) + 1 == team->size) {
        atomic_store_explicit(&team->arrived, 0, memory_order_relaxed);
        atomic_store_explicit(&team->generation, generation + 1, memory_order_release);
        return;
    }
    for (long spins = 0;
         atomic_load_explicit(&team->generation, memory_order_acquire) == generation; spins++) {
        if (spins < 20000)
            cpu_relax();
        else
            sched_yield();
    }
}

static void work(struct worker *worker) {
    worker->cpu_before = sched_getcpu();
    worker->team->job(worker->team->context, worker->index);
    worker->cpu_after = sched_getcpu();
    team_barrier(worker->team);
}

static void *worker_main(void *argument) {
    struct worker *worker = argument;
    struct team *team = worker->team;
    for (unsigned long done = 0;; done++) {
        pthread_mutex_lock(&team->lock);
        while (team->round == done && !team->ending)
            pthread_cond_wait(&team->wake, &team->lock);
        bool over = team->round == done;
        pthread_mutex_unlock(&team->lock);
        if (over)
            return NULL;
        work(worker);
    }
}

static cpu_set_t *one_cpu(int cpu) {
    cpu_set_t *set = allocate(1, CPU_ALLOC_SIZE(MAX_CPUS));
    CPU_SET_S((size_t)cpu, CPU_ALLOC_SIZE(MAX_CPUS), set);
    return set;
}

int thread_on_cpu(pthread_t *thread, int cpu, void *(*start)(void *), void *argument) {
    pthread_attr_t attributes;
    int error = pthread_attr_init(&attributes);
    if (error)
        return error;
    if (cpu >= 0) {
        cpu_set_t *set = one_cpu(cpu);
        error = pthread_attr_setaffinity_np(&attributes, CPU_ALLOC_SIZE(MAX_CPUS), set);
        free(set);
    }
    if (!error)
        error = pthread_attr_setstacksize(&attributes, 256 * 1024);
    if (!error)
        error = pthread_create(thread, &attributes, start, argument);
    pthread_attr_destroy(&attributes);
    return error;
}

static void settle(void *context, int index) {
    (void)context;
    (void)index;
}

void team_start(struct team *team, const struct options *options, int size) {
    memset(team, 0, sizeof *team);
    pthread_mutex_init(&team->lock, NULL);
    pthread_cond_init(&team->wake, NULL);
    atomic_init(&team->arrived, 0);
    atomic_init(&team->generation, 0);
    team->size = size;
    team->workers = allocate((size_t)size, sizeof *team->workers);
    for (int i = 0; i < size; i++) {
        struct worker *worker = &team->workers[i];
        worker->team = team;
        worker->index = i;
        worker->cpu = options->pin ? options->cpus[i] : -1;
        int error = 0;
        if (i > 0) {
            error = thread_on_cpu(&worker->thread, worker->cpu, worker_main, worker);
        } else if (worker->cpu >= 0) {
            cpu_set_t *set = one_cpu(worker->cpu);
            if (sched_setaffinity(0, CPU_ALLOC_SIZE(MAX_CPUS), set) != 0)
                error = errno;
            free(set);
        }
        if (error && worker->cpu >= 0)
            die(EXIT_FAILED, "no thread can be started on CPU %d: %s", worker->cpu,
                strerror(error));
        if (error)
            die(EXIT_FAILED, "thread %d cannot be started: %s", i, strerror(error));
    }
    team_run(team, settle, NULL); /* now each is on its CPU */
}

void team_run(struct team *team, work_fn job, void *context) {
    pthread_mutex_lock(&team->lock);
    team->job = job;
    team->context = context;
    team->round++;
    pthread_cond_broadcast(&team->wake);
    pthread_mutex_unlock(&team->lock);
    work(&team->workers[0]);
}

void team_end(struct team *team) {
    pthread_mutex_lock(&team->lock);
    team->ending = true;
    pthread_cond_broadcast(&team->wake);
    pthread_mutex_unlock(&team->lock);
    for (int i = 1; i < team->size; i++)
        pthread_join(team->workers[i].thread, NULL);
    free(team->workers);
}

void team_report(struct team *team, struct json *j) {
    json_begin(j, "threads", '[');
    for (int i = 0; i < team->size; i++) {
        const struct worker *worker = &team->workers[i];
        json_begin(j, NULL, '{');
        if (worker->cpu >= 0)
            json_whole(j, "pinned", worker->cpu);
        else
            json_text(j, "pinned", NULL);
        json_whole(j, "began_on", worker->cpu_before);
        json_whole(j, "ended_on", worker->cpu_after);
        cpu_set_t *set = allocate(1, CPU_ALLOC_SIZE(MAX_CPUS));
        pthread_t thread = i ? worker->thread : pthread_self();
        char *allowed = NULL;
        if (pthread_getaffinity_np(thread, CPU_ALLOC_SIZE(MAX_CPUS), set) == 0)
            allowed = cpus_format(set);
        json_text(j, "allowed", allowed);
        free(allowed);
        free(set);
        json_end(j, '}');
    }
    json_end(j, ']');
}
