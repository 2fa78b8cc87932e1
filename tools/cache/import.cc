// octile cache import: adds the entries of an archive to the writable root, all or none.
#include <fmt/format.h>

#include <memory>
#include <utility>

#include "runtime/api/boundary.h"
#include "tools/cache/archive_input.h"
#include "tools/cache/check_kernel.h"
#include "tools/cache/verbs.h"
#include "tools/common/output.h"
#include "tools/common/sha256.h"

namespace octile::tools::verbs {
namespace {

using octile::cache::Entry;
using octile::cache::FileStem;

struct ImportOptions {
  std::string archive;
  std::string expect;  // the SHA-256 of the manifest or of the file; empty: any
  bool dry_run = false;
  bool json = false;
};

struct Imported {
  std::string archive;  // its name
  ArchiveDigests digests;
  std::size_t entries = 0;
  std::size_t present = 0;  // entries that the cache already had
  std::size_t added = 0;
};

Status check_entry(const FileStem& stem, const Entry& entry) {
  const Status valid = check_kernel(entry);
  if (valid) return {};
  return refuse(fmt::format("entry {}: {}", stem.entry_name(), valid.error().message));
}

Status add(octile::cache::Store& store, const Entry& entry, Imported& imported) {
  const auto hit = store.lookup(entry.identity, entry.toolchain);
  if (hit && hit->exact_toolchain) {
    ++imported.present;
    return {};
  }
  if (!store.publish(entry)) {
    return fail(
        ErrorCode::kInternal,
        fmt::format("{} cannot be kept in {}, which has {} of the archive's entries by now; "
                    "see the warning above, then import again; entries that are there are skipped",
                    entry.identity.entry_name, store.options().writable_root,
                    imported.present + imported.added));
  }
  ++imported.added;
  return {};
}

bool is_digest(const std::string& text) {
  return text.size() == kSha256Digits &&
         text.find_first_not_of("0123456789abcdef") == std::string::npos;
}

Status check_expected(const std::string& expect, const std::string& archive,
                      const ArchiveDigests& digests) {
  if (expect.empty() || expect == digests.manifest || expect == digests.file) return {};
  return refuse(
      fmt::format("--expect is {}; allowed: the sha256 of {} itself, {}, or of the manifest in "
                  "it, {}",
                  expect, archive, digests.file, digests.manifest));
}

// Reads the archive twice. The first pass checks all of it before anything is written; the second
// compares what it writes with the first, because the file may have changed in between.
Result<Imported> import(const ImportOptions& options, octile::cache::Store& store) {
  auto archive = ArchiveInput::open(options.archive);
  if (!archive) return tl::unexpected<Error>(archive.error());
  Imported imported;
  imported.archive = archive->name();
  Status ok = archive->read([&](const FileStem& stem, const Entry& entry) {
    ++imported.entries;
    return check_entry(stem, entry);
  });
  imported.digests = archive->digests();
  if (ok) ok = check_expected(options.expect, imported.archive, imported.digests);
  if (ok && !options.dry_run) {
    ok = archive->read([&](const FileStem& stem, const Entry& entry) {
      if (Status valid = check_entry(stem, entry); !valid) return valid;
      return add(store, entry, imported);
    });
  }
  if (!ok) return tl::unexpected<Error>(ok.error());
  return imported;
}

Status run_import(const ImportOptions& options) {
  if (!options.expect.empty() && !is_digest(options.expect)) {
    return refuse(
        fmt::format("--expect is '{}'; allowed: {} lower-case hex digits, a sha256 that "
                    "`octile cache export` or `sha256sum` prints",
                    options.expect, kSha256Digits));
  }
  const auto library = LibraryHandle::create();
  if (!library) return tl::unexpected<Error>(library.error());
  octile::cache::Store& store = library->get()->library.engine.store();
  const std::string& root = store.options().writable_root;
  if (root.empty()) {
    return refuse(
        "there is no cache folder to import into; allowed: OCTILE_CACHE_DIR, or HOME, set");
  }
  const auto imported = import(options, store);
  if (!imported) return tl::unexpected<Error>(imported.error());
  if (options.json) {
    print_json({{"archive", imported->archive},
                {"root", root},
                {"file_sha256", imported->digests.file},
                {"manifest_sha256", imported->digests.manifest},
                {"entries", imported->entries},
                {"added", imported->added},
                {"present", imported->present},
                {"dry_run", options.dry_run}});
  } else if (options.dry_run) {
    print_stdout("  {}: {} entr{}, all correct; nothing was written\n{}", imported->archive,
                 imported->entries, imported->entries == 1 ? "y" : "ies",
                 digests_text(imported->digests));
  } else {
    print_stdout("  {} of {} entries added to {}, {} were there\n", imported->added,
                 imported->entries, root, imported->present);
  }
  return {};
}

}  // namespace

Command add_import(CLI::App& cache) {
  CLI::App* app = add_subcommand(
      cache, "import", "check an archive of `export` entry by entry, then add what the cache lacks",
      "Exit status: 0 all are in the cache, 1 failed, 2 bad usage or an archive that "
      "is refused, 130 interrupted.");
  auto options = std::make_shared<ImportOptions>();
  add_option(*app, "archive", options->archive, "the file to read; - for stdin").require();
  add_flag(*app, "--dry-run", options->dry_run, "only check the archive");
  add_option(*app, "--expect", options->expect,
             "refuse an archive unless this is its sha256: that of the file, or that of its "
             "manifest, as `export` prints both");
  add_json_option(*app, options->json);
  return {app, [options] { return run_import(*options); }};
}

}  // namespace octile::tools::verbs
