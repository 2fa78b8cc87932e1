#include "tools/tune/devices.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <limits>
#include <map>
#include <set>
#include <unordered_map>
#include <utility>

#include "runtime/api/boundary.h"
#include "runtime/engine/choice.h"
#include "tools/common/output.h"
#include "tools/tune/decide.h"
#include "tools/tune/device_list.h"
#include "tools/tune/ending.h"
#include "tools/tune/interrupt.h"
#include "tools/tune/processes.h"
#include "tools/tune/ranks.h"
#include "tools/tune/watch.h"

namespace octile::tools {
namespace {

// ---- what there is, which a process of its own asks

// Returns the GPUs to use and, with --refresh, the questions.
Result<Json> look(const TuneOptions& options, const std::optional<std::vector<int>>& numbers) {
  const auto devices = usable_devices(options.devices, numbers);
  if (!devices) return tl::unexpected<Error>(devices.error());
  const auto library = LibraryHandle::create_silent();
  if (!library) return tl::unexpected<Error>(library.error());
  const auto folder = folder_of_records(options, library->get()->library);
  if (!folder) return tl::unexpected<Error>(folder.error());
  Json asked = Json::array();
  if (options.refresh) {
    const auto questions = questions_to_refresh(*folder, devices->spec);
    if (!questions) return tl::unexpected<Error>(questions.error());
    for (const auto& [task, layer, layers] : *questions)
      asked.push_back(Json::array({to_text(task.problem), task.tokens}));
  }
  return Json{{"devices", devices->numbers}, {"questions", std::move(asked)}};
}

// ---- what a process with a GPU tells

// A process tells what another function of this file reads, so the numbers are there.
std::int64_t integer_in(const Json& line, const char* name) {
  return line.at(name).integer().value_or(0);
}
double number_in(const Json& line, const char* name) { return line.at(name).number().value_or(0); }

Json error_line(const tuner::TuningTask& task, double error) {
  return {{"measured", to_text(task)}, {"error", std::isfinite(error) ? Json(error) : Json()}};
}

TuneListener telling(const TuneRun& run, const Processes::Tell& tell) {
  const auto key = [](const tuner::Decision& decision) { return to_text(decision.task); };
  TuneListener listener;
  listener.planned = [&tell](const tuner::RunPlan& plan) {
    tell({{"tasks", plan.tasks}, {"open", plan.open}, {"needed", plan.needed_seconds}});
  };
  listener.began = [&tell](const tuner::TuningTask& task, double left) {
    tell({{"began", to_text(task)}, {"left", left}});
  };
  listener.timed = [&tell](double best_us, double default_us) {
    tell({{"best_us", best_us}, {"default_us", default_us}});
  };
  listener.ended = [&run, &tell, key](const tuner::Decision& decision) {
    tell({{"ended", key(decision)},
          {"outcome", static_cast<int>(decision.outcome)},
          {"line", line_of(run, decision)}});
  };
  listener.found = [&tell, key](const tuner::Decision& decision) {
    tell({{"found", key(decision)}});
  };
  listener.noted = [&tell](const std::string& sentence) { tell({{"noted", sentence}}); };
  return listener;
}

class DevicesRun {
 public:
  DevicesRun(const TuneOptions& options, std::string run, std::vector<Question> questions,
             int cores)
      : options_(options), run_(std::move(run)), questions_(std::move(questions)), cores_(cores) {}

  Status run(const std::optional<std::vector<int>>& numbers) {
    if (Status ok = see(numbers); !ok) return ok;
    if (questions_.empty() && !options_.json) {
      print_stdout("every record for {} timed the kernel of today\n", device_names(numbers_));
      return {};
    }
    const CatchInterrupt guard;
    Processes processes;
    for (const int number : numbers_) {
      const bool is_first = number == numbers_.front();
      Status started = processes.start(device_name(number),
                                       [this, number, is_first](const Processes::Tell& tell) {
                                         return work(number, is_first, tell);
                                       });
      if (!started) return started;
    }
    follow(processes);
    return end(processes);
  }

