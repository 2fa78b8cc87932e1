// The tuned sets the library carries, runtime/tuned/<device>.jsonl: at build time a table of C++,
// for a process that finds its kernel in the cache would wait longer for JSON to be parsed than for
// the kernel. A file may be empty.
#pragma once

#include <cstdint>

#include "cache/tuning_record.h"

namespace octile::tuned {

struct Timed {
  const char* config;  // null: absent
  double median_us, low_us, high_us;
};

// The part of a record that the sets keep: the fields that a choice and its explanation read.
struct Record {
  const char* family;
  const char* problem;
  std::int64_t bucket, tokens;
  const char* device;
  int sm_count;
  Timed winner, usual;
  double gain, noise;
  double bf16_us, quantize_a_us, quantize_b_us;  // 0: absent
  const char* compiler;
  const char* source_digest;
  const char* date;
};

const Record* records();
int record_count();

inline cache::TimedConfig timed_of(const Timed& t) {
  return {t.config, t.median_us, t.low_us, t.high_us};
}
inline void add_time(const char* name, double us, cache::TuningRecord::NamedTimes& times) {
  if (us > 0) times.emplace_back(name, us);
}
inline cache::TuningRecord record_of(const Record& r) {
  cache::TuningRecord record;
  record.family = r.family;
  record.problem = r.problem;
  record.bucket = r.bucket;
  record.tokens = r.tokens;
  record.device = r.device;
  record.sm_count = r.sm_count;
  record.winner = timed_of(r.winner);
  if (r.usual.config != nullptr) record.default_config = timed_of(r.usual);
  record.gain = r.gain;
  record.noise = r.noise;
  add_time("bf16", r.bf16_us, record.baselines_us);
  add_time("a", r.quantize_a_us, record.quantize_us);
  add_time("b", r.quantize_b_us, record.quantize_us);
  record.toolchain.compiler = r.compiler;
  record.source_digest = r.source_digest;
  record.date = r.date;
  return record;
}

}  // namespace octile::tuned
