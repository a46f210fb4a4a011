/* numalab-load: an HTTP/1.1 client that asks a server at a constant rate, or as fast as it answers.
 *
 * options.c    the command line
 * worker.c     a thread: its connections, when it sends, what it counts
 * answer.c     reads an answer, however it is cut into pieces
 * histogram.c  latencies to three significant digits
 * main.c       starts the threads, prints what they counted as JSON, a line each
 * selftest.c   what can be checked without a server
 *
 * All times are nanoseconds of CLOCK_MONOTONIC. */
#ifndef LOAD_H
#define LOAD_H

#include <pthread.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/socket.h>

#define VERSION "1.0"
#define SECOND 1000000000LL

enum { EXIT_FAILED = 1, EXIT_ARGUMENTS = 2 };

/* Ends the program: "numalab-load: TEXT" on standard error, and this exit status. */
void die(int status, const char *text, ...) __attribute__((noreturn, format(printf, 2, 3)));
int64_t now_ns(void); /* CLOCK_MONOTONIC */
void *need(void *memory); /* dies where there is none */

/* --- options.c --- */

struct options {
    const char *to;      /* as it was given */
    const char *host;    /* of the Host header */
    const char *request; /* path and query; #N# is a random number below N */
    struct sockaddr_storage address;
    socklen_t address_size;
    int connections, threads;
    double rate; /* requests a second of all threads; 0: closed loop */
    double lead_s, time_s, timeout_s;
    uint64_t seed;
};

/* Dies where the command line is wrong; prints and ends for --help, --version, --self-test. */
struct options options_read(int count, char **words);

/* --- histogram.c --- */

/* The lowest 2048 values have a bucket each; above, each power of two has 1024: a bucket is at most
 * 1/1024 of its values wide. The same buckets as HdrHistogram's with three significant digits. */
enum { HALF_BITS = 10, HALF = 1 << HALF_BITS, TOP_BITS = 42 /* 73 minutes */ };
enum { BUCKETS = (TOP_BITS - HALF_BITS + 1) * HALF };

struct histogram {
    uint64_t count, buckets[BUCKETS];
    int64_t sum, least, most; /* exact; least and most without meaning where count is 0 */
};

int bucket_of(int64_t value);
int64_t bucket_top(int bucket); /* the highest value of it */
void histogram_add(struct histogram *h, int64_t value);
void histogram_merge(struct histogram *into, const struct histogram *from);
/* The highest value that the bucket may hold in which this share of all values ends, but none above
 * the highest that was counted; 0 where there is none. */
int64_t histogram_at(const struct histogram *h, double share);

/* --- answer.c --- */

enum part { STATUS, HEADER, BODY, CHUNK_SIZE, CHUNK, CHUNK_END, TRAILER, TO_CLOSE, DONE, BAD };

struct answer {
    enum part part;
    int status;           /* of the last status line; 1xx are passed over */
    bool keep;            /* may the connection be used again? */
    bool chunked, sized;
    int64_t left;         /* bytes of the body, or of the chunk */
    size_t head;          /* bytes of headers so far */
    size_t filled;        /* of line */
    char line[256];       /* the beginning of a line that is not complete yet */
};

void answer_begin(struct answer *a);
/* Reads on; returns how many bytes it took, all unless the part is then DONE or BAD. */
size_t answer_read(struct answer *a, const char *data, size_t size);
/* The connection ended: is the answer complete by that? */
bool answer_ends(const struct answer *a);

/* --- worker.c --- */

enum failure { FAILED_STATUS, FAILED_PROTOCOL, FAILED_RESET, FAILED_TIMEOUT, FAILED_CONNECT,
               FAILURES };

struct tally {
    struct histogram latency;
    uint64_t errors[FAILURES], reconnects, bytes;
    uint64_t answered; /* in the measured time, whenever they were due */
    int64_t lag_sum, lag_most;
};

struct worker {
    const struct options *options;
    int number;
    int64_t begins, measures, ends; /* the start of the lead, its end, the end of all */
    pthread_t thread;
    pthread_mutex_t lock;    /* over the two below */
    struct tally measured;   /* of the measured time */
    struct histogram second; /* of this second; main empties it */
    uint64_t second_errors;
    double busy;             /* share of a CPU that the thread used while it measured */
    struct loop *loop;       /* worker.c's own */
};

void worker_connect(struct worker *w); /* makes its connections; dies where it cannot */
void *worker_run(void *worker);        /* the thread */
void worker_free(struct worker *w);

/* --- selftest.c --- */

int self_test(void);

#endif
