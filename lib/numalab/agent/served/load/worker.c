/* A thread: some of the connections, each with one request at a time, in an epoll loop.
 *
 * Open loop: arrival k of thread i (of n) is due at begin + (k * n + i) / rate. It takes the
 * connection that has been free for longest; when none is free it waits, and its latency grows. So
 * a server that stands still delays all that should have been asked meanwhile, as it would users
 * (latency counted from the real send time leaves them out: coordinated omission). Arrivals are
 * divided among threads beforehand, and wait for the connections of their own.
 *
 * Closed loop: a connection asks again as soon as it is answered; latency counts from sending. */
#include "load.h"

#include <errno.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/timerfd.h>
#include <time.h>
#include <unistd.h>

enum { EVENTS = 64, READ_BYTES = 64 << 10 };
#define SCAN_NS (SECOND / 20) /* how often timeouts and lost connections are looked for */

enum state { DOWN, CONNECTING, IDLE, BUSY };

struct connection {
    int fd;
    enum state state;
    bool waits_to_write; /* epoll is asked for that */
    int64_t due, since;  /* of the request: intended and real send time; of CONNECTING: its begin */
    char *out;           /* the request */
    size_t size, sent;
    struct answer answer;
    struct connection *before, *after; /* in the list of free ones */
};

struct loop {
    int epoll, timer;
    int count;
    struct connection *all;
    struct connection *first, *last; /* free, the first for longest */
    int64_t arrival;                 /* the next one's number */
    int64_t armed;                   /* what the timer is set to */
    int64_t scanned;
    uint64_t random;
    char input[READ_BYTES];
};

static bool is_open_loop(const struct worker *w) {
    return w->options->rate > 0;
}

static int64_t next_due(const struct worker *w) {
    const struct options *o = w->options;
    double number = (double)w->loop->arrival * o->threads + w->number;
    return w->begins + (int64_t)(number / o->rate * (double)SECOND);
}

/* --- what is counted --- */

static bool counts(const struct worker *w, int64_t due, int64_t now) {
    int64_t when = is_open_loop(w) ? due : now;
    return when >= w->measures && when < w->ends;
}

static void count_answer(struct worker *w, int64_t due, int64_t since, int64_t now) {
    pthread_mutex_lock(&w->lock);
    histogram_add(&w->second, now - due);
    if (counts(w, due, now)) {
        struct tally *t = &w->measured;
        histogram_add(&t->latency, now - due);
        t->lag_sum += since - due;
        if (since - due > t->lag_most)
            t->lag_most = since - due;
    }
    if (now >= w->measures && now < w->ends)
        w->measured.answered++;
    pthread_mutex_unlock(&w->lock);
}

static void count_failure(struct worker *w, enum failure kind, int64_t due, int64_t now) {
    pthread_mutex_lock(&w->lock);
    w->second_errors++;
    if (counts(w, due, now))
        w->measured.errors[kind]++;
    pthread_mutex_unlock(&w->lock);
}

/* --- connections --- */

static void take_out(struct loop *l, struct connection *c) {
    *(c->before ? &c->before->after : &l->first) = c->after;
    *(c->after ? &c->after->before : &l->last) = c->before;
}

static void set_free(struct loop *l, struct connection *c) {
    c->state = IDLE;
    c->before = l->last;
    c->after = NULL;
    *(l->last ? &l->last->after : &l->first) = c;
    l->last = c;
}

static void watch(struct loop *l, struct connection *c, int how, bool writing) {
    struct epoll_event event = {.events = EPOLLIN | (writing ? (uint32_t)EPOLLOUT : 0),
                                .data.ptr = c};
    c->waits_to_write = writing;
    if (epoll_ctl(l->epoll, how, c->fd, &event))
        die(EXIT_FAILED, "epoll_ctl: %s", strerror(errno));
}

static void hang_up(struct loop *l, struct connection *c) {
    if (c->state == IDLE)
        take_out(l, c);
    if (c->state != DOWN)
        close(c->fd); /* epoll forgets it */
    c->state = DOWN;
}

