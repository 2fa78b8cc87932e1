// Real disks that fail: a small filesystem in a child's own mount namespace, and a user without
// rights.
#pragma once

#include <sched.h>
#include <sys/mount.h>

#include <functional>
#include <string>

#include "tests/support/cache_testing.h"

namespace octile::cache::testing {

// Mounts in a mount namespace of the child's own, so nothing stays mounted in any case.
inline std::string mount_tmpfs(const std::string& path, unsigned long flags, const char* options) {
  fs::create_directories(path);
  if (::unshare(CLONE_NEWNS) != 0 || ::mount("none", "/", nullptr, MS_REC | MS_PRIVATE, nullptr) ||
      ::mount("tmpfs", path.c_str(), "tmpfs", flags, options) != 0) {
    return "no right to mount";
  }
  return "";
}

// Runs `work` as nobody (65534 by convention) if the test runs as root, because permissions do not
// restrict root.
inline std::string without_rights(const std::function<std::string()>& work) {
  return Child([&]() -> std::string {
           constexpr uid_t kNobody = 65534;
           if (::geteuid() == 0 && (::setgid(kNobody) != 0 || ::setuid(kNobody) != 0)) {
             return "cannot become nobody";
           }
           return work();
         })
      .wait();
}

}  // namespace octile::cache::testing
