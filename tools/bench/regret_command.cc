#include "tools/bench/regret_command.h"

#include <fmt/format.h>

#include <algorithm>
#include <memory>
#include <optional>
#include <utility>

#include "runtime/api/boundary.h"
#include "runtime/reference/synthetic.h"
#include "runtime/tuner/regret.h"
#include "tools/bench/session.h"
#include "tools/command.h"
#include "tools/common/output.h"
#include "tools/common/text_table.h"
#include "tools/tune/questions.h"

namespace octile::tools {
namespace {

struct RegretRun : SessionOptions {
  WorkOptions work;
  tuner::RegretOptions regret;
  std::size_t problems = 24;
  double budget_seconds = 480;
  bool between = false;
  bool wide = false;
  bool progress = false;
};

// A question, what was decided, and how that fared.
struct Drawn {
  tuner::TuningTask task;
  std::string_view by;  // "search", or what chose between the tuned counts
  tuner::Regret regret;
  double seconds = 0;
};

Status check(const RegretRun& options) {
  // The conditions also refuse a NaN.
  if (!(options.regret.within >= 1))
    return refuse(
        fmt::format("--within is {}; allowed: a factor, 1 or more", options.regret.within));
  if (options.regret.most < 2)
    return refuse(fmt::format("--most is {}; allowed: 2 candidates or more", options.regret.most));
  if (options.problems < 1) return refuse("--problems is 0; allowed: 1 or more");
  if (!(options.budget_seconds > 0))
    return refuse(
        fmt::format("--budget is {}; allowed: seconds, more than 0", options.budget_seconds));
  return options.work.check();
}

// Returns the questions that no record decides, in an order drawn by the seed.
std::vector<tuner::TuningTask> drawn_tasks(const std::vector<Question>& questions,
                                           const cache::TuningSet& records,
                                           const DeviceSpec& device, std::uint64_t seed) {
  std::vector<std::pair<double, tuner::TuningTask>> drawn;
  for (std::size_t i = 0; i < questions.size(); ++i) {
    const tuner::TuningTask& task = questions[i].task;
    if (!check_supported(task.problem, device)) continue;
    if (choose_config(task.problem, task.tokens, device, records).by == ChosenBy::kRecord) continue;
    drawn.emplace_back(reference::random_uniform(seed, i), task);
  }
  std::ranges::sort(drawn, {}, &std::pair<double, tuner::TuningTask>::first);
  std::vector<tuner::TuningTask> tasks;
  for (auto& [place, task] : drawn) tasks.push_back(std::move(task));
  return tasks;
}

// Returns a count between this one and twice it: 94 behind 64, 3008 behind 2048.
std::int64_t count_behind(std::int64_t tokens) { return tokens + tokens * 15 / 32; }

class RegretBench {
 public:
  RegretBench(const RegretRun& options, const BenchSession& session)
      : options_(options),
        device_(session.gpu().spec()),
        context_(session.library().get()->library, session.gpu()),
        records_(context_.library.engine.records()),
        progress_(progress_mode(options.progress)),
        budget_(tuner::steady_clock(), options.budget_seconds) {}

  Result<std::vector<Drawn>> run(const std::vector<tuner::TuningTask>& tasks) {
    std::vector<Drawn> all;
    for (std::size_t i = 0; i < tasks.size() && all.size() < options_.problems; ++i) {
      if (budget_.left() <= 0) break;
      progress_.count(all.size(), options_.problems,
                      fmt::format("measured, next {}", tuner::to_text(tasks[i])));
      const double began = budget_.now();
      const auto left = static_cast<double>(options_.problems - all.size());
      auto drawn = measure(tasks[i], budget_.part(budget_.left() / left));
      if (!drawn && drawn.error().code == ErrorCode::kOutOfMemory) continue;
      if (!drawn) return tl::unexpected<Error>(drawn.error());
      drawn->seconds = budget_.now() - began;
      if (options_.json) print_line(*drawn);
      all.push_back(std::move(*drawn));
    }
    progress_.done();
    return all;
  }

