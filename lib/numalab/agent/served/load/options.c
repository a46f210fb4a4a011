/* The command line. Whatever is wrong with it ends the program with a message and status 2. */
#include "load.h"

#include <arpa/inet.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/un.h>

static const char USAGE[] =
    "usage: numalab-load --to unix:PATH|ADDRESS:PORT --request PATH [OPTION]...\n"
    "       numalab-load --version | --help | --self-test\n"
    "\n"
    "Asks an HTTP/1.1 server over connections that are kept, and prints a JSON object a line.\n"
    "\n"
    "  --request PATH     what to GET, as /page?user=#1000#: #N# is a random number below N\n"
    "  --host NAME        of the Host header (default localhost)\n"
    "  --connections N    in all (default 16)\n"
    "  --threads N        of this program (default 1)\n"
    "  --rate R           requests a second in all, at equal distances. Latency counts from when\n"
    "                     a request was due: one for which no connection is free waits for it.\n"
    "                     0 (the default): each connection asks again as soon as it is answered\n"
    "  --lead-s S         seconds that are not counted (default 0)\n"
    "  --time-s S         seconds that are (default 10)\n"
    "  --timeout-s S      for an answer; and for what is still open at the end (default 10)\n"
    "  --seed N           of the random numbers (default 1)\n"
    "\n"
    "An answer that is not 2xx, one that is no HTTP, a connection that ends before its answer, and\n"
    "a timeout are errors: they are counted and have no latency.\n";

static double number(const char *option, const char *text, double least, double most) {
    char *end;
    double value = strtod(text, &end);
    if (!*text || text[strspn(text, "0123456789.")] || *end || !(value >= least && value <= most))
        die(EXIT_ARGUMENTS, "%s %.80s: not a number from %g to %g", option, text, least, most);
    return value;
}

static long long whole(const char *option, const char *text, long long least, long long most) {
    char *end;
    errno = 0;
    long long value = strtoll(text, &end, 10);
    if (*text < '0' || *text > '9' || *end || errno || value < least || value > most)
        die(EXIT_ARGUMENTS, "%s %.80s: not a whole number from %lld to %lld", option, text, least,
            most);
    return value;
}

static void read_unix(struct options *o, const char *path) {
    struct sockaddr_un *address = (struct sockaddr_un *)&o->address;
    if (!*path || strlen(path) >= sizeof address->sun_path)
        die(EXIT_ARGUMENTS, "--to %.200s: a unix socket has a path of 1 to %zu bytes; start the "
            "program in its folder and give a relative one", o->to, sizeof address->sun_path - 1);
    address->sun_family = AF_UNIX;
    strcpy(address->sun_path, path);
    o->address_size = sizeof *address;
}

/* Addresses alone: without libraries, a program cannot look names up. */
static void read_to(struct options *o) {
    char host[64];
    struct sockaddr_in *four = (struct sockaddr_in *)&o->address;
    struct sockaddr_in6 *six = (struct sockaddr_in6 *)&o->address;
    const char *colon = strrchr(o->to, ':');
    if (strncmp(o->to, "unix:", 5) == 0) {
        read_unix(o, o->to + 5);
        return;
    }
    size_t size = colon ? (size_t)(colon - o->to) : 0;
    bool brackets = size > 2 && o->to[0] == '[' && o->to[size - 1] == ']'; /* [::1]:80 */
    if (!size || size - 2 * brackets >= sizeof host)
        die(EXIT_ARGUMENTS, "--to %.200s: neither unix:PATH nor ADDRESS:PORT", o->to);
    memcpy(host, o->to + brackets, size - 2 * brackets);
    host[size - 2 * brackets] = 0;
    in_port_t port = htons((uint16_t)whole("--to: the port", colon + 1, 1, 65535));
    if (!brackets && inet_pton(AF_INET, host, &four->sin_addr) == 1) {
        four->sin_family = AF_INET;
        four->sin_port = port;
        o->address_size = sizeof *four;
    } else if (brackets && inet_pton(AF_INET6, host, &six->sin6_addr) == 1) {
        six->sin6_family = AF_INET6;
        six->sin6_port = port;
        o->address_size = sizeof *six;
    } else
        die(EXIT_ARGUMENTS, "--to %.200s: give an address, as 127.0.0.1 or [::1], not a name",
            o->to);
}

