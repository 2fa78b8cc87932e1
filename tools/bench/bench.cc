// octile bench: how fast kernels are on a GPU, beside what else could do the work.
#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <memory>
#include <optional>
#include <utility>

#include "runtime/api/boundary.h"
#include "tools/command.h"
#include "tools/bench/bench_kernels.h"
#include "tools/bench/bench_run.h"
#include "tools/common/text_table.h"

namespace octile::tools {
namespace {

struct Options {
  WorkOptions work;
  std::string device = "cuda";
  std::string baseline;
  int rounds = 30;
  bool overlap = false;
  bool search = false;
  double search_seconds = 10;
  bool launch = false;
  bool quantisers = false;            // `bench quantize`
  std::vector<std::string> selected;  // of its problems
  bool json = false;
  bool progress = false;
};

Result<std::vector<Work>> read_work(const Options& options) {
  if (options.quantisers) {
    auto works = work_of_quantisers(options.selected);
    if (works.empty()) return refuse("--select names no problem of the table");
    return works;
  }
  return options.work.read({4096});
}

Status check_options(const Options& options) {
  if (!options.baseline.empty() && options.baseline != "cublaslt") {
    return refuse(fmt::format("--baseline is '{}'; allowed: cublaslt", options.baseline));
  }
  if (options.rounds < 3) {
    return refuse(fmt::format("--rounds is {}; allowed are 3 and more", options.rounds));
  }
  // Written so that a NaN is refused too.
  if (!(options.search_seconds > 0)) {
    return refuse(fmt::format("--search is {}; allowed: seconds a problem, more than 0",
                              options.search_seconds));
  }
  return {};
}

Result<BenchResult> bench_one(const BenchContext& context, const Problem& problem,
                              std::int64_t tokens) {
  if (const auto* gemm = std::get_if<GemmProblem>(&problem)) {
    return bench_gemm(context, *gemm, tokens);
  }
  return bench_quantize(context, std::get<QuantizeProblem>(problem), tokens);
}

std::string shape_text(const BenchResult& result) {
  if (const auto* gemm = std::get_if<GemmProblem>(&result.problem)) {
    return fmt::format("{}x{}x{}", result.tokens, gemm->n, gemm->k);
  }
  const auto& quantize = std::get<QuantizeProblem>(result.problem);
  constexpr const char* kOutputs[] = {"", "row", "col", "both"};
  const std::string operation = quantize.operation == QuantizeOperation::kQuantize
                                    ? ""
                                    : fmt::format(" {}", name_of(quantize.operation));
  const std::string source = quantize.source.empty() ? "" : " " + quantize.source;
  return fmt::format("{}x{}{}{} {} {} {}{}{}", result.tokens, quantize.cols, operation, source,
                     to_text(quantize.x), to_text(quantize.q),
                     kOutputs[static_cast<int>(quantize.output)],
                     quantize.policy == ScalePolicy::kDelayed ? " delayed" : "",
                     quantize.grouping == Grouping::kContiguous   ? " packed"
                     : quantize.grouping == Grouping::kMasked ? " masked"
                     : quantize.bias_gradient                 ? " dbias"
                                                              : "");
}

std::string spread_text(const Timing& timing) {
  return fmt::format("{:.2f} ({:.2f} to {:.2f})", timing.median_us, timing.p10_us, timing.p90_us);
}

std::string results_table(const std::vector<BenchResult>& results) {
  TextTable table({"<shape", "octile us (p10 to p90)", "baseline us (p10 to p90)", "ratio",
                   "TFLOP/s", "TB/s", "of scales", "<checked"});
  for (const BenchResult& r : results) {
    table.add_row({shape_text(r), spread_text(r.ours),
                   r.has_baseline ? r.baseline.name + " " + spread_text(r.baseline) : "-",
                   r.has_baseline ? fmt::format("{:.3f}", r.ratio) : "-",
                   r.tflops > 0 ? fmt::format("{:.0f}", r.tflops) : "-",
                   fmt::format("{:.2f}", r.tbps),
                   r.scale_share > 0 ? fmt::format("{:.1f} %", 100 * r.scale_share) : "-",
                   !r.ok                        ? "WRONG"
                   : r.check.starts_with("not") ? "-"
                                                : "yes"});
  }
  return table.render();
}

// Empty kernel, then either the launches' host time or the works one by one.
class Bench {
 public:
  Bench(const Options& options, const BenchContext& context)
      : options_(options), context_(context), progress_(progress_mode(options.progress)) {}

  Status run(const std::vector<Work>& works) {
    progress_.step("timing an empty kernel");
    auto empty = time_empty_kernel(context_.gpu, context_.rounds);
    if (!empty) return tl::unexpected<Error>(empty.error());
    empty_ = std::move(*empty);
    Status ok = options_.launch ? time_launches(works) : time_works(works);
    progress_.done();
    // What was timed before an error is not lost.
    if (ok || !results_.empty() || !launches_.empty()) print();
    if (!ok) return ok;
    for (const BenchResult& result : results_) {
      if (!result.ok) {
        return fail(ErrorCode::kInternal,
                    fmt::format("bench: {} at {} tokens is wrong: {}", to_text(result.problem),
                                result.tokens, result.check));
      }
    }
    return {};
  }

