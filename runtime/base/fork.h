// The library's part in fork().
//
// A child of fork has the memory of its parent and one of its threads. A mutex that another thread
// held stays locked in it forever. So all process-wide state of the library is guarded by the
// mutexes below, which are held across every fork: in the child they are free and the state is
// consistent. No code holds one while it opens, reads or computes anything, so a fork does not wait
// for that. Handles have their own mutexes and threads, so a child must not use those of its
// parent: fork_generation() tells them apart. Descriptors are closed in the child
// (cache/descriptor.h).
//
// A fork waits at most kMostForkWait in all and then goes ahead. If it could not lock a mutex by
// then, the child cannot use the library: fork_lost() returns true, and each call is refused.
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
