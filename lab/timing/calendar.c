/* Bandwidth: who moves a line takes a slot in the calendar of its controller or link.
 *
 * A calendar instead of "busy until", because vCPUs run up to a quantum apart: requests come out of
 * order, and a late one must still find the slots that are free in its own time. (The error of
 * "busy until" is described for Graphite's lax synchronisation: Miller et al., HPCA 2010.) */
#include "timing.h"

#include <sched.h>

enum { BUCKETS = 8192, SLOTS = 16 }; /* in the ring; lines that a bucket takes */

static struct calendar {
    u64 line_ps, width_ps;
    u64 bucket[BUCKETS]; /* its number << 8 | slots taken */
} calendars[MOST_NODES + MOST_LINKS];
static atomic_flag locks[MOST_NODES + MOST_LINKS];

/* Its holder may have lost its CPU: nobody spins for long. */
void spin_lock(atomic_flag *flag) {
    for (int spins = 0; atomic_flag_test_and_set_explicit(flag, memory_order_acquire); spins++) {
        if (spins > 200)
            sched_yield();
        else
            relax();
    }
}

void calendar_set(int which, u64 line_ps) {
    calendars[which] = (struct calendar){.line_ps = line_ps, .width_ps = line_ps * SLOTS};
}

u64 calendar_reserve(int which, u64 t) {
    struct calendar *calendar = &calendars[which];
    if (!calendar->line_ps)
        return 0;
    spin_lock(&locks[which]);
    u64 start;
    for (u64 number = t / calendar->width_ps;; number++) {
        u64 *bucket = &calendar->bucket[number % BUCKETS];
        if (*bucket >> 8 > number) /* the ring has gone round: that time is over */
            continue;
        if (*bucket >> 8 < number)
            *bucket = number << 8;
        u64 taken = *bucket & 255;
        if (taken < SLOTS) {
            *bucket += 1;
            start = number * calendar->width_ps + taken * calendar->line_ps;
            break;
        }
    }
    spin_unlock(&locks[which]);
    return start > t ? start - t : 0;
}
