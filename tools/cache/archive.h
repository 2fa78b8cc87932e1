// Archives of cache entries (FORMAT.md, section 7): a plain tar file whose bytes depend only on its
// entries. libarchive reads and writes it. A path in an archive is never used as a path on disk.
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
#include "cache/file_ops.h"
#include "generator/core/error.h"

namespace octile::tools {

inline constexpr std::string_view kManifestName = "octile-cache.manifest";

// The limit keeps a forged archive from occupying a reader for ever. A manifest of this many lines
// has 160 MB.
inline constexpr std::size_t kMaxArchiveEntries = 1'000'000;

// Writes the entries in the order of their names, then the manifest.
class ArchiveWriter {
 public:
  // `path` is "-" for stdout. Errors: those of OutputFile::create() and LibArchive::open().
  // file_ops null: the system's; libarchive writes the bytes itself.
  static Result<ArchiveWriter> create(const std::string& path,
                                      std::shared_ptr<cache::FileOps> file_ops = nullptr);
  ArchiveWriter(ArchiveWriter&&) noexcept;
  ArchiveWriter& operator=(ArchiveWriter&&) noexcept;
  ~ArchiveWriter();  // removes an archive that is not finished

  // `bytes` are those of the entry's file. Errors: kInternal, also if the name does not follow the
  // last.
  Status add(const cache::FileStem& stem, std::span<const std::uint8_t> bytes);
  // Writes the manifest and gives the file its own name. Returns the archive's digest, the SHA-256
  // of the manifest: the manifest has the SHA-256 of every entry. Errors: kInternal, naming the
  // path; those of OutputFile::commit().
  Result<std::string> finish();

 private:
  struct Impl;
  explicit ArchiveWriter(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

using EntryVisitor = std::function<Status(const cache::FileStem& stem, cache::Entry entry)>;

// Calls `visit` for each entry after these checks. The archive is a regular file. The name is an
// entry's, and names ascend, so that none occurs twice. The member is a regular file of at most
// kMaxEntryBytes. The entry passes deserialize() and is the kernel that its name says. Afterwards
// the manifest has to agree with all entries. Errors: kInvalidArgument, naming the archive and the
// member; those of `visit` and of LibArchive::open().
//
// `manifest` receives the archive's manifest. If it is not empty, the archive must have this one,
// and each entry is compared with it before `visit` sees it: a second reading gives the entries of
// the first, whatever happened to the file.
Status read_archive(const std::string& path, std::string& manifest, const EntryVisitor& visit);
Status read_archive(const std::string& path, const EntryVisitor& visit);

// Reads an archive in memory in the same way. Errors begin with `origin`.
Status read_archive(std::span<const std::uint8_t> bytes, const std::string& origin,
                    const EntryVisitor& visit);

}  // namespace octile::tools
