// octile bench: times kernels on a GPU, beside other kernels that could do the work.
#include <fmt/format.h>

#include <algorithm>
#include <memory>
#include <utility>

#include "runtime/api/boundary.h"
#include "tools/bench/compile_first.h"
#include "tools/bench/experts.h"
#include "tools/bench/linear.h"
#include "tools/bench/measurement.h"
#include "tools/bench/pieces.h"
#include "tools/bench/regret_command.h"
#include "tools/bench/session.h"
#include "tools/bench/suite.h"
#include "tools/bench/sweep.h"
#include "tools/bench/verdict_command.h"
#include "tools/bench/yardsticks.h"
#include "tools/command.h"
#include "tools/common/output.h"
#include "tools/common/records.h"
#include "tools/common/text_table.h"
#include "tools/page/page.h"

namespace octile::tools {
namespace {

struct Options : SessionOptions {
  WorkOptions work;
  std::string suite;                  // a named table of problems instead of `work`
  std::vector<std::string> selected;  // of the suite's problems
  std::string baseline;
  std::string report;
  bool b_ready = false;
  bool search = false;
  double search_seconds = 10;
  bool host_overhead = false;
  bool wide = false;
  bool progress = false;

  bool names_work() const {
    return work.problem.given() || !work.model.models.empty() || !work.problem_file.empty();
  }
};

// Refuses an option that the timed kernel does not read.
Status check_idle(const Options& options) {
  const WorkOptions& work = options.work;
  if (!options.suite.empty()) {
    for (const auto& [name, given] :
         {std::pair("--tokens", !work.tokens.empty()),
          std::pair("--recipe", work.problem.recipe_option.is_given()),
          std::pair("options of --model", !work.model.first_given().empty())}) {
      if (!given) continue;
      return refuse(
          fmt::format("{} is given with --suite, whose problems state it; allowed: one of "
                      "the two",
                      name));
    }
  }
  if (!options.host_overhead) return {};
  for (const auto& [name, given] :
       {std::pair("--search", options.search), std::pair("--b-ready", options.b_ready),
        std::pair("--baseline", !options.baseline.empty()),
        std::pair("--tokens", !work.tokens.empty())}) {
    if (!given) continue;
    return refuse(
        fmt::format("{} is given with --host-overhead, which times no kernel; allowed: "
                    "one of the two",
                    name));
  }
  return {};
}

Status check_options(const Options& options) {
  if (!options.baseline.empty() && options.baseline != "cublaslt") {
    return refuse(fmt::format("--baseline is '{}'; allowed: cublaslt", options.baseline));
  }
  if (Status ok = check_report_file(options.report); !ok) return ok;
  // The condition also refuses a NaN.
  if (!(options.search_seconds > 0)) {
    return refuse(fmt::format("--search is {}; allowed: seconds a problem, more than 0",
                              options.search_seconds));
  }
  if (options.suite.empty() && !options.selected.empty()) {
    return refuse("--select is given without --suite; allowed are both together");
  }
  if (!options.suite.empty() && options.names_work()) {
    return refuse("--suite is given beside other problems; allowed is one of the two");
  }
  if (!options.suite.empty() && !options.work.passes.empty()) {
    return refuse(
        "--passes is given with --suite; allowed with --gemm, --model and "
        "--problem-file only");
  }
  return check_idle(options);
}

// Refuses options of GEMMs if no GEMM is timed: a quantiser has neither a cuBLASLt baseline nor
// b_ready.
Status check_gemm_options(const Options& options, const std::vector<Work>& works) {
  const bool has_gemm = std::ranges::any_of(
      works, [](const Work& work) { return problem_as<GemmProblem>(work.problem) != nullptr; });
  if (has_gemm || (options.baseline.empty() && !options.b_ready)) return {};
  return refuse(fmt::format("{} is given, and no problem is a GEMM; allowed with GEMMs only",
                            options.baseline.empty() ? "--b-ready" : "--baseline"));
}

Result<std::vector<Work>> read_work(const Options& options) {
  if (options.suite.empty() && !options.names_work()) {
    return refuse(
        "none of --gemm, --quantize, --problem, --problem-file, --model and --suite are given; "
        "exactly one is allowed");
  }
  if (!options.suite.empty()) return suite(options.suite, options.selected);
  return options.work.read({4096});
}

std::string spread_text(const Measured& values) {
  if (!values.interval) return fmt::format("{:.2f}", values.median);
  return fmt::format("{:.2f} ({:.2f} to {:.2f})", values.median, values.interval->lo,
                     values.interval->hi);
}

std::string checked_text(const Record& record) {
  if (!record.ok) return "WRONG";
  return record.check.starts_with("not") ? "-" : "yes";
}

std::string scale_share_text(const Record& record) {
  if (!record.details.contains("scale_bytes")) return "-";
  return fmt::format("{:.1f} %",
                     100 * detail_of(record, "scale_bytes") / detail_of(record, "bytes"));
}

TextTable results_table(const std::vector<Record>& records) {
  TextTable table({"<shape", "octile us (95 %)", "baseline us (95 %)", "ratio", "TFLOP/s", "TB/s",
                   "of scales", "<checked"});
  table.cut("shape", 16).leave_out({"of scales", "TB/s", "TFLOP/s", "baseline us (95 %)"});
  for (const Record& r : records) {
    const PeerValues* peer = r.peers.empty() ? nullptr : &r.peers.front();
    table.add_row(
        {bench_label(r), spread_text(r.values),
         peer == nullptr ? "-" : peer->name + " " + spread_text(first_peer_values(r)),
         peer == nullptr ? "-" : fmt::format("{:.3f}", ratio_of(r, *peer).median),
         r.details.contains("flop") ? fmt::format("{:.0f}", tera_per_second(r, "flop")) : "-",
         fmt::format("{:.2f}", tera_per_second(r, "bytes")), scale_share_text(r), checked_text(r)});
  }
  return table;
}

// Times an empty kernel, then either the problems or the host's part of their calls.
class Bench {
 public:
  Bench(const Options& options, const BenchContext& context)
      : options_(options), context_(context), progress_(progress_mode(options.progress)) {}

