/* What can be checked without measuring anything. */
#include "probe.h"

#include <stdlib.h>
#include <string.h>

static int failures;

static void check(bool holds, const char *what) {
    if (!holds) {
        fprintf(stderr, "probe: self-test failed: %s\n", what);
        failures++;
    }
}

static void check_cycle(const struct chase *chase, size_t lines) {
    bool *seen = allocate(lines, 1), right = true;
    char *at = chase->position;
    for (size_t i = 0; i < lines; i++) {
        size_t line = (size_t)(at - chase->base) / chase->stride;
        if (line >= lines || seen[line]) {
            right = false;
            break;
        }
        seen[line] = true;
        at = *(char **)(void *)at;
    }
    check(right && at == chase->position, "the chase is one cycle over all places");
    free(seen);
}

static void check_chase(size_t lines, size_t stride) {
    struct buffer buffer;
    struct chase chase;
    buffer_map(&buffer, lines * stride, PAGES_DEFAULT, -1);
    chase_build(&chase, &buffer, stride);
    check_cycle(&chase, lines);
    chase_in_reach(&chase, &buffer);
    check_cycle(&chase, lines * stride / LINE);
}

static void check_json(void) {
    char *text = NULL;
    size_t length = 0;
    struct json j = {open_memstream(&text, &length), false};
    if (!j.out)
        die(EXIT_MEMORY, "not enough memory for the self-test");
    json_begin(&j, NULL, '{');
    json_text(&j, "t", "a\"\\\n\x7f\xe9");
    json_begin(&j, "n", '[');
    json_real(&j, NULL, 0.5);
    json_real(&j, NULL, __builtin_inf());
    json_whole(&j, NULL, -7);
    json_end(&j, ']');
    json_text(&j, "z", NULL);
    json_truth(&j, "b", true);
    json_end(&j, '}');
    json_line(&j);
    fclose(j.out);
    check(!strcmp(text, "{\"t\":\"a\\\"\\\\\\u000a\\u007f\\u00e9\",\"n\":[0.5,null,-7],\"z\":null,"
                        "\"b\":true}\n"), "JSON is written as it should be");
    free(text);
}

static void check_cpus(void) {
    static const char *const wrong[] = {"",    "a",   "1,",  "1-",   "3-1", "1,1", "0-2,1",
                                        "-1",  "1--2", "1 2", "99999", ",",  "0x1", "1-2-3"};
    int *cpus;
    check(cpus_parse("8,0-2,5", &cpus) == 5 && cpus[0] == 8 && cpus[3] == 2 && cpus[4] == 5,
          "a list of CPUs keeps its order");
    free(cpus);
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
        check(cpus_parse(wrong[i], &cpus) == -1, wrong[i]);
        free(cpus);
    }
}

static void check_parts(void) {
    for (size_t total = 0; total < 300; total++)
        for (int parts = 1; parts < 9; parts++) {
            bool right = part_start(total, 0, parts, 8) == 0;
            for (int i = 0; i < parts; i++)
                right = right && part_start(total, i, parts, 8) <= part_start(total, i + 1, parts, 8);
            check(right && part_start(total, parts, parts, 8) == total, "parts cover the whole");
        }
}

static void check_traffic(void) {
    enum { BYTES = 256 * 1024 };
    for (int i = 0; i < MIX_COUNT; i++) {
        const struct mix *mix = &MIXES[i];
        struct buffer buffer;
        buffer_map(&buffer, BYTES, PAGES_DEFAULT, -1);
        size_t stream = traffic_stream_bytes(BYTES, mix), written = 0;
        bool fits = stream * (size_t)(mix->reads + mix->writes) <= BYTES && stream % LINE == 0;
        check(fits, "streams lie inside their part");
        memset(buffer.base, 7, BYTES);
        memset(buffer.base, 0, (size_t)mix->reads * stream);
        memset(buffer.base, mix->reads ? 5 : 7, stream); /* what is stored is a sum of these */
        traffic_move(buffer.base, stream, 0, stream, mix);
        for (size_t at = 0; mix->writes && at < stream; at++) {
            char value = buffer.base[(size_t)mix->reads * stream + at];
            written += value == 0 || (mix->reads && value == 5);
        }
        check(!mix->writes || written == stream, "every line of a stream is written");
    }
}

static void check_placement(void) {
    struct buffer buffer;
    struct placement *p = allocate(1, sizeof *p);
    uint64_t sum = 0;
    buffer_map(&buffer, 64 * page_size(), PAGES_BASE, -1);
    touch(buffer.base, buffer.base + buffer.bytes / 2);
    placement_query(p, &buffer, 1);
    for (int node = 0; node < MAX_NODES; node++)
        sum += p->bytes[node];
    check(p->reason || (sum == buffer.bytes / 2 && p->absent == buffer.bytes / 2),
          "half a buffer is present");
    free(p);
}

static void check_zones(void) {
    static const char text[] =
        "Node 0, zone      DMA\n  per-node stats\n      nr_inactive_anon 7\n"
        "  pages free     3840\n        boost    0\n        min      67\n        low      83\n"
        "        high     99\n        protection: (0, 2933, 3899, 3899, 3899)\n"
        "      nr_free_pages 3840\n  pagesets\n    cpu: 0\n              count: 0\n"
        "              high:  5\n              high_min: 9\n"
        "Node 0, zone   Normal\n  pages free     1000\n        high     300\n"
        "        protection: (0, 0, 0, 100)\n"
        "Node 0, zone  Movable\n  pages free     0\n        high     0\n"
        "        protection: (0, 0, 0, 0)\n"
        "Node 10, zone   Normal\n  pages free     50\n        high     30\n"
        "        protection: (0)\n";
    static const struct {
        int node;
        uint64_t usable;
    } nodes[] = {{0, 600 * 4096}, {10, 20 * 4096}, {1, 0}};
    for (size_t i = 0; i < 3; i++) {
        FILE *file = fmemopen((void *)(uintptr_t)text, sizeof text - 1, "r");
        if (!file)
            die(EXIT_MEMORY, "not enough memory for the self-test");
        check(zones_usable(file, nodes[i].node, 4096) == nodes[i].usable,
              "usable memory is what lies above watermarks and protection");
        fclose(file);
    }
}

static void check_moves(void) {
    struct buffer buffer;
    int *nodes;
    buffer_map(&buffer, 16 * page_size(), PAGES_BASE, -1);
    touch(buffer.base, buffer.base + buffer.bytes);
    size_t asked = placement_nodes(&nodes, &buffer);
    int first = asked ? nodes[0] : 0;
    check(asked == 0 || asked == 16, "every page of a small buffer is asked about");
    check(placement_nodes(&nodes, &buffer) == asked && (!asked || nodes[0] == first),
          "pages that nobody moves stay where they are");
}

int self_test(void) {
    check(stream_kernels_right(1) && stream_kernels_right(1003), "the STREAM kernels are right");
    check_chase(2, 64);
    check_chase(1000, 64);
    check_chase(1000, 256);
    check_chase(100001, 64);
    check_json();
    check_cpus();
    check_parts();
    check_traffic();
    check_placement();
    check_zones();
    check_moves();
    if (!failures)
        puts("self-test: ok");
    return failures ? EXIT_FAILED : 0;
}
