// Forks while a thread is stopped within the library, and libraries that are not files.
#include "runtime/base/fork.h"

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <future>
#include <string>
#include <thread>

#include "cache/descriptor.h"
#include "cache/shared_library.h"
#include "octile/octile.h"
#include "tests/support/api_handles.h"

namespace octile {
namespace {

// The holder lets go once the fork is over, so that a fork without a bound would never end.
TEST(ForkWait, IsBoundedInAllAndTheChildIsTold) {
  std::promise<void> holding, forked;
  std::thread holder([&] {
    const std::scoped_lock tables(process_mutex(ProcessWide::kTables));
    const std::scoped_lock handles(process_mutex(ProcessWide::kHandles));
    const cache::WithoutFork opening;
    holding.set_value();
    forked.get_future().wait();
  });
  holding.get_future().wait();
  const auto began = std::chrono::steady_clock::now();
  const pid_t child = ::fork();
  if (child == 0) {
    octile_library* library = nullptr;
    const octile_status status = octile_library_create(nullptr, &library);
    const std::string sentence = octile_last_error();
    ::_exit(status == OCTILE_INVALID_ARGUMENT && sentence.starts_with("this process was forked")
                ? 0
                : 1);
  }
  const std::chrono::duration<double> waited = std::chrono::steady_clock::now() - began;
  forked.set_value();
  holder.join();
  int status = 0;
  ::waitpid(child, &status, 0);
  EXPECT_EQ(status, 0);
  EXPECT_LT(waited.count(), 20) << "1 s for all of them";
  EXPECT_FALSE(fork_lost()) << "the parent goes on";
}

TEST(OpenLibrary, DoesNotWaitForAFifo) {
  const test::TempFolder folder;
  const std::string path = folder.path() + "/libcuda.so.1";
  ASSERT_EQ(::mkfifo(path.c_str(), 0600), 0);
  const auto opened = cache::open_library(path);
  ASSERT_FALSE(opened);
  EXPECT_THAT(opened.error(), ::testing::HasSubstr("not a regular file"));
  EXPECT_THAT(cache::open_library(folder.path() + "/none").error(), ::testing::HasSubstr("none"));
  EXPECT_TRUE(cache::open_library("libc.so.6"));
}

}  // namespace
}  // namespace octile
