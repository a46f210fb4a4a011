/* What QEMU loads: a TCG plugin that is also preloaded, so that both halves are one instance.
 *
 * Nothing of QEMU is included: the dozen functions that are used are declared here as weak symbols,
 * and the version that the program understands is found when this is loaded, so that one file
 * serves QEMU 7.2 (plugin API 1) to 10 and newer (API 4).
 *
 * The guest switches the model by an instruction that does nothing: nopl 0x6e756dXX(%rax), that is
 * 0f 1f 80 XX 'm' 'u' 'n' with XX 01 for on and 02 for off. Until the first "on" no block of guest
 * code has a callback and QEMU is as fast as without this. */
#include "timing.h"

#include <dlfcn.h>
#include <stdio.h>
#include <string.h>

#define EXPORTED __attribute__((visibility("default")))
#define OF_QEMU extern __attribute__((weak))

#ifdef QEMU_PLUGIN_HEADER /* a test compares what is declared here with QEMU's own header */
#include QEMU_PLUGIN_HEADER
#else
struct qemu_plugin_tb;
struct qemu_plugin_insn;
struct qemu_plugin_hwaddr;
struct qemu_info_t;
enum qemu_plugin_cb_flags { QEMU_PLUGIN_CB_NO_REGS };
enum qemu_plugin_mem_rw { QEMU_PLUGIN_MEM_RW = 3 };
#endif
typedef void on_block_fn(unsigned, void *);
typedef void on_memory_fn(unsigned, u32, u64, void *);
typedef void on_translation_fn(u64, struct qemu_plugin_tb *);

EXPORTED int qemu_plugin_version = 1;
OF_QEMU void qemu_plugin_reset(u64, void (*)(u64));
OF_QEMU void qemu_plugin_register_vcpu_tb_trans_cb(u64, on_translation_fn *);
OF_QEMU void qemu_plugin_register_vcpu_tb_exec_cb(struct qemu_plugin_tb *, on_block_fn *,
                                                  enum qemu_plugin_cb_flags, void *);
OF_QEMU void qemu_plugin_register_vcpu_insn_exec_cb(struct qemu_plugin_insn *, on_block_fn *,
                                                    enum qemu_plugin_cb_flags, void *);
OF_QEMU void qemu_plugin_register_vcpu_mem_cb(struct qemu_plugin_insn *, on_memory_fn *,
                                              enum qemu_plugin_cb_flags, enum qemu_plugin_mem_rw,
                                              void *);
OF_QEMU void qemu_plugin_register_atexit_cb(u64, void (*)(u64, void *), void *);
OF_QEMU size_t qemu_plugin_tb_n_insns(const struct qemu_plugin_tb *);
OF_QEMU struct qemu_plugin_insn *qemu_plugin_tb_get_insn(const struct qemu_plugin_tb *, size_t);
OF_QEMU size_t qemu_plugin_insn_size(const struct qemu_plugin_insn *);
OF_QEMU bool qemu_plugin_mem_is_store(u32);
OF_QEMU struct qemu_plugin_hwaddr *qemu_plugin_get_hwaddr(u32, u64);
OF_QEMU bool qemu_plugin_hwaddr_is_io(const struct qemu_plugin_hwaddr *);
OF_QEMU u64 qemu_plugin_hwaddr_phys_addr(const struct qemu_plugin_hwaddr *);

enum { COPIES_DATA = 3 }; /* the API that changed qemu_plugin_insn_data */
enum { ON = 1, OFF = 2 };

static void *instruction_data; /* its type depends on the API */
static u64 plugin;
static atomic_bool instrumented;

/* ---- memory ------------------------------------------------------------------------------ */

/* QEMU 7.2's qemu_plugin_hwaddr_phys_addr searches the list of RAM blocks each time. Its handle
 * holds the host's address at offset 8; what the API says of a 2 MiB piece of it is remembered. */
