/* Common parts of the C tests: a count of failures, and small numbers to compute with. */
#ifndef OCTILE_TESTS_C_API_CHECK_H_
#define OCTILE_TESTS_C_API_CHECK_H_

#include <stdio.h>

#include "octile/octile.h"

static int failures = 0;

#define CHECK(condition)                                                             \
  do {                                                                               \
    if (!(condition)) {                                                              \
      fprintf(stderr, "%s:%d: %s; last error: %s\n", __FILE__, __LINE__, #condition, \
              octile_last_error());                                                  \
      ++failures;                                                                    \
    }                                                                                \
  } while (0)

/* A multiple of 1/8 from -1 to 1, which E4M3 holds to 1/16 of it. */
static inline float element(int row, int col) {
  return (float)((row * 7 + col * 5) % 17 - 8) / 8.0F;
}

#endif
