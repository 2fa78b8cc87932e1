// The C API of octile/tuning.h.
#include "octile/tuning.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstdint>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "cache/json.h"
#include "cache/tuning_file.h"
#include "generator/core/token_buckets.h"
#include "runtime/api/boundary.h"
#include "runtime/api/convert.h"
#include "runtime/api/prepare.h"
#include "runtime/launch/argument_checks.h"
#include "runtime/prove/families.h"
#include "runtime/tuned/record_files.h"
#include "runtime/tuner/device_decider.h"
#include "runtime/tuner/here.h"
#include "runtime/tuner/task_list.h"

namespace octile::api {
namespace {

using tuner::TuningTask;

constexpr std::int64_t kMostListed = 100'000;
constexpr std::size_t kMostQuestions = 1'000'000;  // each takes 3 KB
constexpr std::int64_t kMostTokensByDefault = 16384;

// Checks a struct that the call writes at its end, or null.
template <typename T>
Status check_result(const T* result) {
  if (result == nullptr) return {};
  return check_struct("result", result, FirstSize<T>::value, sizeof(T), alignof(T));
}

// ---- questions

Status check_list(const char* name, const char* count_name, const void* list, std::int64_t count,
                  std::int64_t least) {
  if (count < least || count > kMostListed)
    return fail(ErrorCode::kInvalidArgument,
                fmt::format("{} is {}; allowed: {} to {}", count_name, count, least, kMostListed));
  return count == 0 ? Status{} : require(name, list);
}

Result<std::vector<std::int64_t>> read_counts(const octile_tune_options& options) {
  std::vector<std::int64_t> counts;
  for (std::int64_t i = 0; i < options.token_count; ++i) {
    counts.push_back(options.tokens[i]);
    if (counts.back() < 1 || counts.back() > kMaxExtent)
      return fail(ErrorCode::kInvalidArgument, fmt::format("options->tokens[{}] is {}; allowed: 1 "
                                                           "to {}",
                                                           i, counts.back(), kMaxExtent));
  }
  for (int bucket = 0; options.token_count == 0 && bucket <= bucket_of(kMostTokensByDefault);
       ++bucket)
    counts.push_back(bucket_upper(bucket));
  return counts;
}

Result<Problem> read_searchable(const char* text, const std::string& name,
                                const DeviceSpec& device) {
  Status ok = require(name.c_str(), text);
  if (ok) ok = check_length(name.c_str(), text);
  if (!ok) return tl::unexpected<Error>(ok.error());
  auto problem = parse_problem(text);
  if (problem) ok = check_supported(*problem, device);
  if (problem && ok) ok = check_operands(*problem);
  if (problem && ok) return problem;
  const Error& error = problem ? ok.error() : problem.error();
  return fail(error.code, fmt::format("{}: {}", name, error.message));
}

// Returns each question once, the longest first.
Result<std::vector<TuningTask>> read_questions(const octile_tune_options& options,
                                               const DeviceSpec& device) {
  const auto counts = read_counts(options);
  if (!counts) return tl::unexpected<Error>(counts.error());
  std::vector<Problem> problems;
  std::size_t questions = 0;
  for (std::int64_t i = 0; i < options.problem_count; ++i) {
    auto problem =
        read_searchable(options.problems[i], fmt::format("options->problems[{}]", i), device);
    if (!problem) return tl::unexpected<Error>(problem.error());
    questions += token_axis(*problem).is_dynamic() ? counts->size() : 1;
    problems.push_back(std::move(*problem));
  }
  if (questions > kMostQuestions)
    return fail(ErrorCode::kInvalidArgument,
                fmt::format("options->problems and options->tokens make {} questions; allowed: up "
                            "to {}",
                            questions, kMostQuestions));
  tuner::TaskList tasks;
  for (const Problem& problem : problems) {
    const TokenAxis axis = token_axis(problem);
    tasks.add(with_dynamic_tokens(problem),
              axis.is_dynamic() ? std::span(*counts) : std::span(&axis.tokens, 1));
  }
  return std::move(tasks).longest_first(device);
}

// ---- the search

// Tells the caller's callback how far a search is, and learns from it whether to end.
class Reporter {
 public:
  Reporter(const octile_tune_options& options, std::size_t questions)
      : callback_(options.progress), user_(options.progress_user) {
    progress_.struct_size = sizeof progress_;
    progress_.questions = static_cast<std::int64_t>(questions);
  }