enum { PIECES = 8192, PIECE_BITS = 21 };
static struct {
    _Atomic u64 host, physical;
} pieces[PIECES];

static u64 physical(const struct qemu_plugin_hwaddr *address) {
    if (model_guest_addresses)
        return qemu_plugin_hwaddr_phys_addr(address);
    const u64 within = ((u64)1 << PIECE_BITS) - 1;
    u64 host;
    memcpy(&host, (const char *)address + 8, sizeof host);
    u64 piece = host >> PIECE_BITS, slot = piece % PIECES, none = 0;
    if (likely(atomic_load_explicit(&pieces[slot].host, memory_order_acquire) == piece))
        return atomic_load_explicit(&pieces[slot].physical, memory_order_relaxed) + (host & within);
    u64 found = qemu_plugin_hwaddr_phys_addr(address);
    if (atomic_compare_exchange_strong(&pieces[slot].host, &none, 1)) { /* set once, then read */
        atomic_store(&pieces[slot].physical, found - (host & within));
        atomic_store_explicit(&pieces[slot].host, piece, memory_order_release);
    }
    return found;
}

static void on_memory(unsigned index, u32 info, u64 address, void *unused) {
    (void)unused;
    if (unlikely(!atomic_load_explicit(&model_on, memory_order_relaxed)))
        return;
    struct vcpu *c = &vcpus[index];
    bool store = qemu_plugin_mem_is_store(info);
    if (store)
        c->n->stores++;
    else
        c->n->loads++;
    u64 line = address / LINE;
    if (!RELAXED_LOAD(c->filter_stale) && model_recent(c, line, store))
        return;
    struct qemu_plugin_hwaddr *where = qemu_plugin_get_hwaddr(info, address);
    if (unlikely(!where || qemu_plugin_hwaddr_is_io(where)))
        return;
    u64 real = physical(where);
    if (likely(model_node(real) >= 0))
        model_access(c, line, real / LINE, store);
}

/* ---- blocks ------------------------------------------------------------------------------ */

static void on_block(unsigned index, void *instructions) {
    struct vcpu *c = &vcpus[index];
    if (unlikely(!me))
        sync_is((int)index);
    clock_trap_tsc();
    if (unlikely(!atomic_load_explicit(&model_on, memory_order_relaxed)))
        return;
    c->n->instructions += (uintptr_t)instructions;
    RELAXED_STORE(c->now_ps, c->now_ps + (uintptr_t)instructions * config.instruction_ps);
    if (unlikely(c->now_ps > c->limit_ps))
        sync_wait(c);
}

/* ---- on and off -------------------------------------------------------------------------- */

static void start(void) {
    spin_lock(&running_lock);
    u64 now = clock_now_ps();
    clock_real_from(now);
    sync_start(now);
    clock_follow(now);
    atomic_store(&model_on, true);
    page->on = 1;
    page->switches++;
    spin_unlock(&running_lock);
    clock_wake_main_loop();
}

static void stop(void) {
    u64 now = clock_now_ps();
    spin_lock(&running_lock);
    clock_real_from(clock_raise(now));
    atomic_store(&model_on, false);
    page->on = 0;
    spin_unlock(&running_lock);
    sync_stop();
    clock_wake_main_loop();
}

static void mark(struct qemu_plugin_tb *block);

static void translate(u64 id, struct qemu_plugin_tb *block) {
    (void)id;
    size_t count = qemu_plugin_tb_n_insns(block);
    void *instructions = (void *)(uintptr_t)count;
    qemu_plugin_register_vcpu_tb_exec_cb(block, on_block, QEMU_PLUGIN_CB_NO_REGS, instructions);
    for (size_t i = 0; i < count; i++)
        qemu_plugin_register_vcpu_mem_cb(qemu_plugin_tb_get_insn(block, i), on_memory,
                                         QEMU_PLUGIN_CB_NO_REGS, QEMU_PLUGIN_MEM_RW, NULL);
    mark(block);
}

