#include "runtime/driver/driver_build.h"

#include <fcntl.h>
#include <fmt/format.h>

#include <array>
#include <cstdint>

#include "cache/file_ops.h"
#include "cache/key.h"

namespace octile {
namespace {

std::string state_of(cache::FileOps& ops, const std::string& file) {
  struct stat status = {};
  if (ops.stat_at(AT_FDCWD, file, status) < 0) return "";
  return fmt::format("{} {}.{:09} {}", status.st_size, status.st_mtim.tv_sec,
                     status.st_mtim.tv_nsec, status.st_ino);
}

// A file of /proc says that it has no bytes, and has some.
std::string beginning_of(cache::FileOps& ops, const std::string& path) {
  const auto file = cache::open_regular(ops, AT_FDCWD, path, O_RDONLY, 0, path, nullptr);
  std::array<std::uint8_t, 4096> bytes{};
  const std::size_t count = file ? cache::read_next(ops, *file, bytes, path).value_or(0) : 0;
  return {reinterpret_cast<const char*>(bytes.data()), count};
}

}  // namespace

std::string driver_build(std::string_view cuda, const std::string& file,
                         const std::string& module_version) {
  cache::FileOps ops;
  const std::string state =
      fmt::format("{}\n{}", state_of(ops, file), beginning_of(ops, module_version));
  return fmt::format("{} {} {}", cuda, file.substr(file.rfind('/') + 1), cache::digest_hex(state));
}

}  // namespace octile
