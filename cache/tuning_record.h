// One decision of the tuner: which configuration serves a problem at a token count on a device, and
// what was measured to find it. A line of JSON; FORMAT.md section 6 lists the fields. Plain text
// and numbers: what a problem or a configuration means is for the reader of the texts to know.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <tl/expected.hpp>
#include <utility>
#include <vector>

#include "cache/key.h"

namespace octile::cache {

inline constexpr int kTuningVersion = 1;

// A configuration and how long it took: the median with its 95 % interval.
struct TimedConfig {
  std::string config;  // configuration text
  double median_us = 0;
  double low_us = 0, high_us = 0;
  friend bool operator==(const TimedConfig&, const TimedConfig&) = default;
};

// How the search narrowed down.
struct TuningCounts {
  std::int64_t enumerated = 0;
  std::int64_t admitted = 0;     // by the constraints
  std::int64_t compiled = 0;     // without spills
  std::int64_t failed_verify = 0;  // wrong results: never timed
  std::int64_t timed = 0;
  friend bool operator==(const TuningCounts&, const TuningCounts&) = default;
};

// The device during the measurement; 0 where it was not read.
struct TuningConditions {
  double sm_clock_mhz = 0;  // median over the rounds
  double memory_clock_mhz = 0;
  double power_watts = 0;
  std::int64_t throttled_rounds = 0;  // repeated, not counted
  friend bool operator==(const TuningConditions&, const TuningConditions&) = default;
};

struct TuningRecord {
  // What is decided about. These, `tokens` and the winner's configuration are required of a line.
  std::string problem;      // canonical text, '?' for the token count
  std::int64_t bucket = 0;  // the largest token count of the bucket
  std::int64_t tokens = 0;  // the count that was timed, 1 to `bucket`
  std::string device;       // "h200"
  int sm_count = 0;

  TimedConfig winner;
  std::optional<TimedConfig> runner_up;       // absent: nothing else was left
  std::optional<TimedConfig> default_config;  // what the cost model takes; absent: not timed
  double gain = 1;                            // the default's time over the winner's
  double noise = 0;                           // what a gain has to exceed: 0.004 is 0.4 %

  std::string family;         // "gemm", "quantize"
  std::string device_name;    // "NVIDIA H200"
  Toolchain toolchain;        // that compiled the winner
  std::string source_digest;  // of the winner's kernel, as in its cache entry's name
  TuningCounts counts;
  TuningConditions conditions;
  std::string protocol;  // how it was timed: name and version, rounds, rotated bytes
  std::vector<std::pair<std::string, double>> baselines_us;  // "cublaslt", "bf16", "floor"
  std::string date;                                          // RFC 3339, UTC

  friend bool operator==(const TuningRecord&, const TuningRecord&) = default;
};

// One line without the newline, fields in a fixed order. Numbers must be finite.
std::string to_json_line(const TuningRecord& record);

// Every field but the ones that decide may be missing, unknown ones are passed over, and a version
// other than kTuningVersion is refused. The error is one sentence that names the field.
tl::expected<TuningRecord, std::string> parse_tuning_record(std::string_view line);

}  // namespace octile::cache
