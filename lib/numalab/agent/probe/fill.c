/* Page cache on one node: the state of a host that has read many files.
 *
 * What is read is a sparse file without a name: it takes no room on the disk, and its pages leave
 * the memory with the last process that holds it open, however that ends. Children bound to the
 * node read it ahead, once (pages that are used twice become "active", and the kernel keeps
 * those longer). They stop before the kernel would have to make room: at the zones' high watermarks
 * (Documentation/admin-guide/sysctl/vm.rst, watermark_scale_factor) no page of anybody else has
 * been evicted, and an allocation from the node finds next to nothing left. */
#include "probe.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/vfs.h>
#include <sys/wait.h>
#include <unistd.h>

enum { READERS = 8 };
static const size_t CALL = 128 << 10; /* the kernel's own readahead of most disks */
static const uint64_t STEP_LEAST = 128 << 10, STEP_MOST = 64 << 20;
static const uint64_t MARGIN = 1 << 20; /* for readahead, and for counts that lag */

struct shared {
    atomic_ullong next, read; /* bytes given out; bytes read */
};

struct level level_read(int node) {
    char path[64], line[128];
    struct level level = {0, 0, 0};
    unsigned long long kib;
    snprintf(path, sizeof path, "/sys/devices/system/node/node%d/meminfo", node);
    FILE *file = fopen(path, "r");
    if (!file)
        die(EXIT_FAILED, "%s cannot be read: %s", path, strerror(errno));
    while (fgets(line, sizeof line, file)) {
        if (sscanf(line, "Node %*d MemTotal: %llu", &kib) == 1)
            level.total = kib * 1024;
        else if (sscanf(line, "Node %*d MemFree: %llu", &kib) == 1)
            level.free = kib * 1024;
        else if (sscanf(line, "Node %*d FilePages: %llu", &kib) == 1)
            level.page_cache = kib * 1024;
    }
    fclose(file);
    return level;
}

/* Free bytes above the high watermark of each zone and above what the zone keeps for those who
 * can use no other ("protection": the last figure is what an ordinary allocation must leave). */
uint64_t zones_usable(FILE *zoneinfo, int node, size_t page) {
    char line[256];
    unsigned long long pages = 0, high = 0, kept, value;
    uint64_t usable = 0;
    int at = -1;
    while (fgets(line, sizeof line, zoneinfo)) {
        const char *last;
        if (sscanf(line, "Node %d, zone", &at) == 1)
            pages = high = 0;
        else if (at != node)
            continue;
        else if (sscanf(line, " pages free %llu", &value) == 1)
            pages = value;
        else if (sscanf(line, " high %llu", &value) == 1)
            high = value;
        else if (strstr(line, "protection:") && (last = strrchr(line, ' ')) &&
                 sscanf(last, " %*[(]%llu", &kept) + sscanf(last, " %llu", &kept) > 0)
            usable += pages > high + kept ? (pages - high - kept) * page : 0;
    }
    return usable;
}

static uint64_t usable_now(int node) {
    FILE *file = fopen("/proc/zoneinfo", "r");
    if (!file)
        die(EXIT_FAILED, "/proc/zoneinfo cannot be read: %s", strerror(errno));
    uint64_t usable = zones_usable(file, node, page_size());
    fclose(file);
    return usable;
}

int file_open(const char *directory, uint64_t bytes) {
    static const struct {
        unsigned long magic; /* linux/magic.h; ZFS's is its own */
        const char *name;
    } unfit[] = {{0x01021994, "tmpfs"}, {0x858458f6, "ramfs"}, {0x2fc12fc1, "ZFS"}};
    struct statfs system;
    if (statfs(directory, &system) != 0)
        die(EXIT_ARGUMENTS, "--directory %s: %s", directory, strerror(errno));
    for (size_t i = 0; i < sizeof unfit / sizeof *unfit; i++)
        if ((unsigned long)system.f_type == unfit[i].magic)
            die(EXIT_ARGUMENTS, "--directory %s is on %s, which keeps no sparse file in the page "
                "cache; name one on a disk", directory, unfit[i].name);
    int file = open(directory, O_TMPFILE | O_RDWR | O_CLOEXEC, 0600);
    if (file < 0) { /* a file system without nameless files */
        char path[4096];
        snprintf(path, sizeof path, "%s/.numalab-XXXXXX", directory);
        file = mkostemp(path, O_CLOEXEC);
        if (file < 0)
            die(EXIT_FAILED, "no file can be made in %s: %s", directory, strerror(errno));
        unlink(path);
    }
    signal(SIGXFSZ, SIG_IGN);
    if (ftruncate(file, (off_t)bytes) != 0)
        die(EXIT_FAILED, "no sparse file of %" PRIu64 " MiB can be made in %s: %s", bytes >> 20,
            directory, strerror(errno));
    return file;
}

