// One quantisation with everything around it: input, poisoned outputs with guard zones, strides and
// offsets. The reference and the code under test each work on a copy, and whole buffers are
// compared, so that a byte written outside the contract is a difference.
#pragma once

#include <fmt/format.h>

#include <cstdint>
#include <string>
#include <vector>

#include "generator/layout.h"
#include "generator/problem.h"
#include "runtime/reference/quantize.h"
#include "tests/support/quantize_inputs.h"

namespace octile::tests {

// A tensor's shape and how it lies in its buffers.
struct Placement {
  std::int64_t rows = 0, cols = 0;
  std::int64_t pad_x = 0, pad_q = 0;      // elements between rows
  std::int64_t shift_x = 0, shift_q = 0;  // elements by which the tensor starts late
  std::int64_t extra_scale_ld = 0;        // beyond the layout's stride; negative: no scale padding
};

// Placements that take each way through loads and stores.
inline constexpr Placement kPlacements[] = {
    {9, 264, 8, 8, 0, 0, 0},    // whole vectors over padded rows
    {9, 264, 8, 8, 0, 0, 4},    // scales wider apart than their layout
    {9, 260, 12, 28, 0, 0, 0},  // aligned rows, ragged last vector
    {9, 256, 1, 0, 0, 0, 0},    // input rows drift off alignment
    {9, 256, 0, 3, 0, 0, 0},    // output rows do
    {9, 256, 0, 0, 1, 0, 0},    // the input starts one element late
    {9, 256, 0, 0, 0, 1, 0},    // the output does
};

struct QuantizeCase {
  static constexpr std::int64_t kGuard = 256;  // bytes; keeps the alignment of a buffer's start
  static constexpr char kPoison = static_cast<char>(0xA5);

  QuantizeProblem problem;
  std::int64_t rows = 0, ldx = 0, ldq = 0, scale_ld = 0;  // elements
  std::int64_t x_offset = 0, q_offset = 0;                // bytes to the tensors' first elements
  std::int64_t scale_offset = kGuard;
  std::vector<char> x, q, scale;

  // Quantises on the host into q and scale.
  Status run_reference(int threads = 0) {
    reference::QuantizeArgs args;
    args.rows = rows;
    args.x = x.data() + x_offset;
    args.ldx = ldx;
    args.q = q.data() + q_offset;
    args.ldq = ldq;
    args.scale = scale.data() + scale_offset;
    args.scale_ld = scale_ld;
    return reference::quantize(problem, args, threads);
  }
};

// The problem's cols are taken from the placement.
inline QuantizeCase make_case(QuantizeProblem problem, const Placement& at, Fill fill) {
  problem.cols = at.cols;
  const bool square = problem.q.granularity == Granularity::k128x128;
  const std::int64_t scale_runs = ceil_div(square ? at.rows : at.cols, 128);
  const std::int64_t scale_count = square ? ceil_div(at.cols, 128) : at.rows;
  const auto poisoned = [](std::int64_t bytes) {
    return std::vector<char>(static_cast<std::size_t>(bytes + 2 * QuantizeCase::kGuard),
                             QuantizeCase::kPoison);
  };
  QuantizeCase c;
  c.problem = problem;
  c.rows = at.rows;
  c.ldx = at.cols + at.pad_x;
  c.ldq = at.cols + at.pad_q;
  c.scale_ld = at.extra_scale_ld < 0 ? scale_count : round_up(scale_count, 4) + at.extra_scale_ld;
  c.x_offset = at.shift_x * size_of(problem.x);
  c.q_offset = QuantizeCase::kGuard + at.shift_q;
  const auto seed = static_cast<unsigned>(at.rows * 131 + at.cols);
  c.x = make_input(problem.x, at.rows * c.ldx + at.shift_x, fill, seed);
  c.q = poisoned(at.rows * c.ldq + at.shift_q);
  c.scale = poisoned(scale_runs * c.scale_ld * 4);
  return c;
}

inline std::string describe(const QuantizeProblem& problem, const Placement& at, Fill fill) {
  return fmt::format("{} rows={} pad_x={} pad_q={} shift_x={} shift_q={} extra_scale_ld={} fill={}",
                     to_text(Problem(problem)), at.rows, at.pad_x, at.pad_q, at.shift_x, at.shift_q,
                     at.extra_scale_ld, name_of(fill));
}

}  // namespace octile::tests
