// One decision of the tuner: the configuration for a problem at a token count on a device, and the
// measurements behind it. A record is a line of JSON; FORMAT.md section 6 lists its fields. This
// file holds plain text and numbers and does not interpret problems or configurations.
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

// A configuration and its time: the median with its 95 % interval.
struct TimedConfig {
  std::string config;  // configuration text
  double median_us = 0;
  double low_us = 0, high_us = 0;
  friend bool operator==(const TimedConfig&, const TimedConfig&) = default;
};

// Number of candidates left after each step of the search.
struct TuningCounts {
  std::int64_t enumerated = 0;
  std::int64_t admitted = 0;       // passed the constraints
  std::int64_t compiled = 0;       // compiled without spills
  std::int64_t failed_verify = 0;  // gave wrong results and were never timed
  std::int64_t timed = 0;
  friend bool operator==(const TuningCounts&, const TuningCounts&) = default;
};

// The device during the measurement; 0 if a value was not read.
struct TuningConditions {
  double sm_clock_mhz = 0;  // median over the rounds
  double memory_clock_mhz = 0;
  double power_watts = 0;
  std::int64_t throttled_rounds = 0;  // rounds that were repeated because the clock was throttled
  friend bool operator==(const TuningConditions&, const TuningConditions&) = default;
};

struct TuningRecord {
  // The subject of the decision. A line must have these fields, `tokens` and the winner's
  // configuration.
  std::string problem;      // canonical text, '?' for the token count
  std::int64_t bucket = 0;  // the largest token count of the bucket
  std::int64_t tokens = 0;  // the timed token count, from 1 to `bucket`
  std::string device;       // "h200"
  int sm_count = 0;

  TimedConfig winner;
  std::optional<TimedConfig> runner_up;       // absent if no other candidate was left
  std::optional<TimedConfig> default_config;  // the cost model's choice; absent if it was not timed
  double gain = 1;                            // the default's time divided by the winner's
  double noise = 0;                           // gains at or below it are noise; 0.004 is 0.4 %

  std::string family;         // "gemm", "quantize"
  std::string device_name;    // "NVIDIA H200"
  Toolchain toolchain;        // the toolchain that compiled the winner
  std::string source_digest;  // digest of the winner's source, as in its cache entry's name
  TuningCounts counts;
  TuningConditions conditions;
  std::string protocol;  // how it was timed: name and version, rounds, rotated bytes
  using NamedTimes = std::vector<std::pair<std::string, double>>;  // microseconds by name
  NamedTimes baselines_us;                                         // "cublaslt", "bf16", "floor"
  // The quantisers that make the operands of a GEMM from bf16, timed in the same run: "a", "b". For
  // groups or a batch "b" is one matrix.
  NamedTimes quantize_us;
  // For a GEMM whose promotion interval was measured on adversarial operands
  // (runtime/prove/gemm/adversarial_error.h): the largest error as a share of the sum of
  // magnitudes.
  std::optional<double> error;
  std::string date;  // RFC 3339, UTC
  std::string run;   // the name of the run that decided again what was recorded; empty: none

  friend bool operator==(const TuningRecord&, const TuningRecord&) = default;
};

// Returns one line without the newline, with the fields in a fixed order. Numbers must be finite.
std::string to_json_line(const TuningRecord& record);

inline constexpr std::size_t kMaxTuningLineBytes = std::size_t{64}
                                                   << 10;  // a record has about 1 KB

inline constexpr std::size_t kMaxNamedTimes = 64;  // a record has three

// Returns the record of a line of at most kMaxTuningLineBytes. Only the fields that decide are
// required, and unknown fields are ignored. A version other than kTuningVersion is refused. The
// error is one sentence that names the field.
tl::expected<TuningRecord, std::string> parse_tuning_record(std::string_view line);

}  // namespace octile::cache
