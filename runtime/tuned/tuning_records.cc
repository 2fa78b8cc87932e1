#include "runtime/tuned/tuning_records.h"

#include <fmt/format.h>

#include <mutex>
#include <utility>

#include "runtime/base/fork.h"
#include "runtime/tuned/embedded.h"

namespace octile {

const std::vector<cache::TuningRecord>& embedded_tuning() {
  const std::scoped_lock lock(process_mutex(ProcessWide::kTables));
  // Never destroyed: threads may still run when the process exits.
  static const auto& records = *new std::vector<cache::TuningRecord>([] {
    std::vector<cache::TuningRecord> all;
    all.reserve(static_cast<std::size_t>(tuned::record_count()));
    for (int i = 0; i < tuned::record_count(); ++i)
      all.push_back(tuned::record_of(tuned::records()[i]));
    return all;
  }());
  return records;
}

TuningRecords::TuningRecords(bool enabled, const std::string& writable_root,
                             const std::vector<std::string>& read_only_roots, Logger& logger)
    : enabled_(enabled),
      own_(writable_root.empty()
               ? std::nullopt
               : std::optional<cache::TuningFile>(std::in_place, writable_root, true)),
      logger_(logger) {
  if (!enabled) return;
  if (!writable_root.empty()) roots_.push_back({cache::TuningFolder(writable_root, true), {}});
  for (const std::string& root : read_only_roots)
    if (!root.empty()) roots_.push_back({cache::TuningFolder(root, false), {}});
}

std::shared_ptr<const cache::TuningSet> TuningRecords::current() {
  const std::scoped_lock lock(mutex_);
  if (files_changed() || records_ == nullptr) records_ = read_all();
  return records_;
}

Status TuningRecords::keep(const cache::TuningRecord& record) {
  if (own_) {
    if (const auto appended = own_->append(record); !appended)
      return fail(ErrorCode::kFile, appended.error().sentence);
  }
  const std::scoped_lock lock(mutex_);
  if (own_ && !loaded_) return {};
  kept_.push_back(record);
  records_ = nullptr;
  return {};
}

void TuningRecords::load(std::optional<std::vector<cache::TuningRecord>> records) {
  const std::scoped_lock lock(mutex_);
  loaded_ = std::move(records);
  if (own_) kept_.clear();
  records_ = nullptr;
}

// Returns true if a file has changed. The stamps are taken before the files are read, so that the
// next call sees a change in between.
bool TuningRecords::files_changed() {
  bool changed = false;
  for (Watched& watched : roots_) {
    auto now = watched.folder.stamps();
    changed = changed || now != watched.stamps;
    watched.stamps = std::move(now);
  }
  return changed;
}

std::shared_ptr<const cache::TuningSet> TuningRecords::read_all() const {
  auto records = std::make_shared<cache::TuningSet>();
  if (!enabled_) return records;
  if (!kept_.empty()) records->add(kept_, kKeptOrigin);
  if (loaded_) {
    records->add(*loaded_, kLoadedOrigin);
  } else {
    for (const Watched& watched : roots_)
      records->add(read(watched.folder), watched.folder.whole().path());
  }
  records->add(embedded_tuning(), kEmbeddedOrigin);
  return records;
}

std::vector<cache::TuningRecord> TuningRecords::read(const cache::TuningFolder& folder) const {
  const std::string& path = folder.whole().path();
  auto lines = folder.read();
  if (!lines) {
    logger_.log_once(path, LogLevel::kWarning,
                     fmt::format("tuning records are not used: {}", lines.error().sentence));
    return {};
  }
  if (!lines->left_out.empty())
    logger_.log_once(path + lines->left_out, LogLevel::kWarning,
                     fmt::format("tuning records are not used: {}", lines->left_out));
  if (lines->skipped > 0)
    logger_.log_once(path + lines->first_skipped, LogLevel::kWarning,
                     fmt::format("tuning records {}: {} line{} skipped{}; {}", path, lines->skipped,
                                 lines->skipped == 1 ? " is" : "s are",
                                 lines->cut ? " and the rest of the file is not read" : "",
                                 lines->first_skipped));
  if (lines->full)
    logger_.log_once(path + " is full", LogLevel::kWarning,
                     fmt::format("tuning records {}: only the first {} are read; remove lines of "
                                 "problems that are not used",
                                 path, cache::kMaxTuningRecords));
  return std::move(lines->records);
}

}  // namespace octile
