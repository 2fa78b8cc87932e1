// Where process 1 waits for no process, as `sleep infinity` in a container, no compiler is left.
#include <gtest/gtest.h>
#include <sched.h>
#include <sys/mount.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <string>

#include "tests/support/api_handles.h"

namespace octile::test {
namespace {

namespace fs = std::filesystem;

constexpr int kNoNamespace = 77;

bool prepares_with_a_handle(const char* eps) {
  octile_library_options options = {};
  options.struct_size = sizeof(options);
  options.disable_cache = 1;
  octile_library* library = nullptr;
  octile_plan* plan = nullptr;
  const std::string problem = kQuantizeText + " eps=" + eps;
  return octile_library_create(&options, &library) == OCTILE_OK &&
         octile_plan_create(library, "h200", problem.c_str(), &plan) == OCTILE_OK &&
         octile_plan_prepare(plan, 8, 8, OCTILE_PREPARE_DEFAULT) == OCTILE_OK &&
         octile_plan_destroy(plan) == OCTILE_OK && octile_library_destroy(library) == OCTILE_OK;
}

// Returns how many processes there are, ended ones that nobody waited for included.
int count_processes() {
  int count = 0;
  for (const auto& entry : fs::directory_iterator("/proc")) {
    const std::string name = entry.path().filename();
    count += name.find_first_not_of("0123456789") == std::string::npos ? 1 : 0;
  }
  return count;
}

// Is process 1 of a namespace. Returns how many processes a host leaves that makes two handles one
// after the other, while it runs in the tens and after its end in the units.
int leave_none() {
  if (::mount("none", "/", nullptr, MS_REC | MS_PRIVATE, nullptr) != 0 ||
      ::mount("proc", "/proc", "proc", 0, nullptr) != 0)
    return kNoNamespace;
  const pid_t host = ::fork();
  if (host == 0) {
    ::alarm(60);
    const bool prepared = prepares_with_a_handle("1e-7") && prepares_with_a_handle("2e-7");
    const int others = count_processes() - 2;
    const bool no_child = ::waitpid(-1, nullptr, WNOHANG | __WALL) < 0;
    ::_exit(prepared && no_child ? others : 9);
  }
  int status = 0;
  ::waitpid(host, &status, 0);
  return 10 * (WIFEXITED(status) ? WEXITSTATUS(status) : 9) + count_processes() - 1;
}

TEST(Orphans, AreNotLeftWhereNobodyWaitsForThem) {
  ::setenv("OCTILE_LIBNVRTC", OCTILE_FAKE_NVRTC_PATH, 1);
  const pid_t outside = ::fork();
  if (outside == 0) {
    if (::unshare(CLONE_NEWPID | CLONE_NEWNS) != 0) ::_exit(kNoNamespace);
    const pid_t first = ::fork();
    if (first == 0) ::_exit(leave_none());
    int status = 0;
    ::waitpid(first, &status, 0);
    ::_exit(WIFEXITED(status) ? WEXITSTATUS(status) : 99);
  }
  int status = 0;
  ::waitpid(outside, &status, 0);
  ::unsetenv("OCTILE_LIBNVRTC");
  if (WEXITSTATUS(status) == kNoNamespace) GTEST_SKIP() << "no namespace of processes here";
  EXPECT_EQ(WEXITSTATUS(status), 0) << "tens: left by a handle; units: left by the host";
}

}  // namespace
}  // namespace octile::test
