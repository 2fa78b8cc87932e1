// Counts the hits and misses of one root in <root>/statistics/<day>, one line for each event. Each
// line is appended with one write, so that counts survive the death of the process. See FORMAT.md
// section 8.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "cache/file_ops.h"
#include "cache/root.h"

namespace octile::cache {

enum class CacheEvent {
  kHit,   // a kernel came from disk, which saved its compile time
  kMiss,  // a kernel was compiled, or compiling it was forbidden
};

struct DayStatistics {
  std::string day;  // "2026-01-31", UTC
  std::int64_t hits = 0;
  std::int64_t misses = 0;
  double saved_seconds = 0;     // sum of the original compile times of the hits' kernels
  double compiled_seconds = 0;  // sum of the misses' compile times
  friend bool operator==(const DayStatistics&, const DayStatistics&) = default;
};

// Returns the sums of a day's lines. A line that is not a complete event counts as nothing: the
// process died while writing it.
DayStatistics sum_statistics(std::string_view day, std::string_view lines);

// May be used by several threads and processes at once, because it keeps no file open and takes no
// lock.
class StatisticsLog {
 public:
  // file_ops null: the system's.
  explicit StatisticsLog(const std::string& root, std::shared_ptr<FileOps> file_ops = nullptr);

  // Adds one event to today's file. The file is not flushed to the device, so a power loss may lose
  // the last seconds. Once the day's file has kMaxStatisticsBytes, further events are not counted.
  IoResult<void> count(CacheEvent event, double compile_ms) const;

  // Returns one element for each day that has a file, oldest first. The result is empty if nothing
  // was ever counted.
  IoResult<std::vector<DayStatistics>> read() const;

 private:
  // `status` receives that of the file.
  IoResult<OpenFile> open_day(const OpenFile& folder, const std::string& day,
                              struct stat& status) const;
  void remove_old(const OpenFile& folder, const std::string& today) const;

  std::shared_ptr<FileOps> ops_;
  Root root_;
};

// The limit holds about 1.5 million events. No machine has that many in a day, so only a defect
// makes a larger file.
inline constexpr std::size_t kMaxStatisticsBytes = std::size_t{16} << 20;
inline constexpr int kStatisticsDays = 366;  // older files are removed when a new day begins

}  // namespace octile::cache