/* Takes the next stretch of the file for the caller; its length, or 0 when the node is full or the
 * file at its end. What others have taken and not yet read is counted as if it had been. */
static size_t take(struct shared *shared, int node, uint64_t most, uint64_t *at) {
    for (;;) {
        uint64_t from = atomic_load(&shared->next);
        uint64_t out = from - atomic_load(&shared->read), usable = usable_now(node);
        uint64_t room = usable > out + MARGIN ? usable - out - MARGIN : 0;
        uint64_t bytes = room / (2 * READERS) / STEP_LEAST * STEP_LEAST;
        bytes = bytes < STEP_LEAST ? STEP_LEAST : bytes > STEP_MOST ? STEP_MOST : bytes;
        if (from >= most || (room < STEP_LEAST && out == 0))
            return 0;
        if (room < STEP_LEAST) {
            usleep(1000);
            continue;
        }
        if (bytes > most - from)
            bytes = most - from;
        if (atomic_compare_exchange_strong(&shared->next, &from, from + bytes)) {
            *at = from;
            return (size_t)bytes;
        }
    }
}

/* Reading ahead brings the pages without copying them anywhere. One call may bring fewer than it
 * was asked for; what counts is how full the node is in the end. */
static _Noreturn void read_on(const struct options *o, int file, uint64_t most,
                              struct shared *shared) {
    uint64_t at, bytes;
    policy_bind(o->home);
    while ((bytes = take(shared, o->home, most, &at))) {
        for (uint64_t end = at + bytes; at < end; at += CALL)
            if (readahead(file, (off64_t)at, end - at < CALL ? end - at : CALL) != 0)
                die(EXIT_FAILED, "the file cannot be read ahead: %s", strerror(errno));
        atomic_fetch_add(&shared->read, bytes);
    }
    _exit(0);
}

static void drop_page_cache(void) {
    int file = open("/proc/sys/vm/drop_caches", O_WRONLY);
    if (file < 0 || write(file, "3\n", 2) != 2)
        die(EXIT_FAILED, "the page cache cannot be dropped: %s (it takes root)", strerror(errno));
    close(file);
}

void fill_node(struct fill *fill, const struct options *o) {
    pid_t self = getpid();
    pid_t readers[READERS];
    int count = o->cpu_count < READERS ? o->cpu_count : READERS;
    uint64_t usable = usable_now(o->home);
    uint64_t most = o->fill == SIZE_MAX ? 4 * usable : o->fill;
    struct shared *shared = mmap(NULL, sizeof *shared, PROT_READ | PROT_WRITE,
                                 MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (shared == MAP_FAILED)
        die(EXIT_MEMORY, "not enough memory to fill a node: %s", strerror(errno));
    most = (most + CALL - 1) / CALL * CALL;
    fill->file = file_open(o->directory, most);
    fill->before = level_read(o->home);
    fflush(stdout);
    for (int i = 0; i < count; i++) {
        readers[i] = fork();
        if (readers[i] < 0)
            die(EXIT_FAILED, "no process can be started: %s", strerror(errno));
        if (readers[i] == 0) {
            die_with(self);
            read_on(o, fill->file, most, shared);
        }
    }
    for (int i = 0; i < count; i++) {
        int status;
        if (waitpid(readers[i], &status, 0) != readers[i] || status != 0)
            die(EXIT_FAILED, "filling node %d failed (status %d)", o->home, status);
    }
    fill->read = atomic_load(&shared->read);
    munmap(shared, sizeof *shared);
    fill->after = level_read(o->home);
    fill->usable = usable_now(o->home);
    uint64_t grown = fill->after.page_cache > fill->before.page_cache
                         ? fill->after.page_cache - fill->before.page_cache : 0;
    uint64_t wanted = o->fill == SIZE_MAX ? usable : o->fill;
    if (grown < wanted / 2 && fill->usable > usable / 8)
        die(EXIT_FAILED, "%" PRIu64 " MiB were read in %s, but the page cache of node %d grew by "
            "%" PRIu64 " MiB only: the file system keeps none, or the memory of this process is "
            "limited (cgroup)", fill->read >> 20, o->directory, o->home, grown >> 20);
    if (o->drop) {
        drop_page_cache();
        fill->after = level_read(o->home);
        fill->usable = usable_now(o->home);
    }
}
