// What there is to search for one problem at one token count, before anything is compiled.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "generator/core/device_spec.h"
#include "generator/families.h"
#include "runtime/tuner/shortlist.h"

namespace octile::tuner {

// Which kernel is to serve a problem, whose token count (a product's m, a quantiser's rows) is
// dynamic, at a token count.
struct TuningTask {
  Problem problem;
  std::int64_t tokens = 0;
  friend bool operator==(const TuningTask&, const TuningTask&) = default;
};
// "gemm m=? n=7168 ... at 64 tokens"
std::string to_text(const TuningTask& task);

struct Exploration {
  std::size_t enumerated = 0;
  std::size_t admitted = 0;
  std::vector<Removal> removed;
  std::vector<Ranked> shortlist;  // the default first
  std::vector<Ranked> variants;   // of them, looked at where they are among the fastest

  // As a search numbers them: the shortlist, then the variants.
  std::vector<Ranked> candidates() const;
};
Exploration explore(const TuningTask& task, const DeviceSpec& device,
                    const ShortlistOptions& options = {});

// max(bytes moved once / DRAM bandwidth, flops / peak) of the device's description: a yardstick,
// not a bound. A quantiser has no flops, and reads twice what a first pass finds the maxima of.
double floor_us(const TuningTask& task, const DeviceSpec& device);

}  // namespace octile::tuner
