// octile tune: measures which configuration is the fastest for each problem and token count, and
// keeps the decisions for plans to use.
#include <fmt/format.h>

#include <algorithm>
#include <csignal>
#include <iterator>
#include <memory>
#include <utility>

#include "runtime/api/boundary.h"
#include "tools/command.h"
#include "tools/common/output.h"
#include "tools/common/records.h"
#include "tools/common/terminal.h"
#include "tools/common/text_table.h"
#include "tools/page/page.h"
#include "tools/tune/baselines.h"
#include "tools/tune/refresh.h"
#include "tools/tune/report.h"
#include "tools/tune/tasks.h"

namespace octile::tools {
namespace {

constexpr const char* kDefaultNamedDevice = "h200";

struct Options {
  WorkOptions work;
  std::string device;  // empty: cuda, and h200 to explain without a GPU
  std::string out;
  std::string baseline;
  std::string records;
  std::string report;
  double budget_seconds = 120;
  std::uint64_t seed = 1;
  Option budget_option;
  Option seed_option;
  bool force = false;
  bool refresh = false;
  bool explain = false;
  bool list = false;
  bool wide = false;
  bool json = false;
  bool progress = false;
};

// SIGINT ends the tuning run and not the process, which still prints and keeps what was decided.
volatile std::sig_atomic_t g_interrupted = 0;

class CatchInterrupt {
 public:
  CatchInterrupt() : before_(std::signal(SIGINT, note)) {}
  ~CatchInterrupt() { (void)std::signal(SIGINT, before_); }
  CatchInterrupt(const CatchInterrupt&) = delete;
  CatchInterrupt& operator=(const CatchInterrupt&) = delete;

 private:
  // A second SIGINT ends the process, because a device may no longer answer.
  static void note(int) {
    g_interrupted = 1;
    (void)std::signal(SIGINT, SIG_DFL);
  }
  void (*before_)(int);
};

// The options of a search, which --explain does not make.
Status check_explain(const Options& options) {
  const bool reads_out = options.refresh;  // the records in --out say what to search
  for (const auto& [name, given] :
       {std::pair("--budget", options.budget_option.is_given()),
        std::pair("--seed", options.seed_option.is_given()),
        std::pair("--baseline", !options.baseline.empty()), std::pair("--force", options.force),
        std::pair("--progress", options.progress), std::pair("--records", !options.records.empty()),
        std::pair("--report", !options.report.empty()),
        std::pair("--out", !options.out.empty() && !reads_out)}) {
    if (!given) continue;
    return refuse(
        fmt::format("{} is given with --explain, which searches nothing; allowed: one "
                    "of the two",
                    name));
  }
  return {};
}

Status check_options(const Options& options) {
  if (!options.baseline.empty() && options.baseline != "cublaslt")
    return refuse(fmt::format("--baseline is '{}'; allowed: cublaslt", options.baseline));
  // The condition also refuses a NaN.
  if (!(options.budget_seconds > 0))
    return refuse(
        fmt::format("--budget is {}; allowed: seconds, more than 0", options.budget_seconds));
  if (Status ok = check_records_file(options.records); !ok) return ok;
  if (options.list && !options.explain)
    return refuse("--list is given without --explain; allowed: both together");
  if (options.explain) {
    if (Status ok = check_explain(options); !ok) return ok;
  }
  if (!options.refresh) return options.work.check();
  const WorkOptions& work = options.work;
  if (work.problem.given() || work.problem.recipe_option.is_given() || !work.model.models.empty() ||
      !work.problem_file.empty() || !work.tokens.empty() || !work.passes.empty() ||
      !work.model.first_given().empty()) {
    return refuse(
        "--refresh is given beside a problem, --recipe, --model and its options, --problem-file, "
        "--tokens or --passes; allowed: alone, because the records say what to time again");
  }
  return {};
}

using TuningTasks = Result<std::vector<tuner::TuningTask>>;

Status add(TuningTasks some, std::vector<tuner::TuningTask>& tasks) {
  if (!some) return tl::unexpected<Error>(some.error());
  std::ranges::move(*some, std::back_inserter(tasks));
  return {};
}

// Returns each task once. Reads the files, which may be pipes.
TuningTasks read_tasks(const WorkOptions& work) {
  if (const auto passes = work.read_passes(); !passes) {
    return tl::unexpected<Error>(passes.error());
  }
  std::vector<tuner::TuningTask> tasks;
  Status ok;
  if (!work.problem_file.empty()) {
    ok = work.for_each_in_file([&](const Request& request) {
      const Problem& problem = request.problem;
      return add(tasks_of(problem, request.counts.empty() ? counts_for(problem, work.tokens)
                                                          : request.counts),
                 tasks);
    });
  }
  if (work.problem.given()) {
    const auto requests = work.read_problem();
    if (!requests) return tl::unexpected<Error>(requests.error());
    for (const Request& request : *requests) {
      if (ok) ok = add(tasks_of(request.problem, request.counts), tasks);
    }
  }
  if (ok && !work.model.models.empty()) {
    ok = add(work.read_models().and_then(tasks_of_works), tasks);
  }
  if (!ok) return tl::unexpected<Error>(ok.error());
  return distinct(std::move(tasks));
}

// Returns --device; without it a GPU if there is one, and else the device that `compile` is for.
Result<DeviceSpec> device_to_explain(const std::string& device) {
  if (!device.empty()) return device_spec(device);
  auto live = device_spec("cuda");
  return live ? live : device_spec(kDefaultNamedDevice);
}

// Needs no GPU.
void explain(const Options& options, const DeviceSpec& device,
             const std::vector<tuner::TuningTask>& tasks) {
  std::vector<ExplainedTask> explained;
  for (const tuner::TuningTask& task : tasks)
    explained.push_back({task, tuner::explore(task, device)});
  if (options.json) {
    Json document = Json::array();
    for (const auto& [task, exploration] : explained)
      document.push_back(to_json(task, exploration));
    print_json({{"device", device.name}, {"tasks", document}});
    return;
  }
  if (options.list) {
    for (const auto& [task, exploration] : explained)
      print_stdout("{}\n", explanation_text(task, exploration, options.wide ? 0 : line_width()));
    return;
  }
  print_stdout("{} task{} for {}\n\n", tasks.size(), tasks.size() == 1 ? "" : "s", device.name);
  if (tasks.empty()) return;
  print_table(explanation_summary(explained), options.wide);
  print_stdout("\n  --list prints what each constraint removed, and the shortlists\n");
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
    tuner::TunerContext context(library_, gpu_);
    auto options = decider_options();
    if (!options) return tl::unexpected<Error>(options.error());
    tuner::GpuDecider decider(context, std::move(*options));
    auto result = [&] {
      const CatchInterrupt guard;
      return run_tasks(tasks, gpu_.spec(), decider, &file_, run_options(tasks.size()));
    }();
    progress_.done();
    if (!result) return tl::unexpected<Error>(result.error());
    print(*result);
    if (Status ok = keep(*result); !ok) return ok;
    Status page = report_tuning(options_.report, options_.work, gpu_.spec(), result->decisions);
    if (!page) return page;
    return conclude(*result);
  }

