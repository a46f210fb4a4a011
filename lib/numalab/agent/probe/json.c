/* JSON output, one record a line (RFC 8259). */
#include "probe.h"

#include <string.h>

static void separate(struct json *j) {
    if (j->comma)
        fputc(',', j->out);
    j->comma = true;
}

static void quoted(struct json *j, const char *text) {
    fputc('"', j->out);
    for (const unsigned char *c = (const unsigned char *)text; *c; c++) {
        if (*c == '"' || *c == '\\')
            fprintf(j->out, "\\%c", *c);
        else if (*c < 0x20 || *c >= 0x7f) /* bytes beyond ASCII as Latin-1: always valid JSON */
            fprintf(j->out, "\\u%04x", *c);
        else
            fputc(*c, j->out);
    }
    fputc('"', j->out);
}

static void named(struct json *j, const char *key) {
    separate(j);
    if (key) {
        quoted(j, key);
        fputc(':', j->out);
    }
}

void json_begin(struct json *j, const char *key, char bracket) {
    named(j, key);
    fputc(bracket, j->out);
    j->comma = false;
}

void json_end(struct json *j, char bracket) {
    fputc(bracket, j->out);
    j->comma = true;
}

void json_text(struct json *j, const char *key, const char *value) {
    named(j, key);
    if (value)
        quoted(j, value);
    else
        fputs("null", j->out);
}

void json_whole(struct json *j, const char *key, long long value) {
    named(j, key);
    fprintf(j->out, "%lld", value);
}

void json_real(struct json *j, const char *key, double value) {
    named(j, key);
    if (__builtin_isfinite(value))
        fprintf(j->out, "%.9g", value);
    else
        fputs("null", j->out);
}

void json_truth(struct json *j, const char *key, bool value) {
    named(j, key);
    fputs(value ? "true" : "false", j->out);
}

void json_line(struct json *j) {
    fputc('\n', j->out);
    j->comma = false;
    if (fflush(j->out) != 0 || ferror(j->out))
        die(EXIT_FAILED, "the result cannot be written: is the disk full?");
}
