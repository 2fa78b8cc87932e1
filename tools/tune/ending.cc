#include "tools/tune/ending.h"

#include <fmt/format.h>

#include <algorithm>
#include <filesystem>
#include <memory>
#include <utility>
#include <vector>

#include "runtime/tuned/tuning_records.h"
#include "tools/common/output.h"
#include "tools/common/records.h"
#include "tools/common/text_table.h"
#include "tools/page/page.h"
#include "tools/tune/interrupt.h"
#include "tools/tune/report.h"
#include "tools/tune/served.h"

namespace octile::tools {
namespace {

class Ending {
 public:
  Ending(const TuneRun& run, const TuneEnding& ending, const tuner::RunResult& result)
      : run_(run),
        options_(run.place.options),
        gpu_(run.place.gpu),
        ending_(ending),
        result_(result),
        path_(cache::TuningFolder(run.place.folder, true).whole().path()),
        served_(served_by(result, gpu_.spec(), *records())) {}

  Status run() const {
    if (options_.json) {
      print_lines();
    } else if (!options_.quiet) {
      print_tables();
    }
    if (Status ok = keep(); !ok) return ok;
    Status page = report_tuning(options_.report, options_.work, gpu_.spec(), result_.decisions);
    return page ? conclude() : page;
  }

 private:
  // The decisions that serve plans from now on, if they look into the folder of this run.
  std::shared_ptr<const cache::TuningSet> records() const {
    Library& library = run_.place.library;
    if (options_.out.empty()) return library.engine.records();
    const auto& roots = library.engine.store().options().read_only_roots;
    return TuningRecords(true, options_.out, roots, library.logger).current();
  }

  void print_lines() const {
    for (std::size_t i = 0; i < result_.decisions.size(); ++i) {
      const tuner::Decision& decision = result_.decisions[i];
      if (result_.resumed[i] || result_.elsewhere[i] || !decision.decided())
        print_line(ending_.line(decision), result_.resumed[i], name_of(served_[i]));
    }
    Json last{{"device", ending_.devices},
              {"name", gpu_.spec().full_name},
              {"records", path_},
              {"questions", result_.decisions.size()},
              {"undecided", result_.undecided},
              {"interrupted", result_.stopped}};
    const auto rows = run_.intervals.rows(result_);
    if (!rows.empty()) last.set("intervals", to_json(rows));
    print_stdout("{}\n", last.dump_ascii());
  }

  void print_tables() const {
    print_stdout("{} ({}), records in {}\n\n", ending_.devices, gpu_.spec().full_name, path_);
    print_table(are_of_layers(run_.questions) ? layers_table(run_.questions, result_, served_)
                                              : decisions_table(result_.decisions, served_),
                options_.wide);
    print_intervals(run_.intervals.rows(result_), options_.wide);
    if (result_.undecided == 0) return;
    print_stdout("\n");
    print_table(undecided_table(run_.questions, result_, served_), options_.wide);
  }

  // Decisions that were made before have their times in the tuning file.
  Status keep() const {
    std::vector<Record> records;
    for (std::size_t i = 0; i < result_.decisions.size(); ++i) {
      const tuner::Decision& decision = result_.decisions[i];
      if (decision.decided() && !result_.resumed[i])
        records.push_back(record_of(decision, new_record("octile tune", gpu_),
                                    run_.intervals.error_of(decision.task)));
    }
    return keep_records(options_.records, records);
  }

  Status conclude() const {
    const std::size_t count = result_.decisions.size();
    if (result_.stopped) {
      print_stderr(
          "octile: interrupted; {} of {} questions are undecided, the decisions are kept in {}\n",
          result_.undecided, count, path_);
      end_by_interrupt();
    }
    for (const tuner::Decision& decision : result_.decisions) {
      if (decision.outcome == tuner::Outcome::kNoneRight)
        return fail(ErrorCode::kInternal, fmt::format("no candidate for {} gives correct results",
                                                      tuner::to_text(decision.task)));
    }
    const std::string spilled = spilled_text(result_.decisions);
    if (!options_.quiet && !spilled.empty()) print_stderr("octile: {}\n", spilled);
    if (result_.undecided > 0)
      print_stderr(
          "octile: {} of {} questions are undecided, served by: {}; another run continues with "
          "them\n",
          result_.undecided, count, undecided_text(result_, served_));
    if (options_.quiet) return {};
    if (!options_.part.empty()) {
      print_stderr(
          "octile: these were the questions of part {}; once all parts are decided, `octile tune "
          "merge` folds the records of {} and of the other parts' machines into one set\n",
          options_.part, path_);
    } else if (result_.undecided == 0) {
      print_stderr(
          "octile: `octile tune merge {} --out FILE` makes one file of its records to ship\n",
          std::filesystem::path(path_).parent_path().string());
    }
    if (!options_.work.model.models.empty()) {
      print_stderr(
          "octile: whether FP8 pays: `octile shapes --estimate` says it by these records, and "
          "`octile bench verdict` measures it; both take this run's options of the model{}\n",
          options_.out.empty() ? "" : " and OCTILE_CACHE_ROOTS=" + options_.out);
    }
    return {};
  }

  const TuneRun& run_;
  const TuneOptions& options_;
  const GpuSession& gpu_;
  const TuneEnding& ending_;
  const tuner::RunResult& result_;
  const std::string path_;
  const std::vector<ChosenBy> served_;
};

}  // namespace

Json line_of(const TuneRun& run, const tuner::Decision& decision) {
  Json line = to_json(decision);
  const auto question = std::ranges::find(run.questions, decision.task, &Question::task);
  line.set("layer", question->layer);
  line.set("layers", question->layers);
  add_error(decision.task, run.intervals.error_of(decision.task), line);
  return line;
}

void print_line(Json line, bool resumed, std::string_view served_by) {
  line.set("resumed", resumed);
  line.set("served_by", served_by);
  print_stdout("{}\n", line.dump_ascii());
  (void)std::fflush(stdout);
}

Status end_run(const TuneRun& run, const TuneEnding& ending, const tuner::RunResult& result) {
  return Ending(run, ending, result).run();
}

}  // namespace octile::tools
