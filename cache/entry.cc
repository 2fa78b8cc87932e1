#include "cache/entry.h"

#define XXH_INLINE_ALL
#include <fmt/format.h>
#include <xxhash.h>
#include <zstd.h>
#include <zstd_errors.h>

#include <algorithm>
#include <array>
#include <new>
#include <utility>

#include "cache/metadata_json.h"

namespace octile::cache {
namespace {

// 0x89 is not ASCII and the newline does not survive a transfer in text mode, so the magic reveals
// both kinds of corruption.
constexpr std::array<std::uint8_t, 8> kMagic = {0x89, 'O', 'C', 'T', 'I', 'L', 'E', '\n'};
constexpr std::size_t kHeaderBytes = 48;
constexpr std::size_t kChecksumBytes = 16;
// 3 is zstd's default. It compresses emitted sources about 8:1 in under a millisecond.
constexpr int kCompressionLevel = 3;

using Bytes = std::vector<std::uint8_t>;
using ByteSpan = std::span<const std::uint8_t>;

tl::unexpected<std::string> refuse(std::string reason) {
  return tl::unexpected<std::string>(std::move(reason));
}

std::uint64_t load_le(ByteSpan bytes, std::size_t offset, std::size_t count) {
  std::uint64_t value = 0;
  for (std::size_t i = 0; i < count; ++i) value |= std::uint64_t{bytes[offset + i]} << (8 * i);
  return value;
}

ByteSpan as_bytes(std::string_view text) {
  return {reinterpret_cast<const std::uint8_t*>(text.data()), text.size()};
}
std::string_view as_text(ByteSpan bytes) {
  return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
}

// Fills an entry of known size from front to back.
class Writer {
 public:
  explicit Writer(std::size_t size) : bytes_(size) {}

  void put(ByteSpan bytes) {
    std::copy(bytes.begin(), bytes.end(), bytes_.begin() + static_cast<std::ptrdiff_t>(end_));
    end_ += bytes.size();
  }
  // Writes little-endian by arithmetic, so the host's byte order and alignment do not matter.
  void put_le(std::uint64_t value, int bytes) {
    for (int i = 0; i < bytes; ++i) bytes_[end_++] = static_cast<std::uint8_t>(value >> (8 * i));
  }
  // Appends the checksum of everything written so far.
  void put_checksum() {
    const XXH128_hash_t hash = XXH3_128bits(bytes_.data(), end_);
    put_le(hash.low64, 8);
    put_le(hash.high64, 8);
  }
  Bytes take() { return std::move(bytes_); }

 private:
  Bytes bytes_;
  std::size_t end_ = 0;
};

// Returns true if the 16 bytes at `end` are the checksum of everything before them.
bool checksum_matches(ByteSpan bytes, std::size_t end) {
  const XXH128_hash_t hash = XXH3_128bits(bytes.data(), end);
  return load_le(bytes, end, 8) == hash.low64 && load_le(bytes, end + 8, 8) == hash.high64;
}

Bytes compress(std::string_view text) {
  Bytes out(ZSTD_compressBound(text.size()));
  const std::size_t size =
      ZSTD_compress(out.data(), out.size(), text.data(), text.size(), kCompressionLevel);
  // The output is large enough, so only memory can run out.
  if (ZSTD_isError(size) != 0) throw std::bad_alloc();
  out.resize(size);
  return out;
}

// Returns the text if the section is exactly one zstd frame that holds the declared number of
// bytes.
tl::expected<std::string, std::string> decompress(ByteSpan frame, std::size_t declared_bytes) {
  if (ZSTD_findFrameCompressedSize(frame.data(), frame.size()) != frame.size()) {
    return refuse("key: the section is not one whole zstd frame");
  }
  const auto frame_bytes = ZSTD_getFrameContentSize(frame.data(), frame.size());
  if (frame_bytes != declared_bytes) {
    return refuse(fmt::format(
        "key: the header declares {} bytes of text, the zstd frame another size", declared_bytes));
  }
  std::string text(declared_bytes, '\0');
  const std::size_t size = ZSTD_decompress(text.data(), text.size(), frame.data(), frame.size());
  // zstd allocates what it decompresses with. A refusal says nothing about the frame.
  if (ZSTD_getErrorCode(size) == ZSTD_error_memory_allocation) throw std::bad_alloc();
  if (ZSTD_isError(size) != 0) return refuse(fmt::format("key: {}", ZSTD_getErrorName(size)));
  if (size != declared_bytes) {
    return refuse(fmt::format("key: {} bytes of text, declared {}", size, declared_bytes));
  }
  return text;
}

struct Header {
  std::size_t metadata_bytes = 0;
  std::size_t key_bytes = 0;       // compressed
  std::size_t key_text_bytes = 0;  // uncompressed
  std::size_t cubin_bytes = 0;

