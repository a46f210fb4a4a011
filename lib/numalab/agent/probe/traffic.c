/* Traffic of reads and writes in a given mix, for bandwidth and for latency under load.
 *
 * A part of the buffer is cut into one stream for each line that a step reads or writes. The
 * stores bypass the caches where the processor can (NON_TEMPORAL in arch.h), so that what the
 * program stores is what the memory writes; elsewhere they are ordinary, and a processor that does
 * not see whole lines being written reads each line first. STORE_KIND says which. */
#include "probe.h"

#include "arch.h"

#include <string.h>

const struct mix MIXES[] = {{"reads", 1, 0}, {"writes", 0, 1}, {"1:1", 1, 1}, {"2:1", 2, 1},
                            {"3:1", 3, 1}};
const int MIX_COUNT = sizeof MIXES / sizeof *MIXES;

enum { PIECES = LINE / 16 };

#if defined(NON_TEMPORAL)
const char *const STORE_KIND = "non-temporal";
#else
const char *const STORE_KIND = "ordinary";
static inline void store_past_caches(void *to, sixteen first, sixteen second) {
    ((sixteen *)to)[0] = first, ((sixteen *)to)[1] = second;
}
#endif

/* Streams start at different places of a page: equal ones would compete for cache sets. */
size_t traffic_stream_bytes(size_t part, const struct mix *mix) {
    size_t bytes = part / (size_t)(mix->reads + mix->writes) / 4096 * 4096;
    return bytes > 8192 ? bytes - 4096 + 17 * LINE : bytes;
}

static inline __attribute__((always_inline)) void step_lines(char *part, size_t stream,
                                                             size_t from, size_t to, int reads,
                                                             int writes) {
    sixteen sum[PIECES];
    memset(sum, 0, sizeof sum);
    for (size_t at = from; at < to; at += LINE) {
        for (int r = 0; r < reads; r++)
            for (int i = 0; i < PIECES; i++)
                sum[i] ^= *(sixteen *)(void *)(part + (size_t)r * stream + at + 16 * (size_t)i);
        for (int w = 0; w < writes; w++)
            for (int i = 0; i < PIECES; i += 2)
                store_past_caches(part + (size_t)(reads + w) * stream + at + 16 * (size_t)i, sum[i],
                                  sum[i + 1]);
    }
    for (int i = 0; i < PIECES; i++) /* what was read is used */
        __asm__ volatile("" ::"m"(sum[i]));
}

void traffic_move(char *part, size_t stream, size_t from, size_t to, const struct mix *mix) {
    switch (mix->reads * 10 + mix->writes) {
    case 10: step_lines(part, stream, from, to, 1, 0); break;
    case 1: step_lines(part, stream, from, to, 0, 1); break;
    case 11: step_lines(part, stream, from, to, 1, 1); break;
    case 21: step_lines(part, stream, from, to, 2, 1); break;
    default: step_lines(part, stream, from, to, 3, 1);
    }
}
