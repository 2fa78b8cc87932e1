// The tuning records that a library handle uses: the writable root's, then the read-only roots',
// then the set that the library carries. A root's are those of its tuning.jsonl and of its
// tuning.d/*.jsonl.
#pragma once

#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "cache/tuning_folder.h"
#include "cache/tuning_set.h"
#include "generator/core/error.h"
#include "runtime/base/log.h"

namespace octile {

// Records are advisory, as the cache is. A file that cannot be read, or a line that is not a
// record, is reported once and left out. Usable from several threads.
class TuningRecords {
 public:
  // enabled false: there are no records, and no file is read. logger outlives the object.
  TuningRecords(bool enabled, const std::string& writable_root,
                const std::vector<std::string>& read_only_roots, Logger& logger);

  // Returns the records that the files hold now. The first call reads them, and a later call reads
  // them again if a file's size or modification time has changed.
  std::shared_ptr<const cache::TuningSet> current();

  // Keeps a decision, which current() has from now on: in the writable root's file, and in memory
  // if there is no such file or load() has replaced it. In memory it precedes all others. Errors:
  // kFile if the file cannot be appended to.
  Status keep(const cache::TuningRecord& record);

  // From now on these records serve in place of the files'. nullopt: the files' again.
  void load(std::optional<std::vector<cache::TuningRecord>> records);

 private:
  struct Watched {
    cache::TuningFolder folder;
    std::vector<cache::TuningStamp> stamps;  // of its files when they were read
  };

  bool files_changed();
  std::shared_ptr<const cache::TuningSet> read_all() const;
  std::vector<cache::TuningRecord> read(const cache::TuningFolder& folder) const;

  const bool enabled_;
  const std::optional<cache::TuningFile> own_;  // the writable root's
  Logger& logger_;
  std::mutex mutex_;  // guards everything below
  std::vector<Watched> roots_;
  std::optional<std::vector<cache::TuningRecord>> loaded_;
  std::vector<cache::TuningRecord> kept_;            // in memory
  std::shared_ptr<const cache::TuningSet> records_;  // null before the first call
};

// Returns the records that the library carries. Their origin in a set is kEmbeddedOrigin.
const std::vector<cache::TuningRecord>& embedded_tuning();
inline constexpr const char* kEmbeddedOrigin = "the library's own set";
inline constexpr const char* kLoadedOrigin = "the records that were loaded";
inline constexpr const char* kKeptOrigin = "a search of this process";

}  // namespace octile
