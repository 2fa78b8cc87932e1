// One quantisation of groups of rows, or of a flat range, like the tensor's in quantize_case.h.
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <numeric>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "generator/quantize/layout.h"
#include "tests/support/quantize_case.h"

namespace octile::tests {

// The number of rows of each group.
struct GroupSizes {
  std::string name;
  std::vector<std::int32_t> rows;
  std::int64_t sum() const { return std::accumulate(rows.begin(), rows.end(), std::int64_t{0}); }
};

// Returns sizes at and around whole blocks, empty groups at either end and between, and one group
// with all rows.
inline std::vector<GroupSizes> few_groups() {
  return {{"one", {131}},
          {"one empty", {0}},
          {"around a block", {1, 127, 128, 129}},
          {"empty ones", {0, 3, 0, 0, 130, 5, 0}},
          {"all in one of 32", [] {
             std::vector<std::int32_t> rows(32, 0);
             rows[17] = 140;
             return rows;
           }()}};
}

// Returns 257 and 1024 groups of up to `most` rows; a third of them are empty.
inline std::vector<GroupSizes> many_groups(unsigned most) {
  std::vector<GroupSizes> all;
  for (const int count : {257, 1024}) {
    std::mt19937 random(static_cast<unsigned>(count));
    GroupSizes sizes{std::to_string(count), {}};
    for (int g = 0; g < count; ++g) {
      const bool empty = random() % 3 == 0;
      sizes.rows.push_back(empty ? 0 : static_cast<std::int32_t>(random() % most + 1));
    }
    all.push_back(sizes);
  }
  return all;
}

struct GroupCase {
  static constexpr std::int64_t kSpareRows = 5;  // rows of x behind the last group's

  QuantizeProblem problem;
  std::int64_t rows = 0;  // rows of x, or of each masked group
  std::int64_t ldx = 0, ldq = 0;
  std::vector<std::int32_t> offsets, counts;  // only the one that the problem uses
  std::int64_t stacked = 0;                   // tensors, if they are stacked
  std::vector<char> x;
  std::array<std::vector<char>, 3> more;  // the source's other inputs, like x
  std::vector<char> x_scale;              // scales of FP8 x
  CaseOutput row, transposed;
  std::vector<float> encode_scale, amax;  // one for each group; see QuantizeCase
  std::vector<float> row_factor;          // of a weighted source
  std::uint64_t nonfinite = 7;

  std::int64_t groups() const {
    if (stacked > 0) return stacked;
    return counts.empty() ? std::ssize(offsets) - 1 : std::ssize(counts);
  }
  bool keeps_amax() const {
    return finds_maxima() && problem.q.granularity == Granularity::kPerTensor;
  }
  bool finds_maxima() const { return problem.operation == QuantizeOperation::kQuantize; }
  bool delayed() const { return problem.policy == ScalePolicy::kDelayed; }
  bool records_scale() const { return keeps_amax() && !delayed(); }

  std::array<const void*, 3> more_inputs() const {
    std::array<const void*, 3> inputs{};
    for (std::size_t i = 0; i < more.size(); ++i) {
      if (!more[i].empty()) inputs[i] = more[i].data();
    }
    return inputs;
  }
  std::array<std::int64_t, 3> more_ld() const {
    std::array<std::int64_t, 3> ld{};
    for (std::size_t i = 0; i < more.size(); ++i) {
      if (!more[i].empty()) ld[i] = ldx;
    }
    return ld;
  }

