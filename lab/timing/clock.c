/* One clock for everything: the model's time is the only one that QEMU and its guest can read.
 *
 * While vCPUs run, a vCPU's thread is told its own time and the main loop that of the slowest.
 * While none runs, or the model is off, real time goes on from there (an idle guest that sleeps a
 * second takes one). Nobody is ever told less than anyone was told before.
 *
 * QEMU reads the time by clock_gettime and answers the guest's RDTSC by its own: the first is
 * replaced here (this file is preloaded), the second is trapped by prctl(PR_SET_TSC). */
#include "timing.h"

#include <dlfcn.h>
#include <poll.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <time.h>
#include <ucontext.h>
#include <unistd.h>

#define EXPORTED __attribute__((visibility("default")))
enum { NS = 1000000000, MOST_POLLED = 60, NET_MS = 20 };

atomic_bool model_on;
_Thread_local struct vcpu *me;
_Thread_local bool is_main_loop;

static atomic_bool ready;
static _Atomic u64 told_ps;               /* the latest time that anyone was told */
static u64 idle_ps, idle_ns;              /* real time goes on from there */
static _Atomic u32 idle_sequence;         /* a sequence lock: readers write nothing */
static _Atomic u64 deadline_ps = UINT64_MAX; /* of the main loop's wait */
static int wake = -1;

u64 clock_real_ns(void) { /* by the system call: the vDSO's RDTSC would trap */
    struct timespec t;
    syscall(SYS_clock_gettime, CLOCK_MONOTONIC, &t);
    return (u64)t.tv_sec * NS + (u64)t.tv_nsec;
}

u64 clock_raise(u64 ps) {
    u64 told = atomic_load(&told_ps);
    while (told < ps)
        if (atomic_compare_exchange_weak(&told_ps, &told, ps))
            return ps;
    return told;
}

u64 clock_now_ps(void) {
    if (atomic_load(&model_on)) {
        if (me && atomic_load(&me->running))
            return clock_raise(RELAXED_LOAD(me->now_ps));
        u64 least = sync_least(NULL);
        if (least != NEVER)
            return clock_raise(least);
    }
    u64 t;
    u32 seen;
    do {
        while ((seen = atomic_load(&idle_sequence)) & 1)
            sched_yield();
        t = RELAXED_LOAD(idle_ps) + (clock_real_ns() - RELAXED_LOAD(idle_ns)) * 1000;
    } while (atomic_load(&idle_sequence) != seen);
    return clock_raise(t);
}

void clock_real_from(u64 ps) {
    atomic_fetch_add(&idle_sequence, 1);
    RELAXED_STORE(idle_ps, ps);
    RELAXED_STORE(idle_ns, clock_real_ns());
    atomic_fetch_add(&idle_sequence, 1);
}

void clock_idle_until(u64 ps) {
    if (ps > idle_ps)
        page->idle_ps += ps - idle_ps;
}

/* ---- the main loop's waits --------------------------------------------------------------- */

static int (*real_ppoll)(struct pollfd *, nfds_t, const struct timespec *, const sigset_t *);

void clock_wake_main_loop(void) {
    u64 one = 1;
    if (wake >= 0 && write(wake, &one, sizeof one) < 0) {
        /* it is full: the loop will wake anyway */
    }
}

void clock_check_deadline(void) {
    u64 due = atomic_load_explicit(&deadline_ps, memory_order_relaxed);
    if (due != NEVER && sync_least(NULL) >= due &&
        atomic_compare_exchange_strong(&deadline_ps, &due, NEVER))
        clock_wake_main_loop();
}

static struct timespec spec(u64 ns) {
    return (struct timespec){(time_t)(ns / NS), (long)(ns % NS)};
}

static u64 nanoseconds(const struct timespec *t) {
    return (u64)t->tv_sec * NS + (u64)t->tv_nsec;
}

/* A timeout of the main loop is model time: vCPUs that pass it wake the loop. */
EXPORTED int ppoll(struct pollfd *fds, nfds_t n, const struct timespec *timeout,
                   const sigset_t *mask) {
    bool at_once = timeout && !timeout->tv_sec && !timeout->tv_nsec;
    if (!is_main_loop || !atomic_load(&ready) || at_once || n > MOST_POLLED)
        return real_ppoll(fds, n, timeout, mask);
    struct pollfd with[MOST_POLLED + 1];
    if (n)
        memcpy(with, fds, n * sizeof *fds);
    with[n] = (struct pollfd){wake, POLLIN, 0};
    u64 due = timeout ? clock_now_ps() + nanoseconds(timeout) * 1000 : NEVER;
    for (;;) {
        atomic_store(&deadline_ps, due);
        struct timespec wait = {1, 0};
        u64 now = clock_now_ps();
        if (due != NEVER) {
            u64 ns = now >= due ? 0 : (due - now + 999) / 1000;
            bool real = !atomic_load(&model_on) || atomic_load(&running_count) == 0;
            wait = spec(real || !ns ? ns : (u64)NET_MS * 1000000);
        }
        int found = real_ppoll(with, n + 1, &wait, mask);
        atomic_store(&deadline_ps, NEVER);
        if (found < 0)
            return found;
        if (with[n].revents) {
            u64 count;
            if (read(wake, &count, sizeof count) < 0)
                count = 0; /* another read has emptied it */
            found--;
        }
        bool over = due != NEVER && clock_now_ps() >= due;
        if (found == 0 && !over)
            continue;
        for (nfds_t i = 0; i < n; i++)
            fds[i].revents = found ? with[i].revents : 0;
        return found;
    }
}

