// The library's part in fork().
//
// A child of fork has the memory of its parent and one of its threads. A mutex that another thread
// held stays locked in it forever. So everything that the library has once in a process is guarded
// by the mutexes below, which are held across every fork: the child finds them free and what they
// guard whole. Nobody holds one while it opens, reads or computes anything, so that no fork waits
// for that. Handles have mutexes and threads of their own, so that a child must not use those of
// its parent: fork_generation() tells them apart. Descriptors are closed in the child
// (cache/descriptor.h).
//
// A fork waits for kMostForkWait in all and then goes ahead. If a mutex was not to be had by then,
// the child has no use of the library: fork_lost() says so, and each call is refused.
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <mutex>

namespace octile {

// The guarded state. No thread may hold two of them at once.
enum class ProcessWide {
  kDrivers,  // by path
  kNvrtcs,   // by path
  kDigests,  // digests of files
  kTables,   // made when first asked for
  kHandles,  // that are not yet destroyed
  kCount
};
std::mutex& process_mutex(ProcessWide what);

// Returns how many forks this process is away from the one that loaded the library.
inline std::atomic<std::uint32_t> fork_count = 0;
inline std::uint32_t fork_generation() { return fork_count.load(std::memory_order_relaxed); }

inline constexpr std::chrono::milliseconds kMostForkWait{1000};
// Returns true in a child whose fork did not get all the mutexes, and in its children.
inline std::atomic<bool> fork_went_ahead = false;
inline bool fork_lost() { return fork_went_ahead.load(std::memory_order_relaxed); }

}  // namespace octile
