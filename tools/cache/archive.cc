#include "tools/cache/archive.h"

#include <fcntl.h>
#include <fmt/format.h>

#include <algorithm>
#include <optional>
#include <system_error>
#include <utility>

#include "cache/file_ops.h"
#include "cache/key.h"
#include "tools/cache/libarchive.h"
#include "tools/cache/sha256.h"
#include "tools/common/output_file.h"

namespace octile::tools {
namespace {

using Bytes = std::span<const std::uint8_t>;

constexpr std::string_view kManifestHead = "octile cache archive 2\n";
// A line is "<64 hex> <decimal> v1/<2 hex>/<65 hex>.octile\n" with a decimal of up to 8 digits.
constexpr std::size_t kMaxManifestBytes = 160 * kMaxArchiveEntries;

// Freed by the function of the opened library that belongs to it.
using ArchiveHandle = std::unique_ptr<archive, int (*)(archive*)>;
using EntryHandle = std::unique_ptr<archive_entry, void (*)(archive_entry*)>;

std::string member_name(const cache::FileStem& stem) {
  return fmt::format("v1/{}/{}", stem.folder(), stem.entry_name());
}

// Returns nothing for a name that no entry has; only entries and the manifest are read.
std::optional<cache::FileStem> stem_of(std::string_view name) {
  const std::size_t slash = name.rfind('/');
  if (slash == std::string_view::npos) return std::nullopt;
  const auto parsed = cache::parse_file_name(name.substr(slash + 1));
  if (!parsed || parsed->kind != cache::FileKind::kEntry || member_name(parsed->stem) != name) {
    return std::nullopt;
  }
  return parsed->stem;
}

std::string manifest_line(std::string_view name, Bytes bytes) {
  return fmt::format("{} {} {}\n", sha256_hex(bytes), bytes.size(), name);
}

Bytes as_bytes(std::string_view text) {
  return {reinterpret_cast<const std::uint8_t*>(text.data()), text.size()};
}

// What libarchive says of the last error.
std::string error_text(const LibArchive& lib, archive* a) {
  const char* text = lib.archive_error_string(a);
  return text == nullptr ? "unknown error" : text;
}

}  // namespace

// --- writing ---

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
        lib.archive_write_open_fd(out.get(), file.fd()) != ARCHIVE_OK) {
      return failure();
    }
    return {};
  }

  // All other fields of a tar header are the same for every member.
  Status add(const std::string& name, Bytes bytes) {
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

  // libarchive says "Write error"; its number says why.
  Status failure() const {
    const int code = lib.archive_errno(out.get());
    const std::string why = code > 0 ? ": " + std::generic_category().message(code) : std::string();
    return fail(ErrorCode::kInternal,
                fmt::format("{} cannot be written: {}{}", path, error_text(lib, out.get()), why));
  }

  const LibArchive lib;
  const std::string path;
  OutputFile file;
  ArchiveHandle out;  // destroyed before its file
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

Status ArchiveWriter::add(const cache::FileStem& stem, Bytes bytes) {
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

Result<std::string> ArchiveWriter::finish() {
  Status ok = impl_->add(std::string(kManifestName), as_bytes(impl_->manifest));
  if (ok && impl_->lib.archive_write_close(impl_->out.get()) != ARCHIVE_OK) ok = impl_->failure();
  if (ok) ok = impl_->file.commit();
  if (!ok) return tl::unexpected<Error>(ok.error());
  return sha256_hex(impl_->manifest);
}

// --- reading ---

namespace {

constexpr const char* kChanged = "it is not what it was when the archive was checked";

class ArchiveReader {
 public:
  // `expected` is empty or the manifest that the archive must have.
  ArchiveReader(const LibArchive& library, std::string origin, std::string expected,
                const EntryVisitor& visit)
      : lib_(library),
        origin_(std::move(origin)),
        expected_(std::move(expected)),
        visit_(visit),
        in_(lib_.archive_read_new(), lib_.archive_read_free) {
    // libarchive reads only tar here, uncompressed: it cannot misread formats it is not told of.
    lib_.archive_read_support_format_tar(in_.get());
  }

  // `fd` stays the caller's and open.
  Status open_file(int fd) {
    constexpr std::size_t kBlockBytes = 1 << 16;
    return opened(lib_.archive_read_open_fd(in_.get(), fd, kBlockBytes));
  }
  Status open_memory(Bytes bytes) {
    return opened(lib_.archive_read_open_memory(in_.get(), bytes.data(), bytes.size()));
  }

  // Returns the manifest of an archive that was read to its end.
  const std::string& manifest() const { return manifest_; }

  Status read() {
    for (;;) {
      archive_entry* header = nullptr;
      const int result = lib_.archive_read_next_header(in_.get(), &header);
      if (result == ARCHIVE_EOF) return refuse("it ends without a manifest: it was cut short");
      if (result != ARCHIVE_OK) return refuse(error_text());
      const char* name = lib_.archive_entry_pathname(header);
      const std::string member = name == nullptr ? "" : name;
      if (Status ok = check_header(member, header); !ok) return ok;
      if (member == kManifestName) return check_manifest(header);
      if (Status ok = read_entry(member, header); !ok) return ok;
    }
  }

 private:
  tl::unexpected<Error> refuse(const std::string& why) const {
    return fail(ErrorCode::kInvalidArgument,
                fmt::format("{} is no archive of `octile cache export` that can be used: {}",
                            origin_, why));
  }
  tl::unexpected<Error> refuse(const std::string& member, const std::string& why) const {
    return refuse(fmt::format("member '{}': {}", member, why));
  }

  std::string error_text() const { return tools::error_text(lib_, in_.get()); }

  Status opened(int result) const {
    if (result == ARCHIVE_OK) return {};
    return refuse(error_text());
  }

  Status check_header(const std::string& member, archive_entry* header) const {
    if (lib_.archive_entry_filetype(header) != AE_IFREG ||
        lib_.archive_entry_hardlink(header) != nullptr ||
        lib_.archive_entry_symlink(header) != nullptr ||
        lib_.archive_entry_sparse_count(header) != 0) {
      return refuse(member, "not a plain regular file");
    }
    if (member != kManifestName && !stem_of(member)) {
      return refuse(member,
                    fmt::format("allowed are v1/<2 hex>/<entry name> and {}", kManifestName));
    }
    const std::size_t most = member == kManifestName ? kMaxManifestBytes : cache::kMaxEntryBytes;
    const la_int64_t size = lib_.archive_entry_size(header);
    if (size < 0 || static_cast<std::uint64_t>(size) > most) {
      return refuse(member, fmt::format("{} bytes, at most {} are read", size, most));
    }
    return {};
  }

  // The buffer grows as bytes arrive, because a header may promise more than the archive holds.
  Result<std::vector<std::uint8_t>> read_data(const std::string& member, archive_entry* header) {
    const auto size = static_cast<std::size_t>(lib_.archive_entry_size(header));
    constexpr std::size_t kStepBytes = 1 << 20;
    std::vector<std::uint8_t> bytes;
    while (bytes.size() < size) {
      const std::size_t filled = bytes.size();
      bytes.resize(filled + std::min(kStepBytes, size - filled));
      const la_ssize_t n = lib_.archive_read_data(in_.get(), &bytes[filled], bytes.size() - filled);
      if (n < 0) return refuse(member, error_text());
      if (n == 0) return refuse(member, fmt::format("it ends after {} of {} bytes", filled, size));
      bytes.resize(filled + static_cast<std::size_t>(n));
    }
    return bytes;
  }

  Status read_entry(const std::string& member, archive_entry* header) {
    if (member <= last_) {
      return refuse(member, member == last_ ? "it is there twice"
                                            : fmt::format("it follows '{}'; names ascend", last_));
    }
    if (++count_ > kMaxArchiveEntries) {
      return refuse(fmt::format("it has more than {} entries", kMaxArchiveEntries));
    }
    const auto bytes = read_data(member, header);
    if (!bytes) return tl::unexpected<Error>(bytes.error());
    auto entry = cache::deserialize(*bytes);
    if (!entry) return refuse(member, entry.error());
    const cache::FileStem stem{cache::digest_hex(cache::key_text(entry->identity)),
                               cache::digest_hex(entry->toolchain.text())};
    if (member_name(stem) != member)
      return refuse(member, "it holds another kernel than its name says");
    const std::string line = manifest_line(member, *bytes);
    if (!expected_.empty() && (manifest_.size() > expected_.size() ||
                               expected_.compare(manifest_.size(), line.size(), line) != 0)) {
      return refuse(member, kChanged);
    }
    manifest_ += line;
    last_ = member;
    return visit_(stem, std::move(*entry));
  }

  Status check_manifest(archive_entry* header) {
    const std::string member(kManifestName);
    const auto bytes = read_data(member, header);
    if (!bytes) return tl::unexpected<Error>(bytes.error());
    const std::string_view text(reinterpret_cast<const char*>(bytes->data()), bytes->size());
    if (!text.starts_with(kManifestHead)) {
      return refuse(member, fmt::format("it does not begin with '{}'",
                                        kManifestHead.substr(0, kManifestHead.size() - 1)));
    }
    if (text != manifest_) {
      const auto parted = std::ranges::mismatch(text, manifest_).in1 - text.begin();
      const auto line = std::count(text.begin(), text.begin() + parted, '\n') + 1;
      return refuse(member, fmt::format("line {} does not agree with the entries", line));
    }
    if (!expected_.empty() && manifest_ != expected_) return refuse(member, kChanged);
    if (lib_.archive_read_next_header(in_.get(), &header) != ARCHIVE_EOF) {
      return refuse("something follows its manifest");
    }
    return {};
  }

  const LibArchive& lib_;
  const std::string origin_;
  const std::string expected_;
  const EntryVisitor& visit_;
  ArchiveHandle in_;
  std::string last_;                     // name read
  std::string manifest_{kManifestHead};  // that the archive's own has to equal
  std::size_t count_ = 0;
};

}  // namespace

Status read_archive(const std::string& path, std::string& manifest, const EntryVisitor& visit) {
  const auto lib = LibArchive::open();
  if (!lib) return tl::unexpected<Error>(lib.error());
  // The user names the archive, so links are followed. A FIFO or device would not be the same when
  // it is read a second time.
  cache::FileOps ops;
  const auto resolved = cache::resolve_links(path);
  if (!resolved) return fail(ErrorCode::kInvalidArgument, resolved.error().sentence);
  const auto file = cache::open_regular(ops, AT_FDCWD, *resolved, O_RDONLY, 0, path, nullptr);
  if (!file) return fail(ErrorCode::kInvalidArgument, file.error().sentence);
  ArchiveReader reader(*lib, path, manifest, visit);
  Status ok = reader.open_file(file->fd());
  if (ok) ok = reader.read();
  if (ok) manifest = reader.manifest();
  return ok;
}

Status read_archive(const std::string& path, const EntryVisitor& visit) {
  std::string manifest;
  return read_archive(path, manifest, visit);
}

Status read_archive(Bytes bytes, const std::string& origin, const EntryVisitor& visit) {
  const auto lib = LibArchive::open();
  if (!lib) return tl::unexpected<Error>(lib.error());
  ArchiveReader reader(*lib, origin, {}, visit);
  if (Status ok = reader.open_memory(bytes); !ok) return ok;
  return reader.read();
}

}  // namespace octile::tools
