// What a configuration should cost on a chip, from its roofline: enough to pick a good default and
// to rank candidates; the tuner measures.
#pragma once

#include <cstdint>
#include <span>

#include "generator/gemm/candidates.h"
#include "generator/core/device_spec.h"
#include "generator/gemm/config.h"
#include "generator/problem.h"
#include "generator/quantize/config.h"

namespace octile {

struct GemmCost {
  double compute_us =
      0;                 // tensor cores, promotion and shared-memory fill, waves and tails included
  double memory_us = 0;  // DRAM
  double l2_us = 0;      // L2 to shared memory
  double fixed_us = 0;   // launch, pipeline fill, cluster start
  double total_us = 0;
};
GemmCost estimate(const GemmConfig&, const GemmProblem&, std::int64_t m, const DeviceSpec&);

// The configuration for a token count without any tuning record.
GemmConfig default_config(const GemmProblem&, std::int64_t m, const DeviceSpec&);
QuantizeConfig default_config(const QuantizeProblem&, std::int64_t rows, const DeviceSpec&);

// Buckets: token counts that share a kernel, chosen for the largest of them, bucket_upper. Upper
// edges are 1, 2, 4, ... 128, from there two in every doubling (192, 256, 384, ... 1024), and then
// four: 1280, 1536, 1792, 2048, 2560, ... With fewer, counts far below their edge lost too much
// (H200, speed over a peer's): with one in a doubling 300x4096x8192 0.669, with two 5000x2560x8192
// 0.842, which got the kernel that suits 6144 rows, 4.85 waves of it, and at 5000 took a fifth.
// bucket_of(0) is 0; the last upper edge is the largest std::int64_t.
inline constexpr int kTokenBuckets = 226;
int bucket_of(std::int64_t tokens);
std::int64_t bucket_upper(int bucket);

}  // namespace octile