/* Begins to connect; returns 0 or the error. EAGAIN: the server's queue is full (unix sockets). */
static int begin_connect(struct worker *w, struct connection *c) {
    const struct options *o = w->options;
    c->fd = socket(o->address.ss_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
    if (c->fd < 0)
        return errno;
    int on = 1, error = 0;
    if (o->address.ss_family != AF_UNIX)
        setsockopt(c->fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
    if (connect(c->fd, (const struct sockaddr *)&o->address, o->address_size))
        error = errno;
    if (error && error != EINPROGRESS) {
        close(c->fd);
        return error;
    }
    c->since = now_ns();
    c->state = CONNECTING;
    watch(w->loop, c, EPOLL_CTL_ADD, error == EINPROGRESS);
    if (!error)
        set_free(w->loop, c);
    return 0;
}

/* In an open loop the arrival that has waited longest fails with the connection that it needed. */
static void connect_failed(struct worker *w, int64_t now) {
    int64_t due = now;
    if (is_open_loop(w)) {
        due = next_due(w);
        if (due > now || due >= w->ends)
            return;
        w->loop->arrival++;
    }
    count_failure(w, FAILED_CONNECT, due, now);
}

static void connect_again(struct worker *w, struct connection *c) {
    hang_up(w->loop, c);
    int error = begin_connect(w, c);
    if (error && error != EAGAIN)
        connect_failed(w, now_ns());
}

static void closed_by_server(struct worker *w, struct connection *c, int64_t now) {
    if (now >= w->measures && now < w->ends)
        w->measured.reconnects++;
    connect_again(w, c);
}

static void connected(struct worker *w, struct connection *c) {
    int error = 0;
    socklen_t size = sizeof error;
    if (getsockopt(c->fd, SOL_SOCKET, SO_ERROR, &error, &size) || error) {
        hang_up(w->loop, c);
        connect_failed(w, now_ns());
        return;
    }
    watch(w->loop, c, EPOLL_CTL_MOD, false);
    set_free(w->loop, c);
}

/* --- requests --- */

static uint64_t random_below(struct loop *l, uint64_t most) {
    l->random ^= l->random << 13; /* xorshift64 */
    l->random ^= l->random >> 7;
    l->random ^= l->random << 17;
    return ((l->random >> 32) * most) >> 32; /* most is below 2^30 */
}

static size_t request_room(const struct options *o) {
    return strlen(o->request) + strlen(o->host) + 128; /* a number is shorter than its #N# */
}

static void write_request(struct worker *w, struct connection *c) {
    const struct options *o = w->options;
    if (c->size && !strchr(o->request, '#'))
        return; /* always the same */
    char *to = stpcpy(c->out, "GET ");
    for (const char *from = o->request; *from; from++) {
        if (*from != '#') {
            *to++ = *from;
            continue;
        }
        char *end;
        uint64_t below = strtoull(from + 1, &end, 10);
        to += sprintf(to, "%llu", (unsigned long long)random_below(w->loop, below));
        from = end;
    }
    to += sprintf(to, " HTTP/1.1\r\nHost: %s\r\nUser-Agent: numalab-load\r\nAccept: */*\r\n\r\n",
                  o->host);
    c->size = (size_t)(to - c->out);
}

static void failed(struct worker *w, struct connection *c, enum failure kind) {
    count_failure(w, kind, c->due, now_ns());
    connect_again(w, c);
}

static void write_on(struct worker *w, struct connection *c) {
    ssize_t written = send(c->fd, c->out + c->sent, c->size - c->sent, MSG_NOSIGNAL);
    if (written < 0 && errno != EAGAIN && errno != EINTR) {
        failed(w, c, FAILED_RESET);
        return;
    }
    c->sent += written > 0 ? (size_t)written : 0;
    if (c->waits_to_write != (c->sent < c->size))
        watch(w->loop, c, EPOLL_CTL_MOD, c->sent < c->size);
}

/* Sends a request by the connection that has been free for longest. */
static void ask(struct worker *w, int64_t due) {
    struct connection *c = w->loop->first;
    take_out(w->loop, c);
    write_request(w, c);
    c->state = BUSY;
    c->since = now_ns();
    c->due = is_open_loop(w) ? due : c->since;
    c->sent = 0;
    answer_begin(&c->answer);
    write_on(w, c);
}

static void answered(struct worker *w, struct connection *c) {
    int64_t now = now_ns();
    if (c->answer.status / 100 == 2)
        count_answer(w, c->due, c->since, now);
    else
        count_failure(w, FAILED_STATUS, c->due, now);
    if (c->answer.keep && c->sent == c->size)
        set_free(w->loop, c);
    else
        closed_by_server(w, c, now);
}

static void read_on(struct worker *w, struct connection *c) {
    ssize_t size;
    do {
        size = recv(c->fd, w->loop->input, READ_BYTES, 0);
        if (size < 0 && (errno == EAGAIN || errno == EINTR))
            return;
        if (c->state == IDLE) { /* closed, or "408 Request Timeout" before that */
            closed_by_server(w, c, now_ns());
            return;
        }
        if (size < 0 || (size == 0 && !answer_ends(&c->answer))) {
            failed(w, c, FAILED_RESET);
            return;
        }
        if (size == 0) {
            answered(w, c);
            return;
        }
        if (c->since >= w->measures)
            w->measured.bytes += (size_t)size;
        size_t taken = answer_read(&c->answer, w->loop->input, (size_t)size);
        if (c->answer.part == BAD || taken < (size_t)size) {
            failed(w, c, FAILED_PROTOCOL); /* what follows an answer was not asked for */
            return;
        }
        if (c->answer.part == DONE) {
            answered(w, c);
            return;
        }
    } while (size == READ_BYTES);
}

/* --- the loop --- */

static void handle(struct worker *w, struct connection *c, uint32_t events) {
    if (c->state == CONNECTING)
        connected(w, c);
    else if (c->state == BUSY && c->waits_to_write && (events & EPOLLOUT))
        write_on(w, c);
    else if (c->state != DOWN)
        read_on(w, c);
}

/* Sends what is due. Then, or where no connection is free, the next event is awaited. */
static void send_due(struct worker *w) {
    struct loop *l = w->loop;
    if (!is_open_loop(w)) {
        for (int i = 0; i < l->count && l->first; i++)
            ask(w, 0);
        return;
    }
    int64_t due = 0, now = now_ns();
    while (l->first && (due = next_due(w)) <= now && due < w->ends) {
        l->arrival++;
        ask(w, due);
    }
    if (l->first && due < w->ends && due != l->armed) {
        struct itimerspec at = {.it_value = {due / SECOND, due % SECOND}};
        timerfd_settime(l->timer, TFD_TIMER_ABSTIME, &at, NULL);
        l->armed = due;
    }
}

static void scan(struct worker *w, int64_t now) {
    int64_t limit = (int64_t)(w->options->timeout_s * (double)SECOND);
    for (int i = 0; i < w->loop->count; i++) {
        struct connection *c = &w->loop->all[i];
        if (c->state == BUSY && now - c->since > limit)
            failed(w, c, FAILED_TIMEOUT);
        else if (c->state == CONNECTING && now - c->since > limit) {
            hang_up(w->loop, c);
            connect_failed(w, now);
        } else if (c->state == DOWN)
            connect_again(w, c);
    }
    w->loop->scanned = now;
}

static bool has_ended(const struct worker *w, int64_t now) {
    if (now < w->ends)
        return false;
    if (!is_open_loop(w) || now >= w->ends + (int64_t)(w->options->timeout_s * (double)SECOND))
        return true;
    for (int i = 0; i < w->loop->count; i++)
        if (w->loop->all[i].state == BUSY)
            return false;
    return next_due(w) >= w->ends;
}

/* What is open when the time for it is over has timed out: asked, or still waiting. */
static void give_up(struct worker *w) {
    int64_t now = now_ns();
    for (int i = 0; i < w->loop->count && is_open_loop(w); i++)
        if (w->loop->all[i].state == BUSY)
            count_failure(w, FAILED_TIMEOUT, w->loop->all[i].due, now);
    for (; is_open_loop(w) && next_due(w) < w->ends; w->loop->arrival++)
        count_failure(w, FAILED_TIMEOUT, next_due(w), now);
}

static int64_t cpu_ns(void) {
    struct timespec t;
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
    return t.tv_sec * SECOND + t.tv_nsec;
}

void *worker_run(void *worker) {
    struct worker *w = worker;
    struct loop *l = w->loop;
    struct epoll_event events[EVENTS];
    struct timespec begin = {w->begins / SECOND, w->begins % SECOND};
    int64_t now, cpu = -1, since = 0;
    clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &begin, NULL);
    while (now = now_ns(), !has_ended(w, now)) {
        if (cpu < 0 && now >= w->measures) {
            cpu = cpu_ns();
            since = now;
        }
        if (now - l->scanned >= SCAN_NS)
            scan(w, now);
        send_due(w);
        int64_t wait = w->ends > now && w->ends - now < SCAN_NS ? w->ends - now : SCAN_NS;
        int count = epoll_wait(l->epoll, events, EVENTS, (int)(wait / 1000000) + 1);
        for (int i = 0; i < count; i++)
            if (events[i].data.ptr) /* NULL is the timer */
                handle(w, events[i].data.ptr, events[i].events);
    }
    if (cpu >= 0 && now > since)
        w->busy = (double)(cpu_ns() - cpu) / (double)(now - since);
    give_up(w);
    return NULL;
}

/* Waits until the last connection that was begun is there; dies where it cannot be made. */
static void await(struct worker *w, struct connection *c) {
    const struct options *o = w->options;
    int64_t limit = now_ns() + (int64_t)(o->timeout_s * (double)SECOND);
    int error;
    while ((error = begin_connect(w, c)) == EAGAIN && now_ns() < limit)
        usleep(1000);
    if (!error && c->state == CONNECTING) {
        struct pollfd wait = {.fd = c->fd, .events = POLLOUT};
        socklen_t size = sizeof error;
        if (poll(&wait, 1, (int)(o->timeout_s * 1000) + 1) < 1)
            error = ETIMEDOUT;
        else
            getsockopt(c->fd, SOL_SOCKET, SO_ERROR, &error, &size);
        if (!error)
            connected(w, c);
    }
    if (error)
        die(EXIT_FAILED, "cannot connect to %s: %s", o->to,
            error == EMFILE ? "too many open files for --connections (raise ulimit -n)"
                            : strerror(error));
}

void worker_free(struct worker *w) {
    struct loop *l = w->loop;
    for (int i = 0; i < l->count; i++) {
        hang_up(l, &l->all[i]);
        free(l->all[i].out);
    }
    close(l->epoll);
    close(l->timer);
    free(l->all);
    free(l);
}

void worker_connect(struct worker *w) {
    const struct options *o = w->options;
    struct loop *l = w->loop = need(calloc(1, sizeof *l));
    l->count = o->connections / o->threads + (w->number < o->connections % o->threads);
    l->all = need(calloc((size_t)l->count, sizeof *l->all));
    l->random = (o->seed + 1) * 0x9e3779b97f4a7c15u + (uint64_t)w->number * 0xbf58476d1ce4e5b9u;
    l->random += !l->random; /* xorshift never leaves 0 */
    l->epoll = epoll_create1(EPOLL_CLOEXEC);
    l->timer = timerfd_create(CLOCK_MONOTONIC, TFD_NONBLOCK | TFD_CLOEXEC);
    struct epoll_event event = {.events = EPOLLIN | EPOLLET}; /* once for each time it is set */
    if (l->epoll < 0 || l->timer < 0 || epoll_ctl(l->epoll, EPOLL_CTL_ADD, l->timer, &event))
        die(EXIT_FAILED, "no epoll, or no timer: %s", strerror(errno));
    for (int i = 0; i < l->count; i++) {
        l->all[i].out = need(malloc(request_room(o)));
        await(w, &l->all[i]);
    }
}