  // Fills the arguments of the public call with pointers into this case.
  void fill(QuantizeArguments& args) {
    args = {};
    args.rows = rows;
    args.x = x.data();
    args.ldx = ldx;
    point_at_inputs(args, more_inputs(), more_ld());
    point_at_outputs(args, *this);
    args.source_scales.x_scale = x_scale.empty() ? nullptr : x_scale.data();
    if (problem.grouping != Grouping::kNone) args.groups.group_count = groups();
    if (problem.grouping == Grouping::kContiguous) args.groups.offsets = offsets.data();
    if (problem.grouping == Grouping::kMasked) args.groups.counts = counts.data();
    if (delayed()) args.delayed.encode_scale = encode_scale.data();
    if (records_scale()) args.monitor.encode_scale = encode_scale.data();
    if (keeps_amax()) args.monitor.amax = amax.data();
    if (problem.weighted) args.fused.row_factor = row_factor.data();
    if (finds_maxima()) args.monitor.nonfinite = &nonfinite;
  }
  Status run_reference(int threads = 0) {
    QuantizeArguments args;
    fill(args);
    return tests::run_reference(problem, args, threads);
  }
};

inline bool same_outputs(const GroupCase& a, const GroupCase& b) {
  return a.row.q == b.row.q && a.row.scale == b.row.scale && a.transposed.q == b.transposed.q &&
         a.transposed.scale == b.transposed.scale && a.amax == b.amax &&
         a.encode_scale == b.encode_scale && a.nonfinite == b.nonfinite;
}

inline CaseOutput make_group_output(const GroupCase& c, std::int64_t pad_q, bool transposed) {
  const auto layout = quantized_layout(c.problem, c.rows, c.groups(), transposed).value();
  CaseOutput out;
  out.wanted = true;
  out.ld = transposed ? layout.data.ld : c.problem.cols + pad_q;
  out.scale_ld = c.problem.q.granularity == Granularity::kPerTensor ? 0 : layout.scales.ld;
  out.offset = QuantizeCase::kGuard;
  out.q = poisoned(layout.data.outer * out.ld);
  out.scale = poisoned(layout.scales.bytes());
  return out;
}

// Returns a case with `cols` columns. `pad`: elements between rows of x and of q.
inline GroupCase make_group_case(QuantizeProblem problem, std::int64_t cols,
                                 const GroupSizes& sizes, Fill fill, std::int64_t pad = 0) {
  problem.cols = cols;
  GroupCase c;
  c.problem = problem;
  c.ldx = input_cols_of(problem) + pad;
  c.ldq = cols + pad;
  std::int64_t rows_of_x = 0;
  if (problem.grouping == Grouping::kContiguous) {
    c.offsets.push_back(0);
    for (const std::int32_t n : sizes.rows) c.offsets.push_back(c.offsets.back() + n);
    rows_of_x = c.rows = sizes.sum() + GroupCase::kSpareRows;
  } else if (problem.grouping == Grouping::kStacked) {
    c.stacked = std::ssize(sizes.rows);
    c.rows = std::max(1, *std::max_element(sizes.rows.begin(), sizes.rows.end()));
    rows_of_x = c.rows * c.stacked;
  } else {
    c.counts = sizes.rows;
    c.rows = *std::max_element(sizes.rows.begin(), sizes.rows.end()) + 3;
    rows_of_x = c.rows * std::ssize(sizes.rows);
  }
  const auto seed = static_cast<unsigned>(rows_of_x * 31 + cols);
  c.x = make_input(problem.x.dtype, rows_of_x * c.ldx, fill, seed);
  for (int i = 1; i < inputs_of(problem); ++i) {
    c.more[static_cast<std::size_t>(i - 1)] =
        make_input(problem.x.dtype, rows_of_x * c.ldx, fill, seed + static_cast<unsigned>(i));
  }
  if (is_fp8(problem.x.dtype)) {
    const auto scales = quantized_layout(problem.x, c.rows, cols).value().scales;
    const std::int64_t tensors = std::max<std::int64_t>(1, c.stacked);
    c.x_scale = make_scales(problem.x, tensors * scales.bytes(), fill, seed + 4);
  }
  if (has_rowwise(problem.output)) c.row = make_group_output(c, pad, false);
  if (has_transposed(problem.output)) c.transposed = make_group_output(c, pad, true);
  for (std::int64_t r = 0; r < rows_of_x && problem.weighted; ++r)
    c.row_factor.push_back(0.3F + static_cast<float>(r % 11) / 7);
  c.encode_scale.resize(sizes.rows.size());
  c.amax.resize(sizes.rows.size(), 0.25F);
  for (std::size_t g = 0; g < c.encode_scale.size(); ++g) {
    c.encode_scale[g] = 0.5F + static_cast<float>(g % 13);
  }
  return c;
}

inline std::string describe(const GroupCase& c, const GroupSizes& sizes, Fill fill) {
  return fmt::format("{} rows={} groups: {} ldx={} fill={}", to_text(Problem(c.problem)), c.rows,
                     sizes.name, c.ldx, name_of(fill));
}

}  // namespace octile::tests
