// The search space of one problem at one token count, before anything is compiled.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "generator/core/device_spec.h"
#include "generator/families.h"
#include "runtime/prove/shortlist.h"

namespace octile::tuner {

// The question which kernel is to serve a problem with dynamic tokens at one token count.
struct TuningTask {
  Problem problem;
  std::int64_t tokens = 0;
  friend bool operator==(const TuningTask&, const TuningTask&) = default;
};
// "gemm m=? n=7168 ... at 64 tokens"
std::string to_text(const TuningTask& task);

// The admitted configurations of a task and the cost model's opinion of them.
struct SearchSpace {
  std::size_t enumerated = 0;
  std::vector<Removal> removed;
  std::vector<Ranked> admitted;
  KernelConfig preferred;  // the default
};
SearchSpace space_of(const TuningTask& task, const DeviceSpec& device);

struct Exploration {
  std::size_t enumerated = 0;
  std::size_t admitted = 0;
  std::vector<Removal> removed;
  std::vector<Ranked> shortlist;  // the default first, then the known winners
  std::vector<Ranked> variants;   // variants of the shortlist's configurations

  // Returns the candidates as a search numbers them: the shortlist, then the variants.
  std::vector<Ranked> candidates() const;
};
// Returns what a search of the task is to time. `winners` are admitted configurations that won
// related problems, the likeliest first; with some of them, fewer of the cost model's join them.
Exploration explore(const TuningTask& task, const DeviceSpec& device,
                    const ShortlistOptions& options = {},
                    const std::vector<KernelConfig>& winners = {});
Exploration explore(const TuningTask& task, const DeviceSpec& device, const SearchSpace& space,
                    const ShortlistOptions& options, const std::vector<KernelConfig>& winners);

// Returns max(bytes moved / DRAM bandwidth, flops / peak) by the device's description: a yardstick,
// not a bound.
double floor_us(const TuningTask& task, const DeviceSpec& device);

}  // namespace octile::tuner
