// Makes the system refuse memory or threads to this program, at a chosen call. Linking faults.cc
// replaces malloc and pthread_create; under a sanitizer, which has its own malloc, operator new
// stands for malloc.
#pragma once

#include <cstdint>

namespace octile::test {

enum class Refuse {
  kNothing,
  kMemory,  // malloc, calloc, realloc, aligned_alloc, posix_memalign, memalign
  kThreads  // pthread_create, with EAGAIN
};
enum class Extent {
  kOnce,  // the chosen call only
  kOn     // the chosen call and all that follow, as of a system that has no more
};

// Refuses the n-th call (from 1) after its construction, from any thread. One at a time.
class Refusal {
 public:
  Refusal(Refuse what, std::int64_t nth, Extent extent);
  ~Refusal() { end(); }
  Refusal(const Refusal&) = delete;
  Refusal& operator=(const Refusal&) = delete;

  void end();  // nothing is refused from now on
  std::int64_t refused() const;
  // Calls of the kind since construction, while it held.
  std::int64_t calls() const;
};

// Blocks of memory that are allocated and not freed.
std::int64_t live_blocks();

}  // namespace octile::test
