// Every numerics cell that the support matrix accepts, for tests that sweep them, and the number of
// cells that it refuses.
#pragma once

#include <algorithm>
#include <array>
#include <initializer_list>
#include <iterator>
#include <set>
#include <string>
#include <vector>

#include "generator/core/layout.h"
#include "generator/families.h"
#include "generator/quantize/fused_source.h"
#include "generator/quantize/pieces.h"
#include "tests/support/coverage.h"

namespace octile::tests {

// Returns every type that has a layout, with the formats innermost.
inline std::vector<TensorType> quantized_types() {
  std::vector<TensorType> types;
  for (int g = 1; g <= 6; ++g) {
    for (int f = 1; f <= 5; ++f) {
      const auto dtype = static_cast<DType>(1 + (g + f) % 2);
      const TensorType t{dtype, static_cast<Granularity>(g), static_cast<ScaleFormat>(f)};
      if (quantized_layout(t, 1, 1)) types.push_back(t);
    }
  }
  return types;
}

// Returns problems with FP8 input. They cover every type dequantised and, if possible, transposed.
// They also cover pairs of types requantised: every type occurs on both sides, and the outputs take
// turns.
inline std::vector<QuantizeProblem> inverse_cells(std::int64_t cols) {
  std::vector<QuantizeProblem> cells;
  const std::vector<TensorType> types = quantized_types();
  for (std::size_t i = 0; i < types.size(); ++i) {
    QuantizeProblem p;
    p.cols = cols;
    p.x = types[i];
    for (const std::size_t j : {i, (3 * i + 7) % types.size()}) {
      p.q = types[j];
      p.output = static_cast<QuantizeOutput>(1 + cells.size() % 3);
      cells.push_back(p);
    }
    p.operation = QuantizeOperation::kDequantize;
    p.output = QuantizeOutput::kRowwise;
    p.q = {static_cast<DType>(3 + i % 3)};
    cells.push_back(p);
    p.operation = QuantizeOperation::kTranspose;
    p.output = QuantizeOutput::kTransposed;
    p.q = p.x;
    if (check_supported(Problem(p))) cells.push_back(p);
  }
  return cells;
}

// Returns every well-formed combination of types, granularity, scale format, rounding, policy and
// outputs.
inline std::vector<QuantizeProblem> all_quantize_problems(std::int64_t cols) {
  std::vector<QuantizeProblem> all;
  for (int g = 1; g <= 6; ++g) {
    for (int f = 1; f <= 5; ++f) {
      for (const DType x : {DType::kBF16, DType::kFP16, DType::kFP32}) {
        for (const DType q : {DType::kE4M3, DType::kE5M2}) {
          for (const int output : {1, 2, 3}) {
            for (const E8M0Rounding rounding : {E8M0Rounding::kUp, E8M0Rounding::kOcpFloor}) {
              QuantizeProblem p;
              p.cols = cols;
              p.x = {x};
              p.q = {q, static_cast<Granularity>(g), static_cast<ScaleFormat>(f)};
              p.output = static_cast<QuantizeOutput>(output);
              p.e8m0_rounding = rounding;
              if (check_well_formed(Problem(p))) all.push_back(p);
              QuantizeProblem swizzled = p;
              swizzled.scale_layout = ScaleLayout::kSwizzled;
              if (check_well_formed(Problem(swizzled))) all.push_back(swizzled);
              p.policy = ScalePolicy::kDelayed;
              if (check_well_formed(Problem(p))) all.push_back(p);
            }
          }
        }
      }
    }
  }
  for (const QuantizeProblem& p : inverse_cells(cols)) all.push_back(p);
  return all;
}

inline std::vector<QuantizeProblem> supported(std::vector<QuantizeProblem> cells) {
  std::erase_if(cells, [](const QuantizeProblem& p) { return !check_supported(Problem(p)); });
  return cells;
}
inline std::vector<QuantizeProblem> quantize_cells(std::int64_t cols) {
  return supported(all_quantize_problems(cols));
}

// Returns all problems once with each of the values.
template <typename Value>
std::vector<QuantizeProblem> all_problems_with(std::int64_t cols, Value QuantizeProblem::* field,
                                               std::initializer_list<Value> values) {
  std::vector<QuantizeProblem> all;
  for (const Value value : values) {
    for (QuantizeProblem& p : all_quantize_problems(cols)) {
      p.*field = value;
      all.push_back(p);
    }
  }
  return all;
}
// Returns all problems over groups of rows.
inline std::vector<QuantizeProblem> all_grouped_problems(std::int64_t cols) {
  return all_problems_with(cols, &QuantizeProblem::grouping,
                           {Grouping::kContiguous, Grouping::kMasked, Grouping::kStacked});
}
// Returns the maximum of a tensor of every type, and of fp32 by way of bf16.
inline std::vector<QuantizeProblem> amax_cells(std::int64_t cols) {
  std::vector<QuantizeProblem> cells;
  for (const DType x : {DType::kBF16, DType::kFP16, DType::kFP32}) {
    QuantizeProblem p;
    p.operation = QuantizeOperation::kAmax;
    p.cols = cols;
    p.x = {x};
    p.q = {x == DType::kFP16 ? DType::kE5M2 : DType::kE4M3, Granularity::kPerTensor,
           x == DType::kFP16 ? ScaleFormat::kF32Pow2 : ScaleFormat::kF32};
    cells.push_back(p);
  }
  cells.push_back(cells.back());
  cells.back().via = DType::kBF16;
  return cells;
}

// Returns one cell for every granularity, scale format, rounding, policy and output among the given
// cells. The types take turns, so that each meets each granularity.
inline std::vector<QuantizeProblem> covering(const std::vector<QuantizeProblem>& cells) {
  std::vector<QuantizeProblem> covering;
  int turn = 0;
  for (const QuantizeProblem& p : cells) {
    if (is_fp8(p.x.dtype)) covering.push_back(p);
    if (p.x.dtype != DType::kBF16 || p.q.dtype != DType::kE4M3) continue;
    QuantizeProblem turned = p;
    turned.x.dtype = static_cast<DType>(3 + turn % 3);
    turned.q.dtype = static_cast<DType>(1 + turn / 3 % 2);
    covering.push_back(turned);
    turn += 2;
    if (turn % 6 == 0) ++turn;
  }
  return covering;
}
// Returns the cells that cover groups. Cells that differ only in how a scale is
// rounded are left out, because rounding does not interact with groups.
inline std::vector<QuantizeProblem> covering_layouts(const std::vector<QuantizeProblem>& all) {
  std::vector<QuantizeProblem> cells = covering(supported(all));
  std::erase_if(cells, [](const QuantizeProblem& p) {
    return p.q.scale == ScaleFormat::kF32Pow2 || p.q.scale == ScaleFormat::kBF16 ||
           p.e8m0_rounding == E8M0Rounding::kOcpFloor;
  });
  return cells;
}
inline std::vector<QuantizeProblem> covering_quantize_cells(std::int64_t cols) {
  return covering(quantize_cells(cols));
}

// Returns cells whose fp32 input is rounded to bf16 on the way: every granularity with every
// output, the formats and FP8 types taking turns, and one cell that compares contents.
inline std::vector<QuantizeProblem> via_cells(std::int64_t cols) {
  std::vector<QuantizeProblem> cells;
  const auto add = [&](QuantizeProblem p) {
    if (check_supported(Problem(p))) cells.push_back(p);
  };
  for (int g = 1; g <= 6; ++g) {
    for (const int output : {1, 2, 3}) {
      QuantizeProblem p;
      p.cols = cols;
      p.x = {DType::kFP32};
      p.via = DType::kBF16;
      p.q = {static_cast<DType>(1 + output % 2), static_cast<Granularity>(g),
             default_scale_format(static_cast<Granularity>(g))};
      if (g == 4 && output != 1) p.q.scale = ScaleFormat::kF32Pow2;
      p.output = static_cast<QuantizeOutput>(output);
      add(p);
    }
  }
  QuantizeProblem compared = cells.front();
  compared.skip_unchanged = true;
  add(compared);
  return cells;
}

// Returns cells of rows that travel with their scales: quantised from every type and from computed
// values, and gathered.
inline std::vector<QuantizeProblem> row_message_cells(std::int64_t cols) {
  std::vector<QuantizeProblem> cells;
  QuantizeProblem p;
  p.cols = cols;
  p.scale_layout = ScaleLayout::kByRow;
  p.q = {DType::kE4M3, Granularity::k1x128, ScaleFormat::kF32Pow2};
  const auto add = [&](DType x, const char* source) {
    p.x = {x};
    p.source = source;
    p.via = x == DType::kFP32 && p.source.empty() ? std::optional(DType::kBF16) : std::nullopt;
    if (check_supported(Problem(p))) cells.push_back(p);
  };
  for (const DType x : {DType::kBF16, DType::kFP16, DType::kFP32}) add(x, "");
  p.q = {DType::kE5M2, Granularity::k1x128, ScaleFormat::kF32};
  add(DType::kBF16, "mul(x0,x1)");
  add(DType::kFP32, "x0;max(x0,x1)");
  for (const DType type : {DType::kE4M3, DType::kE5M2}) {
    QuantizeProblem moved;
    moved.operation = QuantizeOperation::kGather;
    moved.cols = cols;
    moved.x = moved.q = {type, Granularity::k1x128,
                         type == DType::kE4M3 ? ScaleFormat::kF32Pow2 : ScaleFormat::kF32};
    cells.push_back(moved);
  }
  return cells;
}

// Returns what the pieces of a test have in common: every granularity and type of input, on the way
// through bf16 and directly.
inline std::vector<QuantizeProblem> pieces_commons() {
  std::vector<QuantizeProblem> commons(4);
  commons[0].x = {DType::kFP32};
  commons[0].via = DType::kBF16;
  commons[0].q = {DType::kE4M3, Granularity::k128x128, ScaleFormat::kF32};
  commons[1].q = {DType::kE5M2, Granularity::k128x128, ScaleFormat::kF32Pow2};
  commons[2].x = {DType::kFP32};
  commons[2].q = {DType::kE4M3, Granularity::k32x32, ScaleFormat::kE8M0};
  commons[3].x = {DType::kFP16};
  commons[3].q = {DType::kE4M3, Granularity::kPerTensor, ScaleFormat::kF32};
  commons[3].amax_epsilon = 0.5F;
  return commons;
}
inline constexpr std::array kPiecesStepOrder{PiecesStep::kAmax, PiecesStep::kScales,
                                             PiecesStep::kCast, PiecesStep::kTranspose};
// Returns the problem of every step of such pieces.
inline std::vector<QuantizeProblem> pieces_cells() {
  std::vector<QuantizeProblem> cells;
  for (const QuantizeProblem& common : pieces_commons()) {
    for (const PiecesStep step : kPiecesStepOrder) cells.push_back(problem_of(common, step));
  }
  return cells;
}

// Sources that cover each number of inputs, both halves, and every operation that is more than one
// instruction.
inline constexpr const char* kSources[] = {
    "silu_mul",
    "dsilu_mul",
    "gelu_tanh",
    "x0",
    "min(max(mul(x0,x1),neg(x2)),abs(div(x3,2.5)))",
    "add(tanh(x0),exp(sub(x1,rsqrt(abs(x2)))))",
    "reciprocal(x0);max(x0,x1)",
    "rmsnorm",
};

// Returns cells of sources whose rows have a factor each: every way in which computed values are
// held, of one tensor and of groups.
inline std::vector<QuantizeProblem> weighted_cells(std::int64_t cols) {
  std::vector<QuantizeProblem> cells;
  for (const Granularity g :
       {Granularity::kPerTensor, Granularity::kPerRow, Granularity::k1x128, Granularity::k1x32}) {
    for (const int output : {1, 2, 3}) {
      QuantizeProblem p;
      p.cols = cols;
      p.q = {DType::kE4M3, g, default_scale_format(g)};
      p.output = static_cast<QuantizeOutput>(output);
      p.source = output == 3 ? "dsilu_mul" : cells.size() % 2 == 0 ? "silu_mul" : "mul(x0,x1)";
      p.weighted = true;
      p.x = {cells.size() % 3 == 2 ? DType::kFP32 : DType::kBF16};
      cells.push_back(p);
      p.grouping =
          output == 1 && g == Granularity::k1x32 ? Grouping::kMasked : Grouping::kContiguous;
      if (g != Granularity::kPerRow && check_supported(Problem(p))) cells.push_back(p);
    }
  }
  QuantizeProblem looked_up;
  looked_up.cols = cols;
  looked_up.source = "gelu_tanh";
  looked_up.weighted = true;
  cells.push_back(looked_up);
  // The columns of a mixture's activation, for its weight gradient.
  QuantizeProblem columns = looked_up;
  columns.source = "silu_mul";
  columns.output = QuantizeOutput::kTransposed;
  columns.grouping = Grouping::kContiguous;
  cells.push_back(columns);
  return cells;
}

// Returns one cell for each path through the groups. Some have a computed source that is exact on
// every machine, others codes with their own scales.
inline std::vector<QuantizeProblem> grouped_source_cells(std::int64_t cols) {
  std::vector<QuantizeProblem> cells;
  for (QuantizeProblem& p : all_grouped_problems(cols)) {
    const bool plain = p.q.scale == ScaleFormat::kF32 && p.x.dtype == DType::kBF16 &&
                       p.q.dtype == DType::kE4M3 && p.policy == ScalePolicy::kCurrent;
    p.source = "mul(x0,x1)";
    if (plain && check_supported(Problem(p))) cells.push_back(p);
    if (!plain || p.q.granularity != Granularity::k1x128) continue;
    p.source = "";
    p.x = {DType::kE4M3, Granularity::k1x128, ScaleFormat::kUe8m0x4};
    if (check_supported(Problem(p))) cells.push_back(p);
    p.x = {DType::kE5M2, Granularity::k1x32, ScaleFormat::kE8M0};
    if (check_supported(Problem(p))) cells.push_back(p);
    p.x = {DType::kE4M3, Granularity::kPerRow, ScaleFormat::kF32};
    if (check_supported(Problem(p))) cells.push_back(p);
  }
  for (const QuantizeProblem& p : weighted_cells(cols)) {
    if (p.grouping != Grouping::kNone) cells.push_back(p);
  }
  return cells;
}

// Returns cells of a norm whose 1 / rms is given, and of rounding to bf16 what is computed: every
// granularity transposed, and every way in which a row-wise output is written.
inline std::vector<QuantizeProblem> norm_again_cells(std::int64_t cols) {
  std::vector<QuantizeProblem> cells;
  const auto add = [&](Granularity g, QuantizeOutput output, const char* source, bool via) {
    QuantizeProblem p;
    p.cols = cols;
    p.q = {DType::kE4M3, g, default_scale_format(g)};
    p.output = output;
    p.source = source;
    if (via) p.via = DType::kBF16;
    p.tap = cells.size() % 3 == 1;
    cells.push_back(p);
  };
  for (const Granularity g :
       {Granularity::kPerTensor, Granularity::kPerRow, Granularity::k1x128, Granularity::k1x32}) {
    add(g, QuantizeOutput::kTransposed, "rmsnorm_again", true);
    add(g, QuantizeOutput::kRowwise, "rmsnorm_again", g == Granularity::k1x128);
  }
  add(Granularity::k1x128, QuantizeOutput::kBoth, "dsilu_mul", true);
  add(Granularity::k1x128, QuantizeOutput::kRowwise, "rmsnorm", true);
  return cells;
}

// Returns cells of a layer norm: every granularity that PyTorch's layers keep, transposed, and x of
// another type.
inline std::vector<QuantizeProblem> layer_norm_cells(std::int64_t cols) {
  std::vector<QuantizeProblem> cells;
  for (const Granularity g :
       {Granularity::kPerTensor, Granularity::kPerRow, Granularity::k1x128, Granularity::k1x32}) {
    QuantizeProblem p;
    p.cols = cols;
    p.q = {DType::kE4M3, g, default_scale_format(g)};
    p.output = QuantizeOutput::kTransposed;
    p.source = "layernorm_again";
    p.via = DType::kBF16;
    cells.push_back(p);
  }
  cells.back().x = {DType::kFP32};
  cells.back().via.reset();
  return cells;
}

// Returns cells of GELU by erf: each way in which computed values are held, with one source of each
// number of inputs.
inline std::vector<QuantizeProblem> normal_cells(std::int64_t cols) {
  std::vector<QuantizeProblem> cells;
  const auto add = [&](Granularity g, QuantizeOutput output, const char* source) {
    QuantizeProblem p;
    p.cols = cols;
    p.q = {DType::kE4M3, g, default_scale_format(g)};
    p.output = output;
    p.source = source;
    cells.push_back(p);
  };
  add(Granularity::k1x128, QuantizeOutput::kRowwise, "gelu");
  add(Granularity::k1x128, QuantizeOutput::kBoth, "dgelu_mul");
  add(Granularity::k1x32, QuantizeOutput::kTransposed, "gelu_mul");
  add(Granularity::kPerTensor, QuantizeOutput::kBoth, "dgelu");
  return cells;
}

// Returns the covering cells with a fused source each; the sources take turns. Every second cell
// has a tap, every third a bias gradient. Also returns the covering cells with a bias gradient of x
// itself.
inline std::vector<QuantizeProblem> fused_quantize_cells(std::int64_t cols) {
  std::vector<QuantizeProblem> fused;
  std::size_t turn = 0;
  for (QuantizeProblem p : covering_quantize_cells(cols)) {
    p.source = canonical_source(kSources[turn % std::size(kSources)]);
    p.tap = turn % 2 == 0;
    p.bias_gradient = turn % 3 == 0 && p.source != "rmsnorm";
    ++turn;
    if (check_supported(Problem(p))) fused.push_back(p);
  }
  for (QuantizeProblem p : covering_quantize_cells(cols)) {
    p.bias_gradient = true;
    if (++turn % 4 == 0 && check_supported(Problem(p))) fused.push_back(p);
  }
  for (const Granularity g : {Granularity::kPerRow, Granularity::k1x128, Granularity::k1x32}) {
    QuantizeProblem p;
    p.cols = cols;
    p.q = {DType::kE4M3, g, default_scale_format(g)};
    p.source = "rmsnorm";
    p.tap = g == Granularity::k1x128;
    fused.push_back(p);
  }
  for (QuantizeProblem p : norm_again_cells(cols)) fused.push_back(p);
  for (QuantizeProblem p : normal_cells(cols)) fused.push_back(p);
  for (QuantizeProblem p : layer_norm_cells(cols)) fused.push_back(p);
  for (QuantizeProblem p : weighted_cells(cols)) {
    if (p.grouping == Grouping::kNone) fused.push_back(p);
  }
  return fused;
}

// The value of every axis of a cell, and the pairs that choose a kernel's body and its shape: the
// type of x and the layout of scales, each with the output.
inline std::vector<std::array<int, 3>> features_of(const QuantizeProblem& p) {
  const auto source =
      std::ranges::find(kSources, p.source, [](const char* s) { return canonical_source(s); });
  const auto source_number =
      p.source.empty() ? -1 : static_cast<int>(source - std::begin(kSources));
  const std::array<int, 17> values{static_cast<int>(p.operation),
                                   static_cast<int>(p.x.dtype),
                                   static_cast<int>(p.x.granularity),
                                   static_cast<int>(p.x.scale),
                                   static_cast<int>(p.q.dtype),
                                   static_cast<int>(p.q.granularity),
                                   static_cast<int>(p.q.scale),
                                   static_cast<int>(p.e8m0_rounding),
                                   static_cast<int>(p.policy),
                                   static_cast<int>(p.scale_layout),
                                   static_cast<int>(p.grouping),
                                   static_cast<int>(p.pieces),
                                   source_number,
                                   p.tap ? 1 : 0,
                                   p.bias_gradient ? 1 : 0,
                                   p.via ? 1 : 0,
                                   p.weighted ? 1 : 0};
  constexpr std::array kWithOutput{0, 1, 5, 10, 16};
  std::vector<std::array<int, 3>> features;
  for (int axis = 0; axis < std::ssize(values); ++axis) {
    const int value = values[static_cast<std::size_t>(axis)];
    features.push_back({axis, value, 0});
    if (std::ranges::find(kWithOutput, axis) == kWithOutput.end()) continue;
    features.push_back({axis, value, static_cast<int>(p.output)});
  }
  return features;
}

// The given cells or, unless OCTILE_TESTS says all, those of them that are in the set which covers
// the cells of all kinds together: what one kind covers is not covered again by another.
inline std::vector<QuantizeProblem> cells_to_run(const std::vector<QuantizeProblem>& cells) {
  if (runs_all_cases()) return cells;
  static const std::set<std::string> covering = [] {
    constexpr std::int64_t kCols = 7168;
    std::vector<QuantizeProblem> all;
    for (const auto& kind :
         {fused_quantize_cells(kCols), grouped_source_cells(kCols),
          covering_layouts(all_grouped_problems(kCols)), amax_cells(kCols),
          row_message_cells(kCols), via_cells(kCols), covering_quantize_cells(kCols)}) {
      all.insert(all.end(), kind.begin(), kind.end());
    }
    std::set<std::string> texts;
    for (const QuantizeProblem& p : cover_features(all, features_of))
      texts.insert(to_text(Problem(p)));
    return texts;
  }();
  std::vector<QuantizeProblem> part;
  std::ranges::copy_if(cells, std::back_inserter(part), [](const QuantizeProblem& p) {
    return covering.contains(to_text(Problem(p)));
  });
  return part;
}

}  // namespace octile::tests
