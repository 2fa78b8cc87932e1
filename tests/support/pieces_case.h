// Weights cut into ranges at random, as several ranks hold them, and what the steps of pieces must
// make of them: the bits of quantising each whole weight, both copies.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <random>
#include <string>
#include <vector>

#include "generator/quantize/pieces.h"
#include "octile/pieces.h"
#include "tests/support/expect_outputs.h"
#include "tests/support/quantize_case.h"

namespace octile::tests {

// Consecutive elements of a weight.
struct FlatRange {
  std::int64_t start = 0, length = 0;
};

// Returns the number of maxima of a granularity, which lie like its fp32 scales.
inline std::int64_t maxima_of(const QuantizeProblem& p, std::int64_t rows) {
  TensorType type = p.q;
  type.scale = default_scale_format(type.granularity);
  const auto layout = quantized_layout(type, rows, p.cols).value();
  return layout.scales.outer * layout.scales.ld;
}

struct WeightShape {
  std::int64_t rows = 0, cols = 0;
};
// Rows and columns that are multiples of nothing, and tensors of few and of no elements.
inline constexpr WeightShape kWeightShapes[] = {{130, 264}, {1, 1}, {0, 128},   {257, 96},
                                                {33, 300},  {7, 3}, {128, 128}, {300, 40}};

// The weights of a model, whose memory is either this object's or a copy of it elsewhere.
struct PiecesCase {
  QuantizeProblem common;
  int ranks = 1;
  std::vector<QuantizeCase> weights, expected;  // whole; both outputs
  std::vector<std::vector<float>> maxima;       // of each weight
  std::vector<std::vector<FlatRange>> cuts;     // of each weight, one range a rank

  // Returns the pieces of a rank, which point into this object.
  std::vector<Piece> pieces_of(int rank) {
    std::vector<Piece> pieces;
    for (std::size_t w = 0; w < weights.size(); ++w) {
      QuantizeCase& c = weights[w];
      const FlatRange& range = cuts[w][static_cast<std::size_t>(rank)];
      Piece piece{c.rows, c.problem.cols, range.start, range.length};
      if (range.length > 0) {
        piece.x = c.x.data() + c.x_offset + range.start * size_of(common.x.dtype);
        piece.q = c.row.codes() + range.start;
      }
      piece.amax = maxima[w].data();
      piece.scale = c.row.scales();
      piece.scale_transposed = c.transposed.scales();
      piece.q_gathered = c.row.codes();
      piece.q_transposed = c.transposed.codes();
      pieces.push_back(piece);
    }
    return pieces;
  }

  // Expects the outputs of the whole weights, guard zones included.
  void expect_whole_bits() {
    for (std::size_t w = 0; w < weights.size(); ++w) {
      SCOPED_TRACE(fmt::format("weight {}: {} x {}", w, weights[w].rows, weights[w].problem.cols));
      const Status status = expected[w].run_reference(1);
      ASSERT_TRUE(status.has_value()) << status.error().message;
      weights[w].amax = expected[w].amax;  // steps of ranges record none of these
      weights[w].encode_scale = expected[w].encode_scale;
      weights[w].nonfinite = expected[w].nonfinite;
      expect_same_outputs(weights[w], expected[w]);
    }
  }
};

// Returns `ranks` ranges that make up `elements`; some are empty.
inline std::vector<FlatRange> cut(std::int64_t elements, int ranks, std::mt19937_64& random) {
  std::vector<std::int64_t> cuts{0, elements};
  for (int i = 1; i < ranks; ++i) {
    const bool again = random() % 4 == 0;  // an empty range
    cuts.push_back(
        again ? cuts.back()
              : static_cast<std::int64_t>(random() % static_cast<std::uint64_t>(elements + 1)));
  }
  std::ranges::sort(cuts);
  std::vector<FlatRange> ranges;
  for (std::size_t i = 0; i + 1 < cuts.size(); ++i)
    ranges.push_back({cuts[i], cuts[i + 1] - cuts[i]});
  return ranges;
}

// `shift`: elements by which x and codes are misaligned.
template <typename Shapes>
PiecesCase make_pieces_case(const QuantizeProblem& common, const Shapes& shapes, int ranks,
                            Fill fill, std::int64_t shift) {
  PiecesCase made{common, ranks, {}, {}, {}, {}};
  std::mt19937_64 random(static_cast<std::uint64_t>(ranks * 31 + shift));
  for (const WeightShape& shape : shapes) {
    QuantizeProblem whole = common;
    whole.output = QuantizeOutput::kBoth;
    const Placement at{.rows = shape.rows, .cols = shape.cols, .shift_x = shift, .shift_q = shift};
    made.weights.push_back(make_case(whole, at, fill));
    made.maxima.emplace_back(
        static_cast<std::size_t>(maxima_of(made.weights.back().problem, shape.rows)), 0.0F);
    made.cuts.push_back(cut(shape.rows * shape.cols, ranks, random));
  }
  made.expected = made.weights;
  return made;
}

// Returns the same as the C API takes it.
inline std::vector<octile_piece> public_pieces(const std::vector<Piece>& pieces) {
  std::vector<octile_piece> all;
  for (const Piece& p : pieces) {
    octile_piece one{};
    one.struct_size = sizeof one;
    one.rows = p.rows;
    one.cols = p.cols;
    one.start = p.start;
    one.length = p.length;
    one.x = p.x;
    one.q = p.q;
    one.amax = p.amax;
    one.scale = p.scale;
    one.scale_transposed = p.scale_transposed;
    one.q_gathered = p.q_gathered;
    one.q_transposed = p.q_transposed;
    all.push_back(one);
  }
  return all;
}
inline octile_pieces_desc public_desc(const QuantizeProblem& common) {
  octile_pieces_desc desc{};
  desc.struct_size = sizeof desc;
  desc.x_dtype = static_cast<octile_dtype>(common.x.dtype);
  if (common.via) desc.via_dtype = static_cast<octile_dtype>(*common.via);
  desc.q_dtype = static_cast<octile_dtype>(common.q.dtype);
  desc.granularity = static_cast<octile_granularity>(common.q.granularity);
  desc.scale_format = static_cast<octile_scale_format>(common.q.scale);
  desc.amax_epsilon = common.amax_epsilon;
  desc.e8m0_rounding = static_cast<octile_e8m0_rounding>(common.e8m0_rounding);
  return desc;
}

}  // namespace octile::tests
