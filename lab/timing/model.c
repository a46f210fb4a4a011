/* The model: what one load or store of a vCPU costs.
 *
 * An in-order core with one load miss at a time, two private caches, a cache shared by the node's
 * cores, a stream prefetcher, a store queue, a directory of who holds a line, and below them links
 * and memory controllers with calendars. Independent misses do not overlap but by the prefetcher
 * and the store queue. Instruction fetch, TLBs and DMA are not modelled. */
#include "timing.h"

#include <stdlib.h>
#include <string.h>

enum { DIRTY = 1, OWNED = 2 };
enum { DIRECTORY = 1 << 20 };
enum { FETCH_AT_ONCE = 8 }; /* lines that one access makes the prefetcher ask for */

struct vcpu vcpus[MOST_VCPUS];
bool model_guest_addresses;
static struct line *l3[MOST_NODES];
static atomic_flag l3_locks[MOST_NODES];
/* Entries that collide forget. Tag 22 bits, sharers by vCPU 32 bits, owner + 1 in 8 bits. */
static _Atomic u64 *directory;

static void *zeroed(size_t count, size_t size) {
    void *made = calloc(count, size);
    if (!made)
        abort();
    return made;
}

void model_make(void) {
    for (int i = 0; i < config.nodes; i++) {
        calendar_set(MEMORY + i, config.memory_line_ps[i]);
        free(l3[i]);
        l3[i] = zeroed((size_t)config.l3.sets * config.l3.ways, sizeof **l3);
        for (int j = 0; j < config.nodes; j++)
            if (config.link[i][j] >= 0)
                calendar_set(LINK + config.link[i][j], config.link_line_ps[config.link[i][j]]);
    }
    free((void *)directory);
    directory = zeroed(DIRECTORY, sizeof *directory);
    for (int i = 0; i < config.vcpus; i++) {
        struct vcpu *c = &vcpus[i];
        free(c->l1);
        free(c->l2);
        memset(c, 0, sizeof *c);
        c->n = &page->of[i];
        c->index = i;
        c->node = i / config.vcpus_a_node;
        c->l1 = zeroed((size_t)config.l1.sets * config.l1.ways, sizeof *c->l1);
        c->l2 = zeroed((size_t)config.l2.sets * config.l2.ways, sizeof *c->l2);
    }
}

void model_forget(struct vcpu *c) {
    memset(c->filter, 0, sizeof c->filter);
}

/* ---- where a line lives ------------------------------------------------------------------ */

int model_node(u64 physical) {
    u64 node;
    if (model_guest_addresses) { /* QEMU's PC: memory goes on above 4 GiB */
        const u64 four = (u64)4 << 30;
        if (physical >= config.low_bytes && physical < four)
            return -1;
        node = physical < four ? physical : physical - four + config.low_bytes;
        node /= config.node_bytes;
    } else { /* of QEMU 7.2: offset of the RAM block + address of its region, each node's start */
        node = physical / config.node_bytes;
        if (node & 1)
            return -1;
        node /= 2;
    }
    return node < (u64)config.nodes ? (int)node : -1;
}

static int home(u64 line) {
    int node = model_node(line * LINE);
    return node < 0 ? 0 : node;
}

/* ---- caches: a set is a row of lines, the latest used first -------------------------------

 * A vCPU's own caches have no lock. When another takes a line out of them in the same moment, this
 * one sees the line or not, and may keep it a little longer: inexact, and only in parallel mode. */
#define UNLOCKED __attribute__((no_sanitize("thread")))

UNLOCKED static struct line *look(struct line *set, unsigned ways, u64 line) { /* to the front */
    if (set[0].tag >> 2 == line)
        return set;
    for (unsigned way = 1; way < ways; way++)
        if (set[way].tag >> 2 == line) {
            struct line hit = set[way];
            memmove(set + 1, set, way * sizeof *set);
            set[0] = hit;
            return set;
        }
    return NULL;
}

/* Returns who is pushed out. */
UNLOCKED static struct line push(struct line *set, unsigned ways, struct line made) {
    struct line out = set[ways - 1];
    memmove(set + 1, set, (ways - 1) * sizeof *set);
    set[0] = made;
    return out;
}

static u64 mix(u64 x) { /* Fibonacci hashing: Knuth, The Art of Computer Programming, 6.4 */
    return (x * 0x9e3779b97f4a7c15u) >> 24;
}

static struct line *l1_set(struct vcpu *c, u64 line) {
    return c->l1 + line % config.l1.sets * config.l1.ways;
}

static struct line *l2_set(struct vcpu *c, u64 line) {
    return c->l2 + line % config.l2.sets * config.l2.ways;
}

static struct line *l3_set(int node, u64 line) {
    return l3[node] + mix(line) % config.l3.sets * config.l3.ways;
}

