// Which of the admitted configurations are worth compiling: those the cost model likes, without
// crowding around one of them, and a few that are far from all others, in case it errs.
#pragma once

#include <cstdint>
#include <optional>
#include <string_view>
#include <vector>

#include "generator/families.h"

namespace octile::tuner {

struct Ranked {
  KernelConfig config;
  double estimate_us = 0;
  std::optional<int> variant_of = {};  // of a list: differs from that one in its raster alone
};

struct ShortlistOptions {
  int liked = 40;     // by the cost model, the default among them
  int different = 8;  // beside them
};

// Every admitted configuration with what the cost model says of it.
std::vector<Ranked> rank(const GemmProblem& problem, std::int64_t tokens, const DeviceSpec& device,
                         const GemmCandidates& candidates);
std::vector<Ranked> rank(const QuantizeSetting& setting, const QuantizeCandidates& candidates);

// Where a configuration lies, read off its text, so that a new axis counts as soon as it is
// printed.
class ConfigPoint {
 public:
  explicit ConfigPoint(std::string_view text);
  // For every field |log2| of the ratio of each number in it, at most 1, or 1 where words differ.
  friend double distance(const ConfigPoint& x, const ConfigPoint& y);

 private:
  struct Coordinate {
    bool is_number = false;
    double value = 0;  // log2 of the number, or the word's hash
  };
  std::vector<Coordinate> coordinates_;
};
double distance(const ConfigPoint& x, const ConfigPoint& y);

// The default first, then by estimate; ties by text. This is the order in which a search prefers
// what it cannot tell apart.
std::vector<Ranked> shortlist(std::vector<Ranked> ranked, const KernelConfig& preferred,
                              const ShortlistOptions& options = {});

}  // namespace octile::tuner
