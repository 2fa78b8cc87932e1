// octile tune: which configuration is the fastest for each product or quantiser and token count,
// measured and kept.
#include <fmt/format.h>

#include <csignal>
#include <memory>
#include <utility>

#include "runtime/api/boundary.h"
#include "runtime/engine/target.h"
#include "tools/command.h"
#include "tools/tune/tasks.h"
#include "tools/tune/baselines.h"
#include "tools/tune/report.h"
#include "runtime/families/families.h"

namespace octile::tools {
namespace {

struct Options {
  ProblemOptions problem;
  std::vector<std::string> models;
  std::string shapes;
  std::vector<std::int64_t> tokens;
  std::string device = "cuda";
  std::string out;
  std::string baseline;
  double budget_seconds = 120;
  std::uint64_t seed = 1;
  bool force = false;
  bool explain = false;
  bool json = false;
  bool progress = false;
};

// SIGINT ends the campaign, not the process: what was decided is kept, and told.
volatile std::sig_atomic_t g_interrupted = 0;

class CatchInterrupt {
 public:
  CatchInterrupt() : before_(std::signal(SIGINT, note)) {}
  ~CatchInterrupt() { (void)std::signal(SIGINT, before_); }
  CatchInterrupt(const CatchInterrupt&) = delete;
  CatchInterrupt& operator=(const CatchInterrupt&) = delete;

 private:
  // The second one ends the process: a device may not answer any more.
  static void note(int) {
    g_interrupted = 1;
    (void)std::signal(SIGINT, SIG_DFL);
  }
  void (*before_)(int);
};

Status check_options(const Options& options) {
  if (!options.baseline.empty() && options.baseline != "cublaslt")
    return refuse(fmt::format("--baseline is '{}'; allowed: cublaslt", options.baseline));
  // Written so that a NaN is refused too.
  if (!(options.budget_seconds > 0))
    return refuse(
        fmt::format("--budget is {}; allowed: seconds, more than 0", options.budget_seconds));
  const int sources = (options.problem.given() ? 1 : 0) + (options.models.empty() ? 0 : 1) +
                      (options.shapes.empty() ? 0 : 1);
  if (sources != 1)
    return refuse(fmt::format(
        "{} of a problem, --model and --shapes are given; exactly one is allowed", sources));
  return {};
}

Result<std::vector<tuner::TuningTask>> read_all(const Options& options) {
  if (options.problem.given()) {
    const auto problem = options.problem.read();
    if (!problem) return tl::unexpected<Error>(problem.error());
    return tasks_of(*problem, options.tokens);
  }
  if (!options.shapes.empty())
    return read_tasks(options.shapes, options.problem.recipe, options.tokens);
  std::vector<tuner::TuningTask> tasks;
  for (const std::string& model : options.models) {
    const auto some = tasks_of_model(model, options.problem.recipe, options.tokens);
    if (!some) return some;
    tasks.insert(tasks.end(), some->begin(), some->end());
  }
  return tasks;
}

// No GPU is needed for that: a device may be given by its name.
Status explain(const Options& options, const std::vector<tuner::TuningTask>& tasks) {
  const auto target = resolve_target(options.device);
  if (!target) return tl::unexpected<Error>(target.error());
  if (target->kind == TargetKind::kHost)
    return refuse("--device is host; allowed with --explain: a GPU, or the name of one");
  Json document = Json::array();
  for (const tuner::TuningTask& task : tasks) {
    const auto exploration = tuner::explore(task, target->spec);
    if (options.json)
      document.push_back(to_json(task, exploration));
    else
      fmt::print("{}\n", explanation_text(task, exploration));
  }
  if (options.json) print_json({{"device", target->spec.name}, {"tasks", document}});
  return {};
}

class Tuning {
 public:
  Tuning(const Options& options, Library& library, const GpuSession& gpu)
      : options_(options),
        library_(library),
        gpu_(gpu),
        progress_(progress_mode(options.progress)),
        file_(options.out.empty() ? library.engine.store().options().writable_root : options.out,
              true) {}

  Status run(const std::vector<tuner::TuningTask>& tasks) {
    auto shop = tuner::TunerContext::open(library_, gpu_);
    if (!shop) return tl::unexpected<Error>(shop.error());
    auto decider_options = deciding();
    if (!decider_options) return tl::unexpected<Error>(decider_options.error());
    tuner::GpuDecider decider(**shop, std::move(*decider_options));
    auto result = [&] {
      const CatchInterrupt guard;
      return run_tasks(tasks, gpu_.spec(), decider, &file_, campaign(tasks.size()));
    }();
    progress_.done();
    if (!result) return tl::unexpected<Error>(result.error());
    print(*result);
    return conclude(*result);
  }

 private:
  Result<tuner::GpuDeciderOptions> deciding() const {
    tuner::GpuDeciderOptions options;
    options.seed = options_.seed;
    if (options_.baseline.empty()) return options;
    auto cublaslt = CublasLt::open();
    if (!cublaslt) return tl::unexpected<Error>(cublaslt.error());
    options.has_baselines = [](const Problem& problem) {
      return problem_as<GemmProblem>(problem) != nullptr;
    };
    options.time_baselines = [this, lt = *cublaslt](const tuner::TuningTask& task,
                                                    const tuner::GpuBench& bench,
                                                    std::span<const int> beside) {
      return time_baselines(lt, gpu_, *problem_as<GemmProblem>(task.problem), task.tokens,
                            tuner::bench_as<GemmProblem>(bench), beside);
    };
    return options;
  }

