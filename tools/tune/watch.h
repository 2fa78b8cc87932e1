// The progress that `octile tune` shows while it runs.
#pragma once

#include <cstddef>
#include <string>
#include <vector>

#include "runtime/tuner/run.h"
#include "tools/common/progress.h"
#include "tools/tune/questions.h"

namespace octile::tools {

// Returns what is said before a run: how many questions are open, what they need on `where`, "16
// cores", and whether the budget cuts that.
std::string plan_text(const tuner::RunPlan& plan, const std::string& where);

std::string host_name();

// The question under way, the best time so far beside the default's, what is done of all, the time
// left, the GPU and the host.
class Watch {
 public:
  // The questions outlive it. `where` names the GPUs and the host: "h200 cuda:0 of node7".
  Watch(const std::vector<Question>& questions, std::string where, ProgressMode mode);

  void planned(const tuner::RunPlan& plan);
  void began(const tuner::TuningTask& task, double seconds_left);
  void timed(double best_us, double default_us);
  void ended() { ++done_; }
  void close() { progress_.done(); }

 private:
  const std::vector<Question>& questions_;
  const std::string where_;
  Progress progress_;
  std::size_t done_ = 0, all_ = 0;
  std::string before_, behind_;  // of the times
};

}  // namespace octile::tools
