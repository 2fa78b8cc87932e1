// Selects the admitted configurations that are worth compiling. These are winners that are known
// from related problems, and the cost model's best, without many near relatives of one of them. A
// few that are far from all others join them, in case the model errs.
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
  // If set, the number in a list of the configuration that this one is a variant of.
  std::optional<int> variant_of = {};
};

struct ShortlistOptions {
  int liked = 40;     // the cost model's best, the default among them
  int different = 8;  // configurations far from all others
  // The numbers that replace these beside known winners.
  int liked_beside_winners = 16;
  int different_beside_winners = 2;
};

// Returns every configuration with the cost model's estimate.
std::vector<Ranked> rank(const Problem& problem, std::int64_t tokens, const DeviceSpec& device,
                         const std::vector<KernelConfig>& configs);

// The position of a configuration in the search space. It is read from the configuration's text, so
// that a new axis counts as soon as it is printed.
class ConfigPoint {
 public:
  explicit ConfigPoint(std::string_view text);
  friend double distance(const ConfigPoint& x, const ConfigPoint& y);

 private:
  struct Coordinate {
    bool is_number = false;
    double value = 0;  // log2 of the number, or the word's hash
  };
  std::vector<Coordinate> coordinates_;
};
double distance(const ConfigPoint& x, const ConfigPoint& y);

// Returns the default first, then all others by estimate, ties by text: the model's picks and the
// winners, which need not be ranked. Neither the picks nor the order depend on which winners there
// are, so that decisions that differ by noise do not make later ones differ. A search prefers
// earlier ones among those it cannot tell apart.
std::vector<Ranked> shortlist(std::vector<Ranked> ranked, const KernelConfig& preferred,
                              const ShortlistOptions& options = {},
                              const std::vector<Ranked>& winners = {});

}  // namespace octile::tuner
