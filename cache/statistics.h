// How often the cache of one root served: <root>/statistics/<day>, one line an event, appended with
// one write, so that what was counted survives the death of the process. FORMAT.md section 8.
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
  kHit,   // a kernel came from disk; its compile time was saved
  kMiss,  // a kernel was compiled, or could not be had because compiling is forbidden
};

struct DayStatistics {
  std::string day;  // "2026-01-31", UTC
  std::int64_t hits = 0;
  std::int64_t misses = 0;
  double saved_seconds = 0;     // what the hits' kernels took to compile, once
  double compiled_seconds = 0;  // what the misses' kernels took
  friend bool operator==(const DayStatistics&, const DayStatistics&) = default;
};

// The sums of a day's lines. A line that is no event (the process died within it) counts nothing.
DayStatistics sum_statistics(std::string_view day, std::string_view lines);

// Usable from several threads and processes at once: it keeps nothing open and takes no lock.
class StatisticsLog {
 public:
  // file_ops null: the system's.
  explicit StatisticsLog(const std::string& root, std::shared_ptr<FileOps> file_ops = nullptr);

  // Adds one event to today's file. Not flushed to the device: a machine that loses power may
  // forget its last seconds. Beyond kMaxStatisticsBytes a day is full and counts no more.
  IoResult<void> count(CacheEvent event, double compile_ms) const;

  // One element a day that has a file, oldest first; empty where nothing was ever counted.
  IoResult<std::vector<DayStatistics>> read() const;

 private:
  IoResult<OpenFile> open_day(const OpenFile& folder, const std::string& day) const;
  void remove_old(const OpenFile& folder, const std::string& today) const;

  std::shared_ptr<FileOps> ops_;
  Root root_;
};

// About 1.5 million events: no machine has so many a day, so a larger file is a defect's.
inline constexpr std::size_t kMaxStatisticsBytes = std::size_t{16} << 20;
inline constexpr int kStatisticsDays = 366;  // older files are removed when a new day begins

}  // namespace octile::cache
