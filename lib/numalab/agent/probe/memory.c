/* Buffers: mapping, huge pages, and the nodes on which their pages really are. */
#include "probe.h"

#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

/* MPOL_BIND and MPOL_F_MEMS_ALLOWED of linux/mempolicy.h; pages asked about at most */
enum { BIND = 2, ALLOWED = 4, QUERY = 1 << 18 };
size_t page_size(void) {
    return (size_t)sysconf(_SC_PAGESIZE);
}

void *allocate(size_t count, size_t size) {
    void *memory = calloc(count ? count : 1, size);
    if (!memory)
        die(EXIT_MEMORY, "not enough memory for %zu records of %zu bytes", count, size);
    return memory;
}

static double mib(size_t bytes) {
    return (double)bytes / (1 << 20);
}

void memory_check(size_t need) {
    FILE *file = fopen("/proc/meminfo", "r");
    char line[128];
    unsigned long long kib;
    if (!file)
        return;
    while (fgets(line, sizeof line, file))
        if (sscanf(line, "MemAvailable: %llu kB", &kib) == 1 && need / 1024 > kib)
            die(EXIT_MEMORY, "not enough memory: %.0f MiB are needed, %.0f MiB are available",
                mib(need), (double)kib / 1024);
    fclose(file);
}

static size_t huge_page_bytes(void) {
    FILE *file = fopen("/proc/meminfo", "r");
    char line[128];
    unsigned long long kib = 0;
    while (file && fgets(line, sizeof line, file))
        if (sscanf(line, "Hugepagesize: %llu kB", &kib) == 1)
            break;
    if (file)
        fclose(file);
    return (size_t)kib * 1024;
}

/* The size of a transparent huge page: 2 MiB on most hosts, 32 MiB with base pages of 16 KiB, 512
 * MiB with those of 64 KiB. Older kernels (before 4.10) tell the size of hugetlb pages alone. */
static size_t huge_alignment(void) {
    FILE *file = fopen("/sys/kernel/mm/transparent_hugepage/hpage_pmd_size", "r");
    unsigned long long bytes = 0;
    if (file) {
        if (fscanf(file, "%llu", &bytes) != 1)
            bytes = 0;
        fclose(file);
    }
    if (!bytes)
        bytes = huge_page_bytes();
    return bytes && (bytes & (bytes - 1)) == 0 ? (size_t)bytes : page_size();
}

struct nodes {
    unsigned long mask[MAX_NODES / (8 * sizeof(unsigned long))];
};

static struct nodes one_node(int node) {
    struct nodes set = {{0}};
    size_t width = 8 * sizeof *set.mask;
    set.mask[(size_t)node / width] = 1ul << ((size_t)node % width);
    return set;
}

static void bind_to(struct buffer *buffer, size_t mapped, int node) {
    struct nodes set = one_node(node);
    if (syscall(SYS_mbind, buffer->base, mapped, BIND, set.mask, (unsigned long)MAX_NODES, 0) != 0)
        die(EXIT_ARGUMENTS, "--memory-node %d cannot be used: %s", node, strerror(errno));
}

void buffer_map(struct buffer *buffer, size_t bytes, enum pages pages, int memory_node) {
    memset(buffer, 0, sizeof *buffer);
    buffer->bytes = bytes;
    buffer->page = page_size();
    size_t unit = pages == PAGES_HUGETLB ? huge_page_bytes() : buffer->page;
    if (!unit)
        die(EXIT_FAILED, "this kernel has no hugetlb pages; use --pages=thp or --pages=base");
    size_t alignment = huge_alignment();
    if (bytes > SIZE_MAX / 2 - 2 * alignment)
        die(EXIT_MEMORY, "not enough memory: %.0f MiB are more than any host has", mib(bytes));
    size_t mapped = (bytes + unit - 1) / unit * unit;
    int kind = MAP_PRIVATE | MAP_ANONYMOUS;
    if (pages == PAGES_HUGETLB) {
        void *base = mmap(NULL, mapped, PROT_READ | PROT_WRITE, kind | MAP_HUGETLB, -1, 0);
        if (base == MAP_FAILED)
            die(EXIT_MEMORY, "the pool of huge pages cannot hold %.0f MiB (%s); see "
                "/proc/sys/vm/nr_hugepages, or use --pages=thp", mib(mapped), strerror(errno));
        buffer->base = base;
        buffer->page = unit;
    } else {
        /* Address space around it stays unusable: the mapping is a line of its own in smaps. */
        char *space = mmap(NULL, mapped + 2 * alignment, PROT_NONE, kind | MAP_NORESERVE,
                           -1, 0);
        if (space != MAP_FAILED) {
            uintptr_t aligned = ((uintptr_t)space / alignment + 1) * alignment;
            buffer->base = space + (aligned - (uintptr_t)space);
        }
        if (space == MAP_FAILED || mprotect(buffer->base, mapped, PROT_READ | PROT_WRITE) != 0)
            die(EXIT_MEMORY, "not enough memory for a buffer of %.0f MiB: %s", mib(mapped),
                strerror(errno));
        /* Advice: where it is refused the kernel has no such pages, and smaps will show that. */
        if (pages == PAGES_AUTO || pages == PAGES_THP)
            (void)madvise(buffer->base, mapped, MADV_HUGEPAGE);
        else if (pages == PAGES_BASE)
            (void)madvise(buffer->base, mapped, MADV_NOHUGEPAGE);
    }
    if (memory_node >= 0)
        bind_to(buffer, mapped, memory_node);
}