/* ---- memory ------------------------------------------------------------------------------ */

static u64 from_memory(struct vcpu *c, u64 line, u64 t) { /* when the line arrives */
    int node = home(line), link = config.link[c->node][node];
    u64 queue = link >= 0 ? calendar_reserve(LINK + link, t) : 0;
    queue += calendar_reserve(MEMORY + node, t + queue);
    c->n->read_bytes[node] += LINE;
    c->n->queue_ps += queue;
    return t + config.latency_ps[c->node][node] + queue;
}

static void write_back(struct vcpu *c, u64 line, u64 t) { /* takes bandwidth; nobody waits for it */
    int node = home(line), link = config.link[node][c->node]; /* the other direction */
    u64 queue = link >= 0 ? calendar_reserve(LINK + link, t) : 0;
    calendar_reserve(MEMORY + node, t + queue);
    c->n->written_bytes[node] += LINE;
}

/* ---- coherence --------------------------------------------------------------------------- */

/* In another vCPU's cache: it may look at the same time, and sees the line or not. */
UNLOCKED static void drop(struct line *set, unsigned ways, u64 line, u64 flags) {
    for (unsigned way = 0; way < ways; way++)
        if (RELAXED_LOAD(set[way].tag) >> 2 == line)
            RELAXED_STORE(set[way].tag, flags ? RELAXED_LOAD(set[way].tag) & ~flags : 0);
}

static void drop_from(struct vcpu *other, u64 line, u64 flags) {
    RELAXED_STORE(other->filter_stale, 1);
    drop(l1_set(other, line), config.l1.ways, line, flags);
    drop(l2_set(other, line), config.l2.ways, line, flags);
}

UNLOCKED static bool holds(struct vcpu *other, u64 line) {
    for (unsigned way = 0; way < config.l1.ways; way++)
        if (RELAXED_LOAD(l1_set(other, line)[way].tag) >> 2 == line)
            return true;
    for (unsigned way = 0; way < config.l2.ways; way++)
        if (RELAXED_LOAD(l2_set(other, line)[way].tag) >> 2 == line)
            return true;
    return false;
}

/* Returns the time that another core's cache costs, 0 when none is asked. */
static u64 snoop(struct vcpu *c, u64 line, bool write) {
    u64 hash = mix(line), tag = (hash >> 20) & 0x3fffff, cost = 0;
    _Atomic u64 *entry = &directory[hash % DIRECTORY];
    u64 old = atomic_load_explicit(entry, memory_order_relaxed);
    bool known = old >> 42 == tag && (old & (((u64)1 << 42) - 1));
    u32 sharers = known ? (u32)(old >> 8) : 0, mine = (u32)1 << c->index;
    int owner = known ? (int)(old & 255) - 1 : -1;
    if (owner >= 0 && owner != c->index) {
        struct vcpu *other = &vcpus[owner];
        if (holds(other, line)) { /* it may have been pushed out since */
            cost = other->node == c->node ? config.near_ps : config.far_ps;
            c->n->transfers++;
        }
        if (!write)
            drop_from(other, line, OWNED);
        owner = -1;
    }
    if (write) {
        bool far = false;
        for (u32 left = sharers & ~mine; left; left &= left - 1) {
            struct vcpu *other = &vcpus[__builtin_ctz(left)];
            drop_from(other, line, 0);
            if (other->node != c->node) {
                far = true;
                drop(l3_set(other->node, line), config.l3.ways, line, 0);
            }
        }
        if (!cost && (sharers & ~mine)) {
            cost = far ? config.far_ps : config.near_ps;
            c->n->transfers++;
        }
        sharers = 0;
        owner = c->index;
    }
    u64 now = tag << 42 | (u64)(sharers | mine) << 8 | (u64)(owner + 1);
    atomic_store_explicit(entry, now, memory_order_relaxed);
    return cost;
}

/* ---- below the first cache ---------------------------------------------------------------- */

static void into_l2(struct vcpu *c, struct line made, u64 t) {
    struct line out = push(l2_set(c, made.tag >> 2), config.l2.ways, made);
    if (!(out.tag & DIRTY))
        return;
    u64 line = out.tag >> 2;
    spin_lock(&l3_locks[c->node]);
    struct line *hit = look(l3_set(c->node, line), config.l3.ways, line);
    if (hit)
        hit->tag |= DIRTY;
    spin_unlock(&l3_locks[c->node]);
    if (!hit)
        write_back(c, line, t);
}

