// The hot loops of the reference executor are compiled for several x86-64 levels, and one is chosen
// at load time. They are written so that every level computes the same bits: lanes are independent
// elements, and the compiler may not fuse any operations.
#pragma once

// Sanitizers are not yet initialised when the resolvers of cloned functions run.
#if defined(__x86_64__) && defined(__GNUC__) && !defined(__clang__) && \
    !defined(__SANITIZE_THREAD__) && !defined(__SANITIZE_ADDRESS__)
#define OCTILE_MULTIVERSION \
  __attribute__((target_clones("arch=x86-64-v4", "arch=x86-64-v3", "default")))
#else
#define OCTILE_MULTIVERSION
#endif