 private:
  Status see(const std::optional<std::vector<int>>& numbers) {
    Processes processes;
    Status started = processes.start("the GPUs", [&](const Processes::Tell& tell) -> Status {
      const auto seen = look(options_, numbers);
      if (seen) tell(*seen);
      return seen.map([](const Json&) {});
    });
    if (!started) return started;
    processes.wait({.heard = [this](const Process&, const Json& seen) { note_seen(seen); },
                    .ended = [](const Process&) {},
                    .is_interrupted = [] { return false; }});
    const Process& looked = processes.all().front();
    if (!looked.result) return looked.result;
    if (!looked.ended_well())
      return fail(ErrorCode::kInternal,
                  fmt::format("the process that looks for GPUs {}", end_text(looked)));
    return {};
  }

  void note_seen(const Json& seen) {
    numbers_.clear();
    for (const Json& number : seen.at("devices"))
      numbers_.push_back(static_cast<int>(number.integer().value_or(0)));
    for (const Json& question : seen.at("questions")) {
      const auto problem = parse_problem(*question.at(0).string());
      if (problem) questions_.push_back({{*problem, question.at(1).integer().value_or(0)}});
    }
  }

  // ---- in a process with a GPU

  Status work(int number, bool is_first, const Processes::Tell& tell) {
    const int cores = std::max(1, cores_ / static_cast<int>(numbers_.size()));
    // The first one's warnings stand for all.
    const auto library =
        is_first ? LibraryHandle::create(cores) : LibraryHandle::create_silent(cores);
    if (!library) return tl::unexpected<Error>(library.error());
    const auto gpu = GpuSession::open(library->get()->library, device_name(number));
    if (!gpu) return tl::unexpected<Error>(gpu.error());
    const auto place = place_on(library->get()->library, **gpu);
    if (!place) return tl::unexpected<Error>(place.error());
    tuner::TunerContext context(place->library, **gpu);
    const auto measure = errors_on(context, options_.seed);
    const auto run = run_of(*place, questions_, [&](const std::vector<tuner::TuningTask>& tasks) {
      auto errors = measure(tasks);
      for (std::size_t i = 0; errors && i < tasks.size(); ++i)
        tell(error_line(tasks[i], (*errors)[i]));
      return errors;
    });
    if (!run) return tl::unexpected<Error>(run.error());
    return decide(*run, telling(*run, tell)).map([](const tuner::RunResult&) {});
  }

  Result<TunePlace> place_on(Library& library, const GpuSession& gpu) const {
    return folder_of_records(options_, library).map([&](const std::string& folder) {
      return TunePlace{options_, library, gpu, folder, run_};
    });
  }

  // ---- in the parent, while they work

  void follow(Processes& processes) {
    Watch watch(questions_, fmt::format("{} of {}", device_names(numbers_), host_name()),
                progress_mode(options_.progress));
    processes.wait({.heard = [&](const Process&, const Json& line) { hear(line, watch); },
                    .ended = [this](const Process& process) { name_if_it_failed(process); },
                    .is_interrupted = is_interrupted});
  }

  void hear(const Json& line, Watch& watch) {
    if (line.contains("tasks")) plan(line, watch);
    if (line.contains("measured")) {
      const Json& error = line.at("error");
      errors_[*line.at("measured").string()] =
          error.number().value_or(std::numeric_limits<double>::infinity());
    }
    if (line.contains("began")) begin(line, watch);
    if (line.contains("best_us") && !options_.quiet)
      watch.timed(number_in(line, "best_us"), number_in(line, "default_us"));
    if (line.contains("noted")) print_once(*line.at("noted").string());
    if (line.contains("found")) note_done(*line.at("found").string(), found_, watch);
    if (line.contains("ended")) note_ended(line, watch);
  }

