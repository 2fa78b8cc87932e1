// Compiles every quantise kernel for sm_90a without a GPU. Kernels must not spill, must not exceed
// the registers that the configuration's residency allows, must wait for the kernels before them
// before they access memory, and must compile without headers or warnings. Also lints each template
// as nvcc reads it.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <array>
#include <cstdlib>
#include <memory>
#include <regex>
#include <set>
#include <string>

#include "generator/core/identity.h"
#include "generator/families.h"
#include "generator/quantize/emit.h"
#include "generator/quantize/grid.h"
#include "runtime/compiler/nvrtc.h"
#include "runtime/engine/engine.h"
#include "tests/support/machine_code.h"
#include "tests/support/nvcc_lint.h"
#include "tests/support/quantize_cells.h"

namespace octile {
namespace {

const DeviceSpec& h200() {
  const DeviceSpec* device = find_device("h200");
  EXPECT_NE(device, nullptr);
  return *device;
}

// Returns one NVRTC for the file, or null if there is none; the tests then skip.
std::shared_ptr<const Nvrtc> nvrtc() {
  static const auto opened = Nvrtc::open();
  return opened ? *opened : nullptr;
}

class QuantizeNvrtc : public ::testing::Test {
 protected:
  void SetUp() override {
    if (nvrtc() == nullptr) GTEST_SKIP() << "NVRTC cannot be opened";
  }
};

// Compiles each text once.
void compile_and_check(const QuantizeProblem& problem, const QuantizeConfig& config) {
  static std::set<std::string> seen;
  SCOPED_TRACE(to_text(Problem(problem)) + " / " + to_text(config));
  const auto kernel = emit(problem, config, h200(), embedded_templates());
  ASSERT_TRUE(kernel.has_value()) << kernel.error().message;
  if (!seen.insert(identity_text(kernel->source)).second) return;
  const auto output = nvrtc()->compile("quantize", kernel->source, kernel->options);
  ASSERT_TRUE(output.has_value()) << output.error().message;
  const KernelResources* r = output->find(kernel->name);
  ASSERT_NE(r, nullptr) << "the cubin holds no kernel named " << kernel->name;
  EXPECT_EQ(r->spill_store_bytes, 0);
  EXPECT_EQ(r->spill_load_bytes, 0);
  EXPECT_EQ(r->stack_bytes, 0);
  const std::vector<Companion> companions = companions_of(problem, config);
  ASSERT_EQ(kernel->companions.size(), companions.size());
  for (std::size_t i = 0; i < companions.size(); ++i) {
    const EntryPoint& companion = kernel->companions[i];
    const KernelResources* other = output->find(companion.name);
    ASSERT_NE(other, nullptr) << "the cubin holds no kernel named " << companion.name;
    EXPECT_EQ(other->spill_store_bytes + other->spill_load_bytes + other->stack_bytes, 0);
    constexpr std::array kThreads{kFirstPassThreads, kUpdateThreads, kNormThreads,
                                  kBiasThreads,      kOrderThreads,  kFingerprintThreads};
    EXPECT_EQ(other->max_threads, kThreads[static_cast<std::size_t>(companions[i])]);
    EXPECT_EQ(other->parameter_bytes, companion.parameter_bytes);
    EXPECT_TRUE(tests::waits_before_memory(tests::opcodes_of(output->cubin, companion.name)));
  }
  // Behind a first pass, which has waited itself, x may be read at once.
  if (first_pass_of(problem, config) == FirstPass::kNone) {
    EXPECT_TRUE(tests::waits_before_memory(tests::opcodes_of(output->cubin, kernel->name)));
  }
  EXPECT_EQ(r->max_threads, kernel->threads);
  EXPECT_EQ(r->parameter_bytes, kernel->parameter_bytes);
  // Registers are allocated to a warp in units of 256 (8 for each thread).
  const int registers = static_cast<int>(round_up(r->registers, 8));
  EXPECT_LE(registers * config.threads * config.blocks_per_sm, h200().registers_per_sm);
  EXPECT_TRUE(output->warnings.empty()) << output->log;
  fmt::print("{:<68} {:>3} registers {:>5} B static shared {:>6.1f} ms {:>6} B cubin\n",
             kernel->name, r->registers, r->static_smem_bytes, output->compile_ms,
             output->cubin.size());
}

// The check of compile_and_check() sees a kernel that reads before it waits: the cast with one
// scale for the tensor, whose first pass has waited.
TEST_F(QuantizeNvrtc, AReadBeforeTheWaitIsSeen) {
  QuantizeProblem p;
  p.cols = 7168;
  p.q = {DType::kE4M3, Granularity::kPerTensor, ScaleFormat::kF32};
  const auto kernel = emit(p, default_config(p, 4096, h200()), h200(), embedded_templates());
  ASSERT_TRUE(kernel.has_value()) << kernel.error().message;
  const auto output = nvrtc()->compile("quantize", kernel->source, kernel->options);
  ASSERT_TRUE(output.has_value()) << output.error().message;
  const auto opcodes = tests::opcodes_of(output->cubin, kernel->name);
  EXPECT_GT(opcodes.size(), 100U);
  EXPECT_FALSE(tests::waits_before_memory(opcodes));
  EXPECT_TRUE(tests::opcodes_of(output->cubin, "another_kernel").empty());
}

TEST_F(QuantizeNvrtc, ComparedWeightsCompile) {
  for (const DType type : {DType::kBF16, DType::kFP32}) {
    QuantizeProblem p;
    p.cols = 7168;
    p.x.dtype = type;
    p.q = {DType::kE4M3, Granularity::k128x128, ScaleFormat::kF32Pow2};
    p.output = QuantizeOutput::kBoth;
    p.skip_unchanged = true;
    compile_and_check(p, default_config(p, 4096, h200()));
  }
}

TEST_F(QuantizeNvrtc, PiecesCompile) {
  for (const QuantizeProblem& p : tests::pieces_cells()) {
    compile_and_check(p, default_config(p, 1, h200()));
  }
}

TEST_F(QuantizeNvrtc, Fp32ByWayOfBf16Compiles) {
  for (const QuantizeProblem& p : tests::cells_to_run(tests::via_cells(7168))) {
    compile_and_check(p, default_config(p, 4096, h200()));
  }
}

TEST_F(QuantizeNvrtc, RowMessagesCompile) {
  for (const QuantizeProblem& p : tests::cells_to_run(tests::row_message_cells(7168))) {
    compile_and_check(p, default_config(p, 16384, h200()));
  }
}

// Compiles every granularity, scale format, rounding and output, or the part of them that
// OCTILE_TESTS says; the types take turns. With OCTILE_SWEEP=1, compiles every combination with
// every type.
TEST_F(QuantizeNvrtc, EveryCellCompilesWithoutSpills) {
  const bool sweep = std::getenv("OCTILE_SWEEP") != nullptr;
  const auto cells = sweep ? tests::quantize_cells(7168)
                           : tests::cells_to_run(tests::covering_quantize_cells(7168));
  for (const QuantizeProblem& problem : cells) {
    compile_and_check(problem, default_config(problem, 16384, h200()));
  }
  fmt::print("{} of {} cells compiled\n", cells.size(), tests::quantize_cells(7168).size());
}

TEST_F(QuantizeNvrtc, GroupsAndMaximaCompileWithoutSpills) {
  const bool sweep = std::getenv("OCTILE_SWEEP") != nullptr;
  std::size_t compiled = 0;
  const auto all = tests::all_grouped_problems(7168);
  auto cells = sweep ? tests::supported(all) : tests::cells_to_run(tests::covering_layouts(all));
  for (const QuantizeProblem& problem : tests::amax_cells(7168)) cells.push_back(problem);
  for (const QuantizeProblem& problem : cells) {
    compile_and_check(problem, default_config(problem, 16384, h200()));
    ++compiled;
  }
  for (QuantizeProblem problem : tests::cells_to_run(tests::grouped_source_cells(7168))) {
    // This source needs more registers.
    if (!problem.source.empty() && !problem.weighted) problem.source = "silu_mul";
    compile_and_check(problem, default_config(problem, 16384, h200()));
    ++compiled;
  }
  fmt::print("{} cells compiled\n", compiled);
}

// Returns all cells, or a part that covers them, in which each kind of groups has each
// granularity and each of the types that it is quantised from.
std::vector<QuantizeProblem> part_of(const std::vector<QuantizeProblem>& cells) {
  if (tests::runs_all_cases()) return cells;
  return tests::cover_features(cells, [](const QuantizeProblem& p) {
    auto features = tests::features_of(p);
    const int granularity = static_cast<int>(p.q.granularity);
    const int grouping = static_cast<int>(p.grouping);
    features.push_back({100 + grouping, granularity, 0});
    features.push_back(
        {300 + grouping, static_cast<int>(p.x.dtype), static_cast<int>(p.x.granularity)});
    return features;
  });
}

// Compiles tiles of tensors so small that each SM has at most one, warps of one or two rows, and
// clusters that hold the tensor.
TEST_F(QuantizeNvrtc, EveryCellOfFewRowsCompilesWithoutSpills) {
  int tiled = 0, alone = 0;
  std::vector<QuantizeProblem> cells;
  for (const auto& all : {tests::covering_quantize_cells(7168), tests::grouped_source_cells(7168),
                          tests::covering_layouts(tests::all_grouped_problems(7168))}) {
    for (const QuantizeProblem& p : all) {
      if (default_config(p, 128, h200()) != default_config(p, 16384, h200())) cells.push_back(p);
    }
  }
  for (const QuantizeProblem& problem : part_of(cells)) {
    compile_and_check(problem, default_config(problem, 128, h200()));
    ++(template_of(problem) == QuantizeTemplate::kCtaTile ? tiled : alone);
    for (const std::int64_t rows : {2, 8}) {
      if (may_hold_tensor(problem))
        compile_and_check(problem, default_config(problem, rows, h200()));
    }
  }
  fmt::print("{} tiled cells of few rows compiled, {} others\n", tiled, alone);
  const int least = tests::runs_all_cases() ? 50 : 10;
  EXPECT_GT(tiled, least);
  EXPECT_GT(alone, least);
}

// The defaults that guarantee two or more blocks, whereas those of the next problem guarantee one.
TEST_F(QuantizeNvrtc, TheMostResidentDefaultsCompileWithoutSpills) {
  QuantizeProblem p;
  p.cols = 7168;
  for (const DType x : {DType::kBF16, DType::kFP16, DType::kFP32}) {
    p.x = {x};
    for (const QuantizeOutput output :
         {QuantizeOutput::kRowwise, QuantizeOutput::kTransposed, QuantizeOutput::kBoth}) {
      p.output = output;
      compile_and_check(p, default_config(p, 16384, h200()));
    }
  }
}

TEST_F(QuantizeNvrtc, EveryFusedCellCompilesWithoutSpills) {
  const auto all = tests::fused_quantize_cells(7168);
  const auto cells = tests::cells_to_run(all);
  for (const QuantizeProblem& problem : cells) {
    compile_and_check(problem, default_config(problem, 16384, h200()));
  }
  fmt::print("{} of {} fused cells compiled\n", cells.size(), all.size());
  EXPECT_GT(all.size(), 50U);
}

// A row of a computed source comes straight to the registers of a warp, or, normed, of a block.
TEST_F(QuantizeNvrtc, ComputedRowsCompileWithoutSpills) {
  int i = 0;
  for (const char* source : {"silu_mul", "dsilu_mul", "gelu_tanh", "rmsnorm", "x0;exp(x1)"}) {
    for (const Granularity granularity : {Granularity::k1x128, Granularity::k1x32}) {
      QuantizeProblem p;
      p.cols = i % 4 < 2 ? 7168 : 2048;
      p.x = {++i % 2 == 0 ? DType::kFP32 : DType::kBF16};
      p.q = {DType::kE4M3, granularity, default_scale_format(granularity)};
      p.source = source;
      const QuantizeConfig config = default_config(p, 16, h200());
      EXPECT_EQ(config.tile_rows, 1);
      compile_and_check(p, config);
    }
  }
}

// Requantising has too many pairs of types for every run. OCTILE_SWEEP=1 compiles those with
// different texts.
TEST_F(QuantizeNvrtc, EveryPairOfRequantisedTypesCompilesWithoutSpills) {
  if (std::getenv("OCTILE_SWEEP") == nullptr) GTEST_SKIP() << "OCTILE_SWEEP is not set";
  int compiled = 0;
  for (const TensorType& x : tests::quantized_types()) {
    for (const TensorType& q : tests::quantized_types()) {
      if (x.scale == ScaleFormat::kF32Pow2 || q.scale == ScaleFormat::kF32Pow2) continue;
      for (const int output : {1, 2, 3}) {
        QuantizeProblem p;
        p.cols = 7168;
        p.x = x;
        p.q = q;
        p.output = static_cast<QuantizeOutput>(output);
        compile_and_check(p, default_config(p, 16384, h200()));
        ++compiled;
      }
    }
  }
  fmt::print("{} pairs compiled\n", compiled);
}

// All results of default_config() over token counts from 1 to 65536 and narrow and wide rows.
TEST_F(QuantizeNvrtc, EveryDefaultConfigurationCompilesWithoutSpills) {
  for (const Granularity granularity : {Granularity::k1x128, Granularity::k128x128}) {
    for (const DType x : {DType::kBF16, DType::kFP16, DType::kFP32}) {
      QuantizeProblem problem;
      problem.x = {x};
      problem.q.granularity = granularity;
      std::set<std::string> seen;
      for (const std::int64_t cols : {64, 2048, 7168, 65536}) {
        for (std::int64_t rows = 1; rows <= 65536; rows *= 2) {
          problem.cols = cols;
          const QuantizeConfig config = default_config(problem, rows, h200());
          if (seen.insert(to_text(config)).second) compile_and_check(problem, config);
        }
      }
      EXPECT_GE(seen.size(), 2U) << "small and large tensors take the same configuration";
    }
  }
}

// The attempts of the experiment log that are configurations.
TEST_F(QuantizeNvrtc, LadderConfigurationsCompileWithoutSpills) {
  QuantizeProblem rowwise;
  rowwise.cols = 7168;
  compile_and_check(rowwise, {4, 512, 256, 3});
  compile_and_check(rowwise, {4, 256, 256, 5});
  compile_and_check(rowwise, {4, 256, 128, 10});
  compile_and_check(rowwise, {16, 256, 256, 2});
  QuantizeProblem square = rowwise;
  square.q.granularity = Granularity::k128x128;
  compile_and_check(square, {128, 128, 512, 2});
  compile_and_check(square, {128, 128, 1024, 1});
  for (const Granularity g : {Granularity::k1x128, Granularity::k128x128}) {
    QuantizeProblem both = rowwise;
    both.q.granularity = g;
    both.output = QuantizeOutput::kBoth;
    compile_and_check(both, {256, 128, 512, 1, true});
    compile_and_check(both, {128, 128, 256, 2, false});
  }
}

// Lints the templates as nvcc reads them, with their default prologue. The wait for the previous
// kernel's writes comes late, and ptxas moves .nc loads (load_4, load_16) to before the wait.
TEST(QuantizeLint, MaximaOfTheKernelBeforeAreNotReadByNcLoads) {
  const std::regex by_nc(R"(\bload_\d+\(\s*\w+\.maxima\b)"), by_any(R"(_\d+\(\s*\w+\.maxima\b)");
  int reads = 0;
  for (const TemplateFile& file : embedded_templates()) {
    const std::string text(file.text);
    EXPECT_FALSE(std::regex_search(text, by_nc)) << file.path;
    reads += std::regex_search(text, by_any) ? 1 : 0;
  }
  EXPECT_GE(reads, 3) << "of a tensor, of groups, of lines";
}

TEST(QuantizeLint, TemplatesParseUnderNvcc) {
  if (!tests::has_nvcc()) {
    GTEST_SKIP() << "no nvcc on PATH or in /usr/local/cuda/bin";
  }
  const tests::TemplateFolder folder;
  for (const std::string name :
       {"warp_tile", "cta_tile", "cta_row", "tensor_amax", "line_amax", "group_amax", "range_amax",
        "range_cast", "scale_update", "dequantize", "transpose", "norm_rows", "row_norm",
        "bias_sum", "scale_order", "few_rows", "whole_tensor"}) {
    tests::expect_compiles(folder, "quantize", name);
  }
}

}  // namespace
}  // namespace octile
