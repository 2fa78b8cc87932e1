// A tensor quantised whole, and the same tensor cut into flat ranges anywhere.
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

// `count` ranges that make up `elements`, among them empty ones and single elements.
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
// Ranges within one row, over many, and columns that are no multiple of anything.
inline constexpr ShardShape kShardShapes[] = {{1, 1, 2},     {1, 300, 5},  {7, 128, 3},
                                              {130, 264, 7}, {140, 96, 9}, {33, 257, 6},
                                              {300, 3, 40},  {9, 1040, 8}};

// Elements of a granularity's maxima, which lie as its fp32 scales do.
inline std::int64_t maxima_of(const QuantizeProblem& p, std::int64_t rows) {
  TensorType type = p.q;
  type.scale = default_scale_format(type.granularity);
  const auto layout = quantized_layout(type, rows, p.cols).value();
  return layout.scales.outer * layout.scales.ld;
}

// The whole tensor's case, which the shards must add up to. `problem` is that of a shard's step.
inline QuantizeCase whole_case(QuantizeProblem problem, const ShardShape& shape, Fill fill) {
  problem.shard = ShardStep::kNone;
  return make_case(problem, {shape.rows, shape.cols}, fill);
}

}  // namespace octile::tests
