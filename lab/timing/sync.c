/* Who runs, and how far ahead: no vCPU runs more than a quantum ahead of the slowest that runs.
 *
 * A vCPU is out while it waits for any condition: halted, in an exclusive section, in QEMU's work
 * queue. So a vCPU that is held back is never one that somebody waits for, which is what keeps this
 * free of deadlock; QEMU's waits are seen by replacing pthread_cond_wait and its kin. Who is woken
 * counts as running from the waker's time on, however late the host runs its thread.
 *
 * In serial mode one vCPU runs at a time, the one with the least time: then a run repeats itself but
 * for the moments at which the main loop's timers come. */
#include "timing.h"

#include <dlfcn.h>
#include <linux/futex.h>
#include <stdio.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#define EXPORTED __attribute__((visibility("default")))
enum { WAIT_NS = 10000000, PATIENCE = 1000 }; /* 10 s held back: rather inexact than stuck */

atomic_flag running_lock = ATOMIC_FLAG_INIT;
atomic_int running_count;
static _Atomic u32 epoch;
static atomic_int waiting;
static atomic_int holder = -1; /* serial mode: the one vCPU that may run */

u64 sync_least(const struct vcpu *but) {
    u64 least = NEVER;
    for (int i = 0; i < config.vcpus; i++) {
        struct vcpu *c = &vcpus[i];
        if (c == but || !atomic_load_explicit(&c->running, memory_order_relaxed))
            continue;
        u64 now = RELAXED_LOAD(c->now_ps);
        if (now < least)
            least = now;
    }
    return least;
}

static void wake_all(void) {
    atomic_fetch_add(&epoch, 1);
    if (atomic_load(&waiting))
        syscall(SYS_futex, &epoch, FUTEX_WAKE_PRIVATE, 1000, NULL, NULL, 0);
}

void sync_leave(struct vcpu *c) {
    bool last = false;
    spin_lock(&running_lock);
    if (atomic_load(&c->running)) {
        atomic_store(&c->running, 0);
        if (atomic_fetch_sub(&running_count, 1) == 1 && atomic_load(&model_on)) {
            clock_real_from(clock_raise(c->now_ps));
            last = true;
        }
    }
    spin_unlock(&running_lock);
    if (!atomic_load(&model_on))
        return;
    int mine = c->index;
    atomic_compare_exchange_strong(&holder, &mine, -1);
    wake_all();
    if (last)
        clock_wake_main_loop();
}

static void enter(struct vcpu *c, u64 now) {
    spin_lock(&running_lock);
    if (!atomic_load(&c->running)) {
        if (atomic_load(&model_on)) {
            if (c->now_ps < now)
                RELAXED_STORE(c->now_ps, now);
            c->limit_ps = 0; /* synchronise at once */
            if (atomic_load(&running_count) == 0)
                clock_idle_until(now);
        }
        atomic_store(&c->running, 1);
        atomic_fetch_add(&running_count, 1);
    }
    spin_unlock(&running_lock);
}

void sync_is(int index) {
    if (me || index >= config.vcpus)
        return;
    me = &vcpus[index];
    enter(me, 0);
}

/* ---- QEMU's waits -------------------------------------------------------------------------- */

static int (*real_wait)(pthread_cond_t *, pthread_mutex_t *);
static int (*real_timedwait)(pthread_cond_t *, pthread_mutex_t *, const struct timespec *);
static int (*real_signal)(pthread_cond_t *), (*real_broadcast)(pthread_cond_t *);
static int (*real_setname)(pthread_t, const char *);

EXPORTED int pthread_cond_wait(pthread_cond_t *condition, pthread_mutex_t *mutex) {
    if (likely(!me))
        return real_wait(condition, mutex);
    atomic_store(&me->waits_for, condition);
    sync_leave(me);
    int result = real_wait(condition, mutex);
    atomic_store(&me->waits_for, NULL);
    enter(me, clock_now_ps());
    return result;
}

EXPORTED int pthread_cond_timedwait(pthread_cond_t *condition, pthread_mutex_t *mutex,
                                    const struct timespec *until) {
    if (likely(!me))
        return real_timedwait(condition, mutex, until);
    sync_leave(me);
    int result = real_timedwait(condition, mutex, until);
    enter(me, clock_now_ps());
    return result;
}