void touch(char *from, char *to) {
    size_t page = page_size();
    for (volatile char *byte = from; byte < to; byte += page)
        *byte = 0;
}

void buffer_inspect(struct buffer *buffer) {
    FILE *file = fopen("/proc/self/smaps", "r");
    char line[512];
    bool ours = false;
    buffer->huge = 0;
    while (file && fgets(line, sizeof line, file)) {
        uintptr_t start, end;
        unsigned long long kib;
        if (sscanf(line, "%" SCNxPTR "-%" SCNxPTR " ", &start, &end) == 2)
            ours = start < (uintptr_t)buffer->base + buffer->bytes && (uintptr_t)buffer->base < end;
        else if (ours && sscanf(line, "AnonHugePages: %llu kB", &kib) == 1)
            buffer->huge += (size_t)kib * 1024, buffer->inspected = true;
        else if (ours && sscanf(line, "KernelPageSize: %llu kB", &kib) == 1)
            buffer->page = (size_t)kib * 1024;
    }
    if (file)
        fclose(file);
}

void policy_bind(int node) {
    struct nodes set = one_node(node);
    if (syscall(SYS_set_mempolicy, BIND, set.mask, (unsigned long)MAX_NODES) != 0)
        die(EXIT_FAILED, "memory cannot be bound to node %d: %s", node, strerror(errno));
}

int nodes_allowed(bool allowed[MAX_NODES]) {
    struct nodes set = {{0}};
    size_t width = 8 * sizeof *set.mask;
    int count = 0;
    if (syscall(SYS_get_mempolicy, NULL, set.mask, (unsigned long)MAX_NODES, NULL, ALLOWED) != 0)
        return 0;
    for (size_t node = 0; node < MAX_NODES; node++)
        count += allowed[node] = set.mask[node / width] >> (node % width) & 1;
    return count;
}

static size_t pages_of(const struct buffer *buffer) {
    return (buffer->bytes + buffer->page - 1) / buffer->page;
}

/* Kept from one question to the next: where a node is to be full, asking must take no memory. */
static struct {
    void **addresses;
    int *nodes;
    size_t room;
} scratch;

size_t placement_reserve(const struct buffer *buffer) {
    size_t pages = pages_of(buffer), asked = pages < QUERY ? pages : QUERY;
    if (scratch.room >= asked)
        return asked;
    free(scratch.addresses);
    free(scratch.nodes);
    scratch.addresses = allocate(asked, sizeof *scratch.addresses);
    scratch.nodes = allocate(asked, sizeof *scratch.nodes);
    scratch.room = asked;
    touch((char *)scratch.addresses, (char *)(scratch.addresses + asked));
    touch((char *)scratch.nodes, (char *)(scratch.nodes + asked));
    return asked;
}

/* Asks move_pages(2) without target nodes, which only tells: a node, or an error below 0. Of
 * large buffers it asks about pages drawn at random, one from each of equal stretches: equal
 * steps would meet every second node only of an interleaved buffer. The answers are overwritten
 * by the next question. Returns their number; 0: the kernel refuses, errno says why. */
size_t placement_nodes(int **nodes, const struct buffer *buffer) {
    uint64_t random = 88172645463325252u; /* xorshift64 (Marsaglia 2003) */
    size_t pages = pages_of(buffer), asked = placement_reserve(buffer);
    *nodes = scratch.nodes;
    for (size_t i = 0; i < asked; i++) {
        size_t first = part_start(pages, (int)i, (int)asked, 1);
        size_t next = part_start(pages, (int)i + 1, (int)asked, 1);
        random ^= random << 13, random ^= random >> 7, random ^= random << 17;
        scratch.addresses[i] = buffer->base + (first + random % (next - first)) * buffer->page;
    }
    if (syscall(SYS_move_pages, 0, asked, scratch.addresses, NULL, scratch.nodes, 0) != 0)
        return 0;
    return asked;
}

void placement_query(struct placement *placement, const struct buffer *buffers, int count) {
    memset(placement, 0, sizeof *placement);
    for (int b = 0; b < count && !placement->reason; b++) {
        const struct buffer *buffer = &buffers[b];
        size_t on[MAX_NODES] = {0}, absent = 0, unknown = 0;
        int *nodes;
        size_t asked = placement_nodes(&nodes, buffer);
        placement->pages += (long)pages_of(buffer);
        placement->sampled += (long)asked;
        if (!asked)
            placement->reason = errno == ENOSYS ? "this kernel has no move_pages"
                                : errno == EPERM ? "move_pages is not permitted here"
                                                 : "move_pages failed";
        for (size_t i = 0; i < asked; i++) {
            if (nodes[i] >= 0 && nodes[i] < MAX_NODES)
                on[nodes[i]]++;
            else if (nodes[i] == -ENOENT)
                absent++;
            else
                unknown++;
        }
        double each = asked ? (double)buffer->bytes / (double)asked : 0;
        for (int node = 0; node < MAX_NODES; node++)
            placement->bytes[node] += (uint64_t)((double)on[node] * each + 0.5);
        placement->absent += (uint64_t)((double)absent * each + 0.5);
        placement->unknown += (uint64_t)((double)unknown * each + 0.5);
    }
}
