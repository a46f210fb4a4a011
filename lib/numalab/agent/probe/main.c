/* The conversation: "ready" when everything is in place, "go" from the other side, the result,
 * "quit". On a tour (--tour) each measurement is asked for by a line "visit …" and is such a
 * conversation; "quit" ends it. Each line out is a JSON record. */
#include "probe.h"

#include <signal.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

_Noreturn void die(int status, const char *format, ...) {
    va_list arguments;
    fflush(stdout);
    fputs("probe: ", stderr);
    va_start(arguments, format);
    vfprintf(stderr, format, arguments);
    va_end(arguments);
    fputc('\n', stderr);
    fflush(stderr);
    _exit(status);
}

_Noreturn void finish(int status) {
    if (fflush(stdout) != 0)
        status = EXIT_FAILED;
    _exit(status);
}

double now(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

static void on_signal(int number) {
    static const char late[] = "probe: the time limit (--time-limit) has passed\n";
    static const char pool[] = "probe: not enough memory: no huge page is left on the nodes that "
                               "may be used; use --pages=thp\n";
    ssize_t written = number == SIGALRM ? write(2, late, sizeof late - 1)
                                        : write(2, pool, sizeof pool - 1);
    (void)written;
    _exit(number == SIGALRM ? EXIT_TIME : EXIT_MEMORY);
}

void die_with(pid_t parent) {
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (getppid() != parent)
        _exit(EXIT_FAILED);
}

static void set_limits(const struct options *options) {
    struct sigaction action = {.sa_handler = on_signal};
    sigaction(SIGALRM, &action, NULL);
    if (options->pages == PAGES_HUGETLB) /* what a fault without a page in the pool raises */
        sigaction(SIGBUS, &action, NULL);
    if (options->time_limit > 0) {
        struct itimerval timer = {{0, 0}, {0, 0}};
        timer.it_value.tv_sec = (time_t)options->time_limit;
        timer.it_value.tv_usec =
            (suseconds_t)((options->time_limit - (double)timer.it_value.tv_sec) * 1e6) + 1;
        setitimer(ITIMER_REAL, &timer, NULL);
    }
}

/* Returns a line that begins with the word; ends the program for "quit" and at the end of the
 * input. */
static char *expect_word(const char *word) {
    static char line[1 << 16]; /* a list of CPUs can be long */
    size_t length = strlen(word);
    if (!fgets(line, sizeof line, stdin))
        finish(0);
    line[strcspn(line, "\r\n")] = 0;
    if (!strcmp(line, "quit"))
        finish(0);
    if (strncmp(line, word, length) != 0 || (line[length] && line[length] != ' '))
        die(EXIT_ARGUMENTS, "\"%s\" was expected on standard input, not \"%.40s\"", word, line);
    return line;
}

static void report_placement(struct run *run, struct json *j) {
    struct placement *asked = NULL;
    const struct placement *p = run->placement;
    if (!p) {
        p = asked = allocate(1, sizeof *asked);
        placement_query(asked, run->buffers, run->buffer_count);
    }
    if (p->reason) {
        json_text(j, "buffers", NULL);
    } else {
        json_begin(j, "buffers", '{');
        for (int node = 0; node < MAX_NODES; node++) {
            char name[16];
            snprintf(name, sizeof name, "%d", node);
            if (p->bytes[node])
                json_whole(j, name, (long long)p->bytes[node]);
        }
        if (p->absent)
            json_whole(j, "not present", (long long)p->absent);
        if (p->unknown)
            json_whole(j, "unknown", (long long)p->unknown);
        json_end(j, '}');
    }
    json_text(j, "buffers_reason", p->reason);
    json_whole(j, "buffer_pages", p->pages);
    json_whole(j, "buffer_pages_asked", p->sampled);
    free(asked);
}

static void report_pages(struct run *run, struct json *j) {
    struct buffer *largest = &run->buffers[0];
    size_t huge = 0;
    bool inspected = true;
    for (int i = 0; i < run->buffer_count; i++) {
        if (!run->buffers[i].inspected)
            buffer_inspect(&run->buffers[i]);
        huge += run->buffers[i].huge;
        inspected = inspected && run->buffers[i].inspected;
    }
    json_text(j, "pages", pages_name(run->options->pages));
    json_whole(j, "page_bytes", (long long)largest->page);
    if (inspected)
        json_whole(j, "transparent_huge_bytes", (long long)huge);
    else
        json_text(j, "transparent_huge_bytes", NULL);
}

static size_t need_bytes(const struct options *o) {
    switch (o->mode) {
    case STREAM: return 3 * o->bytes;
    case LATENCY: return o->bytes + o->bytes / o->stride * sizeof(uint32_t);
    case LOADED: return 2 * o->bytes + o->bytes / o->stride * sizeof(uint32_t);
    case BANDWIDTH: return o->bytes;
    case ALLOCATE: return o->scenario == OVERSUBSCRIBE ? 0 : o->bytes;
    default: return (size_t)o->cpu_count * page_size();
    }
}

static void converse(const struct options *o, const struct measurement *mode) {
    struct json j = {stdout, false};
    static struct team team;
    struct run run = {.options = o, .team = &team};
    struct options unpinned = *o;
    double began = now();
    if (team.size) /* of the visit before; it stayed where it was until that one was proven */
        team_end(&team);
    memory_check(need_bytes(o));
    unpinned.pin = o->pin && o->mode != CORE_TO_CORE;
    team_start(&team, &unpinned, o->mode == CORE_TO_CORE ? 1 : o->threads);
    mode->prepare(&run);
    double setup_s = now() - began - run.warmup_s;

    json_begin(&j, NULL, '{');
    json_text(&j, "event", "ready");
    json_whole(&j, "schema", PROBE_SCHEMA);
    json_text(&j, "version", PROBE_VERSION);
    json_text(&j, "mode", mode_name(o->mode));
    json_text(&j, "visit", o->visit);
    json_whole(&j, "threads_measuring", o->mode == CORE_TO_CORE ? 2 : o->threads);
    mode->configure(&run, &j);
    report_pages(&run, &j);
    report_placement(&run, &j);
    team_report(&team, &j);
    json_real(&j, "setup_s", setup_s);
    json_real(&j, "warmup_s", run.warmup_s);
    json_end(&j, '}');
    json_line(&j);
    if (o->wait)
        expect_word("go");

    double start = now();
    mode->measure(&run);
    run.measure_s = now() - start;

    if (mode->rows)
        mode->rows(&run, &j);
    json_begin(&j, NULL, '{');
    json_text(&j, "event", "result");
    json_text(&j, "mode", mode_name(o->mode));
    json_text(&j, "visit", o->visit);
    mode->report(&run, &j);
    report_placement(&run, &j);
    team_report(&team, &j);
    json_real(&j, "measure_s", run.measure_s);
    json_end(&j, '}');
    json_line(&j);
}

int main(int argc, char **argv) {
    static const struct measurement *const modes[MODES] = {
        &STREAM_MODE, &LATENCY_MODE, &LOADED_MODE, &BANDWIDTH_MODE, &CORE_TO_CORE_MODE, &ALLOCATE_MODE};
    struct options options;
    die_with(getppid());
    options_read(&options, argc, argv);
    set_limits(&options);
    while (options.tour) {
        options_visit(&options, expect_word("visit"));
        converse(&options, modes[options.mode]);
    }
    converse(&options, modes[options.mode]);
    if (options.wait)
        expect_word("quit");
    finish(0);
}
