// Compiles GEMM kernels for sm_90a without a GPU: covering sets of configurations and defaults of
// the shipped model files. None of them may spill, use a stack or lose its schedule. A part of each
// set is compiled that has every feature of it (features_of below), or all with OCTILE_TESTS=all;
// the GPU suite compiles and runs the covering sets whole. Also lints the template as nvcc reads
// it, and compiles the GPU suite's own kernels. With OCTILE_SWEEP=FILE every admitted configuration
// is compiled and the result written to FILE (tests/nvrtc/SWEEP.json).
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <array>
#include <atomic>
#include <cstdlib>
#include <fstream>
#include <map>
#include <mutex>
#include <nlohmann/json.hpp>
#include <set>
#include <sstream>
#include <thread>
#include <utility>
#include <vector>

#include "generator/families.h"
#include "generator/gemm/passes.h"
#include "runtime/compiler/nvrtc.h"
#include "runtime/engine/engine.h"
#include "tests/support/api_handles.h"
#include "tests/support/coverage.h"
#include "tests/support/embedded_sources.h"
#include "tests/support/gemm_variants.h"
#include "tests/support/nvcc_lint.h"
#include "tools/models/layout.h"
#include "tools/models/source.h"

namespace octile {
namespace {

const DeviceSpec& h200() { return *find_device("h200"); }

std::shared_ptr<const Nvrtc> nvrtc() {
  static const auto opened = Nvrtc::open();
  return opened ? *opened : nullptr;
}

struct Compiled {
  GemmConfig config;
  EmittedKernel kernel;
  KernelResources resources;
  std::vector<std::string> lost_schedules;
  std::vector<std::string> warnings;
  double compile_ms = 0;
  std::string error;
};

Compiled compile(const GemmProblem& problem, const GemmConfig& config) {
  Compiled result;
  result.config = config;
  auto kernel = emit(problem, config, h200(), embedded_templates());
  if (!kernel) {
    result.error = kernel.error().message;
    return result;
  }
  result.kernel = std::move(*kernel);
  const auto output =
      nvrtc()->compile(result.kernel.name, result.kernel.source, result.kernel.options);
  if (!output) {
    result.error = output.error().message;
    return result;
  }
  result.lost_schedules = output->lost_schedules;
  result.warnings = output->warnings;
  result.compile_ms = output->compile_ms;
  if (const KernelResources* r = output->find(result.kernel.name)) {
    result.resources = *r;
  } else {
    result.error = "the cubin holds no kernel of that name";
  }
  return result;
}

// Compiles in parallel on the machine's cores; results are in the order of `variants`.
std::vector<Compiled> compile_all(const std::vector<tests::GemmVariant>& variants) {
  std::vector<Compiled> results(variants.size());
  std::atomic<std::size_t> next = 0;
  std::vector<std::jthread> workers;
  for (unsigned i = 0; i < std::max(1U, std::thread::hardware_concurrency()); ++i) {
    workers.emplace_back([&] {
      for (std::size_t j = next++; j < variants.size(); j = next++) {
        results[j] = compile(variants[j].problem, variants[j].config);
      }
    });
  }
  workers.clear();
  return results;
}

void expect_clean(const Compiled& c) {
  SCOPED_TRACE(c.kernel.name + " " + to_text(c.config));
  ASSERT_EQ(c.error, "");
  EXPECT_EQ(c.resources.spill_store_bytes, 0);
  EXPECT_EQ(c.resources.spill_load_bytes, 0);
  EXPECT_EQ(c.resources.stack_bytes, 0);
  EXPECT_EQ(c.resources.max_threads, c.kernel.threads);
  EXPECT_EQ(c.resources.parameter_bytes, c.kernel.parameter_bytes);
  EXPECT_TRUE(c.lost_schedules.empty()) << c.lost_schedules.front();
  EXPECT_TRUE(c.warnings.empty()) << c.warnings.front();
}

void expect_all_clean(const std::vector<Compiled>& kernels) {
  double slowest = 0;
  for (const Compiled& c : kernels) {
    expect_clean(c);
    slowest = std::max(slowest, c.compile_ms);
  }
  fmt::print("{} kernels, slowest compile {:.0f} ms\n", kernels.size(), slowest);
}

// The features of a part of a set: every number of a tile's columns, cluster, way to overlap and
// residency. Under each scaling every output, bias, sentry, interval, pair of types, format of
// scales, shape of a consumer's tile and store. Each output with each number of consumers, which
// decides the registers, and with each store. The features of several GEMMs: each kind of groups
// and batches with every value of the configuration, and each of its scalings and outputs with
// every store and number of consumers.
using Feature = std::array<int, 4>;
std::vector<Feature> features_of(const tests::GemmVariant& v) {
  const GemmProblem& p = v.problem;
  const GemmConfig& c = v.config;
  const int scaling = 64 * static_cast<int>(p.a.granularity) +
                      4 * static_cast<int>(p.b.granularity) + (c.mma_factors ? 1 : 0);
  const int kind = 8 * static_cast<int>(p.grouping) + (has_tokens_in_k(p) ? 4 : 0) +
                   (is_batched(p) ? 2 : 0) + (p.sums_batch ? 1 : 0);
  const int output =
      16 * static_cast<int>(p.d.scale) + 2 * static_cast<int>(p.d.dtype) + (p.accumulate ? 1 : 0);
  const int store = 2 * static_cast<int>(c.store) + (c.splits > 1 ? 1 : 0);
  const std::vector<int> of_tile{4 * c.block_m + c.consumer_warpgroups, store,
                                 c.hold_scales ? 1 : 0};
  const std::vector<int> of_schedule{2 * c.cluster_m + c.cluster_n, 4 * c.unroll + c.in_flight,
                                     c.ctas_per_sm};
  const std::vector<int> of_problem{output,
                                    p.bias ? static_cast<int>(*p.bias) : 0,
                                    static_cast<int>(p.sentry),
                                    p.promote,
                                    2 * static_cast<int>(p.a.dtype) + static_cast<int>(p.b.dtype),
                                    8 * static_cast<int>(p.a.scale) + static_cast<int>(p.b.scale)};
  std::vector<Feature> features;
  int axis = 0;
  const auto add_each = [&](int under, const std::vector<int>& values) {
    for (const int value : values) features.push_back({under, axis++, value, 0});
  };
  if (has_several_gemms(p)) {
    features.push_back({-1, c.block_n, 0, 0});
    add_each(kind, of_tile);
    add_each(kind, of_schedule);
    features.push_back({-2, 4096 * kind + scaling, output, store});
    features.push_back({-3, 4096 * kind + scaling, output, 16 + c.consumer_warpgroups});
  } else {
    add_each(-1, of_schedule);
    features.push_back({-1, c.block_n, 0, 0});
    add_each(scaling, of_problem);
    add_each(scaling, of_tile);
    features.push_back({-4, output, store, 0});
    features.push_back({-5, output, c.consumer_warpgroups, 0});
  }
  return features;
}

std::vector<tests::GemmVariant> covering(const std::vector<tests::GemmVariant>& all) {
  return tests::runs_all_cases() ? all : tests::cover_features(all, features_of);
}

std::vector<tests::GemmVariant> with_each(const GemmProblem& problem,
                                          const std::vector<GemmConfig>& configs) {
  std::vector<tests::GemmVariant> variants;
  for (const GemmConfig& config : configs) variants.push_back({problem, config});
  return variants;
}

// Returns those whose tile has most columns among those of its problem, rows, consumers, store and
// held scales: sums and partial sums hold most registers. All with OCTILE_TESTS=all.
std::vector<tests::GemmVariant> widest_of(const std::vector<tests::GemmVariant>& all) {
  if (tests::runs_all_cases()) return all;
  std::map<std::string, tests::GemmVariant> widest;
  for (const tests::GemmVariant& v : all) {
    const GemmConfig& c = v.config;
    const std::string kind =
        fmt::format("{} {} {} {} {}", to_text(Problem(v.problem)), c.block_m, c.consumer_warpgroups,
                    static_cast<int>(c.store), c.hold_scales);
    const auto at = widest.emplace(kind, v).first;
    if (c.block_n > at->second.config.block_n) at->second = v;
  }
  std::vector<tests::GemmVariant> variants;
  for (const auto& [kind, v] : widest) variants.push_back(v);
  return variants;
}

class GemmNvrtc : public ::testing::Test {
 protected:
  void SetUp() override {
    if (nvrtc() == nullptr) GTEST_SKIP() << "NVRTC cannot be opened";
  }
};

// The defaults of every recipe with scales per row or per tensor, and of their other intervals.
std::vector<tests::GemmVariant> defaults_with_scales_for_all_of_k() {
  std::vector<tests::GemmVariant> variants;
  std::set<std::string> names;
  const auto add = [&](const GemmProblem& problem, std::int64_t tokens) {
    const GemmConfig config = default_config(problem, tokens, h200());
    if (names.insert(kernel_name(problem, config)).second) variants.push_back({problem, config});
  };
  for (const char* recipe : {"tensorwise", "delayed", "rowwise"}) {
    for (const Pass pass : {Pass::kFprop, Pass::kDgrad, Pass::kWgrad}) {
      GemmProblem problem = gemm_problem(*find_recipe(recipe), pass, kDynamic, 4096, 7168);
      for (const std::int64_t tokens : {1, 64, 256, 1024, 4096, 16384}) add(problem, tokens);
      for (const int promote : {256, 512}) {
        problem.promote = promote;
        for (const std::int64_t tokens : {64, 4096}) add(problem, tokens);
      }
    }
  }
  return variants;
}

// A configuration's source is the same for every shape, so one shape whose K admits it suffices.
std::vector<tests::GemmVariant> defaults_of_shipped_models() {
  std::map<std::string, GemmConfig> defaults;
  for (const char* name : {"deepseek-v3", "llama-3-405b", "llama-3-70b", "llama-3-8b",
                           "mixtral-8x7b", "qwen3-235b-a22b"}) {
    const tools::Model model = tools::find_model(name).value();
    for (const auto& weight : tools::laid_out(model, tools::Layout::kServing).weights) {
      if (!weight.out.empty()) continue;
      GemmProblem problem;
      problem.n = weight.n.value;
      problem.k = weight.k.value;
      for (std::int64_t m = 1; m <= 16384; m *= 2) {
        const GemmConfig config = default_config(problem, m, h200());
        defaults.emplace(to_text(config), config);
      }
    }
  }
  std::vector<GemmConfig> configs;
  for (const auto& [text, config] : defaults) configs.push_back(config);
  return with_each(tests::splittable_gemm_problem(), configs);
}

std::vector<tests::GemmVariant> variants_of_family(tests::VariantFamily family) {
  auto variants = tests::covering_family_variants(family, h200());
  if (!tests::runs_all_cases()) return variants;
  for (const tests::GemmVariant& v : tests::covering_family_variants(family, h200(), 1))
    variants.push_back(v);
  return variants;
}

// A kind of variants, and how many it has at least. Cases of its own compile `parts` parts of it.
struct Kind {
  const char* name;
  std::size_t least;
  std::vector<tests::GemmVariant> (*variants)();
  std::size_t parts = 1;
  std::size_t part = 0;
};
const std::vector<Kind> kKinds{
    {"plain", 20,
     [] {
       const GemmProblem problem = tests::splittable_gemm_problem();
       return with_each(problem, tests::covering_gemm_configs(problem, h200()));
     }},
    {"blocks", 20, [] { return variants_of_family(tests::VariantFamily::kBlocks); }},
    {"scaled_at_end", 20, [] { return variants_of_family(tests::VariantFamily::kScaledAtEnd); }},
    {"mx", 20, [] { return variants_of_family(tests::VariantFamily::kMx); }},
    {"powers", 20, [] { return variants_of_family(tests::VariantFamily::kPowers); }},
    {"fp8_d", 20, [] { return tests::covering_fp8_d_variants(h200()); }},
    {"groups", 100, [] { return tests::covering_group_variants(h200()); }, 6},
    {"batches", 50, [] { return tests::covering_batch_variants(h200()); }},
    {"scales_for_all_of_k", 30, defaults_with_scales_for_all_of_k},
    {"shipped_models", 3, defaults_of_shipped_models},
};
// Unless OCTILE_TESTS says all, one case compiles a set that covers all kinds together.
const Kind kEveryKind{"covering", 300, [] {
                        std::vector<tests::GemmVariant> all;
                        for (const Kind& kind : kKinds) {
                          for (const tests::GemmVariant& v : kind.variants()) all.push_back(v);
                        }
                        return all;
                      }};

class GemmKinds : public GemmNvrtc, public ::testing::WithParamInterface<Kind> {};

TEST_P(GemmKinds, CompileClean) {
  const Kind& kind = GetParam();
  const std::vector<tests::GemmVariant> variants = kind.variants();
  EXPECT_GE(variants.size(), kind.least);
  const std::vector<tests::GemmVariant> all = covering(variants);
  std::vector<tests::GemmVariant> own;
  for (std::size_t i = kind.part; i < all.size(); i += kind.parts) own.push_back(all[i]);
  expect_all_clean(compile_all(own));
}

std::vector<Kind> kinds() {
  if (!tests::runs_all_cases()) return {kEveryKind};
  std::vector<Kind> all;
  for (Kind kind : kKinds) {
    for (kind.part = 0; kind.part < kind.parts; ++kind.part) all.push_back(kind);
  }
  return all;
}

INSTANTIATE_TEST_SUITE_P(Variants, GemmKinds, ::testing::ValuesIn(kinds()), [](const auto& kind) {
  const Kind& k = kind.param;
  return k.parts == 1 ? std::string(k.name) : fmt::format("{}_{}", k.name, k.part);
});

// Every pair of types, and each type with each interval.
TEST_F(GemmNvrtc, EveryFormatPairAndIntervalCompilesClean) {
  std::vector<tests::GemmVariant> variants;
  for (const DType a : {DType::kE4M3, DType::kE5M2}) {
    for (const DType b : {DType::kE4M3, DType::kE5M2}) {
      for (const int promote : {32, 64, 128}) {
        GemmProblem problem;
        problem.a.dtype = a;
        problem.b.dtype = b;
        problem.promote = promote;
        problem.n = 4096;
        problem.k = 7168;
        variants.push_back({problem, default_config(problem, 4096, h200())});
      }
    }
  }
  const auto types_and_interval = [](const tests::GemmVariant& v) {
    const int a = static_cast<int>(v.problem.a.dtype), b = static_cast<int>(v.problem.b.dtype);
    return std::vector<Feature>{
        {0, a, b, 0}, {1, a, v.problem.promote, 0}, {2, b, v.problem.promote, 0}};
  };
  expect_all_clean(compile_all(
      tests::runs_all_cases() ? variants : tests::cover_features(variants, types_and_interval)));
}

// Three consumers have 128 registers a thread at launch, too few for an instruction of 208 columns.
TEST_F(GemmNvrtc, WidestTileOfThreeConsumersCompilesClean) {
  const auto problem = parse_problem(
      "gemm m=7168 n=7168 k=? a=e5m2:row b=e4m3:row d=fp32 acc=1 promote=none sentry=1");
  const char* widest = "tile=192x192x128 stages=3 wg=3 store=direct promote=none";
  expect_clean(compile(std::get<GemmProblem>(*problem), *parse_gemm_config(widest)));
}

// A problem whose widest large tiles are compiled; with OCTILE_TESTS=all, every tile. `differs`
// leaves out configurations that have another one's loop: splits and the successor's start change
// none.
struct Tiles {
  const char* name;
  const char* problem;
  bool (*differs)(const GemmConfig&);
  bool (*is_large)(const GemmConfig&);
};

// The sets above have every value, but not the widest tile of MX with each output.
bool mx_differs(const GemmConfig& c) {
  return c.splits <= (c.store == EpilogueStore::kTma ? 1 : 2) && !c.pdl_early;
}
bool mx_is_large(const GemmConfig& c) { return c.block_m >= 64 && c.block_n >= 96; }
// A bias and a sentry leave MX the narrower tiles.
bool mx_bias_is_large(const GemmConfig& c) { return c.block_m >= 64 && c.block_n >= 64; }

// Tiles by which the tensor core multiplies scales, with the outputs that hold most registers.
bool power_differs(const GemmConfig& c) {
  return c.mma_factors && c.splits <= 2 && !c.pdl_early && c.ctas_per_sm == 1;
}
bool power_is_large(const GemmConfig& c) {
  return c.block_m >= 128 && c.block_n >= (c.block_m == 128 ? 112 : 80);
}

class GemmTiles : public GemmNvrtc, public ::testing::WithParamInterface<Tiles> {};

TEST_P(GemmTiles, CompileClean) {
  const Tiles& tiles = GetParam();
  const auto problem = std::get<GemmProblem>(parse_problem(tiles.problem).value());
  std::vector<tests::GemmVariant> variants;
  for (const GemmConfig& c : candidates(problem, kDynamic, h200()).admitted) {
    if (tiles.differs(c) && (tests::runs_all_cases() || tiles.is_large(c)))
      variants.push_back({problem, c});
  }
  EXPECT_GE(variants.size(), 2U);
  expect_all_clean(compile_all(widest_of(variants)));
}

INSTANTIATE_TEST_SUITE_P(
    Every, GemmTiles,
    ::testing::Values(
        Tiles{"mx_rows_of_both",
              "gemm m=? n=4096 k=7168 a=e4m3:1x32 b=e4m3:1x32 d=bf16 acc=0 promote=32", mx_differs,
              mx_is_large},
        Tiles{"mx", "gemm m=? n=4096 k=7168 a=e5m2:1x32 b=e4m3:32x32 d=bf16 acc=0 promote=32",
              mx_differs, mx_is_large},
        Tiles{"mx_bias",
              "gemm m=? n=4096 k=7168 a=e4m3:1x32 b=e4m3:32x32 d=fp16 acc=0 promote=32 bias=fp32 "
              "sentry=1",
              mx_differs, mx_bias_is_large},
        Tiles{"mx_sums", "gemm m=4096 n=4096 k=? a=e4m3:1x32 b=e4m3:1x32 d=fp32 acc=1 promote=32",
              mx_differs, mx_is_large},
        Tiles{"mx_sums_bias",
              "gemm m=4096 n=4096 k=? a=e5m2:1x32 b=e4m3:1x32 d=fp32 acc=1 promote=32 bias=bf16 "
              "sentry=1",
              mx_differs, mx_bias_is_large},
        Tiles{"multiplied",
              "gemm m=4096 n=4096 k=? a=e4m3:1x128:pow2 b=e4m3:1x128:pow2 d=fp32 acc=1 promote=128",
              power_differs, power_is_large},
        Tiles{"multiplied_bias",
              "gemm m=4096 n=4096 k=? a=e5m2:1x128:pow2 b=e4m3:1x128:pow2 d=bf16 acc=1 promote=128 "
              "bias=fp32 sentry=squares",
              power_differs, power_is_large},
        Tiles{"multiplied_groups",
              "gemm m=4096 n=4096 k=? a=e5m2:1x128:pow2 b=e4m3:1x128:pow2 d=fp32 acc=1 promote=128 "
              "group=contiguous groups=8",
              power_differs, power_is_large}),
    [](const auto& tiles) { return std::string(tiles.param.name); });

// The chosen configuration of sums over batches, in which the copy thread divides.
TEST_F(GemmNvrtc, SumsOverBatchesCompileClean) {
  std::vector<tests::GemmVariant> variants;
  for (const char* text :
       {"gemm m=4096 n=4096 k=? a=e4m3:1x128 b=e4m3:1x128 d=fp32 acc=1 promote=128 batch=2 sum=1",
        "gemm m=4096 n=4096 k=? a=e5m2:1x128:pow2 b=e4m3:1x128:pow2 d=bf16 acc=0 promote=128 "
        "batch=8 sum=1",
        "gemm m=4096 n=4096 k=? a=e5m2:tensor b=e4m3:tensor d=bf16 acc=0 promote=128 batch=8 "
        "sum=1"}) {
    const auto problem = std::get<GemmProblem>(parse_problem(text).value());
    if (tests::runs_all_cases()) {
      for (const GemmConfig& c : tests::covering_gemm_configs(problem, h200()))
        variants.push_back({problem, c});
    }
    variants.push_back({problem, default_config(problem, 4096, h200())});
  }
  expect_all_clean(compile_all(variants));
}

TEST_F(GemmNvrtc, GpuSuiteCheckerCompiles) {
  const std::vector<std::string> options{"--gpu-architecture=sm_90a", "--std=c++17",
                                         "-default-device"};
  const auto output = nvrtc()->compile(
      "checker.cu", std::string(tests::embedded::text_of("tests/gpu/checker.cu")), options);
  ASSERT_TRUE(output) << output.error().message;
  EXPECT_NE(output->find("check_product"), nullptr);
}

TEST_F(GemmNvrtc, FullSweepOnRequest) {
  const char* path = std::getenv("OCTILE_SWEEP");
  if (path == nullptr) GTEST_SKIP() << "OCTILE_SWEEP=FILE compiles every admitted configuration";
  const GemmProblem problem = tests::splittable_gemm_problem();
  nlohmann::ordered_json report;
  report["compiler"] = nvrtc()->identity().version_text();
  const auto configs = candidates(problem, kDynamic, h200()).admitted;
  report["configurations"] = configs.size();
  auto& unclean = report["unclean"] = nlohmann::ordered_json::object();
  double slowest = 0;
  for (const Compiled& c : compile_all(with_each(problem, configs))) {
    slowest = std::max(slowest, c.compile_ms);
    const bool clean = c.error.empty() && c.resources.spill_store_bytes == 0 &&
                       c.resources.stack_bytes == 0 && c.lost_schedules.empty();
    if (!clean) {
      unclean[to_text(c.config)] =
          !c.error.empty() ? c.error
                           : fmt::format("{} bytes spilled, {} bytes of stack",
                                         c.resources.spill_store_bytes, c.resources.stack_bytes);
    }
  }
  report["slowest_compile_ms"] = slowest;
  std::ofstream(path) << report.dump(1) << "\n";
  EXPECT_EQ(unclean.size(), 0U);
}

// Returns the prologue constants, "constexpr int kStages = 5;" and the like, of a source's text.
std::set<std::string> constants_of(const std::string& text) {
  std::set<std::string> constants;
  std::istringstream lines(text.substr(text.find("namespace cfg {")));
  for (std::string line; std::getline(lines, line) && !line.starts_with("}");) {
    if (line.starts_with("constexpr ")) constants.insert(line);
  }
  return constants;
}

std::string template_text(std::string_view path) {
  for (const TemplateFile& file : embedded_templates()) {
    if (file.path == path) return std::string(file.text);
  }
  return {};
}

// default_prologue.cuh holds the generator's text for the default configuration.
TEST(GemmLint, DefaultPrologueIsTheDefaultConfigurations) {
  const auto kernel =
      emit(GemmProblem{.n = 4096, .k = 4096}, GemmConfig{}, h200(), embedded_templates());
  ASSERT_TRUE(kernel) << kernel.error().message;
  const auto emitted = constants_of(kernel->source);
  EXPECT_GT(emitted.size(), 25U);
  EXPECT_EQ(constants_of(template_text("gemm/default_prologue.cuh")), emitted);
}

// nvcc reads the template with its default prologue.
TEST(GemmLint, TemplateParsesUnderNvcc) {
  if (!tests::has_nvcc()) {
    GTEST_SKIP() << "no nvcc on PATH or in /usr/local/cuda/bin";
  }
  tests::expect_compiles(tests::TemplateFolder(), "gemm", "kernel");
}

// The checked-in result of that sweep: no configuration of the search space spills.
TEST(GemmSweep, CheckedInSweepIsClean) {
  std::ifstream file(OCTILE_SOURCE_DIR "/tests/nvrtc/SWEEP.json");
  const auto report = nlohmann::json::parse(file, nullptr, false);
  ASSERT_TRUE(report.is_object()) << "tests/nvrtc/SWEEP.json is missing or not JSON";
  EXPECT_EQ(report["unclean"].size(), 0U);
  EXPECT_EQ(report["configurations"],
            candidates(tests::splittable_gemm_problem(), kDynamic, h200()).admitted.size())
      << "the candidate list has changed since the sweep";
}

}  // namespace
}  // namespace octile
