// A Decider among others: the calls of a library handle search one after the other, and threads and
// processes that share a folder of records decide one question at a time on a kind of device. Each
// takes what another, or a shared run of `octile tune`, has decided meanwhile.
#pragma once

#include <functional>
#include <mutex>
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

// The turn of one call among those of a library handle. For one thread.
class HandleTurn {
 public:
  // The mutex outlives it.
  HandleTurn(std::mutex& mutex, Clock clock);

  // Returns true once it is this call's turn, which then lasts until the end of this object.
  bool try_take();
  // Returns the clock without the time that the call has waited for its turn.
  double time_without_waiting() const;

 private:
  std::unique_lock<std::mutex> lock_;
  const Clock clock_;
  double waited_ = 0;              // in all
  std::optional<double> waiting_;  // since when
};

class SharedDecider final : public Decider {
 public:
  // `own` decides. It and `turn` outlive this.
  SharedDecider(Decider& own, const DeviceSpec& device, SharedFolder folder, HandleTurn& turn);

  void expect(const TuningTask& task) override { own_.expect(task); }
  void learn(const cache::TuningRecord& record) override { own_.learn(record); }
  // Waits for both turns as long as the budget lasts. A task for which the device has too little
  // memory stays undecided. Errors: the decider's; kFile if the decision cannot be kept.
  Result<Decision> decide(const TuningTask& task, const Budget& budget) override;

 private:
  bool wait_for_turn(const Budget& budget);
  std::optional<Decision> of_others(const TuningTask& task);
  Result<Decision> decide_alone(const TuningTask& task, const Budget& budget);

  Decider& own_;
  HandleTurn& turn_;
  const DeviceSpec device_;
  const SharedFolder folder_;
  std::optional<cache::TuningFolder> records_;
  std::optional<std::vector<cache::TuningStamp>> seen_;  // of the files when they were read
  cache::DecidedRecords theirs_;                         // what was read
  cache::TuningLock lock_;
};

}  // namespace octile::tuner
