#include "tools/doctor/cache_folder.h"

#include <fmt/format.h>
#include <sys/statvfs.h>
#include <sys/vfs.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstdlib>
#include <filesystem>
#include <memory>
#include <system_error>
#include <utility>

#include "cache/file_ops.h"
#include "cache/root.h"

namespace octile::tools {
namespace {

namespace fs = std::filesystem;

// A model's kernels take tens of MiB.
constexpr unsigned long kLeastFreeMiB = 64;

std::string reason(int code) { return std::generic_category().message(code); }

fs::path nearest_existing(const std::string& root) {
  std::error_code error;
  fs::path folder = fs::absolute(root, error);
  while (!fs::exists(folder, error) && folder.has_relative_path()) folder = folder.parent_path();
  return folder;
}

// Permissions do not tell whether a file system takes files, so a folder is made and removed.
std::string why_nothing_is_made_in(const fs::path& folder) {
  std::string name = (folder / ".octile-doctor-XXXXXX").string();
  if (::mkdtemp(name.data()) == nullptr) {
    return fmt::format("nothing can be created in {}: {}", folder.string(), reason(errno));
  }
  ::rmdir(name.c_str());
  return {};
}

std::string why_full(const fs::path& folder) {
  struct statvfs disk = {};
  if (::statvfs(folder.c_str(), &disk) != 0) return {};
  const unsigned long free_mib = disk.f_bavail * disk.f_frsize >> 20;
  if (free_mib >= kLeastFreeMiB) return {};
  return fmt::format(
      "the disk of {} is full: {} MiB are left, and a model's kernels take tens of "
      "MiB; make room (`octile cache prune --max-size 1G`), or name another folder "
      "by OCTILE_CACHE_DIR",
      folder.string(), free_mib);
}

std::string network_advice(const fs::path& folder) {
  struct statfs disk = {};
  if (::statfs(folder.c_str(), &disk) != 0) return {};
  const std::string kind = network_filesystem(static_cast<unsigned long>(disk.f_type));
  if (kind.empty()) return {};
  return fmt::format(
      "the cache folder lies on a network disk ({}), where every look-up waits for "
      "the network; a local folder named by OCTILE_CACHE_DIR is faster, and "
      "OCTILE_CACHE_ROOTS may name this one",
      kind);
}

}  // namespace

std::string network_filesystem(unsigned long type) {
  // The numbers of statfs(2).
  constexpr std::array kNetworks{
      std::pair{0x6969UL, "nfs"},        std::pair{0x517bUL, "smb"},
      std::pair{0xff534d42UL, "cifs"},   std::pair{0xfe534d42UL, "smb2"},
      std::pair{0x0bd00bd0UL, "lustre"}, std::pair{0x00c36400UL, "ceph"},
      std::pair{0x47504653UL, "gpfs"},   std::pair{0x5346414fUL, "afs"},
      std::pair{0x01021997UL, "9p"},     std::pair{0x65735546UL, "fuse"}};
  for (const auto& [number, name] : kNetworks) {
    // The field is signed and has 32 bits in some kernels.
    if ((type & 0xffffffffUL) == number) return name;
  }
  return {};
}

std::string why_unread(const std::string& root) {
  const auto read = cache::Root(root, false, cache::or_system(nullptr)).folders();
  return read ? std::string() : read.error().sentence;
}

CacheFolder look_at_cache_folder(const std::string& root) {
  if (root.empty()) {
    return {"there is no cache folder: neither OCTILE_CACHE_DIR, XDG_CACHE_HOME nor HOME is set",
            ""};
  }
  const cache::Root opened(root, true, cache::or_system(nullptr));
  if (const auto read = opened.folders(); !read) return {read.error().sentence, ""};
  const fs::path folder = nearest_existing(root);
  std::error_code error;
  if (!fs::is_directory(folder, error)) {
    return {fmt::format("{} is not a folder", folder.string()), ""};
  }
  std::string why = why_nothing_is_made_in(folder);
  if (why.empty()) why = why_full(folder);
  return {std::move(why), network_advice(folder)};
}

}  // namespace octile::tools
