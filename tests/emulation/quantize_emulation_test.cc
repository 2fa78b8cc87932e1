// Runs the text of the quantise templates on the host thread by thread (device_emulation.h) and
// compares bit for bit with the reference. The emitter's kernels for a covering set of numerics and
// configurations are tested for indexing, tails, misaligned tensors, padding and the classes of
// input. The host's wrappers check that no access leaves the tensor.
#include <gtest/gtest.h>
#include <sys/mman.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <cstring>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "generator/core/layout.h"
#include "generator/families.h"
#include "generator/quantize/config.h"
#include "generator/quantize/fingerprint.h"
#include "generator/quantize/grid.h"
#include "runtime/reference/quantize/reference.h"
#include "runtime/reference/quantize/reference_fingerprint.h"
#include "runtime/reference/quantize/reference_scale_update.h"
#include "tests/emulation/emulation_test.h"
#include "tests/support/coverage.h"
#include "tests/support/expect_outputs.h"

namespace octile {
namespace {

using emulation::bytes;
using emulation::run_blocks;
using emulation::Variant;
using tests::Fill;
using tests::Placement;

emulation::Watched skip_flag;  // may be read too

constexpr int kSmCount = 1;  // SM count of the emulated device; keeps first passes small

const std::vector<Variant>& variants() {
  // quantize_groups_emulation_test.cc and pieces_emulation_test.cc have the other variants.
  static const auto all = emulation::variants_of([](const QuantizeProblem& p) {
    return p.grouping == Grouping::kNone && p.pieces == PiecesStep::kNone &&
           p.operation != QuantizeOperation::kAmax;
  });
  return all;
}

// ---- one comparison -----------------------------------------------------------------------------

// Launches as runtime/families/quantize/launch.cc does. The sizes of the scale arrays serve to
// watch accesses.
void run(const Variant& v, QuantizeKernelArgs args, std::int64_t x_scale_bytes,
         std::int64_t scale_bytes, std::int64_t scale_transposed_bytes) {
  QuantizeProblem problem = v.problem;
  problem.cols = args.cols;
  const int x_bytes = size_of(problem.x.dtype);
  const QuantizeWorkspace layout = workspace_of(problem, kSmCount);
  const auto workspace = static_cast<std::size_t>(layout.bytes(args.rows));
  alignas(16) static std::array<std::uint32_t, 1 << 16> maxima;
  ASSERT_LE(workspace, sizeof maxima);
  maxima.fill(first_pass_raises(problem, args.rows) ? 0 : 0xFFFFFFFFU);
  args.maxima = maxima.data();
  const auto words = bytes(maxima.data(), static_cast<std::int64_t>(workspace));
  const std::int64_t row_bytes = tests::input_cols_of(problem) * x_bytes;
  const auto input = [&](const void* x, std::int64_t ld) {
    return emulation::Watched{static_cast<const char*>(x), args.rows, row_bytes, ld * x_bytes};
  };
  emulation::readable = {input(args.x, args.ldx), words, bytes(args.encode_scale, sizeof(float)),
                         skip_flag, bytes(args.x_scale, x_scale_bytes)};
  if (problem.operation == QuantizeOperation::kGather)
    emulation::readable.push_back(
        bytes(args.groups_at, args.rows * std::int64_t{sizeof *args.groups_at}));
  const int q_bytes = size_of(problem.q.dtype);
  const auto values = [&](const float* p, std::int64_t count) {
    return bytes(p, p == nullptr ? 0 : count * std::int64_t{sizeof(float)});
  };
  const bool has_means = source_shape(problem.source).layer_norm;
  for (int i = 0; i < 3; ++i) {
    if (args.more[i] == nullptr) continue;
    emulation::readable.push_back(has_means && i == 2
                                      ? values(static_cast<const float*>(args.more[i]), args.rows)
                                      : input(args.more[i], args.more_ld[i]));
  }
  emulation::readable.push_back(values(args.rstd, args.rows));
  args.bias_partials = reinterpret_cast<float*>(maxima.data() + layout.bias_offset(args.rows) /
                                                                    std::int64_t{sizeof(float)});
  emulation::writable = {emulation::Watched{static_cast<const char*>(args.q), args.rows,
                                            args.cols * q_bytes, args.ldq * q_bytes},
                         emulation::Watched{static_cast<const char*>(args.q_transposed), args.cols,
                                            args.ldq_transposed, args.ldq_transposed},
                         bytes(args.scale, scale_bytes),
                         bytes(args.scale_transposed, scale_transposed_bytes),
                         words,
                         values(args.tap, args.rows * args.cols),
                         values(args.rstd, args.rows),
                         values(args.bias_gradient, args.cols)};
  if (problem.policy != ScalePolicy::kDelayed && args.encode_scale != nullptr)
    emulation::writable.push_back(values(args.encode_scale, 1));
  if (v.kernels.row_norm != nullptr) run_blocks(args.rows, kNormThreads, v.kernels.row_norm, args);
  if (v.kernels.first_pass != nullptr) {
    const auto blocks = first_pass_blocks(problem, v.config, args.rows, kSmCount);
    ASSERT_TRUE(blocks.has_value()) << blocks.error().message;
    args.partials = *blocks;
    run_blocks(*blocks, kFirstPassThreads, v.kernels.first_pass, args);
  }
  const auto blocks = launch_blocks(problem, v.config, args.rows);
  ASSERT_TRUE(blocks.has_value()) << blocks.error().message;
  if (v.config.cluster > 1) {
    emulation::run_cluster(v.config.cluster, v.config.threads, v.kernels.kernel, args);
  } else {
    run_blocks(grid_of(problem, v.config, kSmCount).resident(*blocks), v.config.threads,
               v.kernels.kernel, args);
  }
  if (v.config.orders_scales) {
    emulation::readable = {bytes(args.scale, scale_bytes),
                           bytes(args.scale_transposed, scale_transposed_bytes), skip_flag};
    run_blocks(order_blocks(problem, args).all(), kOrderThreads, v.kernels.scale_order, args);
  }
  if (v.kernels.bias_sum != nullptr) {
    run_blocks(ceil_div(args.cols, kBiasThreads), kBiasThreads, v.kernels.bias_sum, args);
  }
}

QuantizeKernelArgs args_of(tests::QuantizeCase& c) {
  QuantizeKernelArgs args;
  args.x = c.x.data() + c.x_offset;
  args.rows = c.rows;
  args.cols = c.problem.cols;
  args.ldx = c.ldx;
  args.x_scale = c.x_scale.data();
  args.x_scale_ld = c.x_scale_ld;
  if (!c.index.empty()) {
    args.groups_at = c.index.data();
    args.groups = c.rows;
  }
  if (c.delayed() || c.records_scale()) args.encode_scale = &c.encode_scale;
  args.nonfinite = reinterpret_cast<unsigned long long*>(&c.nonfinite);
  if (c.keeps_amax()) args.amax = reinterpret_cast<std::uint32_t*>(&c.amax);
  tests::point_at_inputs(args, c.more_inputs(), c.more_ld);
  tests::point_at_outputs(args, c);
  if (!c.tap.empty()) args.tap = c.tap.data();
  if (!c.rstd.empty()) args.rstd = c.rstd.data();
  if (!c.bias_gradient.empty()) args.bias_gradient = c.bias_gradient.data();
  return args;
}

void compare(const Variant& v, const Placement& at, Fill fill) {
  SCOPED_TRACE(v.name() + ": " + tests::describe(v.problem, at, fill));
  QuantizeProblem problem = v.problem;
  problem.cols = at.cols;
  if (!check_well_formed(Problem(problem)) ||
      !check_config(problem, v.config, *find_device("h200")))
    return;
  tests::QuantizeCase expected = tests::make_case(v.problem, at, fill);
  tests::QuantizeCase actual = expected;
  const auto scale_bytes = [](const tests::CaseOutput& out) {
    return std::ssize(out.scale) - 2 * tests::QuantizeCase::kGuard;
  };
  run(v, args_of(actual), std::ssize(actual.x_scale), scale_bytes(actual.row),
      scale_bytes(actual.transposed));
  const Status status = expected.run_reference(1);
  ASSERT_TRUE(status.has_value()) << status.error().message;
  emulation::expect_no_stray_access();
  tests::expect_same_outputs(actual, expected);
  EXPECT_EQ(actual.nonfinite, expected.nonfinite);
}

class QuantizeEmulation : public emulation::EmulationTest {};

// Returns pairs of a variant and a number below `count`: all of them, or a part in which every
// variant occurs, and every number with every body of a kernel, output and granularity.
std::vector<std::pair<const Variant*, std::size_t>> in_turn(std::size_t count) {
  std::vector<std::pair<const Variant*, std::size_t>> pairs;
  for (const Variant& v : variants()) {
    for (std::size_t i = 0; i < count; ++i) pairs.emplace_back(&v, i);
  }
  const auto features_of = [](const auto& pair) {
    const auto& [v, number] = pair;
    const int i = static_cast<int>(number);
    return std::vector<std::array<int, 3>>{{0, static_cast<int>(v - variants().data()), 0},
                                           {1, static_cast<int>(template_of(v->problem)), i},
                                           {2, static_cast<int>(v->problem.output), i},
                                           {3, static_cast<int>(v->problem.q.granularity), i},
                                           {4, static_cast<int>(v->problem.x.dtype), i}};
  };
  return tests::runs_all_cases() ? pairs : tests::cover_features(pairs, features_of);
}

// Every variant has the inputs that reach the most branches. The others take turns.
TEST_F(QuantizeEmulation, EveryInputEqualsTheReference) {
  const std::vector<Fill> most = tests::fills_to_run();
  for (const Variant& v : variants()) {
    for (const Fill fill : most) compare(v, {9, 300}, fill);
  }
  std::vector<Fill> others;
  for (const auto& [fill, name] : tests::kFills) {
    if (std::ranges::find(most, fill) == most.end()) others.push_back(fill);
  }
  for (const auto& [v, i] : in_turn(others.size())) compare(*v, {9, 300}, others[i]);
}

// Every variant has the small shapes. The large ones take turns.
TEST_F(QuantizeEmulation, EveryShapeEqualsTheReference) {
  constexpr std::array kSmall{Placement{1, 1}, Placement{1, 16}, Placement{3, 128}};
  constexpr std::array kLarge{Placement{65, 96}, Placement{130, 264}, Placement{260, 140},
                              Placement{12, 1040}};
  const auto compare_at = [](const Variant& v, const Placement& shape) {
    if (tests::runs_all_cases()) compare(v, shape, Fill::kNormal);
    compare(v, shape, Fill::kMixed);
  };
  for (const Variant& v : variants()) {
    for (const Placement& shape : kSmall) compare_at(v, shape);
  }
  for (const auto& [v, i] : in_turn(kLarge.size())) compare_at(*v, kLarge[i]);
}

// First passes over few rows read whole lines. Every variant has two of the shapes, or all.
TEST_F(QuantizeEmulation, LinesOfMoreRowsThanAStripeEqualTheReference) {
  int compared = 0;
  for (const Variant& v : variants()) {
    if (first_pass_of(v.problem) != FirstPass::kLines) continue;
    const bool all = tests::runs_all_cases(), odd = compared % 2 == 1;
    if (all || !odd) {
      compare(v, {kStripeRows, 96}, Fill::kMixed);
      compare(v, {kStripeRows + 5, 300}, Fill::kMixed);
    }
    if (all || odd) {
      compare(v, {kStripeRows + 5, 96}, Fill::kNormal);
      compare(v, {2, 9000}, Fill::kMixed);
    }
    ++compared;
  }
  EXPECT_GT(compared, 1);
}

TEST_F(QuantizeEmulation, RowsLongerThanTheirThreadBlocksAreNormedAlike) {
  int compared = 0;
  for (const Variant& v : variants()) {
    if (template_of(v.problem) != QuantizeTemplate::kNormRows || v.config.tile_cols < 4096)
      continue;
    compare(v, {2, 4096}, Fill::kNormal);
    compare(v, {2, 9001}, Fill::kMixed);
    compare(v, {3, 12288}, Fill::kNormal);
    ++compared;
  }
  EXPECT_GT(compared, 0);
}

// A warp or a thread block has the same columns of both halves, if no scale's block crosses the
// halves. The inputs that reach the most branches take turns, or all cases run.
TEST_F(QuantizeEmulation, BothHalvesOfARowEqualTheReference) {
  const std::vector<Fill> fills = tests::fills_to_run();
  std::size_t turn = 0;
  int compared = 0;
  for (const Variant& v : variants()) {
    if (!takes_both_halves(v.problem) && !v.config.halves_together) continue;
    for (const Placement& at : {Placement{1, 256}, Placement{9, 512}, Placement{65, 768},
                                Placement{40, 1280}, Placement{9, 512, 8, 8, 0, 0, -1},
                                Placement{9, 512, 1, 0, 1, 0, 0}, Placement{300, 256}}) {
      if (!tests::runs_all_cases()) {
        compare(v, at, fills[turn++ % fills.size()]);
        continue;
      }
      for (const Fill fill : fills) compare(v, at, fill);
    }
    ++compared;
  }
  EXPECT_GT(compared, 30);
}

// Blocks continue with further tiles, and rows are prefetched across them.
TEST_F(QuantizeEmulation, LookedUpValuesEqualTheReference) {
  int compared = 0;
  for (const Variant& v : variants()) {
    if (!v.config.looks_up) continue;
    for (const Placement& at : {Placement{1, 256}, Placement{150, 520}, Placement{64, 768},
                                Placement{300, 256}, Placement{70, 520, 8, 8, 0, 0, -1}}) {
      for (const Fill fill : tests::fills_to_run()) compare(v, at, fill);
    }
    ++compared;
  }
  EXPECT_GT(compared, 3);
}

// Tiles whose neighbours exist leave their scales to the following kernel. The other tiles, and
// those of misaligned arrays, store the scales themselves.
TEST_F(QuantizeEmulation, OrderedScalesEqualTheReference) {
  int compared = 0;
  for (const Variant& v : variants()) {
    if (!v.config.orders_scales) continue;
    for (const tests::OrderedPlacement& o : {tests::OrderedPlacement{{128, 1024}, true, false},
                                             {{1024, 128}, false, true},
                                             {{1500, 300}, false, true},
                                             {{1010, 1000}, true, true},
                                             {{1010, 1000, 0, 0, 0, 0, 4}, false, true},
                                             {{260, 2100, 8, 8, 0, 0, 12}, true, false},
                                             {{130, 1100, 0, 0, 0, 0, 4}, false, false}}) {
      tests::expect_ordered(v.problem, o);
      if (tests::runs_all_cases()) compare(v, o.at, Fill::kNormal);
      compare(v, o.at, Fill::kMixed);
    }
    ++compared;
  }
  EXPECT_EQ(compared, 8);
}

// Placements take turns: every variant has every second one, or all.
TEST_F(QuantizeEmulation, StridedAndMisalignedTensorsEqualTheReference) {
  std::size_t turn = 0;
  for (const Variant& v : variants()) {
    for (const Placement& at : tests::kPlacements) {
      if (!tests::runs_all_cases() && turn++ % 2 != 0) continue;
      if (tests::runs_all_cases()) compare(v, at, Fill::kNormal);
      compare(v, at, Fill::kMixed);
    }
    compare(v, {9, 264, 8, 8, 0, 0, -1}, Fill::kNormal);
  }
}

TEST_F(QuantizeEmulation, ASetSkipFlagLeavesEverythingAlone) {
  const std::uint32_t set = 1, clear = 0;
  for (const Variant& v : variants()) {
    SCOPED_TRACE(v.name());
    for (const std::uint32_t* flag : {&set, &clear}) {
      tests::QuantizeCase actual = tests::make_case(v.problem, {9, v.problem.cols}, Fill::kNormal);
      tests::QuantizeCase expected = actual;
      QuantizeKernelArgs args = args_of(actual);
      args.skip = flag;
      skip_flag = {reinterpret_cast<const char*>(flag), 1, sizeof *flag, sizeof *flag};
      run(v, args, std::ssize(actual.x_scale), std::ssize(actual.row.scale),
          std::ssize(actual.transposed.scale));
      skip_flag = {};
      if (flag == &clear) {
        ASSERT_TRUE(expected.run_reference(1));
      }
      tests::expect_same_outputs(actual, expected);
      EXPECT_EQ(actual.nonfinite, expected.nonfinite);
    }
  }
}

// Histories shorter and longer than a block's read, and several states.
TEST_F(QuantizeEmulation, ScaleUpdatesEqualTheReference) {
  struct Shape {
    std::int64_t tensors, length, states;
  };
  int compared = 0;
  for (const Variant& v : variants()) {
    if (v.kernels.scale_update == nullptr) continue;
    SCOPED_TRACE(v.name());
    for (const Shape& shape : {Shape{150, 5, 1}, Shape{1, 1, 2}, Shape{2, 1030, 3}}) {
      for (const int choice : {0, 1, 2}) {
        if (choice == 2 && shape.length < 2) continue;
        const std::int64_t per_state = shape.tensors * shape.length + 3;  // with a gap
        std::vector<float> history(static_cast<std::size_t>(per_state * shape.states));
        std::vector<float> encode(static_cast<std::size_t>(shape.tensors * shape.states), 1.0F);
        std::mt19937 random(7);
        for (float& h : history) h = std::fabs(tests::draw(Fill::kMixed, random));
        std::vector<float> expected_history = history, expected_encode = encode;
        for (int step = 0; step < 3; ++step) {
          ScaleUpdateKernelArgs args;
          args.history = history.data();
          args.encode_scale = encode.data();
          args.tensors = shape.tensors;
          args.length = shape.length;
          args.history_stride = per_state;
          args.scale_stride = shape.tensors;
          args.choice = choice;
          args.margin_factor = 0.25F;
          args.share = 0.3F;
          const std::int64_t blocks = ceil_div(shape.tensors, kUpdateColumns) * shape.states;
          for (unsigned b = 0; b < blocks; ++b) {
            emulation::run_block(b, kUpdateThreads, [&] { v.kernels.scale_update(&args); });
          }
          for (std::int64_t state = 0; state < shape.states; ++state) {
            reference::update_scales(
                v.problem, {expected_history.data() + state * per_state,
                            expected_encode.data() + state * shape.tensors, shape.tensors,
                            shape.length, static_cast<reference::AmaxChoice>(choice), 2, 0.3F});
          }
          // Bits are compared, because values that are not finite move on too.
          EXPECT_EQ(std::memcmp(history.data(), expected_history.data(), history.size() * 4), 0);
          EXPECT_EQ(encode, expected_encode);
          for (std::int64_t t = 0; t < shape.tensors; ++t) {  // the next step's maxima
            const auto i = static_cast<std::size_t>(t);
            history[i] = expected_history[i] = static_cast<float>(t % 7);
          }
          ++compared;
        }
      }
    }
  }
  EXPECT_GT(compared, 0);
}

// Rows have gaps, begin at any element, and end inside a 16-byte word.
TEST_F(QuantizeEmulation, FingerprintsEqualTheReference) {
  int compared = 0;
  for (const Variant& v : variants()) {
    if (v.kernels.fingerprint == nullptr) continue;
    SCOPED_TRACE(v.name());
    const std::int64_t element = size_of(v.problem.x.dtype);
    for (const std::int64_t gap : {0, 4, 20}) {
      for (const std::int64_t first : {0, 1}) {
        constexpr std::int64_t kRows = 70;
        const std::int64_t row_bytes = v.problem.cols * element;
        const std::int64_t stride = row_bytes + gap * element;
        std::vector<std::uint64_t> memory(static_cast<std::size_t>(kRows * stride + 32) / 8);
        std::mt19937_64 random(11);
        for (std::uint64_t& word : memory) word = random();
        char* const x = reinterpret_cast<char*>(memory.data()) + first * element;
        octile_fingerprint state{};
        FingerprintKernelArgs args = fingerprint_args(x, kRows, row_bytes, stride);
        args.state = &state;
        const auto run = [&] {
          constexpr unsigned kBlocks = 3;
          emulation::readable = {{x, args.rows, args.row_bytes, args.row_stride}};
          for (unsigned b = 0; b < kBlocks; ++b) {
            emulation::run_block(
                b, kFingerprintThreads, [&] { v.kernels.fingerprint(&args); }, kBlocks);
          }
          EXPECT_EQ(emulation::stray_accesses, 0);
          EXPECT_EQ(emulation::misaligned_accesses, 0);
          const auto want = reference::fingerprint(x, kRows, row_bytes, stride, 1);
          EXPECT_EQ(state.sum[0], want[0]);
          EXPECT_EQ(state.sum[1], want[1]);
          EXPECT_EQ(state.partial[0] | state.partial[1] | state.arrived, 0U);
        };
        run();
        EXPECT_EQ(state.unchanged, 0U);
        run();
        EXPECT_EQ(state.unchanged, 1U);
        x[17 * stride + row_bytes - 1] ^= 1;  // the last bit of a row's tail
        run();
        EXPECT_EQ(state.unchanged, 0U);
        std::swap_ranges(x, x + element, x + 5 * stride);  // two elements change places
        run();
        EXPECT_EQ(state.unchanged, 0U);
        state.known = 0;
        run();
        EXPECT_EQ(state.unchanged, 0U);
        EXPECT_EQ(state.changes, 4U);
        ++compared;
      }
    }
  }
  EXPECT_GT(compared, 0);
}

TEST_F(QuantizeEmulation, NothingIsLaunchedForAnEmptyTensor) {
  for (const Variant& v : variants()) {
    QuantizeProblem problem = v.problem;
    problem.cols = 128;
    EXPECT_EQ(launch_blocks(problem, v.config, 0).value(), 0);
    problem.cols = 0;
    EXPECT_EQ(launch_blocks(problem, v.config, 128).value(), 0);
  }
}

// An address range in which only touched pages use memory.
class SparseMemory {
 public:
  explicit SparseMemory(std::size_t bytes)
      : bytes_(bytes),
        base_(mmap(nullptr, bytes, PROT_READ | PROT_WRITE,
                   MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0)) {}
  ~SparseMemory() {
    if (valid()) munmap(base_, bytes_);
  }
  SparseMemory(const SparseMemory&) = delete;
  SparseMemory& operator=(const SparseMemory&) = delete;
  bool valid() const { return base_ != MAP_FAILED; }
  char* data() const { return static_cast<char*>(base_); }

