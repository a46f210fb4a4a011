/* The counters' page: a file that the guest sees as the memory of a device (ivshmem), so that it
 * reads them without leaving the model, as rdpmc reads a processor's. */
#include "timing.h"

#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

struct page *page;

static char configured[sizeof ((struct page *)NULL)->configuration];

void counters_begin(void) {
    memset(page, 0, sizeof *page);
    memcpy(page->magic, "numatime", sizeof page->magic);
    page->version = 1;
    page->vcpus = (u64)config.vcpus;
    page->nodes = (u64)config.nodes;
    page->ticks_a_second = clock_ticks_a_second();
    memcpy(page->configuration, configured, sizeof configured);
}

bool counters_map(const char *file, int count, char *const *words) {
    _Static_assert(sizeof(struct counters) == 512 && sizeof(struct page) == 37376, "the layout");
    int descriptor = -1, kind = MAP_SHARED | MAP_ANONYMOUS;
    if (file) {
        kind = MAP_SHARED;
        descriptor = open(file, O_RDWR | O_CREAT | O_CLOEXEC, 0600);
        if (descriptor < 0 || ftruncate(descriptor, PAGE_BYTES) != 0)
            return false;
    }
    void *mapped = mmap(NULL, PAGE_BYTES, PROT_READ | PROT_WRITE, kind, descriptor, 0);
    if (descriptor >= 0)
        close(descriptor);
    if (mapped == MAP_FAILED)
        return false;
    page = mapped;
    size_t at = 0, room = sizeof configured;
    for (int i = 0; i < count && at < room; i++)
        at += (size_t)snprintf(configured + at, room - at, "%s%s", i ? " " : "", words[i]);
    counters_begin();
    return true;
}
