#include "tools/tune/options.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "generator/core/ascii.h"
#include "tools/common/records.h"
#include "tools/page/page.h"

namespace octile::tools {
namespace {

constexpr std::size_t kLongestRun = 64;

bool is_name(const std::string& text) {
  return text.size() <= kLongestRun && std::ranges::all_of(text, [](char c) {
           return is_letter_or_digit(c) || c == '-' || c == '_' || c == '.';
         });
}

}  // namespace

// Refuses the options of a search, because --explain makes none.
Status TuneOptions::check_explain() const {
  const bool reads_out = refresh;  // the records in --out are searched again
  for (const auto& [name, given] :
       {std::pair("--budget", budget_seconds.has_value()),
        std::pair("--max-error", max_error.has_value()),
        std::pair("--seed", seed_option.is_given()), std::pair("--baseline", !baseline.empty()),
        std::pair("--force", force), std::pair("--devices", !devices.empty()),
        std::pair("--run", !run.empty()), std::pair("--progress", progress),
        std::pair("--quiet", quiet), std::pair("--records", !records.empty()),
        std::pair("--report", !report.empty()), std::pair("--out", !out.empty() && !reads_out)}) {
    if (!given) continue;
    return refuse(
        fmt::format("{} is given with --explain, which searches nothing; allowed: one "
                    "of the two",
                    name));
  }
  return {};
}

Status TuneOptions::check_refresh() const {
  if (max_error)
    return refuse(
        "--max-error is given with --refresh; allowed: one of the two, because the "
        "records say which intervals to time again");
  if (!part.empty())
    return refuse(
        "--part is given with --refresh; allowed: one of the two, because the records of each "
        "folder are timed again");
  if (work.problem.given() || work.problem.recipe_option.is_given() || !work.model.models.empty() ||
      !work.problem_file.empty() || !work.tokens.empty() || !work.passes.empty() ||
      !work.model.first_given().empty()) {
    return refuse(
        "--refresh is given beside a problem, --recipe, --model and its options, --problem-file, "
        "--tokens or --passes; allowed: alone, because all records are timed again");
  }
  return {};
}

// Checks the options by which several processes share a run.
Status TuneOptions::check_sharing() const {
  if (!devices.empty() && !device.empty())
    return refuse("--device is given with --devices; allowed: one of the two");
  if (!part.empty()) {
    if (const auto read = read_part(part); !read) return tl::unexpected<Error>(read.error());
  }
  if (run.empty()) return {};
  if (!is_name(run))
    return refuse(fmt::format(
        "--run is '{}'; allowed: at most {} letters, digits, '-', '_' and '.'", run, kLongestRun));
  if (decides_again()) return {};
  return refuse(
      "--run is given without --force or --refresh; allowed: with one of them, because only a run "
      "that decides again has a name");
}

Status TuneOptions::check() const {
  if (!baseline.empty() && baseline != "cublaslt")
    return refuse(fmt::format("--baseline is '{}'; allowed: cublaslt", baseline));
  // The condition also refuses a NaN.
  if (budget_seconds && !(*budget_seconds > 0))
    return refuse(fmt::format("--budget is {}; allowed: seconds, more than 0", *budget_seconds));
  if (quiet && progress) return refuse("--quiet is given with --progress; allowed: one of the two");
  if (Status ok = check_records_file(records); !ok) return ok;
  if (Status ok = check_report_file(report); !ok) return ok;
  if (list && !explain) return refuse("--list is given without --explain; allowed: both together");
  if (explain) {
    if (Status ok = check_explain(); !ok) return ok;
  }
  if (Status ok = check_sharing(); !ok) return ok;
  return refresh ? check_refresh() : work.check();
}

void TuneOptions::add_to(CLI::App& app) {
  work.add_to(app, "every bucket's largest up to 16384, with --model those of --mode");
  add_option(app, "--budget", budget_seconds,
             "seconds for all questions together; default what they need, which is said first");
  add_option(app, "--max-error", max_error,
             "also search the other promotion intervals of GEMMs whose error on adversarial "
             "operands, as a share of the sum of magnitudes, is at most this");
  add_option(app, "--device", device,
             "the GPU: cuda (the default) or cuda:N; with --explain also a name, by default h200 "
             "where there is no GPU")
      .complete_with([] {
        std::vector<std::string> names = supported_devices();
        names.emplace_back("cuda");
        return names;
      });
  add_option(app, "--devices", devices,
             "several GPUs of one kind, a process for each: all, or numbers with commas, such as "
             "0,1");
  add_option(app, "--part", part,
             "I/N: the I-th of N parts of the questions, for machines without a shared folder");
  add_baseline_option(app, baseline, "what to time beside GEMMs: cublaslt, in FP8 and in bf16");
  add_records_option(app, records);
  add_report_option(app, report);
  add_option(app, "--out", out,
             "the folder whose tuning.jsonl gets the records; default the cache folder");
  seed_option = add_option(app, "--seed", seed, "seed of the random operands").show_default();
  add_flag(app, "--force", force, "search tasks again that have a decision");
  add_flag(app, "--refresh", refresh,
           "search again what the records decided for this GPU with a kernel of other source, "
           "instead of a problem");
  add_option(app, "--run", run,
             "with --force or --refresh: a new name for a run that several processes share; with "
             "the same name a run that was killed goes on");
  add_flag(app, "--explain", explain, "print what there is to search and stop; needs no GPU");
  add_flag(app, "--list", list, "with --explain: what each constraint removed, and the shortlist");
  add_wide_option(app, wide);
  add_json_option(app, json);
  add_progress_option(app, progress);
  add_flag(app, "--quiet", quiet, "print neither progress nor tables, but errors");
}

}  // namespace octile::tools
