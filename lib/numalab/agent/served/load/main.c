/* Starts the threads, tells each second what they did, and at the end prints all they counted.
 *
 * Lines, in this order: setup; report, one each second; measured, when the lead has ended;
 * result, one a figure; histogram, one a bucket that is not empty. What they mean is written in
 * client.py, which reads them. */
#include "load.h"

#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <time.h>

static const char *const FAILURE_NAMES[FAILURES] = {"status", "protocol", "reset", "timeout",
                                                    "connect"};

void die(int status, const char *text, ...) {
    va_list rest;
    fflush(stdout);
    fputs("numalab-load: ", stderr);
    va_start(rest, text);
    vfprintf(stderr, text, rest);
    va_end(rest);
    fputc('\n', stderr);
    exit(status);
}

void *need(void *memory) {
    if (!memory)
        die(EXIT_FAILED, "out of memory");
    return memory;
}

static int64_t read_clock(clockid_t clock) {
    struct timespec t;
    clock_gettime(clock, &t);
    return t.tv_sec * SECOND + t.tv_nsec;
}

int64_t now_ns(void) {
    return read_clock(CLOCK_MONOTONIC);
}

static double ms(int64_t ns) {
    return (double)ns / 1e6;
}

static void line_ends(void) {
    puts("}");
    if (fflush(stdout) || ferror(stdout))
        die(EXIT_FAILED, "the output cannot be written: is the disk full?");
}

static void print_setup(const struct options *o) {
    printf("{\"kind\":\"setup\",\"version\":\"%s\",\"mode\":\"%s\",\"rate\":%.10g,"
           "\"connections\":%d,\"threads\":%d,\"lead_s\":%.10g,\"time_s\":%.10g,"
           "\"timeout_s\":%.10g,\"seed\":%llu,\"request\":\"",
           VERSION, o->rate > 0 ? "open" : "closed", o->rate, o->connections, o->threads,
           o->lead_s, o->time_s, o->timeout_s, (unsigned long long)o->seed);
    for (const char *c = o->request; *c; c++)
        printf(*c == '"' || *c == '\\' ? "\\%c" : "%c", *c);
    putchar('"');
    line_ends();
}

static void print_report(struct worker *workers, int count, int64_t second) {
    static struct histogram all;
    uint64_t errors = 0;
    memset(&all, 0, sizeof all);
    for (int i = 0; i < count; i++) {
        struct worker *w = &workers[i];
        pthread_mutex_lock(&w->lock);
        histogram_merge(&all, &w->second);
        memset(&w->second, 0, sizeof w->second);
        errors += w->second_errors;
        w->second_errors = 0;
        pthread_mutex_unlock(&w->lock);
    }
    printf("{\"kind\":\"report\",\"t_s\":%lld,\"requests\":%llu,\"errors\":%llu",
           (long long)second, (unsigned long long)all.count, (unsigned long long)errors);
    if (all.count)
        printf(",\"latency_p99_ms\":%.9g", ms(histogram_at(&all, 0.99)));
    line_ends();
}

static void print_result(const char *name, double value) {
    printf("{\"kind\":\"result\",\"name\":\"%s\",\"value\":%.12g", name, value);
    line_ends();
}

static struct tally *merged(const struct worker *workers, int count, double *busiest) {
    struct tally *all = need(calloc(1, sizeof *all));
    for (int i = 0; i < count; i++) {
        const struct tally *t = &workers[i].measured;
        histogram_merge(&all->latency, &t->latency);
        for (int kind = 0; kind < FAILURES; kind++)
            all->errors[kind] += t->errors[kind];
        all->reconnects += t->reconnects;
        all->bytes += t->bytes;
        all->lag_sum += t->lag_sum;
        if (t->lag_most > all->lag_most)
            all->lag_most = t->lag_most;
        all->answered += t->answered;
        if (workers[i].busy > *busiest)
            *busiest = workers[i].busy;
    }
    return all;
}

