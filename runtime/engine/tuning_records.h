// The tuning records a library handle chooses by: the writable root's, then the read-only roots',
// then the set the library carries.
#pragma once

#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "cache/tuning_file.h"
#include "cache/tuning_set.h"
#include "runtime/log.h"

namespace octile {

// Advisory, as the cache: a file that cannot be read, or a line that is no record, is reported once
// and costs its records. Usable from several threads.
class TuningRecords {
 public:
  // enabled false: there are no records, and no file is looked at. logger outlives the object.
  TuningRecords(bool enabled, const std::string& writable_root,
                const std::vector<std::string>& read_only_roots, Logger& logger);

  // The records as the files have them now: read by the first call, and again by a call that finds
  // a file's size or modification time changed.
  std::shared_ptr<const cache::TuningSet> current();

 private:
  struct Watched {
    cache::TuningFile file;
    cache::TuningStamp stamp;  // of what was read
  };

  bool files_changed();
  std::shared_ptr<const cache::TuningSet> read_all() const;
  std::vector<cache::TuningRecord> read(const cache::TuningFile& file) const;

  const bool enabled_;
  Logger& logger_;
  std::mutex mutex_;  // of everything below
  std::vector<Watched> files_;
  std::shared_ptr<const cache::TuningSet> records_;  // null: not read yet
};

// What the library carries; its origin in a set is kEmbeddedOrigin.
const std::vector<cache::TuningRecord>& embedded_tuning();
inline constexpr const char* kEmbeddedOrigin = "the library's own set";

}  // namespace octile