  Status run(const std::vector<Work>& works) {
    progress_.step("timing an empty kernel");
    auto empty = time_empty_kernel(context_);
    if (!empty) return tl::unexpected<Error>(empty.error());
    empty_ = std::move(*empty);
    if (Status ok = keep_records(options_.records, {empty_}); !ok) return ok;
    const Status ok = options_.host_overhead ? time_host(works) : time_works(works);
    progress_.done();
    // Kernels that were timed before an error are printed too.
    if (ok || !results_.empty()) print();
    if (ok) {
      Status page =
          report_measurements(options_.report, options_.work, context_.gpu.spec(), results_);
      if (!page) return page;
    }
    return ok ? first_wrong() : ok;
  }

 private:
  Status time_host(const std::vector<Work>& works) {
    for (const Work& work : works) {
      const Problem any_count = with_dynamic_tokens(work.problem);
      progress_.step("timing the host's part of " + to_text(work.problem));
      auto overhead = host_overhead(context_, any_count);
      if (!overhead) return tl::unexpected<Error>(overhead.error());
      std::optional<Record> timed = std::move(*overhead);
      if (!timed) continue;
      if (Status ok = keep(*std::move(timed)); !ok) return ok;
    }
    if (!results_.empty()) return {};
    return refuse("--host-overhead times octile_gemm_run; allowed with a gemm only");
  }

  Status time_works(const std::vector<Work>& works) {
    std::size_t total = 0;
    for (const Work& work : works) total += work.tokens.size();
    progress_.step("compiling");
    if (context_.search == nullptr) compile_first(context_, works);  // a search compiles others
    progress_.done();
    for (const Work& work : works) {
      for (const TokenRange& range : work.tokens) {
        progress_.count(results_.size(), total,
                        fmt::format("timed, now {} at {} tokens", to_text(work.problem), range.lo));
        auto result = bench(context_, work.problem, range.lo);
        if (!result) return tl::unexpected<Error>(result.error());
        if (Status ok = keep(std::move(*result)); !ok) return ok;
      }
    }
    return {};
  }

