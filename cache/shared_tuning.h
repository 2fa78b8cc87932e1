// A tuning run that any number of processes share through a folder: each takes the turn of a
// question before it decides it, and keeps its decision before it gives the turn back. See
// FORMAT.md section 6.
#pragma once

#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "cache/decided_records.h"
#include "cache/tuning_folder.h"
#include "cache/turn.h"

namespace octile::cache {

struct SharedTuningOptions {
  // Names this process' file in tuning.d: letters, digits, '-' and '_'. No two hosts have the same.
  std::string rank = {};
  // Empty: a question is decided if the folder has a record of it. Else only by records of the run
  // of this name, which decides all questions again.
  std::string run = {};
  bool force = false;  // no record decides a question
};

class SharedTuning {
 public:
  SharedTuning(const std::string& root, SharedTuningOptions options,
               std::shared_ptr<FileOps> ops = nullptr);

  const TuningFolder& folder() const { return folder_; }
  const std::string& run() const { return options_.run; }

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
  // Takes the turn of a question unless it is decided, which is looked up again once it is taken.
  IoResult<Taken> take(const TuningRecord& question);
  // Appends a record to this process' file.
  IoResult<void> append(const TuningRecord& record);
  // Returns true if another process has decided a question whose turn this one has: the folder's
  // locks keep nobody out.
  bool is_decided_twice(const TuningRecord& question);
  // The decision of a question is kept.
  void give_back(const TuningRecord& question) { turns_.erase(name_of(question)); }
  // It cannot be decided, which others see as long as this object lasts.
  void fail(const TuningRecord& question);
  // Leaves open questions to others.
  void let_go();

  // Appends what this folder's ranks decided to tuning.jsonl. Waits for another process that is
  // doing it, for some seconds.
  IoResult<void> merge();

 private:
  std::string name_of(const TuningRecord& question) const;
  IoResult<std::vector<TuningRecord>> every_record() const;

  const std::string root_;
  const std::shared_ptr<FileOps> ops_;
  TuningFolder folder_;
  const SharedTuningOptions options_;
  TuningFile own_;
  std::map<std::string, Turn> turns_, failed_;  // of this process, by the names of questions
  std::optional<std::vector<TuningStamp>> stamps_;
  DecidedRecords records_;
};

}  // namespace octile::cache
