// What there is to search for one product at one token count, before anything is compiled.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "generator/candidates.h"
#include "generator/device_spec.h"
#include "runtime/tuner/shortlist.h"

namespace octile::tuner {

// Which kernel is to serve a product, whose m is dynamic, at a token count.
struct Question {
  GemmProblem problem;
  std::int64_t tokens = 0;
  friend bool operator==(const Question&, const Question&) = default;
};
// "gemm m=? n=7168 ... at 64 tokens"
std::string to_text(const Question& question);

struct Exploration {
  std::size_t enumerated = 0;
  std::size_t admitted = 0;
  std::vector<std::pair<std::string_view, std::size_t>> removed;  // by constraint
  std::vector<Ranked> shortlist;                                  // the default first
};
Exploration explore(const Question& question, const DeviceSpec& device,
                    const ShortlistOptions& options = {});

// max(bytes moved once / DRAM bandwidth, flops / peak) of the device's description: a yardstick,
// not a bound.
double floor_us(const Question& question, const DeviceSpec& device);

}  // namespace octile::tuner