  tuner::RunOptions campaign(std::size_t tasks) {
    tuner::RunOptions options;
    options.budget_seconds = options_.budget_seconds;
    options.force = options_.force;
    options.stopped = [] { return g_interrupted != 0; };
    options.began = [this, tasks](const tuner::TuningTask& task,
                                      const tuner::Budget& budget) {
      progress_.step(fmt::format("{} of {}, {:.0f} s left: {}", ++asked_, tasks, budget.left(),
                                 tuner::to_text(task)));
    };
    options.ended = [](const tuner::Decision& decision) {
      for (const tuner::WrongCandidate& wrong : decision.wrong)
        fmt::print(stderr, "octile: {}\n", to_text(wrong));
    };
    return options;
  }

  void print(const tuner::RunResult& result) const {
    if (options_.json) {
      Json decisions = Json::array();
      for (std::size_t i = 0; i < result.decisions.size(); ++i) {
        decisions.push_back(to_json(result.decisions[i]));
        decisions.back()["resumed"] = static_cast<bool>(result.resumed[i]);
      }
      print_json({{"device", gpu_.device()},
                  {"name", gpu_.spec().full_name},
                  {"records", file_.path()},
                  {"undecided", result.undecided},
                  {"interrupted", result.stopped},
                  {"decisions", decisions}});
      return;
    }
    fmt::print("{} ({}), records in {}\n\n{}", gpu_.device(), gpu_.spec().full_name, file_.path(),
               decisions_table(result.decisions));
  }

  Status conclude(const tuner::RunResult& result) const {
    if (result.stopped) {
      fmt::print(stderr,
                 "octile: interrupted; {} of {} are undecided, what was decided is kept in {}\n",
                 result.undecided, result.decisions.size(), file_.path());
      (void)std::fflush(nullptr);
      // Ends as whoever waits for this process expects of an interrupted one.
      (void)std::signal(SIGINT, SIG_DFL);
      (void)std::raise(SIGINT);
    }
    for (const tuner::Decision& decision : result.decisions) {
      if (decision.outcome == tuner::Outcome::kNoneRight)
        return fail(ErrorCode::kInternal, fmt::format("no candidate for {} gives right results",
                                                      tuner::to_text(decision.task)));
    }
    if (result.undecided > 0)
      fmt::print(stderr,
                 "octile: {} of {} are undecided after {} s; another run goes on with them\n",
                 result.undecided, result.decisions.size(), options_.budget_seconds);
    return {};
  }

  const Options& options_;
  Library& library_;
  const GpuSession& gpu_;
  Progress progress_;
  const cache::TuningFile file_;
  std::size_t asked_ = 0;
};

Status run(const Options& options) {
  if (Status ok = check_options(options); !ok) return ok;
  auto tasks = read_all(options);
  if (!tasks) return tl::unexpected<Error>(tasks.error());
  *tasks = distinct(std::move(*tasks));
  if (options.explain) return explain(options, *tasks);
  const auto library = LibraryHandle::create();
  if (!library) return tl::unexpected<Error>(library.error());
  Library& internals = library->get()->library;
  if (options.out.empty() && internals.engine.store().options().writable_root.empty())
    return refuse("there is no folder to keep records in; allowed: --out, or OCTILE_CACHE_DIR");
  const auto gpu = GpuSession::open(options.device);
  if (!gpu) return tl::unexpected<Error>(gpu.error());
  return Tuning(options, internals, **gpu).run(*tasks);
}

}  // namespace

Command add_tune(CLI::App& root) {
  CLI::App* app = add_subcommand(
      root, "tune", "search the fastest configurations on a GPU and keep them for plans to use");
  auto options = std::make_shared<Options>();
  options->problem.add_to(*app);
  add_models_option(*app, options->models);
  add_option(*app, "--shapes", options->shapes,
             "a file of one problem a line: a product's MxNxK, or a canonical text; M and rows "
             "may be ?");
  add_tokens_option(*app, options->tokens, "every bucket's largest up to 16384");
  add_option(*app, "--budget", options->budget_seconds, "seconds for everything together")
      .show_default();
  add_option(*app, "--device", options->device,
             "the GPU: cuda or cuda:N; with --explain also a name, h200")
      .show_default();
  add_option(*app, "--baseline", options->baseline,
             "what to show beside products: cublaslt, in FP8 and in bf16");
  add_option(*app, "--out", options->out,
             "the folder whose tuning.jsonl gets the records; default the cache folder");
  add_option(*app, "--seed", options->seed, "of the random operands").show_default();
  add_flag(*app, "--force", options->force, "search again what is decided already");
  add_flag(*app, "--explain", options->explain,
           "only say what there is to search: what each constraint removed, and the shortlist");
  add_json_option(*app, options->json);
  add_progress_option(*app, options->progress);
  return {app, [options] { return run(*options); }};
}

}  // namespace octile::tools