  void planned(const tuner::RunPlan& plan) {
    progress_.decided = static_cast<std::int64_t>(plan.tasks - plan.open);
    progress_.seconds_left = plan.budget_seconds;
    say(OCTILE_TUNE_PLANNED);
  }
  void began(const TuningTask& task, const tuner::Budget& budget) {
    problem_ = to_text(task.problem);
    progress_.problem = problem_.c_str();
    progress_.tokens = task.tokens;
    progress_.best_us = progress_.default_us = 0;
    budget_ = &budget;
    ends_at_ = budget.now() + budget.left();
    say(OCTILE_TUNE_BEGAN);
  }
  void timed(double best_us, double default_us) {
    progress_.best_us = best_us;
    progress_.default_us = default_us;
  }
  void ended(const tuner::Decision& decision) {
    if (decision.decided()) ++progress_.decided;
    say(decision.decided() ? OCTILE_TUNE_DECIDED : OCTILE_TUNE_UNDECIDED);
    progress_.problem = nullptr;
    progress_.tokens = 0;
  }
  void found() { ++progress_.decided; }
  // Called often.
  bool is_cancelled() {
    constexpr double kEverySeconds = 0.1;
    if (now_() >= said_at_ + kEverySeconds)
      say(progress_.problem != nullptr ? OCTILE_TUNE_RACING : OCTILE_TUNE_WAITING);
    return cancelled_;
  }

 private:
  void say(octile_tune_event event) {
    said_at_ = now_();
    if (callback_ == nullptr || cancelled_) return;
    progress_.event = event;
    if (budget_ != nullptr) progress_.seconds_left = std::max(0.0, ends_at_ - budget_->now());
    if (callback_(&progress_, user_) != 0) cancelled_ = true;
  }

