/* An independent measurement of the four STREAM kernels, to judge the probe's by: static arrays
 * and OpenMP, as STREAM has them (J. D. McCalpin, Memory Bandwidth and Machine Balance in Current
 * High Performance Computers, IEEE TCCA Newsletter, December 1995), written for this purpose and
 * sharing no line with the probe. Not the STREAM benchmark.
 *
 * Prints "copy scale add triad" in GB/s: the best of all repeats but the first. */
#include <stdio.h>
#include <stdlib.h>
#include <omp.h>

#ifndef ELEMENTS
#define ELEMENTS 10000000
#endif
#ifndef REPEATS
#define REPEATS 10
#endif

static double x[ELEMENTS], y[ELEMENTS], z[ELEMENTS];

int main(void) {
    double best[4] = {1e30, 1e30, 1e30, 1e30};
    const double factor = 3.0;
    long i;
#pragma omp parallel for
    for (i = 0; i < ELEMENTS; i++) {
        x[i] = 1.0;
        y[i] = 2.0;
        z[i] = 0.0;
    }
    for (int round = 0; round < REPEATS; round++) {
        double at[5];
        at[0] = omp_get_wtime();
#pragma omp parallel for
        for (i = 0; i < ELEMENTS; i++)
            z[i] = x[i];
        at[1] = omp_get_wtime();
#pragma omp parallel for
        for (i = 0; i < ELEMENTS; i++)
            y[i] = factor * z[i];
        at[2] = omp_get_wtime();
#pragma omp parallel for
        for (i = 0; i < ELEMENTS; i++)
            z[i] = x[i] + y[i];
        at[3] = omp_get_wtime();
#pragma omp parallel for
        for (i = 0; i < ELEMENTS; i++)
            x[i] = y[i] + factor * z[i];
        at[4] = omp_get_wtime();
        for (int k = 0; k < 4 && round > 0; k++)
            if (at[k + 1] - at[k] < best[k])
                best[k] = at[k + 1] - at[k];
    }
    double a = 1, b = 2, c = 0;
    for (int round = 0; round < REPEATS; round++) {
        c = a;
        b = factor * c;
        c = a + b;
        a = b + factor * c;
    }
    for (i = 0; i < ELEMENTS; i += ELEMENTS / 1000)
        if (x[i] != a || y[i] != b || z[i] != c) {
            fprintf(stderr, "reference_stream: wrong result at %ld\n", i);
            return 1;
        }
    double bytes = 8.0 * ELEMENTS;
    printf("%.6f %.6f %.6f %.6f\n", 2 * bytes / best[0] / 1e9, 2 * bytes / best[1] / 1e9,
           3 * bytes / best[2] / 1e9, 3 * bytes / best[3] / 1e9);
    return 0;
}
