// Expects that two runs of one quantisation wrote the same outputs, and describes differences.
#pragma once

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <bit>
#include <cstddef>
#include <cstdint>
#include <string>
#include <type_traits>
#include <vector>

#include "generator/quantize/config.h"
#include "generator/quantize/grid.h"
#include "generator/quantize/kernel_args.h"
#include "tests/support/quantize_case.h"

namespace octile::tests {

// Returns a description of how two outputs differ, or "" if they are equal. It says how many
// elements differ and names the first runs of differing neighbours, which show a wrong tile or
// tail. It also gives both bit patterns of the first element: "84 of 39300 in 1 run: [38400,38484);
// at 38400 0x0, expected 0x7f". NaNs of tapped values are equal with any bits.
template <typename T>
std::string first_difference(const std::vector<T>& actual, const std::vector<T>& expected) {
  constexpr std::size_t kRunsNamed = 4;
  using Bits = std::conditional_t<sizeof(T) == 1, std::uint8_t, std::uint32_t>;
  if (actual.size() != expected.size()) {
    return fmt::format("{} elements, expected {}", actual.size(), expected.size());
  }
  if constexpr (sizeof(T) == 1) {
    if (actual == expected) return {};  // faster than value by value
  }
  std::size_t count = 0, runs = 0, first = 0;
  std::string named;
  for (std::size_t i = 0; i < expected.size(); ++i) {
    const std::size_t begin = i;
    while (i < expected.size() && !same_value(actual[i], expected[i])) ++i;
    if (i == begin) continue;
    if (count == 0) first = begin;
    count += i - begin;
    if (++runs > kRunsNamed) continue;
    named += fmt::format("{}[{},{})", runs == 1 ? "" : ", ", begin, i);
  }
  if (count == 0) return {};
  return fmt::format("{} of {} in {} run{}: {}{}; at {} {:#x}, expected {:#x}", count,
                     expected.size(), runs, runs == 1 ? "" : "s", named,
                     runs > kRunsNamed ? ", ..." : "", first, std::bit_cast<Bits>(actual[first]),
                     std::bit_cast<Bits>(expected[first]));
}

// Compares all outputs of a QuantizeCase or a GroupCase including guard zones. The count of
// infinities and NaNs is left out, because not every call requests it.
template <typename Case>
void expect_same_outputs(const Case& actual, const Case& expected) {
  EXPECT_EQ(actual.amax, expected.amax);
  EXPECT_EQ(actual.encode_scale, expected.encode_scale);
  EXPECT_EQ(first_difference(actual.row.q, expected.row.q), "");
  EXPECT_EQ(first_difference(actual.row.scale, expected.row.scale), "");
  EXPECT_EQ(first_difference(actual.transposed.q, expected.transposed.q), "");
  EXPECT_EQ(first_difference(actual.transposed.scale, expected.transposed.scale), "");
  if constexpr (requires { actual.tap; }) {
    EXPECT_EQ(first_difference(actual.tap, expected.tap), "");
    EXPECT_EQ(first_difference(actual.rstd, expected.rstd), "");
    EXPECT_EQ(first_difference(actual.bias_gradient, expected.bias_gradient), "");
  }
}

// A placement, and the copies whose scales a further kernel orders there.
struct OrderedPlacement {
  Placement at;
  bool rows = false, columns = false;
};

// Expects that the host orders the scales of exactly these copies, as far as the problem has them.
inline void expect_ordered(QuantizeProblem problem, const OrderedPlacement& ordered) {
  SCOPED_TRACE(describe(problem, ordered.at, Fill::kNormal));
  problem.cols = ordered.at.cols;
  QuantizeKernelArgs args;  // arrays are aligned, as in a case
  args.rows = ordered.at.rows;
  args.cols = ordered.at.cols;
  args.scale_ld = make_output(problem, ordered.at, false).scale_ld;
  args.scale_ld_transposed = make_output(problem, ordered.at, true).scale_ld;
  const OrderBlocks blocks = order_blocks(problem, args);
  EXPECT_EQ(blocks.of_rows > 0, ordered.rows && has_rowwise(problem.output));
  EXPECT_EQ(blocks.of_columns > 0, ordered.columns && has_transposed(problem.output));
}

}  // namespace octile::tests
