#include "tools/tune/decide.h"

#include <fmt/format.h>

#include <memory>
#include <utility>

#include "cache/process_identity.h"
#include "runtime/tuner/gpu_decider.h"
#include "tools/tune/baselines.h"
#include "tools/tune/interrupt.h"
#include "tools/tune/refresh.h"

namespace octile::tools {
namespace {

Result<tuner::GpuDeciderOptions> decider_options(const TuneRun& run, const TuneListener& listener) {
  const TunePlace& place = run.place;
  const bool with_fp8 = !place.options.baseline.empty();
  tuner::GpuDeciderOptions options;
  options.seed = place.options.seed;
  options.times_operands = true;
  options.race.watch = listener.timed;
  options.error_of = [&run](const tuner::TuningTask& task) { return run.intervals.error_of(task); };
  auto cublaslt = CublasLt::open();
  if (!cublaslt) {
    if (with_fp8) return tl::unexpected<Error>(cublaslt.error());
    listener.noted("the records get no time of bf16: " + cublaslt.error().message);
    return options;
  }
  options.rivals = [&gpu = place.gpu, with_fp8, lt = *cublaslt](const tuner::TuningTask& task,
                                                                const tuner::GpuBench& bench) {
    return rivals_of(lt, with_fp8, gpu, task, bench);
  };
  return options;
}

tuner::RunOptions run_options(const TunePlace& place, const TuneListener& listener,
                              cache::SharedTuning& shared) {
  tuner::RunOptions options;
  options.shared = &shared;
  options.budget_seconds = place.options.budget_seconds;
  options.compile_threads = place.library.workers.threads();
  options.stopped = is_interrupted;
  options.planned = listener.planned;
  options.began = [&listener](const tuner::TuningTask& task, const tuner::Budget& budget) {
    listener.began(task, budget.left());
  };
  options.ended = [&listener](const tuner::Decision& decision) {
    listener.ended(decision);
    for (const tuner::WrongCandidate& wrong : decision.wrong) listener.noted(to_text(wrong));
  };
  options.found = listener.found;
  return options;
}

}  // namespace

Result<std::string> folder_of_records(const TuneOptions& options, Library& library) {
  if (!options.out.empty()) return options.out;
  const std::string& root = library.engine.store().options().writable_root;
  if (!root.empty()) return root;
  return refuse("there is no folder to keep records in; allowed: --out, or OCTILE_CACHE_DIR");
}

Result<std::vector<Question>> questions_to_refresh(const std::string& folder,
                                                   const DeviceSpec& device) {
  const auto records = all_records(folder);
  if (!records) return tl::unexpected<Error>(records.error());
  return distinct(questions_of(tasks_to_refresh(*records, device)));
}

Result<TuneRun> run_of(const TunePlace& place, std::vector<Question> asked,
                       const Intervals::Measure& measure) {
  const DeviceSpec& device = place.gpu.spec();
  TuneRun run{place, {}, {}};
  if (const auto& max_error = place.options.max_error) {
    auto intervals = Intervals::measured(asked, device, *max_error, measure);
    if (!intervals) return tl::unexpected<Error>(intervals.error());
    run.intervals = std::move(*intervals);
  }
  run.questions = by_weight(run.intervals.searched(std::move(asked)), device);
  return run;
}

cache::SharedTuningOptions sharing_options(const TunePlace& place) {
  const auto ops = cache::or_system(nullptr);
  cache::SharedTuningOptions options;
  const cache::ProcessIdentity self = cache::this_process(*ops);
  options.rank =
      fmt::format("{}-{}-gpu{}", self.host, self.place.substr(0, 8), place.gpu.ordinal());
  options.run = place.run;
  return options;
}

Result<tuner::RunResult> decide(const TuneRun& run, const TuneListener& listener) {
  const TunePlace& place = run.place;
  tuner::TunerContext context(place.library, place.gpu, place.folder);
  auto options = decider_options(run, listener);
  if (!options) return tl::unexpected<Error>(options.error());
  tuner::GpuDecider decider(context, std::move(*options));
  cache::SharedTuning shared(place.folder, sharing_options(place));
  auto result = [&] {
    const CatchInterrupt guard;
    return run_tasks(tasks_of(run.questions), place.gpu.spec(), decider,
                     run_options(place, listener, shared));
  }();
  if (result && result->decided_twice > 0)
    listener.noted(
        fmt::format("another process decided {} questions while this one did: locks of "
                    "{} keep nobody out; allowed there: --part I/N in each process",
                    result->decided_twice, place.folder));
  const auto merged = shared.merge();
  if (result && !merged) return fail(ErrorCode::kInternal, merged.error().sentence);
  return result;
}

}  // namespace octile::tools
