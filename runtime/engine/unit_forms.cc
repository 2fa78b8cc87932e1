#include "runtime/engine/unit_forms.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <string>
#include <utility>

#include "runtime/families/families.h"

namespace octile {
namespace {

constexpr std::string_view kBlocks = "a=e4m3:1x128 b=e4m3:128x128";
constexpr std::string_view kMixed = "a=e5m2:1x128 b=e4m3:128x128";
constexpr std::string_view kRowsOfBlocks = "a=e4m3:1x128 b=e4m3:1x128";
constexpr std::string_view kPerRow = "a=e4m3:row b=e4m3:row";
constexpr std::string_view kTensors = "a=e4m3:tensor b=e4m3:tensor";
constexpr std::string_view kPowers = "a=e4m3:1x128:pow2 b=e4m3:128x128:pow2";
constexpr std::string_view kPowersOfRows = "a=e4m3:1x128:pow2 b=e4m3:1x128:pow2";
constexpr std::string_view kPacked = "a=e4m3:1x128:ue8m0x4 b=e4m3:1x128:ue8m0x4";
constexpr std::string_view kMx = "a=e4m3:1x32 b=e4m3:1x32";
constexpr std::string_view kMxBlocks = "a=e4m3:1x32 b=e4m3:32x32";

constexpr std::string_view kFp32 = "d=fp32 acc=0", kBf16 = "d=bf16 acc=0";
constexpr std::string_view kInside = "with scales in the instruction ";
constexpr bool kTokensInK = true, kTokensInM = false;

// With promoted sums every unit, with scales in the instruction those that have it.
constexpr std::array kForms{
    UnitForm{kBlocks, "128", kFp32, 64, 64, 256},
    UnitForm{.operands = kMx,
             .promote = "none",
             .result = kFp32,
             .m = 64,
             .n = 64,
             .k = 256,
             .what = kInside},
};

// Those of tcgen05 have more K-blocks than the ring has stages and slots, and several tiles a
// thread block, again and again. The first represent what the cost model chooses: four slots, rings
// of up to 14 stages, D of 16 and 8 bits, weight gradients, groups, batches, a split K and packed
// scales. The others have tails, one and two strips and consumers, and scales of one and two groups
// of rows and columns in tensor memory.
constexpr int kTimes = 20;
constexpr std::array kMoreForms{
    UnitForm{kBlocks, "128", kBf16, 200, 272, 1664, kTokensInM,
             "tile=128x128x128 stages=5 wg=1 inflight=4", 2, kTimes, "with bf16 D "},
    UnitForm{kBlocks, "128", "d=e4m3:1x128 acc=0", 320, 272, 1664, kTokensInM,
             "tile=128x128x128 stages=3 wg=1 inflight=2", 2, kTimes, "with FP8 D "},
    UnitForm{kMixed, "128", "d=fp16 acc=0 bias=fp32 sentry=1", 100, 144, 1664, kTokensInM,
             "tile=64x64x128 stages=12 wg=1 inflight=4", 2, kTimes,
             "with E5M2 A, a bias and fp16 D "},
    UnitForm{kRowsOfBlocks, "128", "d=fp32 acc=1", 200, 144, 1608, kTokensInK,
             "tile=128x128x128 stages=6 wg=1 inflight=4", 2, kTimes, "of a weight gradient "},
    UnitForm{kRowsOfBlocks, "128", "d=bf16 acc=1 group=contiguous groups=3", 128, 272, 1000,
             kTokensInK, "tile=128x256x128 stages=4 wg=2 inflight=2 store=direct", 2, kTimes,
             "of groups of tokens in K "},
    UnitForm{kBlocks, "128", "d=bf16 acc=0 group=contiguous groups=3", 180, 144, 1152, kTokensInM,
             "tile=64x112x128 stages=8 wg=1 inflight=4", 2, kTimes, "of contiguous groups "},
    UnitForm{kBlocks, "128", "d=bf16 acc=0 group=masked groups=3", 140, 240, 640, kTokensInM,
             "tile=128x224x128 stages=3 wg=2 cluster=2x1 inflight=2", 2, kTimes,
             "of masked groups "},
    UnitForm{kBlocks, "128", "d=bf16 acc=0 batch=2", 200, 144, 640, kTokensInM,
             "tile=192x128x128 stages=3 wg=3 inflight=1", 2, kTimes, "of a batch "},
    UnitForm{kBlocks, "128", kBf16, 120, 144, 3328, kTokensInM,
             "tile=64x128x128 stages=8 wg=1 inflight=4 store=direct splits=4", 4, kTimes,
             "with a split K "},
    UnitForm{kRowsOfBlocks, "128", kBf16, 65, 112, 1664, kTokensInM,
             "tile=16x96x128 stages=14 wg=1 inflight=4", 3, kTimes, "of few rows "},
    UnitForm{kTensors, "none", kBf16, 200, 144, 1664, kTokensInM,
             "tile=128x128x128 stages=6 wg=1 inflight=4", 2, kTimes, "with tensors' scales "},
    UnitForm{kBlocks, "128", kFp32, 320, 272, 1664, kTokensInM,
             "tile=128x128x128 stages=3 wg=2 inflight=2", 2, kTimes},
    UnitForm{kBlocks, "128", kFp32, 320, 272, 1664, kTokensInM,
             "tile=256x128x128 stages=3 wg=2 inflight=2", 2, kTimes},
    UnitForm{kBlocks, "128", kFp32, 320, 400, 1664, kTokensInM,
             "tile=128x256x128 stages=3 wg=2 inflight=2", 2, kTimes},
    UnitForm{kBlocks, "128", kFp32, 200, 272, 1664, kTokensInM,
             "tile=64x256x128 stages=3 wg=1 inflight=1", 2, kTimes},
    UnitForm{kBlocks, "64", kFp32, 200, 240, 1664, kTokensInM,
             "tile=128x112x128 stages=3 wg=2 inflight=1 store=direct", 2, kTimes},
    UnitForm{kPerRow, "256", kFp32, 200, 144, 1664, kTokensInM,
             "tile=128x64x128 stages=3 wg=1 inflight=2", 2, kTimes},
    UnitForm{kPerRow, "none", kFp32, 200, 144, 1664, kTokensInM,
             "tile=128x128x128 stages=3 wg=2 inflight=2", 2, kTimes},
    UnitForm{kPacked, "none", kBf16, 200, 272, 1664, kTokensInM,
             "tile=128x128x128 stages=5 wg=1 inflight=2", 2, kTimes, "with packed scales "},
    UnitForm{kMxBlocks, "none", kBf16, 200, 272, 1664, kTokensInM,
             "tile=128x256x128 stages=3 wg=2 inflight=1", 2, kTimes, "with 32x32 blocks "},
    UnitForm{kPowers, "none", kFp32, 320, 272, 1664, kTokensInM,
             "tile=128x192x128 stages=3 wg=2 inflight=2", 2, kTimes},
    UnitForm{kPowersOfRows, "none", kFp32, 320, 400, 1664, kTokensInM,
             "tile=128x256x128 stages=3 wg=2 inflight=1", 2, kTimes},
    UnitForm{kMx, "none", kFp32, 320, 272, 1664, kTokensInM,
             "tile=256x128x128 stages=3 wg=2 inflight=1", 2, kTimes},
};

}  // namespace

GemmProblem problem_of(const UnitForm& form) {
  const auto extent = [](std::size_t value, bool is_open) {
    return is_open ? std::string("?") : fmt::format("{}", value);
  };
  const auto problem = parse_problem(
      fmt::format("gemm m={} n={} k={} {} {} promote={}", extent(form.m, !form.sums_tokens), form.n,
                  extent(form.k, form.sums_tokens), form.operands, form.result, form.promote));
  return *problem_as<GemmProblem>(problem.value());
}

GemmConfig config_of(const UnitForm& form, const DeviceSpec& device) {
  const GemmProblem problem = problem_of(form);
  if (form.config.empty())
    return default_config(problem, static_cast<std::int64_t>(form.m), device);
  GemmConfig config = parse_gemm_config(form.config).value();
  config.promote = problem.promote;
  config.unit = device.units.front();
  return config;
}

std::vector<UnitTests> unit_tests(const DeviceSpec& device) {
  std::vector<UnitTests> all;
  for (const MatrixUnit unit : device.units) {
    UnitTests tests{unit, false, device.with_all_units(), {}};
    tests.device.units = {unit};
    for (const UnitForm& form : kForms)
      if (check_supported(problem_of(form), tests.device)) tests.forms.push_back(form);
    if (tests.forms.empty()) continue;
    if (!device.is_unused(unit)) {
      all.push_back(std::move(tests));
      continue;
    }
    tests.forms.insert(tests.forms.end(), kMoreForms.begin(), kMoreForms.end());
    const auto with_scales = std::ranges::stable_partition(
        tests.forms, [](const UnitForm& form) { return !has_scales_inside(problem_of(form)); });
    UnitTests of_scales{unit, true, tests.device, {with_scales.begin(), with_scales.end()}};
    for (UnitForm& form : of_scales.forms)
      if (form.what == kInside) form.what = {};  // the answer's name says it
    tests.forms.erase(with_scales.begin(), with_scales.end());
    all.push_back(std::move(tests));
    if (!of_scales.forms.empty()) all.push_back(std::move(of_scales));
  }
  return all;
}

}  // namespace octile
