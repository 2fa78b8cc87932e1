// The hot loops of the reference executor are compiled for several x86-64 levels and chosen at load
// time. Each is written so that the level cannot change a bit: lanes are independent elements, and
// no contraction is left to the compiler.
#pragma once

// Sanitizers are not initialised yet when the resolvers of cloned functions run.
#if defined(__x86_64__) && defined(__GNUC__) && !defined(__clang__) && \
    !defined(__SANITIZE_THREAD__) && !defined(__SANITIZE_ADDRESS__)
#define OCTILE_MULTIVERSION \
  __attribute__((target_clones("arch=x86-64-v4", "arch=x86-64-v3", "default")))
#else
#define OCTILE_MULTIVERSION
#endif