  // A message that all processes send, such as which library they lack, is printed once.
  void print_once(const std::string& sentence) {
    if (noted_.insert(sentence).second) print_stderr("octile: {}\n", sentence);
  }

  // The first plan is the work of all.
  void plan(const Json& line, Watch& watch) {
    if (plan_) return;
    const double gpus = static_cast<double>(numbers_.size());
    tuner::RunPlan whole{static_cast<std::size_t>(integer_in(line, "tasks")),
                         static_cast<std::size_t>(integer_in(line, "open")),
                         number_in(line, "needed") / gpus, 0};
    whole.budget_seconds = options_.budget_seconds.value_or(whole.needed_seconds);
    plan_ = whole;
    began_ = Clock::now();
    watch.planned(whole);
    if (!options_.quiet && whole.open > 0)
      print_stderr("octile: {}\n",
                   plan_text(whole, fmt::format("{} GPUs and {} cores", numbers_.size(), cores_)));
  }

  void begin(const Json& line, Watch& watch) {
    if (options_.quiet || !plan_) return;
    const std::string key = *line.at("began").string();
    const auto question = std::ranges::find_if(
        questions_, [&](const Question& one) { return to_text(one.task) == key; });
    const std::chrono::duration<double> elapsed = Clock::now() - began_;
    const double left =
        std::min(number_in(line, "left"), std::max(0.0, plan_->budget_seconds - elapsed.count()));
    if (question != questions_.end()) watch.began(question->task, left);
  }

  void note_done(const std::string& key, std::set<std::string>& keys, Watch& watch) {
    const bool is_new = !ended_.contains(key) && !found_.contains(key);
    keys.insert(key);
    if (is_new) watch.ended();
  }

  void note_ended(const Json& line, Watch& watch) {
    const std::string key = *line.at("ended").string();
    const auto outcome = static_cast<tuner::Outcome>(static_cast<int>(integer_in(line, "outcome")));
    tuner::Decision decision;
    decision.outcome = outcome;
    const bool decided = decision.decided();
    if (decided || outcome != tuner::Outcome::kOutOfTime) note_done(key, ended_, watch);
    Report& report = reports_[key];
    if (report.decided) return;
    report = {decided, outcome, line.at("line")};
    if (decided && options_.json) print_line(report.line, false, name_of(ChosenBy::kRecord));
  }

  void name_if_it_failed(const Process& process) {
    if (process.ended_well() || is_interrupted()) return;
    ++failed_;
    print_stderr("octile: the process of {} ({}) {}{}\n", process.name, process.number,
                 process.result ? "" : "failed: ", end_text(process));
  }

  // ---- in the parent, once they have ended

  Status end(const Processes& processes) {
    const auto living = std::ranges::find_if(processes.all(), &Process::ended_well);
    if (living == processes.all().end() && !is_interrupted()) {
      const Status& result = processes.all().front().result;
      return result ? fail(ErrorCode::kInternal, "the processes of all GPUs have ended")
                    : Status(tl::unexpected<Error>(result.error()));
    }
    const auto library = LibraryHandle::create_silent(cores_);
    if (!library) return tl::unexpected<Error>(library.error());
    const auto gpu = GpuSession::open(library->get()->library, living == processes.all().end()
                                                                   ? device_name(numbers_.front())
                                                                   : living->name);
    if (!gpu) return tl::unexpected<Error>(gpu.error());
    const auto place = place_on(library->get()->library, **gpu);
    if (!place) return tl::unexpected<Error>(place.error());
    tuner::TunerContext context(place->library, **gpu);
    const auto run = run_of(*place, questions_, reported_errors(errors_on(context, options_.seed)));
    if (!run) return tl::unexpected<Error>(run.error());
    const auto result = joined(*run);
    if (!result) return tl::unexpected<Error>(result.error());
    const TuneEnding ending{device_names(numbers_), [&](const tuner::Decision& decision) {
                              const auto report = reports_.find(to_text(decision.task));
                              return report == reports_.end() ? line_of(*run, decision)
                                                              : report->second.line;
                            }};
    Status ended = end_run(*run, ending, *result);
    if (!ended || failed_ == 0 || result->undecided == 0) return ended;
    return fail(ErrorCode::kInternal,
                fmt::format("{} of {} processes failed, and {} questions are undecided", failed_,
                            numbers_.size(), result->undecided));
  }

