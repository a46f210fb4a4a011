/* What can be checked without a server: the histogram's arithmetic, and answers cut anywhere. */
#include "load.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static int wrong;

static void check(bool right, const char *what, long long which) {
    if (right)
        return;
    fprintf(stderr, "self-test: %s (%lld)\n", what, which);
    wrong = 1;
}

static void test_histogram(void) {
    int last = -1;
    for (int64_t value = 0; value < 1LL << (TOP_BITS - 1); value += 1 + value / 3000) {
        int bucket = bucket_of(value);
        int64_t top = bucket_top(bucket);
        check(bucket >= last && bucket < BUCKETS, "buckets do not follow each other", value);
        check(top >= value && top - value <= value / HALF, "a bucket is too wide", value);
        check(bucket_of(top) == bucket && bucket_of(top + 1) == bucket + 1, "an edge", value);
        last = bucket;
    }
    check(bucket_of(INT64_MAX) == BUCKETS - 1 && bucket_of(-1) == 0, "beyond the range", 0);
    struct histogram *h = need(calloc(2, sizeof *h));
    for (int64_t value = 1; value <= 1000; value++)
        histogram_add(&h[value % 2], value);
    histogram_merge(&h[0], &h[1]);
    check(h->count == 1000 && h->sum == 500500 && h->least == 1 && h->most == 1000, "a sum", 0);
    check(histogram_at(h, 0.5) == 500 && histogram_at(h, 0.999) == 999, "a percentile", 0);
    check(histogram_at(h, 0.9991) == 1000 && histogram_at(h, 1) == 1000, "the last one", 0);
    check(histogram_at(h, 0) == 1 && histogram_at(&(struct histogram){0}, 0.5) == 0, "none", 0);
    free(h);
}

#define OK "HTTP/1.1 200 OK\r\n"
static const struct {
    const char *text;
    enum part part;
    int status;
    bool keep;
    int more; /* bytes after its end */
} ANSWERS[] = {
    {OK "Content-Length: 3\r\n\r\nabc", DONE, 200, true, 0},
    {OK "content-length:3 \r\n\r\nabcHTTP", DONE, 200, true, 4},
    {OK "Content-Length: 0\r\n\r\n", DONE, 200, true, 0},
    {"HTTP/1.1 200\nContent-Length: 1\n\na", DONE, 200, true, 0},
    {OK "Connection: Close\r\nContent-Length: 1\r\n\r\na", DONE, 200, false, 0},
    {OK "Connection: upgrade, close\r\nContent-Length: 1\r\n\r\na", DONE, 200, false, 0},
    {"HTTP/1.0 200 OK\r\nContent-Length: 1\r\n\r\na", DONE, 200, false, 0},
    {"HTTP/1.0 200 OK\r\nConnection: keep-alive\r\nContent-Length: 1\r\n\r\na", DONE, 200, true, 0},
    {OK "Transfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n1F;x=y\r\n0123456789abcdef0123456789abcde\r\n"
        "0\r\n\r\n", DONE, 200, true, 0},
    {OK "Transfer-Encoding: gzip, chunked\r\n\r\n0\r\nTrailer: yes\r\n\r\nx", DONE, 200, true, 1},
    {"HTTP/1.1 100 Continue\r\n\r\n" OK "Content-Length: 1\r\n\r\na", DONE, 200, true, 0},
    {"HTTP/1.1 204 No Content\r\n\r\n", DONE, 204, true, 0},
    {"HTTP/1.1 304 Not Modified\r\nContent-Length: 99\r\n\r\n", DONE, 304, true, 0},
    {"HTTP/1.1 503 Busy\r\nContent-Length: 1\r\n\r\na", DONE, 503, true, 0},
    {OK "\r\nuntil the end", TO_CLOSE, 200, false, 0},
    {OK "Content-Length: 3\r\n\r\nab", BODY, 200, true, 0},
    {OK "Content-Length: 3\r\nContent-Length: 4\r\n\r\nabc", BAD, 200, true, 7},
    {OK "Content-Length: 3\r\nTransfer-Encoding: chunked\r\n\r\nabc", BAD, 200, true, 3},
    {OK "Content-Length: -3\r\n\r\nabc", BAD, 200, true, 5},
    {OK "Content-Length: 99999999999999999999\r\n\r\nabc", BAD, 200, true, 5},
    {OK "Transfer-Encoding: chunked\r\n\r\n3\r\nabcd\r\n", BAD, 200, true, 0},
    {OK "Transfer-Encoding: chunked\r\n\r\nx\r\n", BAD, 200, true, 0},
    {OK "no colon\r\n", BAD, 200, true, 0},
    {"HTTP/2 200 OK\r\n", BAD, 0, true, 0},
    {"SSH-2.0-OpenSSH\r\n", BAD, 0, true, 0},
    {"HTTP/1.1 20 OK\r\n", BAD, 0, true, 0},
    {"HTTP/1.1 101 Switching\r\n\r\n", BAD, 101, true, 0},
};

/* Every answer in one piece, byte by byte, and in pieces of three. */
static void test_answers(void) {
    for (size_t i = 0; i < sizeof ANSWERS / sizeof *ANSWERS; i++)
        for (size_t piece = 1; piece < 1000; piece = piece == 1 ? 3 : piece == 3 ? 999 : 1000) {
            struct answer a;
            size_t size = strlen(ANSWERS[i].text), at = 0;
            answer_begin(&a);
            while (at < size && a.part != DONE && a.part != BAD) {
                size_t here = size - at < piece ? size - at : piece;
                char *copy = need(malloc(here)); /* so that a sanitizer sees what is beyond it */
                memcpy(copy, ANSWERS[i].text + at, here);
                at += answer_read(&a, copy, here);
                free(copy);
            }
            long long which = (long long)(i * 1000 + piece);
            check(a.part == ANSWERS[i].part, "an answer's part", which);
            check(a.status == ANSWERS[i].status, "an answer's status", which);
            if (a.part != BAD) {
                check(a.keep == ANSWERS[i].keep, "is the connection kept", which);
                check(size - at == (size_t)ANSWERS[i].more, "what follows an answer", which);
            }
        }
    struct answer a;
    char many[1024];
    memset(many, 'x', sizeof many);
    many[1] = ':';
    many[sizeof many - 1] = '\n';
    answer_begin(&a);
    answer_read(&a, OK, strlen(OK));
    for (int i = 0; i < 100; i++)
        answer_read(&a, many, sizeof many);
    check(a.part == BAD, "endless headers", 0);
}

int self_test(void) {
    test_histogram();
    test_answers();
    puts(wrong ? "self-test: failed" : "self-test: ok");
    return wrong ? EXIT_FAILED : 0;
}
