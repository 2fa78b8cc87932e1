// octile tune: measures which configuration is the fastest for each problem and token count, and
// keeps the decisions for plans to use.
#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <iterator>
#include <memory>
#include <utility>

#include "cache/process_identity.h"
#include "runtime/api/boundary.h"
#include "runtime/engine/cache_entry.h"
#include "tools/command.h"
#include "tools/common/output.h"
#include "tools/tune/decide.h"
#include "tools/tune/devices.h"
#include "tools/tune/ending.h"
#include "tools/tune/explain.h"
#include "tools/tune/options.h"
#include "tools/tune/parts.h"
#include "tools/tune/ranks.h"
#include "tools/tune/tasks.h"
#include "tools/tune/verbs.h"
#include "tools/tune/watch.h"

namespace octile::tools {
namespace {

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

// The GEMMs that cuBLASLt is to be timed beside.
Status check_baseline(const TuneOptions& options, const std::vector<Question>& questions) {
  const auto is_gemm = [](const Question& question) {
    return problem_as<GemmProblem>(question.task.problem) != nullptr;
  };
  if (options.baseline.empty() || options.refresh || std::ranges::any_of(questions, is_gemm))
    return {};
  return refuse(fmt::format("--baseline is {}, and no problem is a GEMM; allowed with GEMMs only",
                            options.baseline));
}

// Returns the name of a run that decides again what is recorded, and none for any other run.
// Errors: kInvalidArgument if each of several ranks would decide all of it.
Result<std::string> name_of_run(const TuneOptions& options) {
  if (!options.decides_again()) return std::string();
  if (!options.run.empty()) return options.run;
  if (std::string step = name_of_step(); !step.empty()) return step;
  const auto ranks = ranks_on_host();
  if (!ranks) return tl::unexpected<Error>(ranks.error());
  if (*ranks > 1)
    return refuse(
        fmt::format("{} is given in one of {} ranks, which would each decide everything again; "
                    "allowed: with --run and a new name, the same on all ranks",
                    options.force ? "--force" : "--refresh", *ranks));
  const auto self = cache::this_process(*cache::or_system(nullptr));
  return fmt::format("{}-{}-{}-{}", self.host, self.place, ::getpid(), utc_now());
}

TuneListener watching(const TuneRun& run, Watch& watch) {
  const bool is_quiet = run.place.options.quiet;
  const int cores = run.place.library.workers.threads();
  TuneListener listener;
  listener.planned = [&watch, is_quiet, cores](const tuner::RunPlan& plan) {
    watch.planned(plan);
    if (!is_quiet && plan.open > 0)
      print_stderr("octile: {}\n", plan_text(plan, fmt::format("{} cores", cores)));
  };
  listener.began = [&watch, is_quiet](const tuner::TuningTask& task, double seconds_left) {
    if (!is_quiet) watch.began(task, seconds_left);
  };
  listener.timed = [&watch, is_quiet](double best_us, double default_us) {
    if (!is_quiet) watch.timed(best_us, default_us);
  };
  listener.ended = [&run, &watch](const tuner::Decision& decision) {
    watch.ended();
    if (run.place.options.json && decision.decided())
      print_line(line_of(run, decision), false, name_of(ChosenBy::kRecord));
  };
  listener.found = [&watch](const tuner::Decision&) { watch.ended(); };
  listener.noted = [](const std::string& sentence) { print_stderr("octile: {}\n", sentence); };
  return listener;
}

Status run_search(const TunePlace& place, std::vector<Question> questions) {
  const TuneOptions& options = place.options;
  if (options.refresh) {
    auto refreshed = questions_to_refresh(place.folder, place.gpu.spec());
    if (!refreshed) return tl::unexpected<Error>(refreshed.error());
    questions = std::move(*refreshed);
  }
  if (questions.empty() && !options.json) {
    print_stdout("every record for {} timed the kernel of today\n", place.gpu.spec().name);
    return {};
  }
  if (options.max_error && !options.quiet)
    print_stderr("octile: measures what promotion intervals cost on adversarial operands\n");
  tuner::TunerContext context(place.library, place.gpu);
  const auto run = run_of(place, std::move(questions), errors_on(context, options.seed));
  if (!run) return tl::unexpected<Error>(run.error());
  const GpuSession& gpu = place.gpu;
  Watch watch(run->questions,
              fmt::format("{} {} of {}", gpu.spec().name, gpu.device(), host_name()),
              progress_mode(options.progress));
  const auto result = decide(*run, watching(*run, watch));
  watch.close();
  if (!result) return tl::unexpected<Error>(result.error());
  const auto line = [&run](const tuner::Decision& decision) { return line_of(*run, decision); };
  return end_run(*run, {gpu.device(), line}, *result);
}

Status run_here(const TuneOptions& options, const std::string& name,
                std::vector<Question> questions) {
  const auto cores = cores_of_rank();
  if (!cores) return tl::unexpected<Error>(cores.error());
  const auto library = LibraryHandle::create(*cores);
  if (!library) return tl::unexpected<Error>(library.error());
  Library& internals = library->get()->library;
  const auto device =
      options.device.empty() ? device_of_rank() : Result<std::string>(options.device);
  if (!device) return tl::unexpected<Error>(device.error());
  const auto gpu = GpuSession::open(internals, *device);
  if (!gpu) return tl::unexpected<Error>(needs_gpu("tune", gpu.error()));
  const auto folder = folder_of_records(options, internals);
  if (!folder) return tl::unexpected<Error>(folder.error());
  return run_search({options, internals, **gpu, *folder, name}, std::move(questions));
}

Status run_explain(const TuneOptions& options, std::vector<Question> questions) {
  const auto device = device_to_explain(options.device);
  if (!device) return tl::unexpected<Error>(device.error());
  if (options.refresh) {
    const auto library = LibraryHandle::create();
    if (!library) return tl::unexpected<Error>(library.error());
    const std::string& root = library->get()->library.engine.store().options().writable_root;
    auto refreshed = questions_to_refresh(options.out.empty() ? root : options.out, *device);
    if (!refreshed) return tl::unexpected<Error>(refreshed.error());
    questions = std::move(*refreshed);
  }
  return explain(options, *device, questions);
}

Status run(const TuneOptions& options) {
  if (Status ok = options.check(); !ok) return ok;
  // Errors of the problems come before those of the machine.
  Questions questions = std::vector<Question>();
  if (!options.refresh) questions = read_questions(options.work);
  if (!questions) return tl::unexpected<Error>(questions.error());
  if (Status ok = check_baseline(options, *questions); !ok) return ok;
  if (Status ok = check_max_error(options.max_error, *questions); !ok) return ok;
  if (!options.part.empty()) {
    const auto part = read_part(options.part);
    if (!part) return tl::unexpected<Error>(part.error());
    questions = questions_of_part(*questions, *part);
    if (questions->empty() && !options.explain) {
      print_stderr("octile: part {} has none of the questions\n", options.part);
      return {};
    }
  }
  if (options.explain) return run_explain(options, std::move(*questions));
  const auto name = name_of_run(options);
  if (!name) return tl::unexpected<Error>(name.error());
  return options.devices.empty() ? run_here(options, *name, std::move(*questions))
                                 : tune_on_devices(options, *name, std::move(*questions));
}

}  // namespace

Command add_tune(CLI::App& root) {
  CLI::App* app = add_subcommand(
      root, "tune", "search the fastest configurations on a GPU and keep them for plans to use");
  auto options = std::make_shared<TuneOptions>();
  options->add_to(*app);
  const auto verbs = add_tune_verbs(*app);
  return {app, [options, verbs]() -> Result<int> {
            if (auto done = verbs()) return std::move(*done);
            return run(*options).map([] { return 0; });
          }};
}

}  // namespace octile::tools