EXPORTED int __ppoll_chk(struct pollfd *fds, nfds_t n, const struct timespec *timeout,
                         const sigset_t *mask, size_t size) {
    (void)size;
    return ppoll(fds, n, timeout, mask);
}

/* ---- clocks ------------------------------------------------------------------------------ */

EXPORTED int clock_gettime(clockid_t id, struct timespec *t) {
    bool ours = me || is_main_loop;
    if (id != CLOCK_MONOTONIC || !ours || !atomic_load_explicit(&ready, memory_order_relaxed))
        return (int)syscall(SYS_clock_gettime, id, t);
    *t = spec(clock_now_ps() / 1000);
    return 0;
}

EXPORTED int gettimeofday(struct timeval *restrict t, void *restrict zone) {
    return (int)syscall(SYS_gettimeofday, t, zone);
}

/* ---- the guest's time-stamp counter ------------------------------------------------------- */

static atomic_bool follows;      /* reads are answered by the model; each thread asks for its trap */
static _Thread_local bool trapped;
static u64 boot_ticks, boot_ns;  /* to learn the counter's frequency from */
static u64 from_ticks, from_ps, ticks_a_second;
static uintptr_t text_from, text_to; /* of the QEMU program: only its own reads are the guest's */

void clock_trap_tsc(void) {
#if defined __x86_64__
    if (!trapped && atomic_load(&follows)) {
        trapped = true;
        prctl(PR_SET_TSC, PR_TSC_SIGSEGV);
    }
#endif
}

#if defined __x86_64__
static u64 ticks_now(void) {
    return __builtin_ia32_rdtsc();
}

/* Both clocks at one moment, as near as in the best of some tries: this thread may lose its CPU. */
static void look_at_both(u64 *ticks, u64 *ns) {
    u64 least = UINT64_MAX;
    for (int i = 0; i < 20; i++) {
        u64 before = ticks_now(), between = clock_real_ns(), took = ticks_now() - before;
        if (took >= least)
            continue;
        least = took;
        *ticks = before + took / 2;
        *ns = between;
    }
}

static u64 frequency(u64 ticks, u64 ns) {
    double seconds = (double)(ns - boot_ns) / NS;
    return boot_ns && seconds > 0 ? (u64)((double)(ticks - boot_ticks) / seconds + 0.5) : 0;
}

static void on_fault(int number, siginfo_t *info, void *context) {
    greg_t *registers = ((ucontext_t *)context)->uc_mcontext.gregs;
    const unsigned char *at = (const unsigned char *)registers[REG_RIP];
    bool rdtscp = info->si_code == SI_KERNEL && at[0] == 0x0f && at[1] == 0x01 && at[2] == 0xf9;
    if (info->si_code != SI_KERNEL || !(rdtscp || (at[0] == 0x0f && at[1] == 0x31))) {
        signal(number, SIG_DFL); /* a true fault: it happens again, and ends QEMU */
        return;
    }
    u64 ticks;
    if ((uintptr_t)at >= text_from && (uintptr_t)at < text_to) {
        u64 passed = clock_now_ps() - from_ps;
        ticks = from_ticks + (u64)((unsigned __int128)passed * ticks_a_second / 1000000000000u);
    } else { /* a library asks for the real one */
        syscall(SYS_prctl, PR_SET_TSC, PR_TSC_ENABLE);
        ticks = ticks_now();
        syscall(SYS_prctl, PR_SET_TSC, PR_TSC_SIGSEGV);
    }
    registers[REG_RAX] = (greg_t)(u32)ticks;
    registers[REG_RDX] = (greg_t)(ticks >> 32);
    if (rdtscp)
        registers[REG_RCX] = 0;
    registers[REG_RIP] += rdtscp ? 3 : 2;
}

static void find_text(void) { /* the first executable mapping of the program itself */
    char path[512], line[1024];
    ssize_t length = readlink("/proc/self/exe", path, sizeof path - 1);
    path[length > 0 ? length : 0] = 0;
    FILE *maps = fopen("/proc/self/maps", "re");
    while (maps && fgets(line, sizeof line, maps))
        if (strstr(line, " r-xp ") && strstr(line, path) &&
            sscanf(line, "%lx-%lx", &text_from, &text_to) == 2)
            break;
    if (maps)
        fclose(maps);
}
#endif

void clock_follow(u64 ps) {
#if defined __x86_64__
    if (atomic_load(&follows))
        return;
    u64 ns;
    look_at_both(&from_ticks, &ns);
    ticks_a_second = page->ticks_a_second = frequency(from_ticks, ns);
    from_ps = ps;
    atomic_store(&follows, true);
#else
    (void)ps; /* ARM's counter is QEMU's own clock, which is this one */
#endif
}

u64 clock_ticks_a_second(void) {
#if defined __x86_64__
    u64 ticks, ns;
    look_at_both(&ticks, &ns);
    return frequency(ticks, ns);
#else
    return 0;
#endif
}

void clock_catch_reads(void) {
    wake = eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC);
#if defined __x86_64__
    find_text();
    struct sigaction action = {.sa_sigaction = on_fault,
                               .sa_flags = SA_SIGINFO | SA_NODEFER | SA_RESTART};
    sigaction(SIGSEGV, &action, NULL);
    look_at_both(&boot_ticks, &boot_ns);
#endif
    atomic_store(&ready, true);
}

void clock_begin(void) {
    *(void **)&real_ppoll = dlsym(RTLD_NEXT, "ppoll");
    is_main_loop = true; /* the thread that loads this */
    idle_ns = clock_real_ns();
    idle_ps = idle_ns * 1000;
}
