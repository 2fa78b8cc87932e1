// octile tune: measures which configuration is the fastest for each problem and token count, and
// keeps the decisions for plans to use.
#include <fmt/format.h>

#include <algorithm>
#include <csignal>
#include <iterator>
#include <memory>
#include <optional>
#include <thread>
#include <utility>

#include "runtime/api/boundary.h"
#include "runtime/tuned/tuning_records.h"
#include "tools/command.h"
#include "tools/common/output.h"
#include "tools/common/records.h"
#include "tools/common/terminal.h"
#include "tools/common/text_table.h"
#include "tools/page/page.h"
#include "tools/tune/baselines.h"
#include "tools/tune/intervals.h"
#include "tools/tune/ranks.h"
#include "tools/tune/refresh.h"
#include "tools/tune/report.h"
#include "tools/tune/served.h"
#include "tools/tune/tasks.h"
#include "tools/tune/verbs.h"
#include "tools/tune/verdicts.h"
#include "tools/tune/watch.h"

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
  std::optional<double> budget_seconds;  // empty: what the questions need
  std::optional<double> max_error;       // empty: a GEMM's promotion interval is its problem's
  std::uint64_t seed = 1;
  Option seed_option;
  bool force = false;
  bool refresh = false;
  bool explain = false;
  bool list = false;
  bool wide = false;
  bool json = false;
  bool progress = false;
  bool quiet = false;
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
       {std::pair("--budget", options.budget_seconds.has_value()),
        std::pair("--max-error", options.max_error.has_value()),
        std::pair("--seed", options.seed_option.is_given()),
        std::pair("--baseline", !options.baseline.empty()), std::pair("--force", options.force),
        std::pair("--progress", options.progress), std::pair("--quiet", options.quiet),
        std::pair("--records", !options.records.empty()),
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
  if (options.budget_seconds && !(*options.budget_seconds > 0))
    return refuse(
        fmt::format("--budget is {}; allowed: seconds, more than 0", *options.budget_seconds));
  if (options.quiet && options.progress)
    return refuse("--quiet is given with --progress; allowed: one of the two");
  if (Status ok = check_records_file(options.records); !ok) return ok;
  if (Status ok = check_report_file(options.report); !ok) return ok;
  if (options.list && !options.explain)
    return refuse("--list is given without --explain; allowed: both together");
  if (options.explain) {
    if (Status ok = check_explain(options); !ok) return ok;
  }
  if (!options.refresh) return options.work.check();
  if (options.max_error)
    return refuse(
        "--max-error is given with --refresh; allowed: one of the two, because the "
        "records say which intervals to time again");
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

using Questions = Result<std::vector<Question>>;

Status add(Questions some, std::vector<Question>& questions) {
  if (!some) return tl::unexpected<Error>(some.error());
  std::ranges::move(*some, std::back_inserter(questions));
  return {};
}

Questions questions_of_problem(const Problem& problem, const std::vector<std::int64_t>& counts) {
  return tasks_of(problem, counts).map([](std::vector<tuner::TuningTask> tasks) {
    return questions_of(std::move(tasks));
  });
}

// Returns each question once. Reads the files, which may be pipes.
Questions read_questions(const WorkOptions& work) {
  if (const auto passes = work.read_passes(); !passes) {
    return tl::unexpected<Error>(passes.error());
  }
  std::vector<Question> questions;
  Status ok;
  if (!work.problem_file.empty()) {
    ok = work.for_each_in_file([&](const Request& request) {
      const Problem& problem = request.problem;
      return add(
          questions_of_problem(
              problem, request.counts.empty() ? counts_for(problem, work.tokens) : request.counts),
          questions);
    });
  }
  if (work.problem.given()) {
    const auto requests = work.read_problem();
    if (!requests) return tl::unexpected<Error>(requests.error());
    for (const Request& request : *requests) {
      if (ok) ok = add(questions_of_problem(request.problem, request.counts), questions);
    }
  }
  if (ok && !work.model.models.empty()) {
    const auto works = work.read_models();
    if (!works) return tl::unexpected<Error>(works.error());
    ok = add(questions_of(*works), questions);
  }
  if (!ok) return tl::unexpected<Error>(ok.error());
  return distinct(std::move(questions));
}

// Returns true if the questions are those of a model's layers.
bool are_of_layers(const std::vector<Question>& questions) {
  return std::ranges::any_of(questions, [](const Question& q) { return !q.layer.empty(); });
}

// Returns --device; without it a GPU if there is one, and else the device that `compile` is for.
Result<DeviceSpec> device_to_explain(const std::string& device) {
  if (!device.empty()) return device_spec(device);
  auto live = device_spec("cuda");
  return live ? live : device_spec(kDefaultNamedDevice);
}

// Needs no GPU.
void explain(const Options& options, const DeviceSpec& device,
             const std::vector<Question>& questions) {
  if (!options.json && !options.list && are_of_layers(questions)) {
    const int cores = static_cast<int>(std::max(1U, std::thread::hardware_concurrency()));
    print_stdout("{}\n\n", plan_line(questions, device, cores));
    print_table(plan_table(questions, device), options.wide);
    print_stdout("\n  --list prints what each constraint removed, and the shortlists\n");
    return;
  }
  std::vector<ExplainedTask> explained;
  for (const Question& question : questions)
    explained.push_back({question.task, tuner::explore(question.task, device)});
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
  const std::size_t count = questions.size();
  print_stdout("{} task{} for {}\n\n", count, count == 1 ? "" : "s", device.name);
  if (questions.empty()) return;
  print_table(explanation_summary(explained), options.wide);
  print_stdout("\n  --list prints what each constraint removed, and the shortlists\n");
}

class Tuning {
 public:
  // The questions are in the order in which they are decided.
  Tuning(const Options& options, Library& library, const GpuSession& gpu,
         const std::vector<Question>& questions, const Intervals& intervals)
      : options_(options),
        library_(library),
        gpu_(gpu),
        questions_(questions),
        intervals_(intervals),
        watch_(questions, gpu, progress_mode(options.progress)),
        folder_(options.out.empty() ? library.engine.store().options().writable_root : options.out),
        file_(folder_, true) {}

  Status run() {
    tuner::TunerContext context(library_, gpu_);
    auto options = decider_options();
    if (!options) return tl::unexpected<Error>(options.error());
    tuner::GpuDecider decider(context, std::move(*options));
    cache::SharedTuning shared(folder_, sharing_options());
    auto result = [&] {
      const CatchInterrupt guard;
      return run_tasks(tasks_of(questions_), gpu_.spec(), decider, nullptr, run_options(shared));
    }();
    watch_.close();
    const auto merged = shared.merge();
    if (!result) return tl::unexpected<Error>(result.error());
    if (!merged) return fail(ErrorCode::kInternal, merged.error().sentence);
    const auto served = served_by(*result, gpu_.spec(), *records());
    print(*result, served);
    if (Status ok = keep(*result); !ok) return ok;
    if (Status ok = end_with_verdicts(); !ok) return ok;
    Status page = report_tuning(options_.report, options_.work, gpu_.spec(), result->decisions);
    if (!page) return page;
    return conclude(*result, served);
  }

 private:
  // What plans are served from now on, if they look into the folder of this run.
  std::shared_ptr<const cache::TuningSet> records() const {
    if (options_.out.empty()) return library_.engine.records();
    const auto& roots = library_.engine.store().options().read_only_roots;
    return TuningRecords(true, options_.out, roots, library_.logger).current();
  }

  Result<tuner::GpuDeciderOptions> decider_options() {
    tuner::GpuDeciderOptions options;
    options.seed = options_.seed;
    options.times_operands = true;
    if (!options_.quiet) {
      options.race.watch = [this](double best_us, double default_us) {
        watch_.timed(best_us, default_us);
      };
    }
    auto cublaslt = CublasLt::open();
    if (!cublaslt) {
      if (!options_.baseline.empty()) return tl::unexpected<Error>(cublaslt.error());
      print_stderr("octile: the records get no time of bf16: {}\n", cublaslt.error().message);
      return options;
    }
    options.rivals = [this, lt = *cublaslt](const tuner::TuningTask& task,
                                            const tuner::GpuBench& bench) {
      return rivals_of(lt, !options_.baseline.empty(), gpu_, task, bench);
    };
    return options;
  }

  // This process among those that tune with the same folder. One that decides again shares nothing.
  cache::SharedTuningOptions sharing_options() const {
    const auto ops = cache::or_system(nullptr);
    cache::SharedTuningOptions options;
    options.self = cache::this_process(*ops);
    options.rank = fmt::format("{}-{}-gpu{}", options.self.host, options.self.place.substr(0, 8),
                               gpu_.ordinal());
    if (options_.force || options_.refresh)
      options.run =
          fmt::format("{}-{}-{}", options.rank, options.self.number, options.self.started);
    return options;
  }

  tuner::RunOptions run_options(cache::SharedTuning& shared) {
    tuner::RunOptions options;
    options.shared = &shared;
    options.found = [this](const tuner::Decision&) { watch_.ended(); };
    options.budget_seconds = options_.budget_seconds;
    options.compile_threads = library_.workers.threads();
    options.stopped = [] { return g_interrupted != 0; };
    options.planned = [this](const tuner::RunPlan& plan) {
      watch_.planned(plan);
      if (!options_.quiet && plan.open > 0)
        print_stderr("octile: {}\n", plan_text(plan, library_.workers.threads()));
    };
    options.began = [this](const tuner::TuningTask& task, const tuner::Budget& budget) {
      if (!options_.quiet) watch_.began(task, budget);
    };
    options.ended = [this](const tuner::Decision& decision) {
      watch_.ended();
      for (const tuner::WrongCandidate& wrong : decision.wrong)
        print_stderr("octile: {}\n", to_text(wrong));
      if (options_.json && decision.decided()) print_line(decision, false, ChosenBy::kRecord);
    };
    return options;
  }

  void print_line(const tuner::Decision& decision, bool resumed, ChosenBy served) const {
    Json line = to_json(decision);
    const auto question = std::ranges::find(questions_, decision.task, &Question::task);
    line["layer"] = question->layer;
    line["layers"] = question->layers;
    add_error(decision.task, intervals_.error_of(decision.task), line);
    line["resumed"] = resumed;
    line["served_by"] = name_of(served);
    print_stdout("{}\n", line.dump(-1, ' ', true, Json::error_handler_t::replace));
    (void)std::fflush(stdout);
  }

  // Decisions that were made before have their times in the tuning file.
  Status keep(const tuner::RunResult& result) const {
    std::vector<Record> records;
    for (std::size_t i = 0; i < result.decisions.size(); ++i) {
      const tuner::Decision& decision = result.decisions[i];
      if (decision.decided() && !result.resumed[i])
        records.push_back(record_of(decision, new_record("octile tune", gpu_),
                                    intervals_.error_of(decision.task)));
    }
    return keep_records(options_.records, records);
  }

  Status end_with_verdicts() const {
    if (options_.json || options_.quiet) return {};
    const cache::TuningFolder folder(folder_, true);
    return print_tuned_verdicts(options_.work, gpu_.spec(), folder, options_.wide);
  }

  void print(const tuner::RunResult& result, const std::vector<ChosenBy>& served) const {
    if (options_.json) {
      for (std::size_t i = 0; i < result.decisions.size(); ++i) {
        const tuner::Decision& decision = result.decisions[i];
        if (result.resumed[i] || result.elsewhere[i] || !decision.decided())
          print_line(decision, result.resumed[i], served[i]);
      }
      Json last{{"device", gpu_.device()},       {"name", gpu_.spec().full_name},
                {"records", file_.path()},       {"questions", result.decisions.size()},
                {"undecided", result.undecided}, {"interrupted", result.stopped}};
      const auto rows = intervals_.rows(result);
      if (!rows.empty()) last["intervals"] = to_json(rows);
      print_stdout("{}\n", last.dump(-1, ' ', true, Json::error_handler_t::replace));
      return;
    }
    if (options_.quiet) return;
    print_stdout("{} ({}), records in {}\n\n", gpu_.device(), gpu_.spec().full_name, file_.path());
    print_table(are_of_layers(questions_) ? layers_table(questions_, result, served)
                                          : decisions_table(result.decisions, served),
                options_.wide);
    print_intervals(intervals_.rows(result), options_.wide);
    if (result.undecided == 0) return;
    print_stdout("\n");
    print_table(undecided_table(questions_, result, served), options_.wide);
  }

  Status conclude(const tuner::RunResult& result, const std::vector<ChosenBy>& served) const {
    if (result.stopped) {
      print_stderr(
          "octile: interrupted; {} of {} questions are undecided, the decisions are kept in {}\n",
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
    const std::string spilled = spilled_text(result.decisions);
    if (!options_.quiet && !spilled.empty()) print_stderr("octile: {}\n", spilled);
    if (result.undecided > 0)
      print_stderr(
          "octile: {} of {} questions are undecided, served by: {}; another run continues with "
          "them\n",
          result.undecided, result.decisions.size(), undecided_text(result, served));
    return {};
  }

  const Options& options_;
  Library& library_;
  const GpuSession& gpu_;
  const std::vector<Question>& questions_;
  const Intervals& intervals_;
  Watch watch_;
  const std::string folder_;  // of the records
  const cache::TuningFile file_;
};

// Returns the questions of the records in `folder` that --refresh means.
Questions read_refreshed(const std::string& folder, const DeviceSpec& device) {
  const auto records = all_records(folder);
  if (!records) return tl::unexpected<Error>(records.error());
  return distinct(questions_of(tasks_to_refresh(*records, device)));
}

Status run_explain(const Options& options, const std::string& folder,
                   std::vector<Question> questions) {
  const auto device = device_to_explain(options.device);
  if (!device) return tl::unexpected<Error>(device.error());
  if (options.refresh) {
    auto refreshed = read_refreshed(folder, *device);
    if (!refreshed) return tl::unexpected<Error>(refreshed.error());
    questions = std::move(*refreshed);
  }
  for (const Question& question : questions) {
    if (Status ok = check_supported(question.task.problem, *device); !ok) return ok;
  }
  explain(options, *device, questions);
  return {};
}

// What cuBLASLt is to be timed beside.
Status check_baseline(const Options& options, const std::vector<Question>& questions) {
  const auto is_gemm = [](const Question& question) {
    return problem_as<GemmProblem>(question.task.problem) != nullptr;
  };
  if (options.baseline.empty() || options.refresh || std::ranges::any_of(questions, is_gemm))
    return {};
  return refuse(fmt::format("--baseline is {}, and no problem is a GEMM; allowed with GEMMs only",
                            options.baseline));
}

Status run_search(const Options& options, Library& library, const std::string& folder,
                  std::vector<Question> questions) {
  const auto device =
      options.device.empty() ? device_of_rank() : Result<std::string>(options.device);
  if (!device) return tl::unexpected<Error>(device.error());
  const auto gpu = GpuSession::open(*device);
  if (!gpu) return tl::unexpected<Error>(needs_gpu("tune", gpu.error()));
  if (folder.empty())
    return refuse("there is no folder to keep records in; allowed: --out, or OCTILE_CACHE_DIR");
  if (options.refresh) {
    auto refreshed = read_refreshed(folder, (*gpu)->spec());
    if (!refreshed) return tl::unexpected<Error>(refreshed.error());
    questions = std::move(*refreshed);
  }
  if (questions.empty() && !options.json) {
    print_stdout("every record for {} timed the kernel of today\n", (*gpu)->spec().name);
    return {};
  }
  Result<Intervals> intervals = Intervals();
  if (options.max_error) {
    if (!options.quiet)
      print_stderr("octile: measures what promotion intervals cost on adversarial operands\n");
    tuner::TunerContext context(library, **gpu);
    intervals = Intervals::measured(questions, (*gpu)->spec(), *options.max_error,
                                    errors_on(context, options.seed));
  }
  if (!intervals) return tl::unexpected<Error>(intervals.error());
  questions = by_weight(intervals->searched(std::move(questions)), (*gpu)->spec());
  return Tuning(options, library, **gpu, questions, *intervals).run();
}

Status run(const Options& options) {
  if (Status ok = check_options(options); !ok) return ok;
  // Errors of the problems come before those of the machine.
  Questions questions = std::vector<Question>();
  if (!options.refresh) questions = read_questions(options.work);
  if (!questions) return tl::unexpected<Error>(questions.error());
  if (Status ok = check_baseline(options, *questions); !ok) return ok;
  if (Status ok = check_max_error(options.max_error, *questions); !ok) return ok;
  const auto library = LibraryHandle::create();
  if (!library) return tl::unexpected<Error>(library.error());
  Library& internals = library->get()->library;
  const std::string folder =
      options.out.empty() ? internals.engine.store().options().writable_root : options.out;
  if (options.explain) return run_explain(options, folder, std::move(*questions));
  return run_search(options, internals, folder, std::move(*questions));
}

}  // namespace

Command add_tune(CLI::App& root) {
  CLI::App* app = add_subcommand(
      root, "tune", "search the fastest configurations on a GPU and keep them for plans to use");
  auto options = std::make_shared<Options>();
  options->work.add_to(*app, "every bucket's largest up to 16384, with --model those of --mode");
  add_option(*app, "--budget", options->budget_seconds,
             "seconds for all questions together; default what they need, which is said first");
  add_option(*app, "--max-error", options->max_error,
             "also search the other promotion intervals of GEMMs whose error on adversarial "
             "operands, as a share of the sum of magnitudes, is at most this");
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
  add_flag(*app, "--quiet", options->quiet, "print neither progress nor tables, but errors");
  const auto verbs = add_tune_verbs(*app);
  return {app, [options, verbs]() -> Result<int> {
            if (auto done = verbs()) return std::move(*done);
            return run(*options).map([] { return 0; });
          }};
}

}  // namespace octile::tools
