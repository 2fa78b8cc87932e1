// A Decider among others: threads and processes that share a folder of records decide one at a time
// on a kind of device, and each takes what another, or a shared run of `octile tune`, has decided
// meanwhile.
#pragma once

#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "cache/tuning_folder.h"
#include "cache/tuning_lock.h"
#include "runtime/tuner/run.h"

namespace octile::tuner {

struct SharedFolder {
  std::string path;  // empty: there is none
  // Keeps a decision. It is called before others have their turn.
  std::function<Status(const cache::TuningRecord&)> keep;
  bool force = false;  // decide also what others have decided
};

class SharedDecider final : public Decider {
 public:
  // `own` decides, and outlives it.
  SharedDecider(Decider& own, const DeviceSpec& device, SharedFolder folder);

  void expect(const TuningTask& task) override { own_.expect(task); }
  void learn(const cache::TuningRecord& record) override { own_.learn(record); }
  // Waits for its turn as long as the budget lasts. A task for which the device has too little
  // memory stays undecided. Errors: the decider's; kInternal if the decision cannot be kept.
  Result<Decision> decide(const TuningTask& task, const Budget& budget) override;

 private:
  bool wait_for_turn(const Budget& budget);
  std::optional<Decision> of_others(const TuningTask& task);
  Result<Decision> decide_alone(const TuningTask& task, const Budget& budget);

  Decider& own_;
  const DeviceSpec device_;
  const SharedFolder folder_;
  std::optional<cache::TuningFolder> records_;
  std::optional<std::vector<cache::TuningStamp>> seen_;  // of the files when they were read
  std::vector<cache::TuningRecord> theirs_;              // what was read
  cache::TuningLock lock_;
};

}  // namespace octile::tuner