 private:
  Result<Drawn> measure(const tuner::TuningTask& task, const tuner::Budget& budget) {
    tuner::KnownRecords known(records_);
    Drawn drawn{task, "search", {}, 0};
    auto decided = decide(task, budget, known);
    if (decided && *decided && options_.between) {
      drawn.task.tokens = count_behind(task.tokens);
      decided = decide({task.problem, 2 * task.tokens}, budget, known);
      const Choice choice = known.choose(drawn.task, device_);
      drawn.by = name_of(choice.by);
      if (decided && *decided) *decided = choice.config;
    }
    if (!decided) return tl::unexpected<Error>(decided.error());
    const std::optional<KernelConfig>& config = *decided;
    if (!config) return drawn;
    auto regret = tuner::measure_regret(context_, drawn.task, *config, budget, options_.regret);
    if (!regret) return tl::unexpected<Error>(regret.error());
    drawn.regret = std::move(*regret);
    for (const std::string& wrong : drawn.regret.wrong)
      print_stderr("octile: {}: {}\n", tuner::to_text(drawn.task), wrong);
    return drawn;
  }

  // Returns what a search decides, which `known` learns; nothing if it ran out of time.
  Result<std::optional<KernelConfig>> decide(const tuner::TuningTask& task,
                                             const tuner::Budget& budget,
                                             tuner::KnownRecords& known) {
    tuner::GpuDeciderOptions options;
    options.seed = options_.regret.seed;
    tuner::GpuDecider decider(context_, options);
    const auto decision = decider.decide(task, budget);
    if (!decision) return tl::unexpected<Error>(decision.error());
    if (decision->outcome == tuner::Outcome::kNoneRight)
      return fail(ErrorCode::kInternal,
                  fmt::format("no candidate for {} gives correct results", tuner::to_text(task)));
    if (!decision->decided()) return std::optional<KernelConfig>();
    known.add(decision->record);
    return parse_config(task.problem, decision->record.winner.config).map([](KernelConfig config) {
      return std::optional(std::move(config));
    });
  }

  static void print_line(const Drawn& drawn) {
    const tuner::Regret& regret = drawn.regret;
    const Json line{{"problem", to_text(drawn.task.problem)},
                    {"tokens", drawn.task.tokens},
                    {"chosen_by", drawn.by},
                    {"finished", regret.finished},
                    {"config", regret.config},
                    {"fastest", regret.fastest},
                    {"config_us", regret.config_us},
                    {"fastest_us", regret.fastest_us},
                    {"over_fastest", regret.over_fastest},
                    {"low", regret.over_fastest_interval.lo},
                    {"high", regret.over_fastest_interval.hi},
                    {"admitted", regret.admitted},
                    {"listed", regret.listed},
                    {"timed", regret.timed},
                    {"wrong", regret.wrong},
                    {"seconds", drawn.seconds}};
    print_stdout("{}\n", line.dump_ascii());
    (void)std::fflush(stdout);
  }