static void print_results(const struct worker *workers, int count, int64_t cpu) {
    double busiest = 0;
    struct tally *t = merged(workers, count, &busiest);
    const struct histogram *h = &t->latency;
    uint64_t errors = 0;
    print_result("requests", (double)h->count);
    print_result("answered", (double)t->answered);
    print_result("requests_per_second", (double)t->answered / workers->options->time_s);
    for (int kind = 0; kind < FAILURES; kind++) {
        char name[32];
        snprintf(name, sizeof name, "errors_%s", FAILURE_NAMES[kind]);
        print_result(name, (double)t->errors[kind]);
        errors += t->errors[kind];
    }
    print_result("errors", (double)errors);
    print_result("reconnects", (double)t->reconnects);
    if (h->count) { /* else there is no latency */
        print_result("latency_avg", (double)h->sum / (double)h->count / 1e6);
        print_result("latency_min", ms(h->least));
        print_result("latency_p50", ms(histogram_at(h, 0.5)));
        print_result("latency_p90", ms(histogram_at(h, 0.9)));
        print_result("latency_p99", ms(histogram_at(h, 0.99)));
        print_result("latency_p999", ms(histogram_at(h, 0.999)));
        print_result("latency_max", ms(h->most));
        print_result("schedule_lag_avg", (double)t->lag_sum / (double)h->count / 1e6);
        print_result("schedule_lag_max", ms(t->lag_most));
    }
    print_result("bytes", (double)t->bytes);
    print_result("client_cpu", (double)cpu / (double)SECOND);
    print_result("busiest_thread", busiest);
    for (int i = 0; i < BUCKETS; i++)
        if (h->buckets[i]) {
            int64_t top = bucket_top(i) < h->most ? bucket_top(i) : h->most;
            printf("{\"kind\":\"histogram\",\"ms\":%.12g,\"count\":%llu", ms(top),
                   (unsigned long long)h->buckets[i]);
            line_ends();
        }
    free(t);
}

static void sleep_until(int64_t when) {
    struct timespec at = {when / SECOND, when % SECOND};
    while (clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &at, NULL) == EINTR)
        ;
}

int main(int count, char **words) {
    struct options o = options_read(count, words);
    struct rlimit files;
    if (getrlimit(RLIMIT_NOFILE, &files) == 0) {
        files.rlim_cur = files.rlim_max;
        setrlimit(RLIMIT_NOFILE, &files); /* as many as may be */
    }
    struct worker *workers = need(calloc((size_t)o.threads, sizeof *workers));
    for (int i = 0; i < o.threads; i++) {
        workers[i].options = &o;
        workers[i].number = i;
        pthread_mutex_init(&workers[i].lock, NULL);
        worker_connect(&workers[i]);
    }
    print_setup(&o);
    int64_t begins = now_ns() + SECOND / 100; /* by then all threads are there */
    int64_t measures = begins + (int64_t)(o.lead_s * (double)SECOND);
    int64_t ends = measures + (int64_t)(o.time_s * (double)SECOND);
    for (int i = 0; i < o.threads; i++) {
        workers[i].begins = begins;
        workers[i].measures = measures;
        workers[i].ends = ends;
        if (pthread_create(&workers[i].thread, NULL, worker_run, &workers[i]))
            die(EXIT_FAILED, "a thread cannot be started");
    }
    int64_t cpu = 0;
    bool measuring = false;
    for (int64_t second = 1; !measuring || begins + second * SECOND <= ends;) {
        bool lead_ends = !measuring && measures <= begins + second * SECOND;
        sleep_until(lead_ends ? measures : begins + second * SECOND);
        if (lead_ends) {
            measuring = true;
            cpu = read_clock(CLOCK_PROCESS_CPUTIME_ID);
            printf("{\"kind\":\"measured\",\"t_s\":%.10g", o.lead_s);
            line_ends();
        } else
            print_report(workers, o.threads, second++);
    }
    for (int i = 0; i < o.threads; i++)
        pthread_join(workers[i].thread, NULL);
    cpu = read_clock(CLOCK_PROCESS_CPUTIME_ID) - cpu;
    print_results(workers, o.threads, cpu);
    for (int i = 0; i < o.threads; i++)
        worker_free(&workers[i]);
    free(workers);
    return 0;
}
