// A tuning run that any number of processes share through a folder: each claims a question before
// it decides it, and keeps its decisions in a file of its own. See FORMAT.md section 6.
#pragma once

#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "cache/claims.h"
#include "cache/decided_records.h"
#include "cache/tuning_folder.h"

namespace octile::cache {

struct SharedTuningOptions {
  // Names this process' files: letters, digits, '-' and '_'. No two hosts have the same.
  std::string rank;
  ProcessIdentity self;
  // Empty: a question is decided if the folder has a record of it. Else only by records of the run
  // of this name, which decides all questions again.
  std::string run;
  ClaimOptions claims;
};

class SharedTuning {
 public:
  SharedTuning(const std::string& root, SharedTuningOptions options,
               std::shared_ptr<FileOps> ops = nullptr);

  const TuningFolder& folder() const { return folder_; }

  // A question is the problem, tokens, device and SM count of a record; the rest of it is ignored.
  // Reads the files again that have changed since they were read.
  IoResult<void> refresh();
  // Returns the record that decides a question, as the files were when they were last read, or
  // null. Valid until they are read again.
  const TuningRecord* decided(const TuningRecord& question) const;

  enum class Taken {
    kMine,
    kDecided,
    kTakenByAnother,
    kFailed,  // another process found that it cannot be decided
  };
  // Claims a question unless it is decided, which is looked up again once it is claimed.
  IoResult<Taken> take(const TuningRecord& question);
  // Keeps the decision of a question that is this process', and closes its claim.
  IoResult<void> keep(TuningRecord record);
  void close_failed(const TuningRecord& question);
  // Touches the open claims, if it is time to. To be called often.
  void beat() { claims_.beat(); }
  // Leaves open questions to others.
  void let_go() { claims_.let_go(); }

  // Appends what this folder's ranks decided to tuning.jsonl, unless another process is doing it.
  IoResult<void> merge();

 private:
  std::string name_of(const TuningRecord& question) const;
  IoResult<std::vector<TuningRecord>> every_record() const;

  TuningFolder folder_;
  const SharedTuningOptions options_;
  TuningFile own_;
  Claims claims_;
  std::map<std::string, int> generations_;  // the last claim of a question that is known
  std::optional<std::vector<TuningStamp>> stamps_;
  DecidedRecords records_;
};

}  // namespace octile::cache
