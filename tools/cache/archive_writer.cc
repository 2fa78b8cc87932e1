#include "tools/cache/archive_writer.h"

#include <fmt/format.h>

#include <optional>
#include <utility>

#include "tools/cache/archive_format.h"
#include "tools/cache/libarchive.h"
#include "tools/common/output_file.h"
#include "tools/common/sha256.h"

namespace octile::tools {
namespace {

using EntryHandle = std::unique_ptr<archive_entry, void (*)(archive_entry*)>;

std::span<const std::uint8_t> as_bytes(std::string_view text) {
  return {reinterpret_cast<const std::uint8_t*>(text.data()), text.size()};
}

}  // namespace

std::string digests_text(const ArchiveDigests& digests) {
  return fmt::format("  sha256 of the file      {}\n  sha256 of its manifest  {}\n", digests.file,
                     digests.manifest);
}

struct ArchiveWriter::Impl {
  Impl(const LibArchive& library, std::string name, OutputFile output)
      : lib(library),
        path(std::move(name)),
        file(std::move(output)),
        out(lib.archive_write_new(), lib.archive_write_free) {}

  // No compression: another version of a compressor gives other bytes for the same content.
  Status open() {
    if (lib.archive_write_set_format_ustar(out.get()) != ARCHIVE_OK ||
        lib.archive_write_set_bytes_in_last_block(out.get(), 1) != ARCHIVE_OK ||
        lib.archive_write_open(out.get(), this, nullptr, write_block, nullptr) != ARCHIVE_OK) {
      return failure();
    }
    return {};
  }

  // libarchive calls it with the file's next bytes.
  static la_ssize_t write_block(archive*, void* self, const void* data, std::size_t size) {
    auto* impl = static_cast<Impl*>(self);
    const std::span bytes(static_cast<const std::uint8_t*>(data), size);
    impl->digest.add(bytes);
    impl->last_write = impl->file.write(bytes);
    return impl->last_write ? static_cast<la_ssize_t>(size) : -1;
  }

  // All other fields of a tar header are the same for every member.
  Status add(const std::string& name, std::span<const std::uint8_t> bytes) {
    const EntryHandle header(lib.archive_entry_new(), lib.archive_entry_free);
    lib.archive_entry_set_pathname(header.get(), name.c_str());
    lib.archive_entry_set_filetype(header.get(), AE_IFREG);
    lib.archive_entry_set_perm(header.get(), 0644);
    lib.archive_entry_set_mtime(header.get(), 0, 0);
    lib.archive_entry_set_size(header.get(), static_cast<la_int64_t>(bytes.size()));
    if (lib.archive_write_header(out.get(), header.get()) != ARCHIVE_OK) return failure();
    const la_ssize_t written = lib.archive_write_data(out.get(), bytes.data(), bytes.size());
    return written == static_cast<la_ssize_t>(bytes.size()) ? Status{} : failure();
  }

  Status failure() const {
    if (!last_write) return last_write;
    return fail(ErrorCode::kInternal,
                fmt::format("{} cannot be written: {}", path, error_text(lib, out.get())));
  }

  const LibArchive lib;
  const std::string path;
  OutputFile file;
  Sha256 digest;      // of the file's bytes so far
  Status last_write;  // the outcome
  ArchiveHandle out;  // destroyed before what write_block() uses
  std::string last;   // name added
  std::string manifest{kManifestHead};
};

ArchiveWriter::ArchiveWriter(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
ArchiveWriter::ArchiveWriter(ArchiveWriter&&) noexcept = default;
ArchiveWriter& ArchiveWriter::operator=(ArchiveWriter&&) noexcept = default;
ArchiveWriter::~ArchiveWriter() = default;

Result<ArchiveWriter> ArchiveWriter::create(const std::string& path,
                                            std::shared_ptr<cache::FileOps> file_ops) {
  const auto lib = LibArchive::open();
  if (!lib) return tl::unexpected<Error>(lib.error());
  auto file = OutputFile::create(path, std::move(file_ops));
  if (!file) return tl::unexpected<Error>(file.error());
  auto impl = std::make_unique<Impl>(*lib, path, std::move(*file));
  if (Status ok = impl->open(); !ok) return tl::unexpected<Error>(ok.error());
  return ArchiveWriter(std::move(impl));
}

Status ArchiveWriter::add(const cache::FileStem& stem, std::span<const std::uint8_t> bytes) {
  std::string name = member_name(stem);
  if (name <= impl_->last) {
    return fail(ErrorCode::kInternal,
                fmt::format("{} is added after {}; names ascend", name, impl_->last));
  }
  if (Status ok = impl_->add(name, bytes); !ok) return ok;
  impl_->manifest += manifest_line(name, bytes);
  impl_->last = std::move(name);
  return {};
}

Result<ArchiveDigests> ArchiveWriter::finish() {
  Status ok = impl_->add(std::string(kManifestName), as_bytes(impl_->manifest));
  if (ok && impl_->lib.archive_write_close(impl_->out.get()) != ARCHIVE_OK) ok = impl_->failure();
  if (ok) ok = impl_->file.commit();
  if (!ok) return tl::unexpected<Error>(ok.error());
  return ArchiveDigests{sha256_hex(impl_->manifest), impl_->digest.hex()};
}

}  // namespace octile::tools
