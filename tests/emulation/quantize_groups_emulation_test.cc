// Runs the quantisers of groups of rows on the host, thread by thread. Results are compared bit for
// bit with the reference, as in quantize_emulation_test.cc.
#include <gtest/gtest.h>

#include <bit>
#include <cstring>
#include <string>
#include <utility>
#include <vector>

#include "generator/quantize/config.h"
#include "generator/quantize/fingerprint.h"
#include "generator/quantize/grid.h"
#include "generator/quantize/layout.h"
#include "generator/quantize/stack.h"
#include "generator/quantize/workspace.h"
#include "runtime/reference/quantize/reference.h"
#include "runtime/reference/quantize/reference_fingerprint.h"
#include "tests/emulation/emulation_test.h"
#include "tests/support/expect_outputs.h"
#include "tests/support/quantize_group_case.h"

namespace octile {
namespace {

using emulation::bytes;
using emulation::expect_no_stray_access;
using emulation::run_blocks;
using emulation::Variant;
using emulation::Watched;
using tests::Fill;
using tests::GroupCase;
using tests::GroupSizes;

std::vector<Variant> grouped() {
  return emulation::variants_of(
      [](const QuantizeProblem& p) { return has_token_groups(p.grouping); });
}
std::vector<Variant> stacked() {
  return emulation::variants_of(
      [](const QuantizeProblem& p) { return p.grouping == Grouping::kStacked; });
}

// ---- groups ------------------------------------------------------------------------------------

// Returns watches of the rows of x or q that exist.
std::vector<Watched> rows_of(const GroupCase& c, const void* p, std::int64_t cols, std::int64_t ld,
                             std::int64_t element_bytes) {
  std::vector<Watched> watched;
  const std::int64_t width = cols * element_bytes;
  const auto* first = static_cast<const char*>(p);
  if (p == nullptr) return watched;
  if (!c.offsets.empty()) {
    watched.push_back({first, c.offsets.back(), width, ld * element_bytes});
  }
  for (std::size_t g = 0; g < c.counts.size(); ++g) {
    watched.push_back({first + static_cast<std::int64_t>(g) * c.rows * ld * element_bytes,
                       c.counts[g], width, ld * element_bytes});
  }
  return watched;
}

QuantizeKernelArgs args_of(GroupCase& c) {
  QuantizeKernelArgs args;
  args.x = c.x.data();
  args.rows = c.rows;
  args.cols = c.problem.cols;
  args.ldx = c.ldx;
  tests::point_at_inputs(args, c.more_inputs(), c.more_ld());
  if (!c.x_scale.empty()) {
    args.x_scale = c.x_scale.data();
    args.x_scale_ld = quantized_layout(c.problem.x, c.rows, args.cols).value().scales.ld;
  }
  args.groups = c.groups();
  args.groups_at = c.counts.empty() ? c.offsets.data() : c.counts.data();
  args.nonfinite = reinterpret_cast<unsigned long long*>(&c.nonfinite);
  if (c.delayed() || c.records_scale()) args.encode_scale = c.encode_scale.data();
  if (c.keeps_amax()) args.amax = reinterpret_cast<std::uint32_t*>(c.amax.data());
  if (c.problem.weighted) args.rstd = c.row_factor.data();
  tests::point_at_outputs(args, c);
  if (c.transposed.wanted) {
    args.scale_ld_transposed =
        quantized_layout(c.problem, c.rows, c.groups(), true).value().scales.ld;
  }
  const auto one = quantized_layout(c.problem, c.rows, 1, false).value().scales;
  if (c.keeps_amax()) {
    args.scale_group_bytes = one.element_bytes;
  } else if (!c.counts.empty()) {
    args.scale_group_bytes = one.bytes();
  }
  return args;
}

// Launches as runtime/families/quantize/launch.cc does.
void run(const Variant& v, GroupCase& c) {
  QuantizeKernelArgs args = args_of(c);
  std::vector<std::uint32_t> maxima(static_cast<std::size_t>(c.groups()), 0);
  args.maxima = maxima.data();
  const auto words = bytes(maxima.data(), std::ssize(maxima) * 4);
  const auto& table = c.counts.empty() ? c.offsets : c.counts;
  const std::int64_t input_cols = tests::input_cols_of(c.problem);
  const int input_bytes = size_of(c.problem.x.dtype);
  emulation::readable = rows_of(c, c.x.data(), input_cols, c.ldx, input_bytes);
  for (const auto& input : c.more) {
    if (input.empty()) continue;
    const auto other = rows_of(c, input.data(), input_cols, c.ldx, input_bytes);
    emulation::readable.insert(emulation::readable.end(), other.begin(), other.end());
  }
  emulation::readable.insert(
      emulation::readable.end(),
      {words, bytes(table.data(), std::ssize(table) * 4),
       bytes(args.encode_scale, std::ssize(c.encode_scale) * 4),
       bytes(args.x_scale, std::ssize(c.x_scale)), bytes(args.rstd, std::ssize(c.row_factor) * 4)});
  emulation::writable = rows_of(c, args.q, args.cols, args.ldq, 1);
  emulation::writable.insert(
      emulation::writable.end(),
      {Watched{static_cast<const char*>(args.q_transposed), args.cols, args.ldq_transposed,
               args.ldq_transposed},
       bytes(args.scale, std::ssize(c.row.scale) - 2 * tests::QuantizeCase::kGuard),
       bytes(args.scale_transposed,
             std::ssize(c.transposed.scale) - 2 * tests::QuantizeCase::kGuard)});
  if (c.records_scale())
    emulation::writable.push_back(bytes(args.encode_scale, std::ssize(c.encode_scale) * 4));
  if (v.kernels.first_pass != nullptr) {
    const auto blocks = first_pass_blocks(c.problem, v.config, c.rows, 1, c.groups());
    ASSERT_TRUE(blocks.has_value()) << blocks.error().message;
    run_blocks(*blocks, kFirstPassThreads, v.kernels.first_pass, args);
  }
  const auto blocks = launch_blocks(c.problem, v.config, c.rows, c.groups());
  ASSERT_TRUE(blocks.has_value()) << blocks.error().message;
  run_blocks(*blocks, v.config.threads, v.kernels.kernel, args);
}

constexpr int kSmCount = 1;  // of the emulated device; keeps first passes small

// Launches one kernel as runtime/families/quantize/launch.cc does: each tensor has a row of blocks.
template <typename Kernel, typename Args>
void run_rows(std::int64_t blocks, std::int64_t tensors, int threads, Kernel kernel,
              const Args& args) {
  for (std::int64_t tensor = 0; tensor < tensors; ++tensor) {
    emulation::current_block.y = static_cast<unsigned>(tensor);
    for (std::int64_t b = 0; b < blocks; ++b) {
      emulation::run_block(
          static_cast<unsigned>(b), threads, [&] { kernel(args); }, static_cast<unsigned>(blocks));
    }
  }
  emulation::current_block.y = 0;
}

// Runs the kernels of stacked tensors.
void run_stack(const Variant& v, GroupCase& c) {
  QuantizeKernelArgs args = args_of(c);
  args.groups_at = nullptr;
  args.scale_group_bytes = 0;
  const std::int64_t per_tensor = workspace_of(c.problem, kSmCount).bytes(c.rows);
  std::vector<std::uint64_t> maxima(static_cast<std::size_t>(per_tensor * c.stacked) / 8 + 1, 0);
  args.maxima = reinterpret_cast<std::uint32_t*>(maxima.data());
  const auto words = bytes(maxima.data(), std::ssize(maxima) * 8);
  const auto all = [](std::vector<char>& memory) {
    return bytes(memory.data(), std::ssize(memory));
  };
  emulation::readable = {all(c.x), all(c.x_scale), words};
  emulation::writable = {all(c.row.q), all(c.row.scale), all(c.transposed.q),
                         all(c.transposed.scale), words};
  if (c.records_scale())
    emulation::writable.push_back(bytes(args.encode_scale, std::ssize(c.encode_scale) * 4));
  if (v.kernels.stack_first_pass != nullptr) {
    const auto blocks = first_pass_blocks(c.problem, v.config, c.rows, kSmCount, c.stacked);
    ASSERT_TRUE(blocks.has_value()) << blocks.error().message;
    args.partials = *blocks;
    run_rows(*blocks, c.stacked, kFirstPassThreads, v.kernels.stack_first_pass,
             std::bit_cast<quantize::StackArgs>(stack_args(c.problem, args, per_tensor)));
  }
  const auto blocks = launch_blocks(c.problem, v.config, c.rows, c.stacked);
  ASSERT_TRUE(blocks.has_value()) << blocks.error().message;
  run_rows(*blocks, c.stacked, v.config.threads, v.kernels.stack,
           std::bit_cast<quantize::StackArgs>(stack_args(c.problem, args, per_tensor)));
}

void compare(const Variant& v, std::int64_t cols, const GroupSizes& sizes, Fill fill,
             std::int64_t pad = 0) {
  QuantizeProblem problem = v.problem;
  problem.cols = cols;
  if (!check_well_formed(problem)) return;  // halves of a row of odd length
  if (!check_config(problem, v.config, *find_device("h200"))) return;
  GroupCase expected = tests::make_group_case(v.problem, cols, sizes, fill, pad);
  SCOPED_TRACE(v.name() + ": " + tests::describe(expected, sizes, fill));
  GroupCase actual = expected;
  actual.stacked > 0 ? run_stack(v, actual) : run(v, actual);
  const Status status = expected.run_reference(1);
  ASSERT_TRUE(status.has_value()) << status.error().message;
  expect_no_stray_access();
  tests::expect_same_outputs(actual, expected);
  EXPECT_EQ(actual.nonfinite, expected.nonfinite);
}

class QuantizeGroupsEmulation : public emulation::EmulationTest {};

TEST_F(QuantizeGroupsEmulation, EveryGroupingEqualsTheReference) {
  for (const Variant& v : grouped()) {
    for (const GroupSizes& sizes : tests::few_groups()) {
      compare(v, 140, sizes, Fill::kMixed);
      if (HasFailure()) return;
    }
    compare(v, 300, tests::few_groups()[3], Fill::kNormal);
    compare(v, 33, tests::few_groups()[3], Fill::kInfinities, 7);
  }
}

// Every tensor has the bits that it has alone, as Stack of the reference gives them.
TEST_F(QuantizeGroupsEmulation, EveryStackEqualsTheReference) {
  const std::vector<GroupSizes> sizes{{"one of 131 rows", {131}},
                                      {"three of 129", {129, 129, 129}}};
  int compared = 0;
  for (const Variant& v : stacked()) {
    for (const GroupSizes& size : sizes) compare(v, 140, size, Fill::kMixed);
    compare(v, 300, sizes[1], Fill::kNormal);
    compare(v, 48, sizes[1], Fill::kInfinities,
            v.problem.operation == QuantizeOperation::kTranspose ? 0 : 7);
    ++compared;
    if (HasFailure()) return;
  }
  EXPECT_GT(compared, 5);
}

// Each stacked tensor has a fingerprint, and one that changed is the only one that has.
TEST_F(QuantizeGroupsEmulation, StackedTensorsAreComparedOneByOne) {
  for (const Variant& v : stacked()) {
    if (v.kernels.fingerprint == nullptr) continue;
    SCOPED_TRACE(v.name());
    constexpr std::int64_t kTensors = 3, kBlocks = 2;
    const std::int64_t rows = 5, row_bytes = v.problem.cols * size_of(v.problem.x.dtype);
    std::vector<std::uint64_t> x(static_cast<std::size_t>(kTensors * rows * row_bytes) / 8);
    for (std::size_t i = 0; i < x.size(); ++i) x[i] = 0x9e3779b97f4a7c15U * (i + 1);
    std::vector<octile_fingerprint> states(kTensors);
    FingerprintKernelArgs args = fingerprint_args(x.data(), rows, row_bytes, row_bytes);
    args.state = states.data();
    args.tensor_bytes = rows * row_bytes;
    if (args.tensor_bytes % 16 != 0) args.aligned = 0;
    emulation::readable = {bytes(x.data(), std::ssize(x) * 8)};
    const auto unchanged = [&] {
      run_rows(kBlocks, kTensors, kFingerprintThreads, v.kernels.fingerprint,
               static_cast<const void*>(&args));
      std::vector<std::uint32_t> found;
      for (const octile_fingerprint& state : states) found.push_back(state.unchanged);
      return found;
    };
    EXPECT_EQ(unchanged(), (std::vector<std::uint32_t>{0, 0, 0}));
    EXPECT_EQ(unchanged(), (std::vector<std::uint32_t>{1, 1, 1}));
    x[static_cast<std::size_t>(rows * row_bytes / 8)] ^= 1;  // the first element of the second
    EXPECT_EQ(unchanged(), (std::vector<std::uint32_t>{1, 0, 1}));
    const auto want = reference::fingerprint(x.data(), rows, row_bytes, row_bytes, 1);
    EXPECT_EQ(states[0].sum[0], want[0]);
    expect_no_stray_access();
  }
}

// A thread block has the same columns of both halves.
TEST_F(QuantizeGroupsEmulation, BothHalvesOfARowEqualTheReference) {
  int compared = 0;
  for (const Variant& v : grouped()) {
    if (!v.config.halves_together) continue;
    for (const std::int64_t cols : {256, 512}) {
      QuantizeProblem problem = v.problem;
      problem.cols = cols;
      // Otherwise nothing would be compared.
      ASSERT_TRUE(check_config(problem, v.config, *find_device("h200"))) << v.name();
    }
    for (const GroupSizes& sizes : tests::few_groups()) compare(v, 256, sizes, Fill::kMixed);
    compare(v, 512, tests::few_groups()[3], Fill::kInfinities, 7);
    ++compared;
  }
  EXPECT_GT(compared, 5);
}

TEST_F(QuantizeGroupsEmulation, ManyGroupsEqualTheReference) {
  std::vector<GroupSizes> sizes = tests::many_groups(2);
  for (const Variant& v : grouped()) {
    const bool plain = v.problem.q.scale == ScaleFormat::kF32;
    if (v.problem.grouping != Grouping::kContiguous || v.problem.x.dtype != DType::kBF16 ||
        !plain) {
      continue;
    }
    compare(v, 8, sizes.front(), Fill::kNormal);
  }
  for (const Variant& v : grouped()) {
    // The largest table runs once.
    const bool both = v.problem.output == QuantizeOutput::kBoth;
    if (!both || v.problem.q.granularity != Granularity::k1x128) continue;
    compare(v, 8, sizes.back(), Fill::kNormal);
    break;
  }
}

// Every slot of every division finds its group: the test takes all divisions of few rows into few
// groups.
TEST_F(QuantizeGroupsEmulation, SlotsFindTheirGroups) {
  constexpr int kTileRows = 8;
  for (std::int32_t a = 0; a <= 17; ++a) {
    for (std::int32_t b = 0; b <= 17; ++b) {
      const std::int32_t offsets[] = {0, a, a, a + b, a + b + 9};
      quantize::Args args{};
      args.groups_at = offsets;
      args.groups = 4;
      args.rows = a + b + 9;
      emulation::readable = {bytes(offsets, sizeof offsets)};
      std::vector<std::int64_t> rows_met(4, 0);
      for (std::int64_t slot = 0; slot < quantize::Walk<1>::slots<kTileRows>(args); ++slot) {
        emulation::run_block(0, 32, [&] {
          long long tile = slot;
          const auto group = quantize::Walk<1>::enter<kTileRows>(args, tile);
          const long long left = group.rows - group.first - tile * kTileRows;
          if (threadIdx.x == 0 && left > 0) {
            rows_met[static_cast<std::size_t>(group.group)] += left < kTileRows ? left : kTileRows;
          }
        });
      }
      EXPECT_EQ(rows_met, (std::vector<std::int64_t>{a, 0, b, 9})) << a << " " << b;
    }
  }
  expect_no_stray_access();
}

// Impossible counts are clamped to the nearest possible ones, and tiles are numbered without gaps.
TEST_F(QuantizeGroupsEmulation, MaskedCountsAreTakenAsWhatAGroupCanHave) {
  constexpr int kTileRows = 8;
  std::vector<std::int32_t> counts(70, 0);
  counts[0] = -1;
  counts[3] = 9;
  counts[31] = 100;
  counts[32] = INT32_MIN;
  counts[69] = 17;
  quantize::Args args{};
  args.groups_at = counts.data();
  args.groups = std::ssize(counts);
  args.rows = 24;
  emulation::readable = {bytes(counts.data(), std::ssize(counts) * 4)};
  std::vector<std::string> met;
  emulation::run_block(0, 32, [&] {
    quantize::MaskedTiles<kTileRows> tiles(args);
    quantize::GroupArgs group{};
    for (unsigned index = 0; index < 10; ++index) {
      unsigned tile = index;
      if (!tiles.enter(args, tile, group)) break;
      if (threadIdx.x != 0) continue;
      met.push_back(fmt::format("{}: {} of {} rows", group.group, tile, group.rows - group.first));
    }
  });
  EXPECT_EQ(met,
            (std::vector<std::string>{"3: 0 of 9 rows", "3: 1 of 9 rows", "31: 0 of 24 rows",
                                      "31: 1 of 24 rows", "31: 2 of 24 rows", "69: 0 of 17 rows",
                                      "69: 1 of 17 rows", "69: 2 of 17 rows"}));
  for (const auto& [group, rows] : {std::pair{0, 0}, {3, 9}, {31, 24}, {32, 0}, {69, 17}}) {
    emulation::run_block(0, 32, [&] {
      long long slot = group * 3;
      const auto view = quantize::Walk<2>::enter<kTileRows>(args, slot);
      if (threadIdx.x == 0) {
        EXPECT_EQ(view.rows - view.first, rows) << group;
      }
    });
  }
  expect_no_stray_access();
}

}  // namespace
}  // namespace octile
