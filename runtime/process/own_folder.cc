#include "runtime/process/own_folder.h"

#include <dlfcn.h>
#include <fcntl.h>
#include <fmt/format.h>
#include <sys/auxv.h>
#include <unistd.h>

#include <algorithm>
#include <utility>

#include "cache/rights.h"

namespace octile {
namespace {

// dladdr calls the main program by the name that its caller gave it, so its file is read from
// /proc.
OwnFile find_own_file() {
  static const char here = 0;
  Dl_info own = {};
  Dl_info main = {};
  if (dladdr(&here, &own) == 0) return {};
  // NOLINTNEXTLINE(performance-no-int-to-ptr): the kernel gives the address as a number
  const bool in_main = dladdr(reinterpret_cast<const void*>(getauxval(AT_PHDR)), &main) != 0 &&
                       main.dli_fbase == own.dli_fbase;
  const auto file = cache::resolve_links(in_main ? "/proc/self/exe" : own.dli_fname);
  if (!file) return {};
  OwnFile found{file->substr(0, file->rfind('/') + 1), {}};
  struct stat status = {};
  if (cache::FileOps().stat_at(AT_FDCWD, *file, status) >= 0) found.owner = status.st_uid;
  return found;
}

// Calls own_file() when the library is loaded.
[[maybe_unused]] const OwnFile& found_at_load = own_file();

cache::IoResult<void> check_owner_and_mode(const struct stat& status, const std::string& path) {
  if (cache::has_more_rights_than_caller()) return cache::check_unwritable_by_others(status, path);
  const auto refuse = [](std::string sentence) {
    return tl::unexpected(cache::IoError{0, std::move(sentence)});
  };
  const bool group_is_the_owner = status.st_gid == status.st_uid;
  if ((status.st_mode & S_IWOTH) != 0 || ((status.st_mode & S_IWGRP) != 0 && !group_is_the_owner))
    return refuse(
        fmt::format("{}: its mode is {:04o}; allowed: not writable by others, nor by a group other "
                    "than its owner's own (chmod go-w)",
                    path, status.st_mode & 07777U));
  const uid_t user = ::geteuid();
  const std::optional<uid_t> own = own_file().owner;
  if (status.st_uid == 0 || status.st_uid == user || status.st_uid == own) return {};
  return refuse(fmt::format(
      "{}: it belongs to user {}; allowed: this user ({}){} or root", path, status.st_uid, user,
      own && *own != user && *own != 0 ? fmt::format(", the owner of Octile's own file ({})", *own)
                                       : std::string()));
}

}  // namespace

// Never destroyed: threads may still run when the process exits.
const OwnFile& own_file() {
  static const auto& found = *new OwnFile(find_own_file());
  return found;
}

cache::IoResult<std::string> check_code(cache::FileOps& ops, const std::string& path) {
  auto file = cache::resolve_links(path);
  if (!file) return file;
  const std::string folder = file->substr(0, std::max<std::size_t>(file->rfind('/'), 1));
  for (const std::string& one : {folder, *file}) {
    struct stat status = {};
    const int result = cache::retry_interrupted([&] { return ops.stat_at(AT_FDCWD, one, status); });
    if (result < 0) return cache::io_failure("stat", one, result);
    if (one == *file && !S_ISREG(status.st_mode))
      return tl::unexpected(cache::IoError{
          0, fmt::format("{}: {}; allowed: a regular file", one, cache::kind_of(status.st_mode))});
    if (auto checked = check_owner_and_mode(status, one); !checked)
      return tl::unexpected(std::move(checked.error()));
  }
  return file;
}

}  // namespace octile
