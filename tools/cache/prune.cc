// octile cache prune: removes entries of the writable root.
#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <functional>
#include <memory>
#include <optional>
#include <unordered_set>
#include <vector>

#include "cache/eviction.h"
#include "runtime/api/boundary.h"
#include "tools/cache/entries.h"
#include "tools/cache/filter.h"
#include "tools/cache/pruned.h"
#include "tools/cache/verbs.h"
#include "tools/common/output.h"

namespace octile::tools::verbs {
namespace {

using octile::cache::Listing;
using octile::cache::StoredEntry;
using Clock = std::chrono::system_clock;

struct PruneOptions {
  std::string older_than;
  std::string unused;
  std::string max_size;
  std::string toolchain;
  bool recent = false;
  bool dry_run = false;
  bool json = false;
};

// `--toolchain other` selects entries of any toolchain but that of this machine's compiler.
constexpr const char* kOther = "other";

// Returns a test of whether --toolchain selects an entry.
Result<std::function<bool(const octile::cache::Head&)>> of_toolchain(const std::string& wanted,
                                                                     Engine& engine) {
  if (wanted != kOther) {
    return [wanted](const octile::cache::Head& head) {
      return head.toolchain.text().starts_with(wanted);
    };
  }
  auto own = engine.compiler().toolchain();
  if (!own) {
    return fail(
        ErrorCode::kNoCompiler,
        fmt::format("--toolchain is other, and there is no compiler here to compare with: {}; "
                    "allowed then: the beginning of a toolchain as `octile cache list "
                    "--columns toolchain` shows it",
                    own.error().message));
  }
  return [own = *own](const octile::cache::Head& head) { return head.toolchain != own; };
}

using Paths = std::unordered_set<std::string>;

// Returns the entries selected by the date of the compile and by the toolchain, which only reading
// them tells.
Result<Paths> paths_by_content(const PruneOptions& options, Engine& engine,
                               std::vector<std::string>& unread) {
  Paths paths;
  if (options.older_than.empty() && options.toolchain.empty()) return paths;
  EntryFilter filter;
  filter.older_than = options.older_than;
  const auto old = filter.predicate(Clock::now());
  if (!old) return tl::unexpected<Error>(old.error());
  const auto toolchain = of_toolchain(options.toolchain, engine);
  if (!toolchain) return tl::unexpected<Error>(toolchain.error());
  std::vector<octile::cache::UnreadPart> parts;
  const std::vector<Listing> entries = engine.store().list(&parts);
  for (octile::cache::UnreadPart& part : parts) {
    if (part.writable_root) unread.push_back(std::move(part.sentence));
  }
  for (const Listing& listing : entries) {
    if (!listing.writable_root) continue;
    if (!listing.head) {
      if (!listing.other_version) unread.push_back(sentence_of(listing, listing.head.error()));
      continue;
    }
    if ((!options.older_than.empty() && (*old)(listing)) ||
        (!options.toolchain.empty() && (*toolchain)(*listing.head))) {
      paths.insert(listing.path);
    }
  }
  return paths;
}

Result<octile::cache::PruneOptions> read_options(const PruneOptions& options, Engine& engine,
                                                 std::vector<std::string>& unread) {
  octile::cache::PruneOptions prune;
  prune.dry_run = options.dry_run;
  std::optional<Clock::time_point> unused_since;
  if (!options.unused.empty()) {
    const auto age = parse_duration(options.unused, "--unused");
    if (!age) return tl::unexpected<Error>(age.error());
    unused_since = Clock::now() - *age;
  }
  if (!options.max_size.empty()) {
    const auto bytes = parse_size(options.max_size, "--max-size");
    if (!bytes) return tl::unexpected<Error>(bytes.error());
    prune.max_bytes = *bytes;
    if (options.recent) prune.protect = std::chrono::seconds(0);
  }
  auto paths = paths_by_content(options, engine, unread);
  if (!paths) return tl::unexpected<Error>(paths.error());
  prune.unwanted = [paths = std::move(*paths), unused_since](const StoredEntry& entry) {
    return paths.contains(entry.path) || (unused_since && entry.used < *unused_since);
  };
  return prune;
}

Status run_prune(const PruneOptions& options) {
  if (options.older_than.empty() && options.unused.empty() && options.max_size.empty() &&
      options.toolchain.empty()) {
    return refuse(
        "no option selects entries; allowed: --older-than, --unused, --max-size, --toolchain; "
        "`octile cache clear` removes everything");
  }
  if (options.recent && options.max_size.empty()) {
    return refuse(
        "--recent is given without --max-size; allowed: both together, because no other option "
        "spares entries of recent use");
  }
  const auto library = LibraryHandle::create();
  if (!library) return tl::unexpected<Error>(library.error());
  Engine& engine = library->get()->library.engine;
  const std::string& root = engine.store().options().writable_root;
  if (root.empty()) {
    return refuse("there is no cache folder to prune; allowed: OCTILE_CACHE_DIR, or HOME, set");
  }
  std::vector<std::string> unread;
  const auto wanted = read_options(options, engine, unread);
  if (!wanted) return tl::unexpected<Error>(wanted.error());
  const auto result = octile::cache::prune(root, *wanted);
  if (!result) return fail(ErrorCode::kInternal, result.error().sentence);
  for (const auto& folder : result->unread) {
    if (std::ranges::find(unread, folder.reason) == unread.end()) unread.push_back(folder.reason);
  }
  if (options.json) {
    print_json(to_json(*result, unread, options.dry_run));
  } else {
    print_result(*result, *wanted);
  }
  return outcome(*result, unread);
}

}  // namespace

Command add_prune(CLI::App& cache) {
  CLI::App* app =
      add_subcommand(cache, "prune", "remove entries of the writable root that meet any of these",
                     "Exit status: 0 done, 1 failed, also if an entry could not be looked at or "
                     "removed, 2 bad usage, 130 interrupted.");
  auto options = std::make_shared<PruneOptions>();
  add_option(*app, "--older-than", options->older_than,
             "entries compiled longer ago: 90s, 15m, 12h, 30d, 2w");
  add_option(*app, "--unused", options->unused, "entries not used for this long");
  add_option(*app, "--toolchain", options->toolchain,
             "entries whose toolchain's text begins like this; other: all but those of "
             "this machine's compiler");
  add_option(
      *app, "--max-size", options->max_size,
      "then the least recently used, until the rest is at most this large: 500M, 2G; entries used "
      "in the last ten minutes stay");
  add_flag(*app, "--recent", options->recent,
           "with --max-size: entries used in the last ten minutes may go too, after all others");
  add_flag(*app, "--dry-run", options->dry_run, "only print what would be removed");
  add_json_option(*app, options->json);
  return {app, [options] { return run_prune(*options); }};
}

}  // namespace octile::tools::verbs
