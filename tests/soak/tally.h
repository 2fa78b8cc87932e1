// The counts of the processes of a soak, in memory that they share.
#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <string>
#include <string_view>

#include <sys/types.h>

namespace octile::soak {

inline constexpr std::size_t kMostWorkers = 16;

struct Tally {
  using Count = std::atomic<std::int64_t>;
  static_assert(Count::is_always_lock_free, "processes share it");

  Count rounds = 0;         // of all workers
  Count prepares = 0;       // that succeeded
  Count compiles = 0;       // kernels that a prepare compiled
  Count hits = 0;           // kernels that a prepare read from disk
  Count host_runs = 0;      // whose bytes were compared
  Count out_of_memory = 0;  // calls that said so
  Count file_faults = 0;    // injected
  Count memory_faults = 0;
  Count thread_faults = 0;
  Count evicted = 0;  // entries
  Count forks = 0;
  Count kills = 0;
  Count starts = 0;       // of workers
  Count own_process = 0;  // times that a library said that it compiles in the worker's process

  struct Worker {
    std::atomic<pid_t> process = 0;
    Count rounds = 0;
  };
  std::array<Worker, kMostWorkers> workers{};
  std::atomic<bool> stop = false;

  static constexpr std::size_t kSentenceBytes = 512;
  // Notes what must not happen. The first few sentences are kept. Allocates nothing.
  void violation(std::string_view sentence) noexcept;
  std::int64_t violations() const { return violations_; }
  std::string sentences() const;

 private:
  static constexpr std::size_t kKept = 16;
  Count violations_ = 0;
  std::array<std::array<char, kSentenceBytes>, kKept> kept_{};
};

}  // namespace octile::soak