  std::size_t head_end() const { return kHeaderBytes + metadata_bytes; }
  std::size_t key_begin() const { return head_end() + kChecksumBytes; }
  std::size_t cubin_begin() const { return key_begin() + key_bytes; }
  std::size_t cubin_end() const { return cubin_begin() + cubin_bytes; }
  std::size_t entry_bytes() const { return cubin_end() + kChecksumBytes; }
};

// Returns one size field, or an error if it exceeds `limit`. The limits are so low that the sum of
// the four sizes cannot overflow.
tl::expected<std::size_t, std::string> load_size(ByteSpan bytes, std::size_t offset,
                                                 std::size_t limit, const char* name) {
  const std::uint64_t value = load_le(bytes, offset, 8);
  if (value > limit) {
    return refuse(fmt::format("header: {} at byte {} is {}, at most {} is allowed", name, offset,
                              value, limit));
  }
  return static_cast<std::size_t>(value);
}

tl::expected<Header, std::string> read_header(ByteSpan bytes, std::uint64_t file_bytes) {
  if (bytes.size() < kHeaderBytes) {
    return refuse(fmt::format("header: {} bytes, a header has {}", bytes.size(), kHeaderBytes));
  }
  if (!std::equal(kMagic.begin(), kMagic.end(), bytes.begin())) {
    return refuse("header: no magic, this is not a kernel cache entry");
  }
  const std::uint64_t version = load_le(bytes, 8, 4);
  if (version != kEntryVersion) {
    return refuse(
        fmt::format("header: format version {}, this reader knows {}", version, kEntryVersion));
  }
  const std::uint64_t flags = load_le(bytes, 12, 4);
  if (flags != 0) {
    return refuse(fmt::format("header: flags {:#x}, version {} has none", flags, kEntryVersion));
  }
  const auto metadata_bytes = load_size(bytes, 16, kMaxMetadataBytes, "metadata_bytes");
  if (!metadata_bytes) return refuse(metadata_bytes.error());
  const auto key_bytes = load_size(bytes, 24, kMaxEntryBytes, "key_bytes");
  if (!key_bytes) return refuse(key_bytes.error());
  const auto key_text_bytes = load_size(bytes, 32, kMaxKeyTextBytes, "key_text_bytes");
  if (!key_text_bytes) return refuse(key_text_bytes.error());
  const auto cubin_bytes = load_size(bytes, 40, kMaxEntryBytes, "cubin_bytes");
  if (!cubin_bytes) return refuse(cubin_bytes.error());
  const Header header{*metadata_bytes, *key_bytes, *key_text_bytes, *cubin_bytes};
  if (header.entry_bytes() != file_bytes) {
    return refuse(fmt::format("size: the header describes {} bytes, the entry has {}",
                              header.entry_bytes(), file_bytes));
  }
  return header;
}

tl::expected<Head, std::string> read_head(ByteSpan bytes, const Header& header) {
  if (!checksum_matches(bytes, header.head_end())) {
    return refuse(fmt::format("checksum of the head (at byte {}) differs", header.head_end()));
  }
  auto head = metadata_from_json(as_text(bytes.subspan(kHeaderBytes, header.metadata_bytes)));
  if (head) head->cubin_bytes = header.cubin_bytes;
  return head;
}

}  // namespace

std::vector<std::uint8_t> serialize(const Entry& entry) {
  const std::string metadata = metadata_to_json(entry);
  const std::string key = key_text(entry.identity);
  const Bytes compressed_key = compress(key);
  const Header header{metadata.size(), compressed_key.size(), key.size(), entry.cubin.size()};

  Writer out(header.entry_bytes());
  out.put(kMagic);
  out.put_le(kEntryVersion, 4);
  out.put_le(0, 4);  // flags
  out.put_le(header.metadata_bytes, 8);
  out.put_le(header.key_bytes, 8);
  out.put_le(header.key_text_bytes, 8);
  out.put_le(header.cubin_bytes, 8);
  out.put(as_bytes(metadata));
  out.put_checksum();
  out.put(compressed_key);
  out.put(entry.cubin);
  out.put_checksum();
  return out.take();
}

bool is_other_version(std::span<const std::uint8_t> bytes) {
  return bytes.size() >= kHeaderBytes && std::equal(kMagic.begin(), kMagic.end(), bytes.begin()) &&
         load_le(bytes, 8, 4) != kEntryVersion;
}

tl::expected<Entry, std::string> deserialize(std::span<const std::uint8_t> bytes) {
  const auto header = read_header(bytes, bytes.size());
  if (!header) return refuse(header.error());
  if (!checksum_matches(bytes, header->cubin_end())) {
    return refuse(fmt::format("checksum of the entry (at byte {}) differs", header->cubin_end()));
  }
  auto head = read_head(bytes, *header);
  if (!head) return refuse(head.error());
  const auto text =
      decompress(bytes.subspan(header->key_begin(), header->key_bytes), header->key_text_bytes);
  if (!text) return refuse(text.error());
  auto identity = parse_key_text(*text);
  if (!identity) return refuse("key: " + identity.error());
  if (identity->entry_name != head->entry_name || identity->architecture != head->architecture) {
    return refuse("metadata: 'kernel' or 'architecture' differs from the key text");
  }
  const ByteSpan cubin = bytes.subspan(header->cubin_begin(), header->cubin_bytes);
  return Entry{std::move(*identity), std::move(head->toolchain), std::move(head->metadata),
               Bytes(cubin.begin(), cubin.end())};
}

tl::expected<std::size_t, std::string> head_end(ByteSpan first, std::uint64_t file_bytes) {
  const auto header = read_header(first, file_bytes);
  if (!header) return refuse(header.error());
  return header->key_begin();
}

tl::expected<Head, std::string> deserialize_head(ByteSpan first, std::uint64_t file_bytes) {
  const auto header = read_header(first, file_bytes);
  if (!header) return refuse(header.error());
  if (first.size() < header->key_begin()) {
    return refuse(
        fmt::format("header: {} bytes of a head of {}", first.size(), header->key_begin()));
  }
  return read_head(first, *header);
}

}  // namespace octile::cache
