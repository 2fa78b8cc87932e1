// The tuning records that a library handle uses: the writable root's, then the read-only roots',
// then the set that the library carries.
#pragma once

#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "cache/tuning_file.h"
#include "cache/tuning_set.h"
#include "runtime/base/log.h"

namespace octile {

// Records are advisory, as the cache is. A file that cannot be read, or a line that is no record,
// is reported once and left out. Usable from several threads.
class TuningRecords {
 public:
  // enabled false: there are no records, and no file is read. logger outlives the object.
  TuningRecords(bool enabled, const std::string& writable_root,
                const std::vector<std::string>& read_only_roots, Logger& logger);

  // Returns the records that the files hold now. The first call reads them, and a later call reads
  // them again if a file's size or modification time has changed.
  std::shared_ptr<const cache::TuningSet> current();

 private:
  struct Watched {
    cache::TuningFile file;
    cache::TuningStamp stamp;  // stamp of the file when it was read
  };

  bool files_changed();
  std::shared_ptr<const cache::TuningSet> read_all() const;
  std::vector<cache::TuningRecord> read(const cache::TuningFile& file) const;

  const bool enabled_;
  Logger& logger_;
  std::mutex mutex_;  // guards everything below
  std::vector<Watched> files_;
  std::shared_ptr<const cache::TuningSet> records_;  // null before the first call
};

// Returns the records that the library carries. Their origin in a set is kEmbeddedOrigin.
const std::vector<cache::TuningRecord>& embedded_tuning();
inline constexpr const char* kEmbeddedOrigin = "the library's own set";

}  // namespace octile
