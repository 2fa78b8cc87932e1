// Says on stderr what takes longer than a second.
#pragma once

#include <chrono>
#include <condition_variable>
#include <mutex>
#include <optional>
#include <string>
#include <thread>

namespace octile::tools {

enum class ProgressMode {
  kAuto,    // where stderr is a terminal: one line, rewritten
  kAlways,  // also elsewhere: a line when a step has taken a second, then one every ten
};

class Progress {
 public:
  explicit Progress(ProgressMode mode);
  Progress(const Progress&) = delete;
  Progress& operator=(const Progress&) = delete;
  ~Progress();

  // From here on this is what is being done; ends the step before it.
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
  std::thread watcher_;  // last: uses everything above
};

}  // namespace octile::tools
