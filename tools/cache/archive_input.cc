#include "tools/cache/archive_input.h"

#include <fmt/format.h>

#include <algorithm>
#include <optional>
#include <utility>

#include "cache/key.h"
#include "tools/cache/archive_format.h"
#include "tools/cache/libarchive.h"
#include "tools/common/input_file.h"
#include "tools/common/sha256.h"

namespace octile::tools {
namespace {

using Bytes = std::span<const std::uint8_t>;

// The largest archive that is kept in memory.
constexpr std::size_t kMostInMemory = std::size_t{2} << 30;

// The bytes of an archive from the beginning, with the digest of those that were read.
class ByteSource {
 public:
  // `file` null: the bytes are those in memory.
  ByteSource(const InputFile* file, Bytes memory) : file_(file), memory_(memory) {}

  // libarchive calls it for the next bytes; 0: there are none.
  static la_ssize_t read_block(archive*, void* self, const void** block) {
    auto* source = static_cast<ByteSource*>(self);
    const Bytes bytes = source->next();
    *block = bytes.data();
    return source->failed() ? -1 : static_cast<la_ssize_t>(bytes.size());
  }

  // Reads the rest. Returns the SHA-256 of all bytes.
  std::string digest_of_all() {
    while (!next().empty()) {
    }
    return digest_.hex();
  }

  bool failed() const { return !outcome_; }
  const Status& outcome() const { return outcome_; }  // of the last read

 private:
  Bytes next() {
    Bytes bytes = memory_.subspan(std::min(offset_, memory_.size()));
    bytes = bytes.first(std::min(bytes.size(), kBlockBytes));
    if (file_ != nullptr) {
      block_.resize(kBlockBytes);
      const auto n = file_->read_at(block_, static_cast<std::int64_t>(offset_));
      if (!n) outcome_ = tl::unexpected<Error>(n.error());
      bytes = Bytes(block_).first(n.value_or(0));
    }
    offset_ += bytes.size();
    digest_.add(bytes);
    return bytes;
  }

  static constexpr std::size_t kBlockBytes = 1 << 16;

  const InputFile* file_;
  const Bytes memory_;
  std::vector<std::uint8_t> block_;
  std::size_t offset_ = 0;
  Sha256 digest_;
  Status outcome_;
};

constexpr const char* kChanged = "it is not what it was when the archive was checked";

class ArchiveReader {
 public:
  // `expected` is empty or the manifest that the archive must have.
  ArchiveReader(const LibArchive& library, ByteSource& source, const std::string& origin,
                const std::string& expected, const EntryVisitor& visit)
      : lib_(library),
        source_(source),
        origin_(origin),
        expected_(expected),
        visit_(visit),
        in_(lib_.archive_read_new(), lib_.archive_read_free) {
    // libarchive reads only tar here, uncompressed: it cannot misread formats it is not told of.
    lib_.archive_read_support_format_tar(in_.get());
  }

  // Returns the manifest of an archive that was read to its end.
  const std::string& manifest() const { return manifest_; }

  Status read() {
    if (lib_.archive_read_open(in_.get(), &source_, nullptr, ByteSource::read_block, nullptr) !=
        ARCHIVE_OK) {
      return source_.failed() ? source_.outcome() : refuse(error_text());
    }
    Status ok = read_members();
    return source_.failed() ? source_.outcome() : ok;
  }

 private:
  Status read_members() {
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

  tl::unexpected<Error> refuse(const std::string& why) const {
    return fail(
        ErrorCode::kInvalidArgument,
        fmt::format("{} is not a usable archive of `octile cache export`: {}", origin_, why));
  }
  tl::unexpected<Error> refuse(const std::string& member, const std::string& why) const {
    return refuse(fmt::format("member '{}': {}", member, why));
  }

  std::string error_text() const { return tools::error_text(lib_, in_.get()); }

  Status check_header(const std::string& member, archive_entry* header) const {
    if (lib_.archive_entry_filetype(header) != AE_IFREG ||
        lib_.archive_entry_hardlink(header) != nullptr ||
        lib_.archive_entry_symlink(header) != nullptr ||
        lib_.archive_entry_sparse_count(header) != 0) {
      return refuse(member, "not a plain regular file");
    }
    if (member != kManifestName && !stem_of_member(member)) {
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
  ByteSource& source_;
  const std::string& origin_;
  const std::string& expected_;
  const EntryVisitor& visit_;
  ArchiveHandle in_;
  std::string last_;                     // name read
  std::string manifest_{kManifestHead};  // that the archive's own has to equal
  std::size_t count_ = 0;
};

}  // namespace

struct ArchiveInput::Impl {
  std::string name;
  std::optional<InputFile> file;   // nothing if the bytes are in memory
  std::vector<std::uint8_t> kept;  // bytes of an input that cannot be read twice
  Bytes memory;
  std::string manifest;  // of the first reading
  ArchiveDigests digests;
};

ArchiveInput::ArchiveInput(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
ArchiveInput::ArchiveInput(ArchiveInput&&) noexcept = default;
ArchiveInput& ArchiveInput::operator=(ArchiveInput&&) noexcept = default;
ArchiveInput::~ArchiveInput() = default;

Result<ArchiveInput> ArchiveInput::open(const std::string& path) {
  auto file = InputFile::open(path);
  if (!file) return tl::unexpected<Error>(file.error());
  auto impl = std::make_unique<Impl>();
  impl->name = file->name();
  if (file->is_regular()) {
    impl->file = std::move(*file);
    return ArchiveInput(std::move(impl));
  }
  auto bytes = file->read_all(kMostInMemory);
  if (!bytes) return tl::unexpected<Error>(bytes.error());
  impl->kept = std::move(*bytes);
  impl->memory = impl->kept;
  return ArchiveInput(std::move(impl));
}

ArchiveInput ArchiveInput::of(Bytes bytes, const std::string& origin) {
  auto impl = std::make_unique<Impl>();
  impl->name = origin;
  impl->memory = bytes;
  return ArchiveInput(std::move(impl));
}

const std::string& ArchiveInput::name() const { return impl_->name; }
const ArchiveDigests& ArchiveInput::digests() const { return impl_->digests; }

Status ArchiveInput::read(const EntryVisitor& visit) {
  const auto lib = LibArchive::open();
  if (!lib) return tl::unexpected<Error>(lib.error());
  std::optional<InputFile>& file = impl_->file;
  ByteSource source(file ? &*file : nullptr, impl_->memory);
  ArchiveReader reader(*lib, source, impl_->name, impl_->manifest, visit);
  if (Status ok = reader.read(); !ok || !impl_->manifest.empty()) return ok;
  impl_->digests = {sha256_hex(reader.manifest()), source.digest_of_all()};
  impl_->manifest = reader.manifest();
  return source.outcome();
}

}  // namespace octile::tools
