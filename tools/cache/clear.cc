// octile cache clear: removes every entry of the writable root.
#include <fmt/format.h>

#include <memory>

#include "cache/eviction.h"
#include "runtime/api/boundary.h"
#include "tools/cache/pruned.h"
#include "tools/cache/verbs.h"
#include "tools/common/output.h"

namespace octile::tools::verbs {
namespace {

struct ClearOptions {
  bool dry_run = false;
  bool json = false;
};

Status run_clear(const ClearOptions& options) {
  const auto library = LibraryHandle::create();
  if (!library) return tl::unexpected<Error>(library.error());
  const std::string& root = library->get()->library.engine.store().options().writable_root;
  if (root.empty()) {
    return refuse("there is no cache folder to clear; allowed: OCTILE_CACHE_DIR, or HOME, set");
  }
  octile::cache::PruneOptions prune;
  prune.dry_run = options.dry_run;
  prune.unwanted = [](const octile::cache::StoredEntry&) { return true; };
  const auto result = octile::cache::prune(root, prune);
  if (!result) return fail(ErrorCode::kInternal, result.error().sentence);
  std::vector<std::string> unread;
  for (const auto& folder : result->unread) unread.push_back(folder.reason);
  if (options.json) {
    print_json(to_json(*result, unread, options.dry_run));
  } else {
    print_result(*result, prune);
  }
  return outcome(*result, unread);
}

}  // namespace

Command add_clear(CLI::App& cache) {
  CLI::App* app = add_subcommand(
      cache, "clear", "remove every entry of the writable root; tuning records and statistics stay",
      "Exit status: 0 done, 1 failed, also if an entry could not be looked at or "
      "removed, 2 bad usage, 130 interrupted.");
  auto options = std::make_shared<ClearOptions>();
  add_flag(*app, "--dry-run", options->dry_run, "only print what would be removed");
  add_json_option(*app, options->json);
  return {app, [options] { return run_clear(*options); }};
}

}  // namespace octile::tools::verbs