 private:
  std::size_t bytes_;
  void* base_;
};

// Rows lie 2^31 + 16 elements apart, so every offset past the first row exceeds 32 bits.
TEST_F(QuantizeEmulation, OffsetsBeyond32Bits) {
  constexpr std::int64_t kLd = (std::int64_t{1} << 31) + 16;
  constexpr std::int64_t kRows = 3, kCols = 200;
  for (const Variant& v : variants()) {
    if (v.problem.output != QuantizeOutput::kRowwise)
      continue;  // the layout gives the copy's stride
    if (!v.problem.source.empty() || v.problem.bias_gradient)
      continue;  // only x has distant rows here
    SCOPED_TRACE(v.name());
    const SparseMemory x(static_cast<std::size_t>(kRows * kLd * size_of(v.problem.x.dtype)));
    const std::int64_t q_bytes = size_of(v.problem.q.dtype);
    const SparseMemory q(static_cast<std::size_t>(kRows * kLd * q_bytes));
    const SparseMemory expected(static_cast<std::size_t>(kRows * kLd * q_bytes));
    if (!x.valid() || !q.valid() || !expected.valid()) GTEST_SKIP() << "no address space";
    const std::vector<char> row = tests::make_input(v.problem.x.dtype, kCols, Fill::kNormal, 7);
    for (std::int64_t r = 0; r < kRows; ++r) {
      std::memcpy(x.data() + r * kLd * size_of(v.problem.x.dtype), row.data(), row.size());
    }
    QuantizeProblem problem = v.problem;
    problem.cols = kCols;
    QuantizedLayout layout, x_layout;
    if (is_fp8(problem.q.dtype)) layout = quantized_layout(problem, kRows, 0, false).value();
    if (is_fp8(problem.x.dtype)) x_layout = quantized_layout(problem.x, kRows, kCols).value();
    const std::vector<std::uint8_t> x_scale(256, 0x3F);  // a number in every format
    std::vector<float> scale(512, -1.0F), scale_expected = scale;
    QuantizeKernelArgs args;
    args.x = x.data();
    args.q = q.data();
    args.scale = scale.data();
    args.rows = kRows;
    args.cols = kCols;
    args.ldx = args.ldq = kLd;
    args.scale_ld = layout.scales.ld;
    args.x_scale = x_scale.data();
    args.x_scale_ld = x_layout.scales.ld;
    const std::array<std::int32_t, kRows> index{0, 1, 2};
    if (v.problem.operation == QuantizeOperation::kGather) {
      args.groups_at = index.data();
      args.groups = kRows;
    }
    float encode = 3.7F;
    if (v.problem.policy == ScalePolicy::kDelayed) args.encode_scale = &encode;
    run(v, args, std::ssize(x_scale), layout.scales.bytes(), 0);
    const bool writes_scales = is_fp8(problem.q.dtype);
    QuantizeArguments host = tests::rowwise_args(kRows, x.data(), expected.data(),
                                                 writes_scales ? scale_expected.data() : nullptr);
    if (is_fp8(problem.x.dtype)) host.source_scales.x_scale = x_scale.data();
    host.ldx = kLd;
    host.ldq = kLd;
    host.delayed.encode_scale = args.encode_scale;
    host.gather.index = args.groups_at;
    host.gather.x_rows = args.groups;
    const Status status = tests::run_reference(problem, host, 1);
    ASSERT_TRUE(status.has_value()) << status.error().message;
    for (std::int64_t r = 0; r < kRows; ++r) {
      const std::int64_t at = r * kLd * q_bytes;
      const auto bytes = static_cast<std::size_t>((kCols + 16) * q_bytes);
      EXPECT_EQ(std::memcmp(q.data() + at, expected.data() + at, bytes), 0);
    }
    EXPECT_EQ(std::memcmp(scale.data(), scale_expected.data(), scale.size() * sizeof(float)), 0);
  }
}

// Tile indices beyond 32 bits use the 64-bit division.
TEST(QuantizeTile, SplitsIndicesOfAnySize) {
  for (const u64 columns : {u64{1}, u64{28}, u64{1} << 33}) {
    for (const u64 index :
         {u64{0}, u64{27}, u64{28}, (u64{1} << 32) - 1, u64{1} << 32, (u64{1} << 40) + 17}) {
      const quantize::Tile tile = quantize::tile_at(index, columns);
      EXPECT_EQ(static_cast<u64>(tile.row), index / columns);
      EXPECT_EQ(static_cast<u64>(tile.col), index % columns);
    }
  }
}

}  // namespace
}  // namespace octile