  const octile_tune_callback callback_;
  void* const user_;
  const tuner::Clock now_ = tuner::steady_clock();
  octile_tune_progress progress_{};
  std::string problem_;
  const tuner::Budget* budget_ = nullptr;  // once a question has begun
  double said_at_ = now_();
  double ends_at_ = 0;  // by the budget's clock
  bool cancelled_ = false;
};

tuner::SharedFolder folder_of(Library& library, const octile_tune_options& options) {
  const std::string& own = library.engine.options().writable_root;
  const std::string path = options.folder != nullptr ? options.folder : own;
  tuner::SharedFolder folder{path, {}, options.force != 0};
  if (path == own) {
    folder.keep = [&library](const cache::TuningRecord& record) {
      return library.engine.tuning_records().keep(record);
    };
  } else {
    folder.keep = [file = cache::TuningFile(path, true)](const cache::TuningRecord& record) {
      const auto kept = file.append(record);
      return kept ? Status{} : fail(ErrorCode::kFile, kept.error().sentence);
    };
  }
  return folder;
}

Status read_tune_options(const octile_tune_options* user, octile_tune_options& options) {
  Status ok = read_struct("options", user, options);
  if (ok)
    ok = check_list("options->problems", "options->problem_count", options.problems,
                    options.problem_count, 1);
  if (ok)
    ok = check_list("options->tokens", "options->token_count", options.tokens, options.token_count,
                    0);
  if (ok && (!(options.budget_seconds >= 0) || !(options.budget_seconds <= kMostSearchSeconds)))
    ok = refuse(
        fmt::format("options->budget_seconds is {}; allowed: 0 (what the questions need) to {}",
                    options.budget_seconds, kMostSearchSeconds));
  if (ok && options.folder != nullptr && *options.folder == '\0')
    ok = refuse("options->folder is \"\"; allowed: a folder, or null for the cache folder");
  return ok;
}

Result<Target> live_device(const char* device) {
  if (Status ok = check_device(device); !ok) return tl::unexpected<Error>(ok.error());
  auto target = target_of(device);
  if (!target || target->kind == TargetKind::kLive) return target;
  return fail(ErrorCode::kInvalidArgument,
              fmt::format("device is \"{}\"; allowed to search: a live device, \"cuda\" or "
                          "\"cuda:N\"",
                          device));
}

Status tune(octile_library* library, const char* device, const octile_tune_options* user,
            octile_tune_result* out) {
  if (Status ok = require_handle("library", library); !ok) return ok;
  octile_tune_options options{};
  if (Status ok = read_tune_options(user, options); !ok) return ok;
  octile_tune_result result{};
  if (Status ok = check_result(out); !ok) return ok;
  const auto target = live_device(device);
  if (!target) return tl::unexpected<Error>(target.error());
  if (Status ok = check_may_search(*target, static_cast<CUstream>(options.stream)); !ok) return ok;
  auto tasks = read_questions(options, target->spec);
  if (!tasks) return tl::unexpected<Error>(tasks.error());

  Library& own = library->library;
  const tuner::SharedFolder folder = folder_of(own, options);
  result.questions = static_cast<std::int64_t>(tasks->size());
  Reporter reporter(options, tasks->size());
  tuner::RunOptions run;
  if (options.budget_seconds > 0) run.budget_seconds = options.budget_seconds;
  run.stopped = [&] { return reporter.is_cancelled(); };
  run.planned = [&](const tuner::RunPlan& plan) { reporter.planned(plan); };
  run.began = [&](const TuningTask& task, const tuner::Budget& budget) {
    reporter.began(task, budget);
  };
  run.ended = [&](const tuner::Decision& decision) { reporter.ended(decision); };
  run.found = [&](const tuner::Decision&) { reporter.found(); };
  tuner::GpuDeciderOptions deciding;
  deciding.race.watch = [&](double best, double by_default) { reporter.timed(best, by_default); };
  const auto done = tuner::tune_here(
      own, target->spec, *tasks,
      [&] { return tuner::DeviceDecider::open(own, target->text, folder.path, deciding); }, folder,
      run);
  if (!done) return tl::unexpected<Error>(done.error());
  result.known =
      std::ranges::count(done->resumed, true) + std::ranges::count(done->elsewhere, true);
  result.undecided = done->undecided;
  result.decided = result.questions - result.known - result.undecided;
  result.cancelled = done->stopped ? 1 : 0;
  return out == nullptr ? Status{} : write_struct("result", result, out);
}

// ---- records

std::string found_text(const Target& target, const Problem& problem, std::int64_t tokens,
                       const Choice& choice) {
  return Json::object()
      .add("problem", tuning_text(problem))
      .add("tokens", tokens)
      .add("bucket", bucket_upper(bucket_of(tokens)))
      .add("device", target.spec.name)
      .add("sm_count", target.spec.sm_count)
      .add("chosen_by", name_of(choice.by))
      .add("config", to_text(choice.config))
      .add("reason", choice.reason)
      .add("record", choice.record ? *parse_object(to_json_line(*choice.record), "record") : Json())
      .dump();
}

Status find_record(octile_library* library, const char* device, const char* text,
                   std::int64_t tokens, char* buffer, std::size_t* size) {
  Status ok = require_handle("library", library);
  if (ok) ok = check_device(device);
  if (ok) ok = require("problem", text);
  if (ok) ok = check_length("problem", text);
  if (ok) ok = require("size", size);
  if (!ok) return ok;
  const auto target = target_of(device);
  if (!target) return tl::unexpected<Error>(target.error());
  if (target->kind == TargetKind::kHost)
    return refuse(
        "device is \"host\", which has no configurations; allowed: \"cuda\", \"cuda:N\" "
        "or the name of a device");
  const auto problem = parse_problem(text);
  if (!problem) return tl::unexpected<Error>(problem.error());
  ok = check_supported(*problem, target->spec);
  if (ok) ok = check_tokens(token_axis(*problem), "tokens", tokens);
  if (!ok) return ok;
  // As plans choose: for the bucket's largest count.
  const Choice choice = choose_config(*problem, bucket_upper(bucket_of(tokens)), target->spec,
                                      *library->library.engine.records());
  return write_text(found_text(*target, *problem, tokens, choice), buffer, size);
}

Result<std::vector<std::string>> read_paths(const char* const* paths, std::int64_t count,
                                            std::int64_t least) {
  if (Status ok = check_list("paths", "count", paths, count, least); !ok)
    return tl::unexpected<Error>(ok.error());
  std::vector<std::string> all;
  for (std::int64_t i = 0; i < count; ++i) {
    const std::string name = fmt::format("paths[{}]", i);
    if (Status ok = require(name.c_str(), paths[i]); !ok) return tl::unexpected<Error>(ok.error());
    if (*paths[i] == '\0')
      return fail(ErrorCode::kInvalidArgument,
                  fmt::format("{} is \"\"; allowed: a file or a folder", name));
    all.emplace_back(paths[i]);
  }
  return all;
}

void log_oddities(Library& library, const cache::MergedTuning& merged) {
  for (const std::string& sentence : merged.bad_lines)
    library.logger.log(LogLevel::kWarning, sentence + "; the line is left out");
  for (const std::string& sentence : merged.conflicts)
    library.logger.log(LogLevel::kInfo, sentence);
}

Status load_records(octile_library* library, const char* const* paths, std::int64_t count) {
  if (Status ok = require_handle("library", library); !ok) return ok;
  const auto files = read_paths(paths, count, 0);
  if (!files) return tl::unexpected<Error>(files.error());
  Library& own = library->library;
  if (files->empty()) {
    own.engine.tuning_records().load(std::nullopt);
    return {};
  }
  const auto merged = merge_records(*files);
  if (!merged) return tl::unexpected<Error>(merged.error());
  log_oddities(own, merged->set);
  own.engine.tuning_records().load(cache::parse_tuning_lines(merged->set.text()).records);
  return {};
}

Status merge_files(octile_library* library, const char* const* paths, std::int64_t count,
                   const char* out, octile_records_merged* result) {
  if (Status ok = require_handle("library", library); !ok) return ok;
  const auto files = read_paths(paths, count, 1);
  if (!files) return tl::unexpected<Error>(files.error());
  if (Status ok = require("out", out); !ok) return ok;
  octile_records_merged said{};
  if (Status ok = check_result(result); !ok) return ok;
  const auto merged = merge_records_into(out, *files);
  if (!merged) return tl::unexpected<Error>(merged.error());
  log_oddities(library->library, merged->set);
  said.files = static_cast<std::int64_t>(merged->files);
  said.records = static_cast<std::int64_t>(merged->set.lines.size());
  said.conflicts = static_cast<std::int64_t>(merged->set.conflicts.size());
  said.bad_lines = static_cast<std::int64_t>(merged->set.bad_lines.size());
  return result == nullptr ? Status{} : write_struct("result", said, result);
}

}  // namespace
}  // namespace octile::api

using namespace octile::api;  // NOLINT(google-build-using-namespace): the C functions are its face

octile_status octile_tune(octile_library* library, const char* device,
                          const octile_tune_options* options, octile_tune_result* result) {
  return call([&] { return tune(library, device, options, result); });
}

octile_status octile_records_find(octile_library* library, const char* device, const char* problem,
                                  int64_t tokens, char* buffer, size_t* size) {
  return call([&] { return find_record(library, device, problem, tokens, buffer, size); });
}

octile_status octile_records_load(octile_library* library, const char* const* paths,
                                  int64_t count) {
  return call([&] { return load_records(library, paths, count); });
}

octile_status octile_records_merge(octile_library* library, const char* const* paths, int64_t count,
                                   const char* out, octile_records_merged* result) {
  return call([&] { return merge_files(library, paths, count, out, result); });
}
