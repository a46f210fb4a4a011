/* What depends on the processor family. Every function has a fallback for any other. */
#ifndef ARCH_H
#define ARCH_H

#include <stdbool.h>
#include <stddef.h>

/* PROBE_GENERIC asks for the fallbacks, to test them anywhere. */
#if defined(__x86_64__) && !defined(PROBE_GENERIC)
#define PROBE_X86 1
#include <emmintrin.h>
#elif defined(__aarch64__) && !defined(PROBE_GENERIC)
#define PROBE_ARM 1
#endif

static inline void cpu_relax(void) {
#if defined(PROBE_X86)
    __builtin_ia32_pause();
#elif defined(PROBE_ARM)
    __asm__ volatile("yield" ::: "memory");
#else
    __asm__ volatile("" ::: "memory");
#endif
}

/* Write back and drop the cache line of an address from every cache, where a program may. */
static inline bool line_flush(char *address) {
#if defined(PROBE_X86) && defined(__CLFLUSHOPT__)
    __builtin_ia32_clflushopt(address);
    return true;
#elif defined(PROBE_X86)
    _mm_clflush(address);
    return true;
#elif defined(PROBE_ARM)
    __asm__ volatile("dc civac, %0" ::"r"(address) : "memory");
    return true;
#else
    (void)address;
    return false;
#endif
}

static inline void flush_end(void) {
#if defined(PROBE_X86)
    _mm_mfence();
#elif defined(PROBE_ARM)
    __asm__ volatile("dsb ish" ::: "memory");
#endif
}

#endif
