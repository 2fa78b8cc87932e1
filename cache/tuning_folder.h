// The tuning records of one root: tuning.jsonl, and tuning.d/<rank>.jsonl of each process that
// shared a tuning run. See FORMAT.md section 6.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "cache/tuning_file.h"
#include "cache/tuning_merge.h"

namespace octile::cache {

// May be used by several threads at once, because it keeps no file open. Files are refused under
// the rules of TuningFile.
class TuningFolder {
 public:
  TuningFolder(std::string root, bool writable, std::shared_ptr<FileOps> file_ops = nullptr);

  const TuningFile& whole() const { return whole_; }  // tuning.jsonl
  TuningFile of_rank(const std::string& rank) const;

  // Returns the files that exist, tuning.jsonl first, then the ranks' by name.
  IoResult<std::vector<TuningFile>> files() const;
  // Returns the states of the files. A folder that cannot be listed has none.
  std::vector<TuningStamp> stamps() const;

  // Returns the records of all files. Those of a single one are in its order. With several, each
  // decision is there once, and the newest of a problem, bucket and device is the last, as
  // merge_tuning() says. A line without its newline that is not a record is not counted as skipped.
  IoResult<TuningLines> read() const;
  // Returns the texts of the files without such lines. A file that is refused is left out, and so
  // are those behind kMaxTuningBytes.
  struct Texts {
    std::vector<TuningText> files;
    std::string left_out;  // a sentence on the first omission; empty if there is none
  };
  IoResult<Texts> texts() const;

 private:
  std::shared_ptr<FileOps> ops_;
  std::string root_;
  bool writable_;
  TuningFile whole_;
};

// Returns the texts; code 0 if any is left out.
IoResult<std::vector<TuningText>> all_texts(const TuningFolder& folder);

// Returns the lines of the ranks' files that tuning.jsonl lacks, as merge_tuning() keeps them. If
// it lacks a record of a problem, bucket and device, all of these are there, so that the newest is
// the last.
IoResult<std::vector<std::string>> missing_lines(const TuningFolder& folder);

}  // namespace octile::cache