  const RegretRun& options_;
  const DeviceSpec& device_;
  tuner::TunerContext context_;
  const std::shared_ptr<const cache::TuningSet> records_;
  Progress progress_;
  const tuner::Budget budget_;
};

void print(const std::vector<Drawn>& all, bool wide) {
  TextTable table({"<problem", "tokens", "<chosen by", "us", "fastest us", "over fastest", "95 %",
                   "timed", "admitted"});
  table.cut("problem", 32).leave_out({"admitted", "timed", "chosen by", "fastest us", "us"});
  for (const Drawn& drawn : all) {
    const tuner::Regret& regret = drawn.regret;
    const auto& [low, high] = regret.over_fastest_interval;
    table.add_row({short_text(drawn.task.problem), std::to_string(drawn.task.tokens),
                   std::string(drawn.by), fmt::format("{:.2f}", regret.config_us),
                   fmt::format("{:.2f}", regret.fastest_us),
                   regret.finished ? fmt::format("{:.4f}", regret.over_fastest) : "-",
                   regret.finished ? fmt::format("{:.4f} to {:.4f}", low, high) : "out of time",
                   std::to_string(regret.timed), std::to_string(regret.admitted)});
  }
  print_table(table, wide);
}

// Says of how many the decision is within a bound, by the low end of the interval and by its high.
void print_summary(const std::vector<Drawn>& all, bool json) {
  const auto count = [&](const auto& holds) {
    return std::ranges::count_if(
        all, [&](const Drawn& one) { return one.regret.finished && holds(one.regret); });
  };
  const auto finished = count([](const tuner::Regret&) { return true; });
  Json summary{{"problems", all.size()}, {"finished", finished}};
  std::string text = fmt::format("{} of {} problems finished", finished, all.size());
  for (const double bound : {0.01, 0.02}) {
    const auto not_slower =
        count([&](const tuner::Regret& one) { return one.over_fastest_interval.lo <= 1 + bound; });
    const auto certain =
        count([&](const tuner::Regret& one) { return one.over_fastest_interval.hi <= 1 + bound; });
    text += fmt::format("; {} not shown to be more than {:.0f} % behind, {} certainly within it",
                        not_slower, 100 * bound, certain);
    const std::string percent = fmt::format("{:.0f}", 100 * bound);
    summary.add("within_" + percent, not_slower);
    summary.add("certainly_within_" + percent, certain);
  }
  if (json) {
    print_stdout("{}\n", summary.dump_ascii());
  } else {
    print_stdout("\n{}\n", text);
  }
}

Status run(const RegretRun& options) {
  if (Status ok = check(options); !ok) return ok;
  const auto works = options.work.read({64, 4096});
  if (!works) return tl::unexpected<Error>(works.error());
  const auto questions = questions_of(*works);
  if (!questions) return tl::unexpected<Error>(questions.error());
  const auto session = BenchSession::open("bench regret", options, false);
  if (!session) return tl::unexpected<Error>(session.error());
  Library& library = session->library().get()->library;
  const std::vector<tuner::TuningTask> tasks = drawn_tasks(
      distinct(*questions), *library.engine.records(), session->gpu().spec(), options.regret.seed);
  if (tasks.empty()) return refuse("every question has a record; allowed: others");
  const auto all = RegretBench(options, *session).run(tasks);
  if (!all) return tl::unexpected<Error>(all.error());
  if (!options.json) print(*all, options.wide);
  print_summary(*all, options.json);
  if (std::ranges::all_of(*all, [](const Drawn& one) { return one.regret.wrong.empty(); }))
    return {};
  return fail(ErrorCode::kInternal, "bench regret: candidates are wrong");
}

}  // namespace

std::function<std::optional<Status>()> add_bench_regret(CLI::App& bench) {
  CLI::App* app = add_subcommand(
      bench, "regret",
      "how much faster than the tuner's decisions the fastest of many more candidates are: "
      "questions that no record decides are drawn, decided as tune does, and raced in one "
      "interleaved run each; nothing is kept");
  auto options = std::make_shared<RegretRun>();
  options->work.add_to(*app, "64,4096, with --model those of --mode");
  add_option(*app, "--problems", options->problems, "how many questions are drawn").show_default();
  add_option(*app, "--seed", options->regret.seed, "seed of the draw and of the random operands")
      .show_default();
  add_option(*app, "--within", options->regret.within,
             "time the candidates that the cost model puts within this factor of its best; of a "
             "quantiser all")
      .show_default();
  add_option(*app, "--most", options->regret.most, "of these at most so many, the model's best")
      .show_default();
  add_option(*app, "--budget", options->budget_seconds, "seconds for all questions together")
      .show_default();
  add_flag(
      *app, "--between", options->between,
      "decide each question at its token count and at twice that, and measure what then serves "
      "a count between them");
  add_gpu_option(*app, options->device);
  add_wide_option(*app, options->wide);
  add_json_option(*app, options->json);
  add_progress_option(*app, options->progress);
  return when_given(app, options, run);
}

}  // namespace octile::tools
