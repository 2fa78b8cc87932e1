// A tensor quantised as a whole, and the same tensor cut into flat ranges at random places.
#pragma once

#include <algorithm>
#include <cstdint>
#include <random>
#include <utility>
#include <vector>

#include "tests/support/quantize_case.h"

namespace octile::tests {

struct Shard {
  std::int64_t start = 0, length = 0;
};

// Returns `count` ranges that make up `elements`, with empty ones and single elements among them.
inline std::vector<Shard> random_split(std::int64_t elements, int count, unsigned seed) {
  std::mt19937_64 random(seed);
  std::vector<std::int64_t> cuts{0, elements};
  for (int i = 1; i < count; ++i) {
    const auto cut = static_cast<std::int64_t>(random() % static_cast<std::uint64_t>(elements + 1));
    cuts.push_back(cut);
    if (i % 4 == 0) cuts.push_back(cut);                          // an empty range
    if (i % 4 == 1) cuts.push_back(std::min(elements, cut + 1));  // one element
  }
  std::sort(cuts.begin(), cuts.end());
  std::vector<Shard> shards;
  for (std::size_t i = 0; i + 1 < cuts.size(); ++i) {
    shards.push_back({cuts[i], cuts[i + 1] - cuts[i]});
  }
  return shards;
}

struct ShardShape {
  std::int64_t rows = 0, cols = 0;
  int shards = 0;
};
// Shapes whose ranges lie within one row or over many, and whose columns are multiples of nothing.
inline constexpr ShardShape kShardShapes[] = {{1, 1, 2},     {1, 300, 5},  {7, 128, 3},
                                              {130, 264, 7}, {140, 96, 9}, {33, 257, 6},
                                              {300, 3, 40},  {9, 1040, 8}};

// Returns the number of maxima of a granularity, which lie like its fp32 scales.
inline std::int64_t maxima_of(const QuantizeProblem& p, std::int64_t rows) {
  TensorType type = p.q;
  type.scale = default_scale_format(type.granularity);
  const auto layout = quantized_layout(type, rows, p.cols).value();
  return layout.scales.outer * layout.scales.ld;
}

// Returns the whole tensor's case, which the shards must add up to. `problem` is a shard's step.
inline QuantizeCase whole_case(QuantizeProblem problem, const ShardShape& shape, Fill fill) {
  problem.shard = ShardStep::kNone;
  return make_case(problem, {shape.rows, shape.cols}, fill);
}

}  // namespace octile::tests
