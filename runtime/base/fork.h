// What fork() needs of the library.
//
// A child of fork has the memory of its parent and one of its threads. A mutex that another thread
// held stays locked in it forever. So everything that the library has once in a process is guarded
// by the mutexes below, which are held across every fork: the child finds them free and what they
// guard whole. Handles have mutexes and threads of their own, so that a child must not use those of
// its parent: fork_generation() tells them apart. Descriptors are closed in the child
// (cache/descriptor.h).
#pragma once

#include <atomic>
#include <cstdint>
#include <mutex>

namespace octile {

// What is guarded. No thread may hold two of them at once.
enum class ProcessWide {
  kDrivers,  // opened by path
  kNvrtcs,   // opened by path
  kDigests,  // digests of files
  kTables,   // made when first asked for
  kHandles,  // that are not yet destroyed
  kCount
};
std::mutex& process_mutex(ProcessWide what);

// Returns how many forks this process is away from the one that loaded the library.
inline std::atomic<std::uint32_t> fork_count = 0;
inline std::uint32_t fork_generation() { return fork_count.load(std::memory_order_relaxed); }

}  // namespace octile
