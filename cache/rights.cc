#include "cache/rights.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/auxv.h>
#include <unistd.h>

#include <atomic>

namespace octile::cache {
namespace {

std::atomic<bool>& started_by_more_rights() {
  static std::atomic<bool> value{false};
  return value;
}

}  // namespace

bool has_more_rights_than_caller() {
  return ::getauxval(AT_SECURE) != 0 || started_by_more_rights();
}

void count_as_having_more_rights() { started_by_more_rights() = true; }

bool own_user_is_trusted() {
  const uid_t user = ::geteuid();
  return user == 0 || user != ::getuid() || !has_more_rights_than_caller();
}

IoResult<void> check_path_unwritable_by_others(FileOps& ops, const std::string& path) {
  if (!path.starts_with('/'))
    return tl::unexpected(IoError{0, fmt::format("{}: not an absolute path", path)});
  std::string part = "/";
  for (std::size_t slash = 0;;) {
    struct stat status = {};
    const int result = retry_interrupted([&] { return ops.stat_at(AT_FDCWD, part, status); });
    if (result < 0) return io_failure("stat", part, result);
    if (S_ISLNK(status.st_mode))
      return tl::unexpected(IoError{0, fmt::format("{}: a symbolic link is not followed", part)});
    if (auto checked = check_unwritable_by_others(status, part); !checked) return checked;
    if (part.size() == path.size()) return {};
    slash = path.find('/', slash + 1);
    part = path.substr(0, slash);
  }
}

}  // namespace octile::cache
