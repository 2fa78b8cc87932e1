// octile cache stats: prints how often the cache had a kernel, day by day.
#include <fmt/format.h>

#include <memory>
#include <vector>

#include "cache/statistics.h"
#include "runtime/api/boundary.h"
#include "tools/cache/verbs.h"
#include "tools/common/output.h"
#include "tools/common/text_table.h"

namespace octile::tools::verbs {
namespace {

using octile::cache::DayStatistics;

struct StatsOptions {
  bool wide = false;
  bool json = false;
};

DayStatistics total_of(const std::vector<DayStatistics>& days) {
  DayStatistics total{"total"};
  for (const DayStatistics& day : days) {
    total.hits += day.hits;
    total.misses += day.misses;
    total.saved_seconds += day.saved_seconds;
    total.compiled_seconds += day.compiled_seconds;
  }
  return total;
}

Json to_json(const DayStatistics& day) {
  return {{"day", day.day},
          {"hits", day.hits},
          {"misses", day.misses},
          {"saved_seconds", day.saved_seconds},
          {"compiled_seconds", day.compiled_seconds}};
}

void print_days(const std::vector<DayStatistics>& days, const DayStatistics& total, bool wide) {
  TextTable table({"<day", "hits", "misses", "hit rate", "seconds saved", "seconds compiling"});
  table.leave_out({"seconds compiling", "seconds saved", "misses"});
  const auto add = [&](const DayStatistics& day) {
    const auto all = static_cast<double>(day.hits + day.misses);
    table.add_row(
        {day.day, std::to_string(day.hits), std::to_string(day.misses),
         all > 0 ? fmt::format("{:.1f} %", 100.0 * static_cast<double>(day.hits) / all) : "-",
         fmt::format("{:.1f}", day.saved_seconds), fmt::format("{:.1f}", day.compiled_seconds)});
  };
  for (const DayStatistics& day : days) add(day);
  add(total);
  print_table(table, wide);
}

Status run_stats(const StatsOptions& options) {
  const auto library = LibraryHandle::create();
  if (!library) return tl::unexpected<Error>(library.error());
  const std::string& root = library->get()->library.engine.store().options().writable_root;
  if (root.empty()) {
    return refuse("there is no cache folder that counts; allowed: OCTILE_CACHE_DIR, or HOME, set");
  }
  const auto days = octile::cache::StatisticsLog(root).read();
  if (!days) return fail(ErrorCode::kInternal, days.error().sentence);
  const DayStatistics total = total_of(*days);
  if (!options.json) {
    print_days(*days, total, options.wide);
    return {};
  }
  Json array = Json::array();
  for (const DayStatistics& day : *days) array.push_back(to_json(day));
  print_json({{"root", root}, {"days", array}, {"total", to_json(total)}});
  return {};
}

}  // namespace

Command add_stats(CLI::App& cache) {
  CLI::App* app = add_subcommand(
      cache, "stats",
      "print hits, misses and seconds of compiling saved in the writable root, by day");
  auto options = std::make_shared<StatsOptions>();
  add_wide_option(*app, options->wide);
  add_json_option(*app, options->json);
  return {app, [options] { return run_stats(*options); }};
}

}  // namespace octile::tools::verbs