static u64 from_l3(struct vcpu *c, u64 line, u64 t, bool prefetch) { /* when the line is there */
    struct line out = {0, 0};
    u64 ready;
    spin_lock(&l3_locks[c->node]);
    struct line *set = l3_set(c->node, line), *hit = look(set, config.l3.ways, line);
    if (hit) {
        ready = hit->ready_ps > t + config.l3_ps ? hit->ready_ps : t + config.l3_ps;
    } else {
        c->n->l3_misses += !prefetch;
        c->n->prefetched += prefetch;
        ready = from_memory(c, line, t);
        out = push(set, config.l3.ways, (struct line){line << 2, ready});
    }
    spin_unlock(&l3_locks[c->node]);
    if (out.tag & DIRTY)
        write_back(c, out.tag >> 2, t);
    return ready;
}

/* Two neighbouring misses make a stream; then a number of its lines is kept on their way, into the
 * next page only where the stream's last page was followed by its physical neighbour. */
static void prefetch(struct vcpu *c, u64 virtual_line, u64 line, u64 t) {
    const u64 in_page = 4096 / LINE - 1;
    for (int i = 0; i < STREAMS; i++) {
        struct stream *s = &c->stream[i];
        if (s->next_virtual != virtual_line)
            continue;
        if (s->next_physical != line) {
            s->crosses = false;
            s->ahead = line;
        } else if ((line & in_page) == 0) {
            s->crosses = true;
        }
        s->next_virtual = virtual_line + 1;
        s->next_physical = line + 1;
        if (s->ahead < line)
            s->ahead = line;
        u64 last = ++s->hits < 2 ? line + 2 : line + (u64)config.prefetch_lines;
        if (!s->crosses && last > (line | in_page))
            last = line | in_page;
        int node = home(line);
        for (int n = 0; s->ahead < last && n < FETCH_AT_ONCE; n++) {
            u64 next = ++s->ahead;
            if (model_node(next * LINE) != node) {
                s->ahead = next - 1;
                break;
            }
            if (!look(l2_set(c, next), config.l2.ways, next))
                into_l2(c, (struct line){next << 2, from_l3(c, next, t, true)}, t);
        }
        return;
    }
    c->stream[c->next_stream++ % STREAMS] =
        (struct stream){virtual_line + 1, line + 1, line, 0, false};
}

/* A store waits in the queue; the core goes on unless the queue is full. */
static void queue_store(struct vcpu *c, u64 ready) {
    u64 *slot = &c->store_ready_ps[c->next_store++ % (unsigned)config.stores];
    if (*slot > c->now_ps) {
        c->n->stall_ps += *slot - c->now_ps;
        RELAXED_STORE(c->now_ps, *slot);
    }
    *slot = ready;
}

static void miss(struct vcpu *c, u64 virtual_line, u64 line, bool store) {
    u64 t = c->now_ps, ready, flags = store ? DIRTY | OWNED : 0;
    u64 snooped = config.coherent ? snoop(c, line, store) : 0;
    c->n->l1_misses++;
    struct line *hit = look(l2_set(c, line), config.l2.ways, line);
    if (hit) {
        ready = hit->ready_ps > t + config.l2_ps ? hit->ready_ps : t + config.l2_ps;
        if (ready < t + snooped)
            ready = t + snooped;
        flags |= hit->tag & OWNED;
    } else {
        c->n->l2_misses++;
        ready = snooped ? t + snooped : from_l3(c, line, t, false); /* the other core has it */
        into_l2(c, (struct line){line << 2 | (store ? OWNED : 0), ready}, t);
    }
    if (config.prefetch_lines)
        prefetch(c, virtual_line, line, t);
    struct line made = {line << 2 | flags, ready};
    struct line out = push(l1_set(c, line), config.l1.ways, made);
    if (out.tag & DIRTY) {
        u64 old = out.tag >> 2;
        struct line *below = look(l2_set(c, old), config.l2.ways, old);
        if (below)
            below->tag |= DIRTY | (out.tag & OWNED);
        else
            into_l2(c, out, t);
    }
    if (store) {
        queue_store(c, ready);
    } else if (ready > t + config.instruction_ps) { /* the instruction itself has been counted */
        c->n->stall_ps += ready - t - config.instruction_ps;
        RELAXED_STORE(c->now_ps, ready - config.instruction_ps);
    }
}

void model_access(struct vcpu *c, u64 virtual_line, u64 line, bool store) {
    if (unlikely(RELAXED_LOAD(c->filter_stale))) {
        RELAXED_STORE(c->filter_stale, 0);
        model_forget(c);
    }
    struct line *hit = look(l1_set(c, line), config.l1.ways, line);
    bool owned = store;
    if (unlikely(!hit)) {
        miss(c, virtual_line, line, store);
    } else {
        if (store) {
            if (unlikely(config.coherent && !(hit->tag & OWNED)))
                queue_store(c, c->now_ps + snoop(c, line, true));
            hit->tag |= DIRTY | OWNED;
        }
        owned = hit->tag & OWNED;
    }
    c->filter[virtual_line % FILTER] = virtual_line << 1 | owned;
}