static void instrument(u64 id) { /* no vCPU runs a block now */
    qemu_plugin_register_vcpu_tb_trans_cb(id, translate);
    start();
}

/* Only the first switch resets the plugin: QEMU 7.2 may use a freed array of callbacks after a
 * reset ("plugins/core.c: code should not be reached"). Later ones are a flag. */
static void on_switch(unsigned index, void *word) {
    bool wanted = (uintptr_t)word == ON;
    sync_is((int)index);
    if (wanted == atomic_load(&model_on))
        return;
    if (!wanted)
        stop();
    else if (atomic_exchange(&instrumented, true))
        start();
    else
        qemu_plugin_reset(plugin, instrument);
}

static int word_of(struct qemu_plugin_insn *instruction) { /* 0: an ordinary one */
    static const unsigned char code[] = {0x0f, 0x1f, 0x80, 0, 'm', 'u', 'n'};
    unsigned char bytes[8] = {0};
    if (qemu_plugin_insn_size(instruction) != sizeof code)
        return 0;
    if (qemu_plugin_version >= COPIES_DATA) {
        size_t (*copy)(const struct qemu_plugin_insn *, void *, size_t);
        *(void **)&copy = instruction_data;
        copy(instruction, bytes, sizeof code);
    } else {
        const void *(*point)(const struct qemu_plugin_insn *);
        *(void **)&point = instruction_data;
        memcpy(bytes, point(instruction), sizeof code);
    }
    bool ours = !memcmp(bytes, code, 3) && !memcmp(bytes + 4, code + 4, 3);
    return ours && (bytes[3] == ON || bytes[3] == OFF) ? bytes[3] : 0;
}

static void mark(struct qemu_plugin_tb *block) {
    for (size_t i = 0, count = qemu_plugin_tb_n_insns(block); i < count; i++) {
        struct qemu_plugin_insn *one = qemu_plugin_tb_get_insn(block, i);
        int word = word_of(one);
        if (word)
            qemu_plugin_register_vcpu_insn_exec_cb(one, on_switch, QEMU_PLUGIN_CB_NO_REGS,
                                                   (void *)(uintptr_t)word);
    }
}

static void translate_off(u64 id, struct qemu_plugin_tb *block) {
    static atomic_bool begun;
    (void)id;
    if (!atomic_exchange(&begun, true))
        counters_begin(); /* a snapshot that was loaded until now has brought its own page */
    mark(block);
}

/* ---- loading ----------------------------------------------------------------------------- */

static void at_exit(u64 id, void *unused) {
    (void)id;
    (void)unused;
    page->on = 0;
}

static __attribute__((constructor)) void begin(void) {
    sync_begin();
    clock_begin();
    instruction_data = dlsym(RTLD_DEFAULT, "qemu_plugin_insn_data");
    qemu_plugin_version = dlsym(RTLD_DEFAULT, "qemu_plugin_read_memory_vaddr") ? 4 /* QEMU 9.2 */
                          : dlsym(RTLD_DEFAULT, "qemu_plugin_request_time_control") ? 3 /* 9.1 */
                          : dlsym(RTLD_DEFAULT, "qemu_plugin_scoreboard_new") ? 2 /* 9.0 */
                                                                              : 1;
    model_guest_addresses = qemu_plugin_version > 1;
}

EXPORTED int qemu_plugin_install(u64 id, const struct qemu_info_t *info, int count, char **words) {
    (void)info;
    const char *why = config_read(count, words);
    if (why) {
        fprintf(stderr, "%s\n", why);
        return 1;
    }
    if (!counters_map(config.counters, count, words)) {
        perror(config.counters);
        return 1;
    }
    plugin = id;
    model_make();
    clock_catch_reads();
    qemu_plugin_register_atexit_cb(id, at_exit, NULL);
    qemu_plugin_register_vcpu_tb_trans_cb(id, translate_off);
    return 0;
}
