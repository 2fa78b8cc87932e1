#include "cache/process_identity.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <string_view>

#include "cache/key.h"

namespace octile::cache {
namespace {

// Returns the first bytes of a file of /proc, whose size is stated as 0; empty if there is none.
std::string read_proc(FileOps& ops, const std::string& path) {
  const auto file = open_regular(ops, AT_FDCWD, path, O_RDONLY, 0, path, nullptr);
  if (!file) return {};
  std::array<std::uint8_t, 1024> bytes{};
  const auto count = read_next(ops, *file, bytes, path);
  return count ? std::string(bytes.begin(), bytes.begin() + static_cast<std::ptrdiff_t>(*count))
               : std::string();
}

std::string host_name() {
  std::array<char, 256> name{};
  if (::gethostname(name.data(), name.size() - 1) != 0) return "host";
  std::string text = name.data();
  text = text.substr(0, std::min<std::size_t>(text.find('.'), 48));
  // Not <cctype>, which asks the host's locale.
  constexpr std::string_view kKept =
      "-0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz";
  std::ranges::replace_if(
      text, [&](char c) { return kKept.find(c) == std::string_view::npos; }, '_');
  return text.empty() ? "host" : text;
}

std::string place_of_this_process(FileOps& ops) {
  const std::string boot = read_proc(ops, "/proc/sys/kernel/random/boot_id");
  const OpenFile space(ops, ops.open_at(AT_FDCWD, "/proc/self/ns/pid", O_RDONLY, 0));
  struct stat status = {};
  if (boot.empty() || space.fd() < 0 || ops.stat_fd(space.fd(), status) < 0) return {};
  return digest_hex(fmt::format("{}{}", boot, status.st_ino)).substr(0, 16);
}

}  // namespace

ProcessIdentity this_process(FileOps& ops) { return {place_of_this_process(ops), host_name()}; }

}  // namespace octile::cache
