/* What depends on the processor family. Every function has a fallback for any other. */
#ifndef ARCH_H
#define ARCH_H

#include <stdbool.h>
#include <stddef.h>

#if defined(__x86_64__)
#include <emmintrin.h>
#endif

static inline void cpu_relax(void) {
#if defined(__x86_64__)
    __builtin_ia32_pause();
#elif defined(__aarch64__)
    __asm__ volatile("yield" ::: "memory");
#else
    __asm__ volatile("" ::: "memory");
#endif
}

/* Write back and drop the cache line of an address from every cache, where a program may. */
static inline bool line_flush(char *address) {
#if defined(__x86_64__) && defined(__CLFLUSHOPT__)
    __builtin_ia32_clflushopt(address);
    return true;
#elif defined(__x86_64__)
    _mm_clflush(address);
    return true;
#elif defined(__aarch64__)
    __asm__ volatile("dc civac, %0" ::"r"(address) : "memory");
    return true;
#else
    (void)address;
    return false;
#endif
}

static inline void flush_end(void) {
#if defined(__x86_64__)
    _mm_mfence();
#elif defined(__aarch64__)
    __asm__ volatile("dsb ish" ::: "memory");
#endif
}

#endif
