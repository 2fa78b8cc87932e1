// Prints steps that take longer than a second to stderr.
#pragma once

#include <chrono>
#include <condition_variable>
#include <mutex>
#include <optional>
#include <string>
#include <thread>

namespace octile::tools {

enum class ProgressMode {
  kAuto,    // only on a terminal: one line, rewritten
  kAlways,  // also elsewhere: one line after a second, then one every ten seconds
};

class Progress {
 public:
  explicit Progress(ProgressMode mode);
  Progress(const Progress&) = delete;
  Progress& operator=(const Progress&) = delete;
  ~Progress();

  // Begins a step and ends the one before it.
  void step(std::string what);
  void done();

 private:
  using Clock = std::chrono::steady_clock;
  void watch();
  void show(Clock::duration elapsed);
  void wipe();

  const bool terminal_;
  const bool enabled_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::optional<std::string> what_;
  Clock::time_point began_;
  bool shown_ = false;
  bool stopping_ = false;
  std::thread watcher_;  // last, because it uses everything above
};

}  // namespace octile::tools
