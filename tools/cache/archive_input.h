// Reads archives of cache entries (FORMAT.md, section 7). libarchive reads the tar. A path in an
// archive is never used as a path on disk.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "cache/entry.h"
#include "cache/file_name.h"
#include "generator/core/error.h"
#include "tools/cache/archive_writer.h"

namespace octile::tools {

using EntryVisitor = std::function<Status(const cache::FileStem& stem, cache::Entry entry)>;

class ArchiveInput {
 public:
  // `path` is "-" for standard input. A regular file is read from the disk each time. Any other
  // input can be read once only and is kept in memory. Errors: those of InputFile; kInvalidArgument
  // for more than 2 GiB from anything but a regular file.
  static Result<ArchiveInput> open(const std::string& path);
  // An archive in memory, which outlives this. Errors begin with `origin`.
  static ArchiveInput of(std::span<const std::uint8_t> bytes, const std::string& origin);
  ArchiveInput(ArchiveInput&&) noexcept;
  ArchiveInput& operator=(ArchiveInput&&) noexcept;
  ~ArchiveInput();

  const std::string& name() const;

  // Calls `visit` for each entry after these checks. The name is an entry's, and names ascend, so
  // that none occurs twice. The member is a regular file of at most kMaxEntryBytes. The entry
  // passes deserialize() and is the kernel that its name says. Afterwards the manifest has to agree
  // with all entries. Errors: kInvalidArgument, naming the archive and the member; those of `visit`
  // and of LibArchive::open().
  //
  // A second reading gives the entries of the first, also if the file has changed: each entry is
  // compared with the first manifest before `visit` sees it.
  Status read(const EntryVisitor& visit);

  // Returns the digests of the bytes of the first reading; empty before it.
  const ArchiveDigests& digests() const;

 private:
  struct Impl;
  explicit ArchiveInput(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

}  // namespace octile::tools
