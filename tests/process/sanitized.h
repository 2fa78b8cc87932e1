// Tells if the build has a sanitizer, which cannot follow everything.
#pragma once

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
inline constexpr bool kSanitized = true;
#else
inline constexpr bool kSanitized = false;
#endif

// ThreadSanitizer ends a child of fork that starts threads ("dup thread with used id"): its
// registry has the parent's threads.
#if defined(__SANITIZE_THREAD__)
#define OCTILE_SKIP_THREADS_IN_A_FORKED_CHILD() \
  GTEST_SKIP() << "ThreadSanitizer refuses threads in a child of fork"
#else
#define OCTILE_SKIP_THREADS_IN_A_FORKED_CHILD() static_cast<void>(0)
#endif
