// Archives of cache entries (FORMAT.md, section 7): a plain tar file that depends on nothing but
// the entries in it. Read and written through libarchive; no path of an archive is ever used as
// one.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "cache/entry.h"
#include "cache/file_name.h"
#include "generator/core/error.h"

namespace octile::tools {

inline constexpr std::string_view kManifestName = "octile-cache.manifest";

// What one archive may hold, so that a forged one cannot make a reader work for ever: a manifest
// of this many lines is 128 MB.
inline constexpr std::size_t kMaxArchiveEntries = 1'000'000;

// Entries in the order of their names, then the manifest.
class ArchiveWriter {
 public:
  // Writes `path`.part beside the file. Errors: kInternal, naming the path.
  static Result<ArchiveWriter> create(const std::string& path);
  ArchiveWriter(ArchiveWriter&&) noexcept;
  ArchiveWriter& operator=(ArchiveWriter&&) noexcept;
  ~ArchiveWriter();  // without finish(): leaves nothing

  // The bytes of an entry file. Errors: kInternal, also where the name does not follow the last.
  Status add(const cache::FileStem& stem, std::span<const std::uint8_t> bytes);
  // The manifest, then the file under its own name.
  Status finish();

 private:
  struct Impl;
  explicit ArchiveWriter(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

using EntryVisitor = std::function<Status(const cache::FileStem& stem, cache::Entry entry)>;

// Calls `visit` for each entry, after every check that can be made of it: the name is an entry's,
// in ascending order and so only once, the member a regular file of at most kMaxEntryBytes, and the
// entry passes deserialize() and is the kernel its name says. At the end the manifest has to agree
// with everything that was there. Errors: kInvalidArgument, naming the archive and the member; what
// `visit` gives.
Status read_archive(const std::string& path, const EntryVisitor& visit);

// The same of an archive in memory; `origin` begins the errors.
Status read_archive(std::span<const std::uint8_t> bytes, const std::string& origin,
                    const EntryVisitor& visit);

}  // namespace octile::tools
