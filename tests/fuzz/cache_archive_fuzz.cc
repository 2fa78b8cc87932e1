// libFuzzer target of the reader of cache archives. A random input never has correct checksums in
// its tar headers, so each one is read twice: unchanged, and with corrected checksums.
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <span>
#include <string>
#include <vector>

#include "cache/key.h"
#include "tools/cache/archive_input.h"

namespace {

using namespace octile;  // NOLINT(google-build-using-namespace)
using Bytes = std::vector<std::uint8_t>;

constexpr std::size_t kBlockBytes = 512;
// POSIX ustar has the size in 12 octal digits at 124 and the checksum in 8 bytes at 148.
constexpr std::size_t kSizeAt = 124;
constexpr std::size_t kSizeBytes = 12;
constexpr std::size_t kChecksumAt = 148;
constexpr std::size_t kChecksumBytes = 8;

void mend_checksum(std::span<std::uint8_t> header) {
  unsigned sum = 0;
  for (std::size_t i = 0; i < header.size(); ++i) {
    const bool own = i >= kChecksumAt && i < kChecksumAt + kChecksumBytes;
    sum += static_cast<unsigned>(own ? ' ' : header[i]);
  }
  char digits[kChecksumBytes];
  std::snprintf(digits, sizeof digits, "%06o", sum);
  for (std::size_t i = 0; i < sizeof digits; ++i)
    header[kChecksumAt + i] = static_cast<std::uint8_t>(digits[i]);
}

// Corrects the checksum of each header that the sizes lead to.
void mend_checksums(Bytes& bytes) {
  for (std::size_t at = 0; at + kBlockBytes <= bytes.size();) {
    const std::span<std::uint8_t> header(bytes.data() + at, kBlockBytes);
    const std::string octal(header.begin() + kSizeAt, header.begin() + kSizeAt + kSizeBytes);
    const std::size_t size = std::strtoul(octal.c_str(), nullptr, 8);
    mend_checksum(header);
    if (size > bytes.size()) return;
    at += kBlockBytes + (size + kBlockBytes - 1) / kBlockBytes * kBlockBytes;
  }
}

// Aborts unless entries come in the order of their names and are the kernels their names say.
void read(std::span<const std::uint8_t> bytes) {
  std::string last;
  const auto visit = [&](const cache::FileStem& stem, const cache::Entry& entry) -> Status {
    if (stem.entry_name() <= last || stem.identity != cache::digest_hex(key_text(entry.identity)))
      std::abort();
    last = stem.entry_name();
    return {};
  };
  const Status status = tools::ArchiveInput::of(bytes, "fuzz").read(visit);
  if (!status && status.error().message.empty()) std::abort();
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  read({data, size});
  Bytes bytes(data, data + size);
  mend_checksums(bytes);
  read(bytes);
  return 0;
}