 private:
  Result<tuner::GpuDeciderOptions> decider_options() const {
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

  tuner::RunOptions run_options(std::size_t tasks) {
    tuner::RunOptions options;
    options.budget_seconds = options_.budget_seconds;
    options.force = options_.force || options_.refresh;
    options.stopped = [] { return g_interrupted != 0; };
    options.began = [this, tasks](const tuner::TuningTask& task, const tuner::Budget& budget) {
      progress_.step(fmt::format("{} of {}, {:.0f} s left: {}", ++began_, tasks, budget.left(),
                                 tuner::to_text(task)));
    };
    options.ended = [](const tuner::Decision& decision) {
      for (const tuner::WrongCandidate& wrong : decision.wrong)
        print_stderr("octile: {}\n", to_text(wrong));
    };
    return options;
  }

  // Decisions that were made before have their times in the tuning file.
  Status keep(const tuner::RunResult& result) const {
    std::vector<Record> records;
    for (std::size_t i = 0; i < result.decisions.size(); ++i) {
      if (result.decisions[i].decided() && !result.resumed[i])
        records.push_back(record_of(result.decisions[i], new_record("octile tune", gpu_)));
    }
    return keep_records(options_.records, records);
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
    print_stdout("{} ({}), records in {}\n\n", gpu_.device(), gpu_.spec().full_name, file_.path());
    print_table(decisions_table(result.decisions), options_.wide);
  }

  Status conclude(const tuner::RunResult& result) const {
    if (result.stopped) {
      print_stderr(
          "octile: interrupted; {} of {} tasks are undecided, the decisions are kept in {}\n",
          result.undecided, result.decisions.size(), file_.path());
      (void)std::fflush(nullptr);
      // The parent process sees that a signal ended this one.
      (void)std::signal(SIGINT, SIG_DFL);
      (void)std::raise(SIGINT);
    }
    for (const tuner::Decision& decision : result.decisions) {
      if (decision.outcome == tuner::Outcome::kNoneRight)
        return fail(ErrorCode::kInternal, fmt::format("no candidate for {} gives correct results",
                                                      tuner::to_text(decision.task)));
    }
    if (result.undecided > 0)
      print_stderr(
          "octile: {} of {} tasks are undecided after {} s; another run continues with them\n",
          result.undecided, result.decisions.size(), options_.budget_seconds);
    return {};
  }

  const Options& options_;
  Library& library_;
  const GpuSession& gpu_;
  Progress progress_;
  const cache::TuningFile file_;
  std::size_t began_ = 0;  // tasks
};

// Returns the tasks of the records in `folder` that --refresh means.
TuningTasks read_refreshed(const std::string& folder, const DeviceSpec& device) {
  const auto records = all_records(folder);
  if (!records) return tl::unexpected<Error>(records.error());
  return distinct(tasks_to_refresh(*records, device));
}

Status run_explain(const Options& options, const std::string& folder,
                   std::vector<tuner::TuningTask> tasks) {
  const auto device = device_to_explain(options.device);
  if (!device) return tl::unexpected<Error>(device.error());
  if (options.refresh) {
    auto refreshed = read_refreshed(folder, *device);
    if (!refreshed) return tl::unexpected<Error>(refreshed.error());
    tasks = std::move(*refreshed);
  }
  for (const tuner::TuningTask& task : tasks) {
    if (Status ok = check_supported(task.problem, *device); !ok) return ok;
  }
  explain(options, *device, tasks);
  return {};
}

// What cuBLASLt is to be timed beside.
Status check_baseline(const Options& options, const std::vector<tuner::TuningTask>& tasks) {
  const auto is_gemm = [](const tuner::TuningTask& task) {
    return problem_as<GemmProblem>(task.problem) != nullptr;
  };
  if (options.baseline.empty() || options.refresh || std::ranges::any_of(tasks, is_gemm)) return {};
  return refuse(fmt::format("--baseline is {}, and no problem is a GEMM; allowed with GEMMs only",
                            options.baseline));
}

Status run_search(const Options& options, Library& library, const std::string& folder,
                  std::vector<tuner::TuningTask> tasks) {
  const auto gpu = GpuSession::open(options.device.empty() ? "cuda" : options.device);
  if (!gpu) return tl::unexpected<Error>(needs_gpu("tune", gpu.error()));
  if (folder.empty())
    return refuse("there is no folder to keep records in; allowed: --out, or OCTILE_CACHE_DIR");
  if (options.refresh) {
    auto refreshed = read_refreshed(folder, (*gpu)->spec());
    if (!refreshed) return tl::unexpected<Error>(refreshed.error());
    tasks = std::move(*refreshed);
  }
  if (tasks.empty() && !options.json) {
    print_stdout("every record for {} timed the kernel of today\n", (*gpu)->spec().name);
    return {};
  }
  return Tuning(options, library, **gpu).run(tasks);
}

Status run(const Options& options) {
  if (Status ok = check_options(options); !ok) return ok;
  // Errors of the problems come before those of the machine.
  TuningTasks tasks = std::vector<tuner::TuningTask>();
  if (!options.refresh) tasks = read_tasks(options.work);
  if (!tasks) return tl::unexpected<Error>(tasks.error());
  if (Status ok = check_baseline(options, *tasks); !ok) return ok;
  const auto library = LibraryHandle::create();
  if (!library) return tl::unexpected<Error>(library.error());
  Library& internals = library->get()->library;
  const std::string folder =
      options.out.empty() ? internals.engine.store().options().writable_root : options.out;
  if (options.explain) return run_explain(options, folder, std::move(*tasks));
  return run_search(options, internals, folder, std::move(*tasks));
}

}  // namespace

Command add_tune(CLI::App& root) {
  CLI::App* app = add_subcommand(
      root, "tune", "search the fastest configurations on a GPU and keep them for plans to use");
  auto options = std::make_shared<Options>();
  options->work.add_to(*app, "every bucket's largest up to 16384, with --model those of --mode");
  options->budget_option =
      add_option(*app, "--budget", options->budget_seconds, "seconds for all tasks together")
          .show_default();
  add_option(*app, "--device", options->device,
             "the GPU: cuda (the default) or cuda:N; with --explain also a name, by default h200 "
             "where there is no GPU")
      .complete_with([] {
        std::vector<std::string> names = supported_devices();
        names.emplace_back("cuda");
        return names;
      });
  add_baseline_option(*app, options->baseline,
                      "what to time beside GEMMs: cublaslt, in FP8 and in bf16");
  add_records_option(*app, options->records);
  add_report_option(*app, options->report);
  add_option(*app, "--out", options->out,
             "the folder whose tuning.jsonl gets the records; default the cache folder");
  options->seed_option =
      add_option(*app, "--seed", options->seed, "seed of the random operands").show_default();
  add_flag(*app, "--force", options->force, "search tasks again that have a decision");
  add_flag(*app, "--refresh", options->refresh,
           "search again what the records decided for this GPU with a kernel of other source, "
           "instead of a problem");
  add_flag(*app, "--explain", options->explain,
           "print what there is to search and stop; needs no GPU");
  add_flag(*app, "--list", options->list,
           "with --explain: what each constraint removed, and the shortlist");
  add_wide_option(*app, options->wide);
  add_json_option(*app, options->json);
  add_progress_option(*app, options->progress);
  return {app, [options] { return run(*options); }};
}

}  // namespace octile::tools
