/* Counts values in buckets that are as wide as three significant digits allow. */
#include "load.h"

int bucket_of(int64_t value) {
    if (value < 0)
        value = 0;
    if (value >= 1LL << TOP_BITS)
        return BUCKETS - 1;
    if (value < 2 * HALF)
        return (int)value;
    int shift = 63 - __builtin_clzll((unsigned long long)value) - HALF_BITS;
    return shift * HALF + (int)(value >> shift);
}

int64_t bucket_top(int bucket) {
    if (bucket < 2 * HALF)
        return bucket;
    int shift = bucket / HALF - 1;
    return (((int64_t)(bucket % HALF + HALF + 1)) << shift) - 1;
}

void histogram_add(struct histogram *h, int64_t value) {
    if (!h->count || value < h->least)
        h->least = value;
    if (!h->count || value > h->most)
        h->most = value;
    h->count++;
    h->sum += value;
    h->buckets[bucket_of(value)]++;
}

void histogram_merge(struct histogram *into, const struct histogram *from) {
    if (!from->count)
        return;
    if (!into->count || from->least < into->least)
        into->least = from->least;
    if (!into->count || from->most > into->most)
        into->most = from->most;
    into->count += from->count;
    into->sum += from->sum;
    for (int i = 0; i < BUCKETS; i++)
        into->buckets[i] += from->buckets[i];
}

int64_t histogram_at(const struct histogram *h, double share) {
    double exact = share * (double)h->count;
    uint64_t wanted = (uint64_t)exact, seen = 0;
    if (exact - (double)wanted > 1e-6) /* 0.999 * 1000 is not 999 exactly */
        wanted++;
    for (int i = 0; i < BUCKETS; i++) {
        seen += h->buckets[i];
        if (h->buckets[i] && seen >= wanted)
            return bucket_top(i) < h->most ? bucket_top(i) : h->most;
    }
    return 0;
}
