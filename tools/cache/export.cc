// octile cache export: writes entries into one archive. The same entries give the same bytes.
#include <fmt/format.h>

#include <map>
#include <memory>
#include <vector>

#include "runtime/api/boundary.h"
#include "tools/cache/archive_writer.h"
#include "tools/cache/entries.h"
#include "tools/cache/filter.h"
#include "tools/cache/verbs.h"
#include "tools/common/output.h"
#include "tools/compile/kernel_report.h"

namespace octile::tools::verbs {
namespace {

using octile::cache::Listing;

struct ExportOptions {
  EntryFilter filter;
  std::string output;
  bool json = false;
};

struct Exported {
  std::size_t entries = 0;
  std::int64_t bytes = 0;
  ArchiveDigests digests;
  // A sentence for each entry that was left out.
  std::vector<std::string> damaged;
  std::vector<std::string> unread;
};

// Groups the entries by file name, in the archive's order. Those of one name are in the order of a
// lookup.
std::map<std::string, std::vector<const Listing*>> by_name(const std::vector<Listing>& entries) {
  std::map<std::string, std::vector<const Listing*>> names;
  for (const Listing& listing : entries) names[listing.stem.entry_name()].push_back(&listing);
  return names;
}

Result<Exported> write(octile::cache::Store& store, const std::vector<Listing>& entries,
                       const std::string& output) {
  auto archive = ArchiveWriter::create(output);
  if (!archive) return tl::unexpected<Error>(archive.error());
  Exported exported;
  Progress progress(progress_mode(false));
  const auto names = by_name(entries);
  std::size_t written = 0;
  for (const auto& [name, listings] : names) {
    progress.count(written++, names.size(), "entries written");
    for (const Listing* listing : listings) {
      const auto bytes = store.read_bytes(*listing);
      if (!bytes) {
        auto& left_out = bytes.error().unread ? exported.unread : exported.damaged;
        left_out.push_back(sentence_of(*listing, bytes.error()));
        continue;
      }
      if (Status ok = archive->add(listing->stem, *bytes); !ok) {
        return tl::unexpected<Error>(ok.error());
      }
      ++exported.entries;
      exported.bytes += static_cast<std::int64_t>(bytes->size());
      break;
    }
  }
  auto digests = archive->finish();
  if (!digests) return tl::unexpected<Error>(digests.error());
  exported.digests = std::move(*digests);
  return exported;
}

Result<int> run_export(const ExportOptions& options) {
  const auto library = LibraryHandle::create();
  if (!library) return tl::unexpected<Error>(library.error());
  octile::cache::Store& store = library->get()->library.engine.store();
  const bool to_stdout = options.output == "-";
  if (to_stdout && options.json) {
    return refuse("archive is - and --json is given; allowed: one of the two, for stdout has one");
  }
  const auto selection = options.filter.select(store);
  if (!selection) return tl::unexpected<Error>(selection.error());
  const auto exported = write(store, selection->entries, options.output);
  if (!exported) return tl::unexpected<Error>(exported.error());
  std::vector<std::string> unread = selection->missing();
  unread.insert(unread.end(), exported->unread.begin(), exported->unread.end());
  if (options.json) {
    print_json({{"archive", options.output},
                {"entries", exported->entries},
                {"bytes", exported->bytes},
                {"file_sha256", exported->digests.file},
                {"manifest_sha256", exported->digests.manifest},
                {"damaged", exported->damaged.size()},
                {"left_out", exported->damaged},
                {"unread", unread}});
  } else if (!to_stdout) {
    print_stdout("  {} entr{}, {}, in {}\n{}", exported->entries,
                 exported->entries == 1 ? "y" : "ies",
                 bytes_text(static_cast<double>(exported->bytes)), options.output,
                 digests_text(exported->digests));
  }
  if (const std::size_t count = exported->damaged.size(); count > 0) {
    print_stderr("octile: warning: {} damaged entr{} left out; `octile cache verify` says why\n",
                 count, count == 1 ? "y is" : "ies are");
  }
  for (const std::string& sentence : unread) {
    print_stderr("octile: warning: not in the archive, because it could not be read: {}\n",
                 sentence);
  }
  return exported->damaged.empty() && unread.empty() ? 0 : kDamaged;
}

}  // namespace

Command add_export(CLI::App& cache) {
  CLI::App* app = add_subcommand(
      cache, "export", "write entries into one archive; the same entries give the same bytes",
      "Exit status: 0 all are in the archive, 1 failed, 2 bad usage, 3 some were left out, damaged "
      "or not to be read, 130 interrupted.");
  auto options = std::make_shared<ExportOptions>();
  add_option(*app, "archive", options->output, "the file to write, a plain tar; - for stdout")
      .require();
  options->filter.add_to(*app);
  add_json_option(*app, options->json);
  return {app, [options] { return run_export(*options); }};
}

}  // namespace octile::tools::verbs