/* A request target without blanks and control characters; each #N# with a number from 1 on. */
static void check_request(const char *request) {
    if (*request != '/')
        die(EXIT_ARGUMENTS, "--request %.200s: it does not begin with /", request);
    if (strlen(request) > 4096)
        die(EXIT_ARGUMENTS, "--request: it has more than 4096 bytes");
    for (const char *c = request; *c; c++) {
        if (*c <= ' ' || *c >= 0x7f)
            die(EXIT_ARGUMENTS, "--request %.200s: a character that an address cannot have", request);
        if (*c != '#')
            continue;
        size_t digits = strspn(c + 1, "0123456789");
        if (!digits || digits > 9 || c[1 + digits] != '#' || atoi(c + 1) < 1)
            die(EXIT_ARGUMENTS, "--request %.200s: # is not of a #N# with 1 <= N <= 999999999",
                request);
        c += digits + 1;
    }
}

static void check_host(const char *host) {
    if (!*host || strlen(host) > 255 || host[strspn(host, "abcdefghijklmnopqrstuvwxyz"
            "ABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789.-_:[]")])
        die(EXIT_ARGUMENTS, "--host %.200s: not a host's name", host);
}

static void answer_at_once(const char *word) {
    if (strcmp(word, "--version") == 0)
        puts("numalab load " VERSION);
    else if (strcmp(word, "--help") == 0)
        fputs(USAGE, stdout);
    else if (strcmp(word, "--self-test") == 0)
        exit(self_test());
    else
        return;
    exit(0);
}

static void read_option(struct options *o, const char *name, const char *value) {
    if (strcmp(name, "--to") == 0)
        o->to = value;
    else if (strcmp(name, "--request") == 0)
        o->request = value;
    else if (strcmp(name, "--host") == 0)
        o->host = value;
    else if (strcmp(name, "--connections") == 0)
        o->connections = (int)whole(name, value, 1, 100000);
    else if (strcmp(name, "--threads") == 0)
        o->threads = (int)whole(name, value, 1, 1024);
    else if (strcmp(name, "--rate") == 0)
        o->rate = number(name, value, 0, 1e7);
    else if (strcmp(name, "--lead-s") == 0)
        o->lead_s = number(name, value, 0, 1e6);
    else if (strcmp(name, "--time-s") == 0)
        o->time_s = number(name, value, 0.001, 1e6);
    else if (strcmp(name, "--timeout-s") == 0)
        o->timeout_s = number(name, value, 0.001, 4000);
    else if (strcmp(name, "--seed") == 0)
        o->seed = (uint64_t)whole(name, value, 0, INT64_MAX);
    else
        die(EXIT_ARGUMENTS, "unknown option %.80s (see --help)", name);
}

struct options options_read(int count, char **words) {
    struct options o = {.host = "localhost", .connections = 16, .threads = 1, .time_s = 10,
                        .timeout_s = 10, .seed = 1};
    if (count == 2)
        answer_at_once(words[1]);
    for (int i = 1; i < count; i += 2) {
        if (i + 1 == count)
            die(EXIT_ARGUMENTS, "%.80s: an unknown option, or one without its value (see --help)",
                words[i]);
        read_option(&o, words[i], words[i + 1]);
    }
    if (!o.to || !o.request)
        die(EXIT_ARGUMENTS, "%s is missing (see --help)", o.to ? "--request" : "--to");
    if (o.threads > o.connections)
        die(EXIT_ARGUMENTS, "--threads %d: each needs a connection of --connections %d", o.threads,
            o.connections);
    if (o.rate && o.rate < 0.001)
        die(EXIT_ARGUMENTS, "--rate %g: not 0, and less than one request in 1000 s", o.rate);
    check_request(o.request);
    check_host(o.host);
    read_to(&o);
    return o;
}
