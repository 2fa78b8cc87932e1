// Compiles GEMM kernels of other units than WGMMA: by mma.sync, for the machines that have the
// instruction and for those on which ptxas emulates it, and by tcgen05. With OCTILE_TESTS=all a
// covering set of each problem's configurations, in a case for each. Otherwise each problem with
// one of its widest tiles, of many rows or of few: both with every scheme, every kind of groups and
// every output.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <memory>
#include <string>
#include <vector>

#include "generator/families.h"
#include "runtime/compiler/nvrtc.h"
#include "runtime/engine/engine.h"
#include "tests/support/coverage.h"
#include "tests/support/gemm_variants.h"
#include "tests/support/machine_code.h"

namespace octile {
namespace {

// Every scheme, kind of groups and output; the stores that hold most registers.
constexpr const char* kProblems[] = {
    "gemm m=? n=7168 k=7168 a=e4m3:1x128 b=e4m3:128x128 d=bf16 acc=0 promote=128",
    "gemm m=? n=7168 k=7168 a=e4m3:1x128:ue8m0x4 b=e5m2:128x128 d=fp16 acc=0 promote=32 bias=fp32 "
    "sentry=squares",
    "gemm m=7168 n=7168 k=? a=e4m3:1x128 b=e5m2:1x128 d=fp32 acc=1 promote=128",
    "gemm m=7168 n=7168 k=? a=e4m3:1x128:ue8m0x4 b=e5m2:1x128:ue8m0x4 d=bf16 acc=1 promote=64 "
    "sentry=1",
    "gemm m=? n=7168 k=7168 a=e4m3:row b=e4m3:row d=bf16 acc=0 promote=none bias=bf16",
    "gemm m=? n=7168 k=7168 a=e5m2:tensor b=e4m3:tensor d=fp32 acc=1 promote=256 sentry=1",
    "gemm m=? n=7168 k=7168 a=e4m3:1x128 b=e4m3:128x128 d=bf16 acc=0 promote=128 group=contiguous "
    "groups=8",
    "gemm m=? n=7168 k=7168 a=e4m3:row b=e4m3:row d=bf16 acc=0 promote=512 group=masked groups=8",
    "gemm m=7168 n=7168 k=? a=e4m3:1x128 b=e4m3:1x128 d=fp32 acc=1 promote=128 group=contiguous "
    "groups=8",
    "gemm m=? n=7168 k=7168 a=e4m3:1x128 b=e4m3:1x128 d=bf16 acc=0 promote=128 batch=8",
    "gemm m=7168 n=7168 k=? a=e4m3:1x128 b=e4m3:1x128 d=fp32 acc=1 promote=128 batch=4 sum=1",
    "gemm m=? n=7168 k=7168 a=e4m3:1x128 b=e4m3:128x128 d=e4m3:1x128 acc=0 promote=128",
    "gemm m=? n=7168 k=7168 a=e5m2:1x32 b=e4m3:32x32 d=bf16 acc=0 promote=32 bias=bf16 sentry=1",
    "gemm m=7168 n=7168 k=? a=e4m3:1x32 b=e4m3:1x32 d=fp32 acc=1 promote=32",
    // Scales inside the instruction, on the device that has it.
    "gemm m=? n=7168 k=7168 a=e4m3:1x128:pow2 b=e4m3:128x128:pow2 d=bf16 acc=0 promote=none",
    "gemm m=? n=7168 k=7168 a=e4m3:1x128:ue8m0x4 b=e5m2:128x128:pow2 d=e5m2:1x128 acc=0 "
    "promote=none sentry=squares",
    "gemm m=7168 n=7168 k=? a=e5m2:1x128:pow2 b=e4m3:1x128:ue8m0x4 d=fp32 acc=1 promote=none "
    "sentry=1",
    "gemm m=? n=7168 k=7168 a=e4m3:1x128:pow2 b=e4m3:128x128:pow2 d=fp16 acc=0 promote=none "
    "group=contiguous groups=8",
    "gemm m=7168 n=7168 k=? a=e4m3:1x128:pow2 b=e4m3:1x128:pow2 d=fp32 acc=1 promote=none "
    "group=contiguous groups=8",
    "gemm m=? n=7168 k=7168 a=e4m3:1x128:pow2 b=e4m3:1x128:ue8m0x4 d=bf16 acc=0 promote=none "
    "batch=8",
    "gemm m=? n=7168 k=7168 a=e4m3:1x32 b=e5m2:32x32 d=bf16 acc=0 promote=none",
    "gemm m=7168 n=7168 k=? a=e5m2:1x32 b=e4m3:1x32 d=fp32 acc=1 promote=none",
};

struct Machine {
  const char* device;
  MatrixUnit unit;
  // The opcode that multiplies (nvdisasm 13.0): QMMA, QMMA.SF, HMMA where FP8 is emulated, or
  // UTCQMMA without scales.
  std::uint32_t multiplies;
  bool is_emulated;
};
constexpr std::uint32_t kLoadMatrix = 0x83b, kLoadSums = 0x9ee;  // LDSM, LDTM
constexpr std::uint32_t kUtccp = 0x9e7;  // scales are copied to tensor memory
constexpr std::uint32_t kQmma = 0x27a, kQmmaScaled = 0x47a, kHmma = 0x23c, kUtcqmma = 0x5ea;
constexpr std::uint32_t kUtcqmmaScaled = 0xdea;  // with scales in tensor memory
constexpr std::uint32_t kFfma = 0x223;

// Returns the widest admitted tiles of the unit, for many rows and for few, whose columns warps
// share; with OCTILE_TESTS=all a covering set.
std::vector<GemmConfig> configs_of(const GemmProblem& problem, const Machine& machine) {
  DeviceSpec device = find_device(machine.device)->with_all_units();
  std::vector<GemmConfig> own;
  if (!check_supported(problem, device)) return own;
  // Covering sets of all units together might have none of this one.
  device.units = {machine.unit};
  for (const GemmConfig& c : tests::runs_all_cases() ? tests::covering_gemm_configs(problem, device)
                                                     : candidates(problem, 4096, device).admitted) {
    if (refused_by(c, problem, kDynamic, *find_device(machine.device)) == nullptr) own.push_back(c);
  }
  // By an emulated mma.sync, FP8 D has no tile.
  if (tests::runs_all_cases() || own.empty()) return own;
  const auto widest = [&](bool few_rows) {
    const auto size = [&](const GemmConfig& c) {
      return (c.block_m < 64) != few_rows ? 0 : c.block_m * c.block_n + c.ctas_per_sm;
    };
    return *std::ranges::max_element(own, {}, size);
  };
  return {widest(false), widest(true)};
}

struct Kernel {
  std::size_t number;  // of the problem
  Problem problem;
  GemmConfig config;
};

// Returns what a covering part has: the problem, and its scheme, groups and output for few rows and
// for many.
std::vector<std::array<int, 4>> features_of(const Kernel& kernel) {
  const auto& p = std::get<GemmProblem>(kernel.problem);
  const int rows = kernel.config.block_m < 64 ? 1 : 0;
  return {{0, static_cast<int>(kernel.number), 0, 0},
          {1, static_cast<int>(scheme_of(p)), has_scales_inside(p), rows},
          {2, static_cast<int>(p.grouping), is_batched(p) ? 1 : 0, rows},
          {3, static_cast<int>(p.d.dtype), p.accumulate, rows}};
}

// Returns those of one problem, or the covering part of all.
constexpr std::size_t kAllProblems = std::size(kProblems);
std::vector<Kernel> kernels_of(const Machine& machine, std::size_t only) {
  std::vector<Kernel> kernels;
  for (std::size_t i = 0; i < std::size(kProblems); ++i) {
    if (only != kAllProblems && only != i) continue;
    const auto problem = parse_problem(kProblems[i]);
    EXPECT_TRUE(problem) << problem.error().message;
    if (!problem) continue;
    for (const GemmConfig& config : configs_of(std::get<GemmProblem>(*problem), machine))
      kernels.push_back({i, *problem, config});
  }
  return only != kAllProblems ? kernels : tests::cover_features(kernels, features_of);
}

struct Sweep {
  Machine machine;
  std::size_t problem;  // or kAllProblems
};

class GemmDevices : public ::testing::TestWithParam<Sweep> {};

TEST_P(GemmDevices, CompileWithoutSpills) {
  const auto nvrtc = Nvrtc::open();
  if (!nvrtc) GTEST_SKIP() << "NVRTC cannot be opened";
  const Machine& machine = GetParam().machine;
  const DeviceSpec& device = *find_device(machine.device);
  int compiled = 0;
  for (const auto& [number, problem, config] : kernels_of(machine, GetParam().problem)) {
    SCOPED_TRACE(fmt::format("{}: {} / {}", device.name, to_text(problem), to_text(config)));
    const auto kernel = emit(problem, config, device, embedded_templates());
    ASSERT_TRUE(kernel) << kernel.error().message;
    const auto output = (*nvrtc)->compile(kernel->name, kernel->source, kernel->options);
    ASSERT_TRUE(output) << output.error().message;
    EXPECT_TRUE(output->warnings.empty()) << output->log;
    const KernelResources* r = output->find(kernel->name);
    ASSERT_NE(r, nullptr);
    // A stack would also show a call, such as ptxas makes of copies to a cluster on 12.x.
    EXPECT_EQ(r->spill_store_bytes + r->spill_load_bytes + r->stack_bytes, 0);
    EXPECT_EQ(r->max_threads, kernel->threads);
    const auto opcodes = tests::opcodes_of(output->cubin, kernel->name);
    const bool has_tensor_memory = machine.unit == MatrixUnit::kTcgen05;
    EXPECT_GT(std::ranges::count(opcodes, has_tensor_memory ? kLoadSums : kLoadMatrix),
              has_tensor_memory ? 0 : 4);
    const auto& gemm = std::get<GemmProblem>(problem);
    const bool has_scales_there = has_tensor_memory && has_scales_inside(gemm);
    const std::uint32_t multiplies = has_scales_there ? kUtcqmmaScaled : machine.multiplies;
    for (const std::uint32_t opcode : {kQmma, kQmmaScaled, kHmma, kUtcqmma, kUtcqmmaScaled}) {
      EXPECT_EQ(std::ranges::count(opcodes, opcode) > 0, opcode == multiplies) << opcode;
    }
    EXPECT_EQ(std::ranges::count(opcodes, kUtccp) > 0, has_scales_there);
    // Nothing is promoted. A bias or a sentry would multiply too.
    if (has_scales_inside(gemm) && !has_sentry(gemm)) {
      EXPECT_EQ(std::ranges::count(opcodes, kFfma), 0);
    }
    ++compiled;
  }
  fmt::print("{}: {} kernels\n", device.arch(), compiled);
  // Not every unit has every problem.
  if (GetParam().problem == kAllProblems) {
    EXPECT_GE(compiled, 13);
  }
}

constexpr Machine kMachines[] = {{"l40s", MatrixUnit::kMma, kQmma, false},
                                 {"h200", MatrixUnit::kMma, kHmma, true},
                                 {"b200", MatrixUnit::kMma, kHmma, true},
                                 {"b200", MatrixUnit::kTcgen05, kUtcqmma, false},
                                 {"b300", MatrixUnit::kTcgen05, kUtcqmma, false},
                                 {"rtx5090", MatrixUnit::kMma, kQmma, false},
                                 {"rtx5090", MatrixUnit::kMmaScaled, kQmmaScaled, false}};

std::vector<Sweep> sweeps() {
  std::vector<Sweep> all;
  for (const Machine& machine : kMachines) {
    if (!tests::runs_all_cases()) all.push_back({machine, kAllProblems});
    for (std::size_t i = 0; tests::runs_all_cases() && i < kAllProblems; ++i)
      all.push_back({machine, i});
  }
  return all;
}

INSTANTIATE_TEST_SUITE_P(Units, GemmDevices, ::testing::ValuesIn(sweeps()), [](const auto& m) {
  const Sweep& sweep = m.param;
  const std::string which = sweep.problem == kAllProblems ? "" : fmt::format("_{}", sweep.problem);
  return fmt::format("{}_{}{}", sweep.machine.device, name_of(sweep.machine.unit), which);
});

}  // namespace
}  // namespace octile
