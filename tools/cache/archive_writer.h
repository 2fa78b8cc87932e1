// Writes archives of cache entries (FORMAT.md, section 7): a plain tar file whose bytes depend only
// on its entries. libarchive makes them.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>

#include "cache/file_name.h"
#include "cache/file_ops.h"
#include "generator/core/error.h"

namespace octile::tools {

// Two digests name an archive, each in hex digits.
struct ArchiveDigests {
  std::string manifest;  // the SHA-256 of the manifest, which has the SHA-256 of every entry
  std::string file;      // the SHA-256 of all bytes, as `sha256sum` prints it
};

// Returns a line for each, with the name of its text.
std::string digests_text(const ArchiveDigests& digests);

// Writes the entries in the order of their names, then the manifest.
class ArchiveWriter {
 public:
  // `path` is "-" for stdout. Errors: those of OutputFile::create() and LibArchive::open().
  // file_ops null: the system's.
  static Result<ArchiveWriter> create(const std::string& path,
                                      std::shared_ptr<cache::FileOps> file_ops = nullptr);
  ArchiveWriter(ArchiveWriter&&) noexcept;
  ArchiveWriter& operator=(ArchiveWriter&&) noexcept;
  ~ArchiveWriter();  // removes an archive that is not finished

  // `bytes` are those of the entry's file. Errors: kInternal, also if the name does not follow the
  // last.
  Status add(const cache::FileStem& stem, std::span<const std::uint8_t> bytes);
  // Writes the manifest and gives the file its own name. Errors: kInternal, naming the path; those
  // of OutputFile::commit().
  Result<ArchiveDigests> finish();

 private:
  struct Impl;
  explicit ArchiveWriter(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

}  // namespace octile::tools