 private:
  Status time_launches(const std::vector<Work>& works) {
    for (const Work& work : works) {
      const auto* gemm = std::get_if<GemmProblem>(&work.problem);
      if (gemm == nullptr) continue;
      progress_.step("timing launches of " + to_text(work.problem));
      GemmProblem any_count = *gemm;
      any_count.m = kDynamic;
      auto timings = bench_launch(context_, any_count);
      if (!timings) return tl::unexpected<Error>(timings.error());
      launches_.emplace_back(any_count, std::move(*timings));
    }
    if (launches_.empty())
      return refuse("--launch times octile_gemm_run; allowed with a gemm only");
    return {};
  }

  Status time_works(const std::vector<Work>& works) {
    for (const Work& work : works) {
      for (const TokenRange& range : work.tokens) {
        progress_.step(fmt::format("{} at {} tokens", to_text(work.problem), range.lo));
        auto result = bench_one(context_, work.problem, range.lo);
        if (!result) return tl::unexpected<Error>(result.error());
        results_.push_back(std::move(*result));
      }
    }
    return {};
  }

  void print() const {
    if (options_.json) {
      print_json(document());
      return;
    }
    fmt::print("{} ({}); an empty kernel takes {:.2f} us of a graph\n\n", context_.gpu.device(),
               context_.gpu.spec().full_name, empty_.median_us);
    if (!results_.empty()) fmt::print("{}", results_table(results_));
    for (const auto& [problem, timings] : launches_) {
      fmt::print(
          "  {}: octile_gemm_run takes {} us of the host; a bare launch of an empty kernel {}\n",
          to_text(Problem(problem)), spread_text(timings.ours), spread_text(timings.bare));
    }
  }

  Json document() const {
    Json results = Json::array();
    for (const BenchResult& result : results_) results.push_back(to_json(result));
    Json launches = Json::array();
    for (const auto& [problem, timings] : launches_) {
      launches.push_back({{"problem", to_text(Problem(problem))},
                          {"host", to_json(timings.ours)},
                          {"bare_launch", to_json(timings.bare)}});
    }
    Json document{{"device", context_.gpu.device()},
                  {"name", context_.gpu.spec().full_name},
                  {"driver", context_.gpu.driver()->version_text()},
                  {"empty_kernel", to_json(empty_)},
                  {"results", results},
                  {"launches", launches}};
    if (context_.cublaslt != nullptr) {
      document["cublaslt"] = {{"path", context_.cublaslt->path()},
                              {"version", context_.cublaslt->version()}};
    }
    return document;
  }

  const Options& options_;
  const BenchContext& context_;
  Progress progress_;
  Timing empty_;
  std::vector<BenchResult> results_;
  std::vector<std::pair<GemmProblem, LaunchTimings>> launches_;
};

Status run(const Options& options) {
  if (Status ok = check_options(options); !ok) return ok;
  const auto works = read_work(options);
  if (!works) return tl::unexpected<Error>(works.error());
  const auto library = LibraryHandle::create();
  if (!library) return tl::unexpected<Error>(library.error());
  const auto gpu = GpuSession::open(options.device);
  if (!gpu) return tl::unexpected<Error>(gpu.error());
  BenchContext context{*library, **gpu, nullptr, options.rounds};
  context.overlap = options.overlap;
  if (!options.baseline.empty()) {
    auto cublaslt = CublasLt::open();
    if (!cublaslt) return tl::unexpected<Error>(cublaslt.error());
    context.cublaslt = std::move(*cublaslt);
  }
  if (!options.search) return Bench(options, context).run(*works);
  const auto shop = tuner::TunerContext::open(library->get()->library, **gpu);
  if (!shop) return tl::unexpected<Error>(shop.error());
  tuner::GpuDecider decider(**shop, {});
  context.search = &decider;
  context.search_seconds = options.search_seconds;
  return Bench(options, context).run(*works);
}

}  // namespace

Command add_bench(CLI::App& root) {
  CLI::App* app = add_subcommand(
      root, "bench", "time kernels on a GPU: graph replay, rotating operands, interleaved rounds");
  auto options = std::make_shared<Options>();
  options->work.add_to(*app, "4096");
  add_option(*app, "--device", options->device, "the GPU: cuda or cuda:N").show_default();
  add_option(*app, "--baseline", options->baseline,
             "what to compare products with: cublaslt; quantisers always have a stream of the "
             "same mix");
  add_option(*app, "--rounds", options->rounds, "interleaved rounds the medians are of")
      .show_default();
  add_flag(*app, "--overlap", options->overlap,
           "let every product start while the one before it still runs (OCTILE_RUN_B_READY); "
           "the baseline has no such switch");
  CLI::Option* search = app->add_option(
      "--search", options->search_seconds,
      "search the fastest configuration of every problem first, for so many seconds each; nothing "
      "is kept");
  search->expected(0, 1)->default_str("10");
  add_flag(*app, "--launch", options->launch,
           "time instead the host's part of octile_gemm_run, new pointers and token counts "
           "every call");
  add_json_option(*app, options->json);
  add_progress_option(*app, options->progress);
  CLI::App* quantisers = app->add_subcommand(
      "quantize", "every quantiser over a table of shapes, beside a stream of the same mix");
  quantisers->fallthrough();
  quantisers
      ->add_option("--select", options->selected,
                   "only problems whose text holds one of these, e.g. 1x128,out=both")
      ->delimiter(',');
  return {app, [options, search, quantisers] {
            options->quantisers = quantisers->parsed();
            options->search = search->count() > 0;
            return run(*options);
          }};
}

}  // namespace octile::tools
