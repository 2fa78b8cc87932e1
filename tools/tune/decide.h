// The work of one process of `octile tune` on its GPU.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "cache/shared_tuning.h"
#include "runtime/engine/library.h"
#include "runtime/measure/gpu_session.h"
#include "runtime/tuner/run.h"
#include "tools/tune/intervals.h"
#include "tools/tune/options.h"
#include "tools/tune/questions.h"

namespace octile::tools {

// State that outlives a run.
struct TunePlace {
  const TuneOptions& options;
  Library& library;
  const GpuSession& gpu;
  std::string folder;  // of the records
  std::string run;     // of --force and --refresh: cache::SharedTuningOptions::run
};

struct TuneRun {
  TunePlace place;
  std::vector<Question> questions;  // in the order in which they are decided
  Intervals intervals;
};

// Returns --out, or the cache folder. Errors: kInvalidArgument if there is neither.
Result<std::string> folder_of_records(const TuneOptions& options, Library& library);

// Returns the questions of the records in a folder that --refresh means. Errors: kInvalidArgument
// if its files cannot be read.
Result<std::vector<Question>> questions_to_refresh(const std::string& folder,
                                                   const DeviceSpec& device);

// Adds the other promotion intervals to the questions, whose errors `measure` returns, and orders
// the questions by weight. Errors: those of `measure`.
Result<TuneRun> run_of(const TunePlace& place, std::vector<Question> asked,
                       const Intervals::Measure& measure);

// This process among those that tune with the same folder.
cache::SharedTuningOptions sharing_options(const TunePlace& place);

// Events of a run while it decides. All of it is set.
struct TuneListener {
  std::function<void(const tuner::RunPlan&)> planned;
  std::function<void(const tuner::TuningTask&, double seconds_left)> began;
  std::function<void(double best_us, double default_us)> timed;
  std::function<void(const tuner::Decision&)> ended;  // by this process
  std::function<void(const tuner::Decision&)> found;  // by another
  std::function<void(const std::string&)> noted;      // a sentence for the person
};

// Decides the questions until SIGINT, and adds what the ranks have decided to tuning.jsonl. Errors:
// those of tuner::run_tasks; kInvalidArgument if --baseline cannot be had.
Result<tuner::RunResult> decide(const TuneRun& run, const TuneListener& listener);

}  // namespace octile::tools