  // The file gets each record at once, so that an interrupt loses none.
  Status keep(Record record) {
    results_.push_back(std::move(record));
    return keep_records(options_.records, {results_.back()});
  }

  Status first_wrong() const {
    for (const Record& record : results_) {
      if (record.ok) continue;
      return fail(ErrorCode::kInternal,
                  fmt::format("bench: {} is wrong: {}", record.what, record.check));
    }
    return {};
  }

  std::vector<Record> all_records() const {
    std::vector<Record> all{empty_};
    all.insert(all.end(), results_.begin(), results_.end());
    return all;
  }

  void print() const {
    if (options_.json) {
      print_json(document_of(context_.gpu, all_records()));
      return;
    }
    print_stdout("{} ({}); an empty kernel takes {:.2f} us of a graph\n\n", context_.gpu.device(),
                 context_.gpu.spec().full_name, empty_.values.median);
    if (!options_.host_overhead) {
      print_table(results_table(results_), options_.wide);
      return;
    }
    for (const Record& record : results_) {
      print_stdout(
          "  {}: octile_gemm_run takes {} us of the host; a bare launch of an empty kernel {}\n",
          record.what, spread_text(record.values), spread_text(first_peer_values(record)));
    }
  }

  const Options& options_;
  const BenchContext& context_;
  Progress progress_;
  Record empty_;
  std::vector<Record> results_;
};

Status run(const Options& options) {
  if (Status ok = check_options(options); !ok) return ok;
  const auto works = read_work(options);
  if (!works) return tl::unexpected<Error>(works.error());
  if (Status ok = check_gemm_options(options, *works); !ok) return ok;
  const auto session = BenchSession::open("bench", options, !options.baseline.empty());
  if (!session) return tl::unexpected<Error>(session.error());
  BenchContext context = session->context();
  context.b_ready = options.b_ready;
  if (!options.search) return Bench(options, context).run(*works);
  tuner::TunerContext tuning(session->library().get()->library, session->gpu());
  tuner::GpuDecider decider(tuning, {});
  context.search = &decider;
  context.search_seconds = options.search_seconds;
  return Bench(options, context).run(*works);
}

}  // namespace

Command add_bench(CLI::App& root) {
  CLI::App* app = add_subcommand(
      root, "bench", "time kernels on a GPU: graph replay, rotating operands, interleaved rounds");
  auto options = std::make_shared<Options>();
  options->work.add_to(*app, "4096, with --model those of --mode");
  add_option(*app, "--suite", options->suite,
             "a table of problems and shapes instead: " + suite_names())
      .complete_with([] { return std::vector<std::string>{suite_names()}; });
  add_list(*app, "--select", options->selected,
           "only problems of the suite whose text contains one of these: 1x128,out=both");
  add_gpu_option(*app, options->device);
  add_baseline_option(*app, options->baseline,
                      "what to compare GEMMs with: cublaslt; a quantiser is always compared with a "
                      "stream that reads and writes as many bytes");
  add_rounds_option(*app, options->rounds);
  add_records_option(*app, options->records);
  add_report_option(*app, options->report);
  add_flag(*app, "--b-ready", options->b_ready,
           "let each GEMM start while the one before it runs (OCTILE_RUN_B_READY); the baseline "
           "has no such switch");
  const Option search = add_optional_value(
      *app, "--search", options->search_seconds,
      "first search the fastest configuration of each problem, for this many seconds each; "
      "nothing is kept");
  add_flag(*app, "--host-overhead", options->host_overhead,
           "time instead the host's part of octile_gemm_run, with new pointers and token counts "
           "every call");
  add_wide_option(*app, options->wide);
  add_json_option(*app, options->json);
  add_progress_option(*app, options->progress);
  const std::vector<std::function<std::optional<Status>()>> subcommands{
      add_bench_linear(*app), add_bench_experts(*app), add_bench_quantize(*app),
      add_bench_pieces(*app), add_bench_verdict(*app), add_bench_regret(*app)};
  return {app, [options, search, subcommands] {
            for (const auto& subcommand : subcommands) {
              if (const std::optional<Status> done = subcommand()) return *done;
            }
            options->search = search.is_given();
            return run(*options);
          }};
}

}  // namespace octile::tools
