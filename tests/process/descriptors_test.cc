// The library's descriptors: none is below 3, and a child of fork has none, at any moment of the
// library.
#include <dirent.h>
#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/file.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <cerrno>
#include <chrono>
#include <cstdlib>
#include <memory>
#include <string>
#include <thread>

#include "cache/descriptor.h"
#include "cache/file_ops.h"
#include "tests/support/api_handles.h"

namespace octile::test {
namespace {

constexpr int kPassed = 42;

// Returns the number of this process's descriptors that are not below `first`.
int count_descriptors(int first = 0) {
  DIR* const folder = ::opendir("/proc/self/fd");
  if (folder == nullptr) return -1;
  int count = 0;
  while (const dirent* one = ::readdir(folder)) {  // NOLINT(concurrency-mt-unsafe)
    const int number = std::atoi(one->d_name);     // NOLINT(cert-err34-c)
    const bool is_number = one->d_name[0] != '.';
    if (is_number && number >= first && number != ::dirfd(folder)) ++count;
  }
  ::closedir(folder);
  return count;
}

// Prepares a kernel that no other call prepares, with a handle of its own.
bool prepare_another(const std::string& cache_dir) {
  static std::atomic<int> next = 0;
  octile_library_options options = {};
  options.struct_size = sizeof(options);
  options.cache_dir = cache_dir.c_str();
  options.cache_roots = "";
  options.compile_threads = 1;
  const std::string problem = kQuantizeText + " eps=" + std::to_string(++next) + "e-7";
  octile_library* library = nullptr;
  octile_plan* plan = nullptr;
  return octile_library_create(&options, &library) == OCTILE_OK &&
         octile_plan_create(library, "h200", problem.c_str(), &plan) == OCTILE_OK &&
         octile_plan_prepare(plan, 8, 8, OCTILE_PREPARE_DEFAULT) == OCTILE_OK &&
         octile_plan_destroy(plan) == OCTILE_OK && octile_library_destroy(library) == OCTILE_OK;
}

class Descriptors : public ::testing::Test {
 protected:
  void SetUp() override { ::setenv("OCTILE_LIBNVRTC", OCTILE_FAKE_NVRTC_PATH, 1); }
  void TearDown() override { ::unsetenv("OCTILE_LIBNVRTC"); }
  TempFolder folder_;
};

// A number that one thread holds is not free while another may be given it.
TEST(StandardNumbers, AreHeldAsLongAsAnyThreadHoldsThem) {
  const pid_t host = ::fork();
  if (host == 0) {
    for (const int number : {0, 1, 2}) ::close(number);
    auto first = std::make_unique<cache::StandardNumbers>();
    auto second = std::make_unique<cache::StandardNumbers>();
    first.reset();
    bool held = true;
    for (const int number : {0, 1, 2}) held = held && ::fcntl(number, F_GETFD) >= 0;
    second.reset();
    bool free = true;
    for (const int number : {0, 1, 2}) free = free && ::fcntl(number, F_GETFD) < 0;
    ::_exit(held && free ? kPassed : 1);
  }
  int status = 0;
  ::waitpid(host, &status, 0);
  EXPECT_EQ(WEXITSTATUS(status), kPassed);
}

// Writes some text. The thread sanitizer, which counts a write to a number that another thread
// closes as a race, sees no system call that is made like this.
long write_unseen(int number) { return ::syscall(SYS_write, number, "text\n", 5); }

// Output of the host to a number that it closed reaches neither a socket, which would end the
// host by SIGPIPE, nor a file of the cache.
TEST_F(Descriptors, AreAboveTwo) {
#if defined(__SANITIZE_ADDRESS__)
  GTEST_SKIP() << "the sanitizer tries by pipes of its own if memory can be read";
#endif
  const pid_t host = ::fork();
  if (host == 0) {
    ::alarm(60);
    for (const int number : {0, 1, 2}) ::close(number);
    std::atomic<bool> done = false;
    std::atomic<int> written = 0;
    std::thread printing([&] {
      while (!done)
        for (const int number : {0, 1, 2}) written += write_unseen(number) > 0 ? 1 : 0;
    });
    bool prepared = true;
    for (int i = 0; i < 10; ++i) prepared = prepare_another(folder_.path()) && prepared;
    done = true;
    printing.join();
    const int below_three = count_descriptors() - count_descriptors(3);
    ::_exit(prepared && written == 0 && below_three == 0 ? kPassed : 1);
  }
  int status = 0;
  ::waitpid(host, &status, 0);
  EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == kPassed) << status;
}

TEST(NewDescriptor, IsAboveTwoAndLeavesTheNumbersBelowFree) {
  const pid_t host = ::fork();
  if (host == 0) {
    for (const int number : {0, 2}) ::close(number);
    const int made = cache::new_descriptor([] { return ::open("/dev/null", O_RDONLY); });
    const auto [one, other] = cache::new_socket_pair();
    const bool above = made > 2 && one > 2 && other > 2;
    const bool free = ::fcntl(0, F_GETFD) < 0 && ::fcntl(2, F_GETFD) < 0;
    const bool kept = ::fcntl(1, F_GETFD) >= 0;
    ::_exit(above && free && kept ? kPassed : 1);
  }
  int status = 0;
  ::waitpid(host, &status, 0);
  EXPECT_EQ(WEXITSTATUS(status), kPassed);
}

TEST(NewDescriptor, IsClosedOnceAndByItsMaker) {
  const int made = cache::new_descriptor([] { return ::open("/dev/null", O_RDONLY); });
  EXPECT_EQ(cache::close_descriptor(made), 0);
  EXPECT_EQ(cache::close_descriptor(made), -EBADF);
  const int of_the_host = ::open("/dev/null", O_RDONLY);
  EXPECT_EQ(cache::close_descriptor(of_the_host), -EBADF);
  EXPECT_EQ(::close(of_the_host), 0) << "it was left open";
  EXPECT_EQ(cache::new_descriptor([] { return ::open("/nowhere", O_RDONLY); }), -ENOENT);
}

// A copy of the descriptor that this library does not know of would keep a lock for ever.
TEST_F(Descriptors, ALockEndsWithItsDescriptor) {
  cache::FileOps ops;
  const std::string path = folder_.path() + "/locked";
  const int file = ops.open_at(AT_FDCWD, path, O_RDWR | O_CREAT, 0600);
  ASSERT_GE(file, 0);
  const int copy = ::dup(file);
  ASSERT_EQ(ops.try_lock(file), 0);
  const int second = ops.open_at(AT_FDCWD, path, O_RDWR, 0);
  EXPECT_EQ(ops.try_lock(second), -EWOULDBLOCK);
  EXPECT_EQ(ops.close(file), 0);
  EXPECT_EQ(ops.try_lock(second), 0);
  ops.close(second);
  ::close(copy);
}

// Forks while another thread starts compilers, publishes and takes locks. A child that has a
// descriptor of the library keeps a compiler's death or a lock's end from being seen.
class ForkedChild : public Descriptors, public ::testing::WithParamInterface<bool> {};

TEST_P(ForkedChild, HasNoneOfThem) {
  const std::string cache_dir = GetParam() ? folder_.path() : "";
  ASSERT_TRUE(prepare_another(cache_dir)) << octile_last_error();
  const int of_the_host = count_descriptors();
  std::atomic<bool> done = false;
  std::atomic<int> prepared = 0;
  std::atomic<bool> failed = false;
  std::thread busy([&] {
    while (!done) (prepare_another(cache_dir) ? static_cast<void>(++prepared) : failed.store(true));
  });
  using Clock = std::chrono::steady_clock;
  const auto begin = Clock::now();
  const auto goes_on = [&] {
    const auto past = Clock::now() - begin;
    return past < std::chrono::milliseconds(500) ||
           (prepared < 2 && past < std::chrono::minutes(1));
  };
  int forks = 0;
  for (; goes_on(); ++forks) {
    std::this_thread::sleep_for(std::chrono::microseconds(forks * 37 % 900));
    const pid_t child = ::fork();
    if (child == 0) ::_exit(count_descriptors() == of_the_host ? kPassed : 1);
    int status = 0;
    ::waitpid(child, &status, 0);
    ASSERT_EQ(WEXITSTATUS(status), kPassed) << "fork " << forks;
  }
  done = true;
  busy.join();
  EXPECT_FALSE(failed);
  EXPECT_GT(prepared, 1);
  EXPECT_GT(forks, 10);
  EXPECT_EQ(count_descriptors(), of_the_host);
}

INSTANTIATE_TEST_SUITE_P(Of, ForkedChild, ::testing::Bool(), [](const auto& one) {
  return std::string(one.param ? "AHostThatPublishes" : "AHostThatStartsCompilers");
});

}  // namespace
}  // namespace octile::test
