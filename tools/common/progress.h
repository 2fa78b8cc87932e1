// Prints steps that take longer than a second to stderr.
#pragma once

#include <chrono>
#include <condition_variable>
#include <cstddef>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>
#include <thread>

namespace octile::tools {

enum class ProgressMode {
  kAuto,    // only on a terminal: one line, rewritten
  kAlways,  // also elsewhere: one line after a second, then one every ten seconds
};

// Returns ", about 40 s left", or nothing if nothing is done yet or nothing is left.
std::string time_left_text(std::chrono::duration<double> elapsed, std::size_t done,
                           std::size_t total);

class Progress {
 public:
  explicit Progress(ProgressMode mode);
  Progress(const Progress&) = delete;
  Progress& operator=(const Progress&) = delete;
  ~Progress();

  // Begins a step and ends the one before it.
  void step(std::string what);
  // Changes what the step under way is called.
  void rename(std::string what);
  // Says that `done` of `total` are done, "kernels" say, and how long the rest will take at the
  // pace so far. The first call of a row begins its time.
  void count(std::size_t done, std::size_t total, std::string_view what);
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
  bool counting_ = false;
  bool shown_ = false;
  bool stopping_ = false;
  std::thread watcher_;  // last, because it uses everything above
};

}  // namespace octile::tools
