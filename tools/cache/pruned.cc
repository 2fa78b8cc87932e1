#include "tools/cache/pruned.h"

#include <fmt/format.h>

#include <chrono>

#include "tools/common/output.h"
#include "tools/compile/kernel_report.h"

namespace octile::tools {
namespace {

std::string entries_text(std::int64_t count, std::int64_t bytes) {
  return fmt::format("{} entr{}, {}", count, count == 1 ? "y" : "ies",
                     bytes_text(static_cast<double>(bytes)));
}

// Says what keeps the rest above --max-size, and which option removes just as much as that asks.
std::string why_more(const cache::PruneResult& result, const cache::PruneOptions& wanted) {
  if (!result.failed.empty()) return "Entries that cannot be removed count.";
  if (wanted.protect.count() == 0) return "Entries that were used meanwhile stay.";
  return fmt::format(
      "Entries used in the last {} minutes stay; with --recent the least recently used of them go "
      "too, until the rest is small enough.",
      std::chrono::duration_cast<std::chrono::minutes>(wanted.protect).count());
}

}  // namespace

void print_result(const cache::PruneResult& result, const cache::PruneOptions& wanted) {
  if (wanted.dry_run) {
    for (const cache::StoredEntry& entry : result.removed)
      print_stdout("{}\n", printable_line(entry.path));
  }
  print_stdout("  {} {}; {} {}\n", wanted.dry_run ? "would remove" : "removed",
               entries_text(static_cast<std::int64_t>(result.removed.size()), result.removed_bytes),
               entries_text(result.kept_entries, result.kept_bytes),
               wanted.dry_run ? "would be left" : "left");
  if (wanted.max_bytes && result.kept_bytes > *wanted.max_bytes) {
    print_stdout("  That is more than --max-size. {}\n", why_more(result, wanted));
  }
}

Json to_json(const cache::PruneResult& result, const std::vector<std::string>& unread,
             bool dry_run) {
  Json removed = Json::array();
  for (const cache::StoredEntry& entry : result.removed) {
    removed.push_back(
        {{"digest", entry.stem.identity}, {"path", entry.path}, {"bytes", entry.bytes}});
  }
  Json failed = Json::array();
  for (const auto& [entry, reason] : result.failed) {
    failed.push_back({{"digest", entry.stem.identity}, {"path", entry.path}, {"reason", reason}});
  }
  return {{"dry_run", dry_run},
          {"removed_bytes", result.removed_bytes},
          {"kept", result.kept_entries},
          {"kept_bytes", result.kept_bytes},
          {"failed", failed},
          {"unread", unread},
          {"removed", removed}};
}

Status outcome(const cache::PruneResult& result, const std::vector<std::string>& unread) {
  if (!result.failed.empty()) {
    return fail(
        ErrorCode::kInternal,
        fmt::format("{} of {} entries cannot be removed; the first: {}", result.failed.size(),
                    result.failed.size() + result.removed.size(), result.failed.front().reason));
  }
  if (!unread.empty()) {
    return fail(
        ErrorCode::kInternal,
        fmt::format("not every entry could be looked at; the first reason: {}", unread.front()));
  }
  return {};
}

}  // namespace octile::tools