static void woken(pthread_cond_t *condition) {
    for (int i = 0; atomic_load(&model_on) && i < config.vcpus; i++)
        if (atomic_load_explicit(&vcpus[i].waits_for, memory_order_relaxed) == condition) {
            atomic_store(&vcpus[i].waits_for, NULL);
            enter(&vcpus[i], clock_now_ps());
        }
}

EXPORTED int pthread_cond_signal(pthread_cond_t *condition) {
    woken(condition);
    return real_signal(condition);
}

EXPORTED int pthread_cond_broadcast(pthread_cond_t *condition) {
    woken(condition);
    return real_broadcast(condition);
}

EXPORTED int pthread_setname_np(pthread_t thread, const char *name) { /* -name …,debug-threads=on */
    int index;
    if (pthread_equal(thread, pthread_self()) && sscanf(name, "CPU %d/TCG", &index) == 1)
        sync_is(index);
    return real_setname(thread, name);
}

static void *next(const char *name, const char *version) { /* dlsym alone may give the oldest */
    void *found = dlvsym(RTLD_NEXT, name, version);
    return found ? found : dlsym(RTLD_NEXT, name);
}

void sync_begin(void) {
    *(void **)&real_wait = next("pthread_cond_wait", "GLIBC_2.3.2");
    *(void **)&real_timedwait = next("pthread_cond_timedwait", "GLIBC_2.3.2");
    *(void **)&real_signal = next("pthread_cond_signal", "GLIBC_2.3.2");
    *(void **)&real_broadcast = next("pthread_cond_broadcast", "GLIBC_2.3.2");
    *(void **)&real_setname = dlsym(RTLD_NEXT, "pthread_setname_np");
}

/* ---- the quantum --------------------------------------------------------------------------- */

static void wait_for_change(u32 seen) {
    struct timespec limit = {0, WAIT_NS};
    atomic_fetch_add(&waiting, 1);
    syscall(SYS_futex, &epoch, FUTEX_WAIT_PRIVATE, seen, &limit, NULL, 0);
    atomic_fetch_sub(&waiting, 1);
}

static bool first_of_all(const struct vcpu *c) { /* the least time, then the least index */
    for (int i = 0; i < config.vcpus; i++) {
        const struct vcpu *other = &vcpus[i];
        if (other == c || !atomic_load(&other->running))
            continue;
        u64 its = RELAXED_LOAD(other->now_ps);
        if (its < c->now_ps || (its == c->now_ps && other->index < c->index))
            return false;
    }
    return true;
}

static bool may_run(struct vcpu *c, u64 least) {
    bool near = c->now_ps <= least || c->now_ps - least <= config.quantum_ps;
    if (!config.serial)
        return near;
    int held = atomic_load(&holder);
    if (held == c->index) {
        if (near)
            return true;
        atomic_store(&holder, -1);
        wake_all();
        return false;
    }
    if (held != -1 || !first_of_all(c))
        return false;
    held = -1;
    return atomic_compare_exchange_strong(&holder, &held, c->index);
}

/* Called from a block of guest code, where QEMU holds no lock; never from a memory access. */
void sync_wait(struct vcpu *c) {
    u32 seen = atomic_load(&epoch);
    u64 least = sync_least(c);
    if (atomic_load(&waiting))
        wake_all();
    clock_check_deadline();
    for (int patience = 0; least != NEVER && atomic_load(&model_on) && !may_run(c, least);
         patience++) {
        if (patience >= PATIENCE) {
            __atomic_fetch_add(&page->gave_up, 1, __ATOMIC_RELAXED);
            break;
        }
        c->n->waits++;
        wait_for_change(seen);
        seen = atomic_load(&epoch);
        least = sync_least(c);
        clock_check_deadline();
    }
    if (config.serial && least == NEVER)
        atomic_store(&holder, c->index);
    c->limit_ps = c->now_ps + config.quantum_ps / 4;
    model_forget(c); /* so that the filter outlives no switch of address space by much */
    c->n->virtual_ps = c->now_ps;
    RELAXED_STORE(page->clock_ps, c->now_ps);
}

void sync_start(u64 now) {
    for (int i = 0; i < config.vcpus; i++) {
        RELAXED_STORE(vcpus[i].now_ps, now);
        RELAXED_STORE(vcpus[i].limit_ps, 0);
    }
    atomic_store(&holder, -1);
}

void sync_stop(void) {
    wake_all();
}