  // Measures again only the questions that no process has reported.
  Intervals::Measure reported_errors(Intervals::Measure measure) const {
    return [this, measure = std::move(measure)](
               const std::vector<tuner::TuningTask>& tasks) -> Result<std::vector<double>> {
      std::vector<double> errors;
      for (const tuner::TuningTask& task : tasks) {
        const auto error = errors_.find(to_text(task));
        if (error == errors_.end()) return measure(tasks);
        errors.push_back(error->second);
      }
      return errors;
    };
  }

  // Returns what one process would have of the run, by the records of all.
  Result<tuner::RunResult> joined(const TuneRun& run) const {
    const DeviceSpec& device = run.place.gpu.spec();
    cache::SharedTuning shared(run.place.folder, sharing_options(run.place));
    if (const auto merged = shared.merge(); !merged)
      return fail(ErrorCode::kInternal, merged.error().sentence);
    if (const auto read = shared.refresh(); !read)
      return fail(ErrorCode::kInternal, read.error().sentence);
    tuner::RunResult result =
        tuner::resumed_run(tasks_of(run.questions), [&](const tuner::TuningTask& task) {
          return shared.decided(tuner::record_key(task, device));
        });
    for (std::size_t i = 0; i < result.decisions.size(); ++i) {
      tuner::Decision& decision = result.decisions[i];
      const std::string key = to_text(decision.task);
      const auto report = reports_.find(key);
      const bool is_own = report != reports_.end() && report->second.decided;
      if (report != reports_.end()) {
        decision.spilled =
            static_cast<int>(integer_in(report->second.line.at("candidates"), "spilled"));
        if (!decision.decided()) decision.outcome = report->second.outcome;
      }
      result.elsewhere[i] = decision.decided() && found_.contains(key) && !is_own;
      if (is_own || result.elsewhere[i]) result.resumed[i] = false;
    }
    result.stopped = is_interrupted();
    return result;
  }

  using Clock = std::chrono::steady_clock;
  struct Report {
    bool decided = false;
    tuner::Outcome outcome = tuner::Outcome::kOutOfTime;
    Json line = {};
  };

  const TuneOptions& options_;
  const std::string run_;
  std::vector<Question> questions_;
  const int cores_;
  std::vector<int> numbers_;  // of the GPUs
  std::optional<tuner::RunPlan> plan_;
  Clock::time_point began_;
  std::map<std::string, Report> reports_;  // by a task's text: the decision, or the last attempt
  std::set<std::string> ended_, found_;    // tasks' texts
  std::unordered_map<std::string, double> errors_;  // of promotion intervals, by a task's text
  std::set<std::string> noted_;                     // sentences
  int failed_ = 0;                                  // processes
};

}  // namespace

Status tune_on_devices(const TuneOptions& options, const std::string& run,
                       std::vector<Question> questions) {
  const auto numbers = read_devices(options.devices);
  if (!numbers) return tl::unexpected<Error>(numbers.error());
  if (const auto rank = one_of_several())
    return refuse(
        fmt::format("--devices is given in a rank of a launcher ({}), which starts a process for "
                    "each GPU; allowed: one of the two",
                    *rank));
  const auto cores = cores_of_rank();
  if (!cores) return tl::unexpected<Error>(cores.error());
  return DevicesRun(options, run, std::move(questions), *cores).run(*numbers);
}

}  // namespace octile::tools
