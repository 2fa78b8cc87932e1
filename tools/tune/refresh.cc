#include "tools/tune/refresh.h"

#include <fmt/format.h>

#include <iterator>
#include <set>
#include <utility>

#include "cache/tuning_folder.h"
#include "generator/families.h"
#include "runtime/engine/engine.h"
#include "runtime/tuned/tuning_records.h"

namespace octile::tools {

bool timed_another_source(const cache::TuningRecord& record, const DeviceSpec& device) {
  if (record.source_digest.empty()) return false;
  const auto problem = parse_problem(record.problem);
  if (!problem) return false;
  const auto config = parse_config(*problem, record.winner.config);
  if (!config) return true;
  const auto kernel = emit(*problem, *config, device, embedded_templates());
  if (!kernel) return true;
  return cache::digest_hex(cache::key_text(identity_of(*kernel, device))) != record.source_digest;
}

std::vector<tuner::TuningTask> tasks_to_refresh(const std::vector<cache::TuningRecord>& records,
                                                const DeviceSpec& device) {
  std::vector<tuner::TuningTask> tasks;
  std::set<std::pair<std::string, std::int64_t>> seen;
  for (const cache::TuningRecord& record : records) {
    if (record.device != device.name || record.sm_count != device.sm_count) continue;
    if (!seen.emplace(record.problem, record.bucket).second) continue;
    if (!timed_another_source(record, device)) continue;
    const auto problem = parse_problem(record.problem);
    if (problem && check_supported(*problem, device)) tasks.push_back({*problem, record.tokens});
  }
  return tasks;
}

Result<std::vector<cache::TuningRecord>> all_records(const std::string& folder) {
  std::vector<cache::TuningRecord> records;
  if (!folder.empty()) {
    auto lines = cache::TuningFolder(folder, true).read();
    if (!lines) return fail(ErrorCode::kInvalidArgument, lines.error().sentence);
    if (!lines->left_out.empty()) return fail(ErrorCode::kInvalidArgument, lines->left_out);
    std::move(lines->records.rbegin(), lines->records.rend(), std::back_inserter(records));
  }
  const auto& own = embedded_tuning();
  records.insert(records.end(), own.begin(), own.end());
  return records;
}

}  // namespace octile::tools
