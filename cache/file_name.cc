#include "cache/file_name.h"

#include <fmt/format.h>
#include <sys/random.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdint>

namespace octile::cache {
namespace {

constexpr std::size_t kDigestDigits = 32;
constexpr std::size_t kUniqueDigits = 16;
constexpr std::string_view kEntrySuffix = ".octile";
constexpr std::string_view kLockSuffix = ".lock";
constexpr std::string_view kDamagedSuffix = ".damaged";
constexpr std::string_view kTemporarySuffix = ".tmp";

bool is_hex(std::string_view text) {
  return std::all_of(text.begin(), text.end(),
                     [](char c) { return (c >= '0' && c <= '9') || (c >= 'a' && c <= 'f'); });
}

// Returns true for ".<16 hex>.tmp".
bool is_unique_suffix(std::string_view suffix) {
  return suffix.size() == 1 + kUniqueDigits + kTemporarySuffix.size() && suffix[0] == '.' &&
         suffix.ends_with(kTemporarySuffix) && is_hex(suffix.substr(1, kUniqueDigits));
}

std::optional<FileKind> kind_of_suffix(std::string_view suffix) {
  if (suffix == kEntrySuffix) return FileKind::kEntry;
  if (suffix == kLockSuffix) return FileKind::kLock;
  if (suffix == kDamagedSuffix) return FileKind::kDamaged;
  if (is_temporary_name_of(kEntrySuffix, suffix)) return FileKind::kTemporary;
  return std::nullopt;
}

}  // namespace

std::string FileStem::entry_name() const {
  return fmt::format("{}-{}{}", identity, toolchain, kEntrySuffix);
}

std::string FileStem::lock_name() const {
  return fmt::format("{}-{}{}", identity, toolchain, kLockSuffix);
}

std::string FileStem::damaged_name() const {
  return fmt::format("{}-{}{}", identity, toolchain, kDamagedSuffix);
}

std::string FileStem::temporary_name() const { return temporary_name_of(entry_name()); }

std::string temporary_name_of(std::string_view name) {
  // The system's generator makes collisions between hosts that share a root over a network
  // improbable. std::random_device would do, and needs a newer C library than RHEL 9 has. So few
  // bytes come at once or, on a kernel without the call, not at all; then the process and the time
  // have to do.
  std::uint64_t unique = 0;
  if (::getrandom(&unique, sizeof unique, 0) != sizeof unique) {
    unique =
        static_cast<std::uint64_t>(std::chrono::steady_clock::now().time_since_epoch().count());
    unique ^= static_cast<std::uint64_t>(::getpid()) << 40;
  }
  return fmt::format("{}.{:016x}{}", name, unique, kTemporarySuffix);
}

bool is_temporary_name_of(std::string_view name, std::string_view temporary) {
  return temporary.starts_with(name) && is_unique_suffix(temporary.substr(name.size()));
}

std::optional<FileName> parse_file_name(std::string_view name) {
  constexpr std::size_t kStem = 2 * kDigestDigits + 1;
  if (name.size() <= kStem || name[kDigestDigits] != '-') return std::nullopt;
  const std::string_view identity = name.substr(0, kDigestDigits);
  const std::string_view toolchain = name.substr(kDigestDigits + 1, kDigestDigits);
  const std::optional<FileKind> kind = kind_of_suffix(name.substr(kStem));
  if (!kind || !is_hex(identity) || !is_hex(toolchain)) return std::nullopt;
  return FileName{{std::string(identity), std::string(toolchain)}, *kind};
}

bool is_folder_name(std::string_view name) { return name.size() == 2 && is_hex(name); }

}  // namespace octile::cache
