/* What depends on the processor family. Every function has a fallback for any other. */
#ifndef ARCH_H
#define ARCH_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

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

/* Two stores of 16 bytes to a multiple of 16 that bypass the caches: NON_TEMPORAL names the
 * instruction; it is not defined where there is none. Arm's is a hint that a processor may leave
 * unheeded. Others see what was stored after stores_end. */
typedef uint64_t sixteen __attribute__((vector_size(16), may_alias));
#if defined(PROBE_X86)
#define NON_TEMPORAL "movnt"
static inline void store_past_caches(void *to, sixteen first, sixteen second) {
    _mm_stream_si128((__m128i *)to, (__m128i)first);
    _mm_stream_si128((__m128i *)to + 1, (__m128i)second);
}
static inline void stores_end(void) {
    _mm_sfence();
}
#elif defined(PROBE_ARM)
#define NON_TEMPORAL "stnp"
static inline void store_past_caches(void *to, sixteen first, sixteen second) {
    __asm__ volatile("stnp %q0, %q1, [%2]" ::"w"(first), "w"(second), "r"(to) : "memory");
}
static inline void stores_end(void) {
    __asm__ volatile("dmb ish" ::: "memory");
}
#endif

static inline void flush_end(void) {
#if defined(PROBE_X86)
    _mm_mfence();
#elif defined(PROBE_ARM)
    __asm__ volatile("dsb ish" ::: "memory");
#endif
}

#endif
