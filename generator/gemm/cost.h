// The estimated time of a GEMM configuration on a device, from its roofline: enough to pick a good
// default and to rank candidates. The tuner measures.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "generator/core/device_spec.h"
#include "generator/gemm/config.h"
#include "generator/gemm/problem.h"

namespace octile {

struct GemmCost {
  // Tensor cores, promotion and shared-memory fill, waves and tails included.
  double compute_us = 0;
  double memory_us = 0;  // DRAM
  double l2_us = 0;      // L2 to shared memory
  double fixed_us = 0;   // launch, pipeline fill, cluster start
  double total_us = 0;
};
GemmCost estimate(const GemmConfig&, const GemmProblem&, std::int64_t tokens, const DeviceSpec&);
double estimate_us(const GemmConfig&, const GemmProblem&, std::int64_t tokens, const DeviceSpec&);
// Returns the estimates of many configurations, in their order.
std::vector<double> estimates_us(const std::vector<GemmConfig>&, const GemmProblem&,
                                 std::int64_t tokens, const DeviceSpec&);

// Returns the candidate with the least estimate: the configuration for a token count without a
// tuning record.
GemmConfig default_config(const GemmProblem&, std::int64_t tokens, const DeviceSpec&);

// Returns "the cost model", which chooses every default.
std::string default_reason(const GemmProblem&, std::int64_t tokens, const DeviceSpec&);

}  // namespace octile
