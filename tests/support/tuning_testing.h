// Tuning records for tests.
#pragma once

#include <cstdint>
#include <string>

#include "cache/tuning_record.h"

namespace octile::cache::testing {

inline const std::string kTunedProblem =
    "gemm m=? n=7168 k=2048 a=e4m3:1x128 b=e4m3:128x128 d=bf16 acc=0 promote=128";

// Returns a decision with the fields that a line requires.
inline TuningRecord make_decision(std::string problem, std::int64_t bucket,
                                  std::string config = "tile=128x128x128",
                                  std::string device = "h200", int sm_count = 132) {
  TuningRecord record;
  record.problem = std::move(problem);
  record.bucket = bucket;
  record.tokens = bucket;
  record.device = std::move(device);
  record.sm_count = sm_count;
  record.winner.config = std::move(config);
  return record;
}

// Returns a record in which every field has a value of its own.
inline TuningRecord make_full_record() {
  TuningRecord r = make_decision(kTunedProblem, 4096, "tile=256x128x128 stages=3");
  r.tokens = 4000;
  r.winner = {"tile=256x128x128 stages=3", 45.5, 45.25, 45.75};
  r.runner_up = {"tile=128x192x128 stages=4", 46.0, 45.875, 46.125};
  r.default_config = {"tile=128x128x128 stages=5", 49.1, 48.9, 49.3};
  r.gain = 49.1 / 45.5;
  r.noise = 0.0041;
  r.family = "gemm";
  r.device_name = "NVIDIA H200";
  r.toolchain = {"nvrtc 13.0", "00112233445566778899aabbccddeeff"};
  r.source_digest = "ffeeddccbbaa99887766554433221100";
  r.counts = {4608, 812, 60, 1, 59};
  r.conditions = {1755, 3201, 612.5, 2};
  r.protocol = "race 1, 12 rounds, 134217728 bytes rotated";
  r.baselines_us = {{"cublaslt", 52.25}, {"bf16", 91.5}, {"floor", 38.0}};
  r.quantize_us = {{"a", 7.5}, {"b", 11.25}};
  r.error = 0.00390625;
  r.date = "2026-01-31T12:00:00Z";
  r.run = "monday";
  return r;
}

}  // namespace octile::cache::testing
