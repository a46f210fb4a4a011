/* Reads an HTTP/1.1 answer as it comes, in pieces of any size (RFC 9112). Bodies are not kept.
 *
 * Only what says where the answer ends is understood: Content-Length, chunks, the end of the
 * connection; and whether the server closes it (Connection: close, HTTP/1.0). An answer that is
 * unclear (two lengths that differ, chunks and a length) is bad: who reads it otherwise than the
 * server meant would take a part of a body for the next answer. */
#include "load.h"

#include <string.h>
#include <strings.h>

enum { MOST_HEAD = 64 << 10 };

void answer_begin(struct answer *a) {
    *a = (struct answer){.part = STATUS, .keep = true};
}

static bool is_digit(char c) {
    return c >= '0' && c <= '9';
}

/* "HTTP/1.1 200 OK": the reason may be empty, and some leave out the space before it. */
static void status_line(struct answer *a, const char *line) {
    a->part = BAD;
    if (strncmp(line, "HTTP/1.", 7) != 0 || (line[7] != '0' && line[7] != '1') || line[8] != ' ')
        return;
    for (int i = 9; i < 12; i++)
        if (!is_digit(line[i]))
            return;
    if (line[12] && line[12] != ' ')
        return;
    a->status = (line[9] - '0') * 100 + (line[10] - '0') * 10 + line[11] - '0';
    a->keep = line[7] == '1';
    if (a->status >= 100)
        a->part = HEADER;
}

/* Is the word in a list like "keep-alive, Upgrade"? */
static bool has_word(const char *list, const char *word) {
    size_t size = strlen(word);
    while (*list) {
        list += strspn(list, " \t,");
        size_t here = strcspn(list, " \t,");
        if (here == size && strncasecmp(list, word, size) == 0)
            return true;
        list += here;
    }
    return false;
}

static void length_header(struct answer *a, const char *value) {
    int64_t length = 0;
    size_t digits = strspn(value, "0123456789");
    if (!digits || digits > 18 || value[digits + strspn(value + digits, " \t")]) {
        a->part = BAD;
        return;
    }
    for (size_t i = 0; i < digits; i++)
        length = length * 10 + (value[i] - '0');
    if (a->sized && length != a->left)
        a->part = BAD;
    a->sized = true;
    a->left = length;
}

static void header_line(struct answer *a, const char *line) {
    const char *colon = strchr(line, ':');
    if (!colon || colon == line) {
        a->part = BAD;
        return;
    }
    size_t name = (size_t)(colon - line);
    const char *value = colon + 1 + strspn(colon + 1, " \t");
    if (name == 14 && strncasecmp(line, "Content-Length", name) == 0)
        length_header(a, value);
    else if (name == 17 && strncasecmp(line, "Transfer-Encoding", name) == 0) {
        a->chunked = true;
        if (!has_word(value, "chunked"))
            a->part = BAD; /* other codings were not asked for */
    } else if (name == 10 && strncasecmp(line, "Connection", name) == 0) {
        if (has_word(value, "close"))
            a->keep = false;
        else if (has_word(value, "keep-alive"))
            a->keep = true;
    }
}

/* The empty line below the headers. */
static void headers_end(struct answer *a) {
    if (a->status < 200 && a->status != 101) { /* "100 Continue": the answer follows */
        size_t head = a->head;
        answer_begin(a);
        a->head = head;
    } else if (a->status == 101 || (a->chunked && a->sized))
        a->part = BAD;
    else if (a->status == 204 || a->status == 304 || (a->sized && !a->left))
        a->part = DONE;
    else if (a->chunked)
        a->part = CHUNK_SIZE;
    else if (a->sized)
        a->part = BODY;
    else {
        a->part = TO_CLOSE;
        a->keep = false;
    }
}

/* "1a2;extension" */
static void chunk_line(struct answer *a, const char *line) {
    int64_t size = 0;
    size_t digits = strspn(line, "0123456789abcdefABCDEF");
    const char *rest = line + digits + strspn(line + digits, " \t");
    if (!digits || digits > 15 || (*rest && *rest != ';')) {
        a->part = BAD;
        return;
    }
    for (size_t i = 0; i < digits; i++)
        size = size * 16 + (is_digit(line[i]) ? line[i] - '0' : (line[i] | 32) - 'a' + 10);
    a->left = size;
    a->part = size ? CHUNK : TRAILER;
}

static void whole_line(struct answer *a) {
    if (a->filled && a->line[a->filled - 1] == '\r')
        a->filled--;
    a->line[a->filled] = 0;
    size_t size = a->filled;
    a->filled = 0;
    if (strlen(a->line) != size)
        a->part = BAD; /* a zero byte */
    else if (a->part == STATUS)
        status_line(a, a->line);
    else if (a->part == HEADER && size)
        header_line(a, a->line);
    else if (a->part == HEADER)
        headers_end(a);
    else if (a->part == CHUNK_SIZE)
        chunk_line(a, a->line);
    else if (a->part == CHUNK_END)
        a->part = size ? BAD : CHUNK_SIZE;
    else if (a->part == TRAILER && !size)
        a->part = DONE;
}

/* Of a long line only the beginning is kept: those that matter are short. */
static size_t read_line(struct answer *a, const char *data, size_t size) {
    const char *end = memchr(data, '\n', size);
    size_t taken = end ? (size_t)(end - data) : size;
    size_t room = sizeof a->line - 1 - a->filled, kept = taken < room ? taken : room;
    memcpy(a->line + a->filled, data, kept);
    a->filled += kept;
    if (end)
        taken++;
    a->head += taken;
    if (a->part != STATUS && a->part != HEADER && a->part != TRAILER)
        a->head = 0; /* chunks may be many */
    if (a->head > MOST_HEAD)
        a->part = BAD;
    else if (end)
        whole_line(a);
    return taken;
}

size_t answer_read(struct answer *a, const char *data, size_t size) {
    size_t at = 0;
    while (at < size && a->part != DONE && a->part != BAD) {
        if (a->part == TO_CLOSE)
            return size;
        if (a->part != BODY && a->part != CHUNK) {
            at += read_line(a, data + at, size - at);
            continue;
        }
        size_t here = size - at;
        if ((int64_t)here > a->left)
            here = (size_t)a->left;
        at += here;
        a->left -= (int64_t)here;
        if (!a->left)
            a->part = a->part == BODY ? DONE : CHUNK_END;
    }
    return at;
}

bool answer_ends(const struct answer *a) {
    return a->part == TO_CLOSE;
}
