// Compiles quantisers for the GPUs that no test runs on: Ada (sm_89) and Blackwell (sm_100a,
// sm_103a, sm_120a). Kernels must not spill, must wait for the kernels before them if launches are
// programmatic, and must have none of those instructions if they are not. A covering set has every
// body and every kernel beside it once for each architecture; OCTILE_SWEEP=1 compiles all cells.
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cstdlib>
#include <memory>
#include <set>
#include <span>
#include <string>
#include <vector>

#include "generator/core/identity.h"
#include "generator/families.h"
#include "generator/quantize/emit.h"
#include "runtime/compiler/nvrtc.h"
#include "runtime/engine/engine.h"
#include "tests/support/machine_code.h"
#include "tests/support/quantize_cells.h"

namespace octile {
namespace {

using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;

// A problem, and a configuration that a device gives it.
struct Cell {
  QuantizeProblem problem;
  QuantizeConfig config;
};

// Returns every problem that the tests of Hopper's kernels compile.
std::vector<QuantizeProblem> all_problems() {
  constexpr std::int64_t kCols = 7168;
  std::vector<QuantizeProblem> all;
  for (const auto& part :
       {tests::covering_quantize_cells(kCols), tests::fused_quantize_cells(kCols),
        tests::grouped_source_cells(kCols),
        tests::covering_layouts(tests::all_grouped_problems(kCols)), tests::amax_cells(kCols),
        tests::via_cells(kCols), tests::row_message_cells(kCols), tests::pieces_cells()}) {
    all.insert(all.end(), part.begin(), part.end());
  }
  QuantizeProblem compared;
  compared.cols = kCols;
  compared.output = QuantizeOutput::kBoth;
  compared.q = {DType::kE4M3, Granularity::k128x128, ScaleFormat::kF32Pow2};
  compared.skip_unchanged = true;
  all.push_back(compared);
  return all;
}

// Returns the cells of all problems for few and many rows.
std::vector<Cell> all_cells(const DeviceSpec& device, std::span<const std::int64_t> row_counts) {
  std::vector<Cell> cells;
  for (const QuantizeProblem& problem : all_problems()) {
    for (const std::int64_t rows : row_counts) {
      cells.push_back({problem, default_config(problem, rows, device)});
    }
  }
  return cells;
}

// Things that a covering set has once: bodies, the kernels beside them, and the additions of a
// table.
std::vector<std::string> features_of(const Cell& cell) {
  const auto& [problem, config] = cell;
  std::vector<std::string> features{fmt::format(
      "body {} {} {} {}", static_cast<int>(template_of(problem)), static_cast<int>(problem.pieces),
      holds_few_rows(problem, config), config.cluster > 0)};
  for (const Companion c : companions_of(problem, config)) {
    const FirstPass pass =
        c == Companion::kFirstPass ? first_pass_of(problem, config) : FirstPass::kNone;
    features.push_back(fmt::format("companion {} {}", static_cast<int>(c), static_cast<int>(pass)));
  }
  if (config.looks_up) features.emplace_back("lookup");
  return features;
}

int spill_bytes(const KernelResources& r) { return r.spill_store_bytes + r.spill_load_bytes; }

struct Sum {
  int compiled = 0, spilled = 0;
};

void compile_and_check(const Nvrtc& nvrtc, const DeviceSpec& device, const Cell& cell,
                       std::set<std::string>& seen, Sum& sum) {
  SCOPED_TRACE(fmt::format("{}: {} / {}", device.name, to_text(Problem(cell.problem)),
                           to_text(cell.config)));
  const auto kernel = emit(cell.problem, cell.config, device, embedded_templates());
  ASSERT_TRUE(kernel.has_value()) << kernel.error().message;
  if (!seen.insert(identity_text(kernel->source)).second) return;
  const auto output = nvrtc.compile("quantize", kernel->source, kernel->options);
  ASSERT_TRUE(output.has_value()) << output.error().message;
  EXPECT_TRUE(output->warnings.empty()) << output->log;
  ++sum.compiled;
  std::vector<std::string> names{kernel->name};
  for (const EntryPoint& companion : kernel->companions) names.push_back(companion.name);
  for (std::size_t i = 0; i < names.size(); ++i) {
    const KernelResources* r = output->find(names[i]);
    ASSERT_NE(r, nullptr) << names[i];
    if (spill_bytes(*r) > 0) {
      ++sum.spilled;
      fmt::print("SPILL {} {} {} {} / {}\n", device.arch(), r->spill_store_bytes,
                 r->spill_load_bytes, to_text(Problem(cell.problem)), to_text(cell.config));
    }
    EXPECT_EQ(spill_bytes(*r) + r->stack_bytes, 0) << names[i];
    const auto opcodes = tests::opcodes_of(output->cubin, names[i]);
    EXPECT_GT(opcodes.size(), 10U);
    // Behind a first pass, which has waited itself, x may be read at once.
    const bool after_first_pass =
        i == 0 && first_pass_of(cell.problem, cell.config) != FirstPass::kNone;
    if (!after_first_pass) {
      EXPECT_EQ(tests::waits_before_memory(opcodes), device.has_pdl) << names[i];
    }
    EXPECT_EQ(tests::has_programmatic_launch(opcodes), device.has_pdl) << names[i];
  }
}

class QuantizeDevices : public ::testing::TestWithParam<const char*> {};

TEST_P(QuantizeDevices, CompileWithoutSpills) {
  const auto nvrtc = Nvrtc::open();
  if (!nvrtc) GTEST_SKIP() << "NVRTC cannot be opened";
  const DeviceSpec& device = *find_device(GetParam());
  const bool sweep = std::getenv("OCTILE_SWEEP") != nullptr;
  // The text for sm_103a is that for sm_100a.
  if (!sweep && device.name == "b300") GTEST_SKIP() << "OCTILE_SWEEP is not set";
  constexpr std::array<std::int64_t, 5> kRows{8, 16384, 2, 16, 128};
  const std::vector<Cell> all = all_cells(device, std::span(kRows).first(sweep ? kRows.size() : 2));
  const std::vector<Cell> cells = sweep ? all : tests::cover_features(all, features_of);
  std::set<std::string> seen;
  Sum sum;
  for (const Cell& cell : cells) compile_and_check(**nvrtc, device, cell, seen, sum);
  fmt::print("{}: {} kernels of {} cells compiled, {} spill\n", device.arch(), sum.compiled,
             all.size(), sum.spilled);
  EXPECT_GE(sum.compiled, 10);
}

INSTANTIATE_TEST_SUITE_P(Cards, QuantizeDevices,
                         ::testing::Values("l40s", "b200", "b300", "rtx5090"),
                         [](const auto& card) { return std::string(card.param); });

}  // namespace
}  // namespace octile
