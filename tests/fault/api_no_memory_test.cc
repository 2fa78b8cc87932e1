// Calls that fail where the host has no memory left. The status and the sentence need none, also in
// a thread whose first error this is, and nothing ends the process.
#include <gtest/gtest.h>
#include <pthread.h>
#include <sys/resource.h>

#include <cstdlib>
#include <cstring>
#include <string>
#include <thread>

#include "octile/octile.h"
#include "tests/support/cache_testing.h"

// A sanitizer keeps memory of its own, ends the process when it is out of it, and cannot live with
// a bound of the address space.
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
constexpr bool kSanitized = true;
#else
constexpr bool kSanitized = false;
#endif

namespace octile::test {
namespace {

using cache::testing::Child;

// Takes all memory that malloc can give, so that not even 16 bytes are left.
void exhaust() {
  struct rlimit limit = {};
  ::getrlimit(RLIMIT_AS, &limit);
  limit.rlim_cur = 1;  // no further page
  ::setrlimit(RLIMIT_AS, &limit);
  for (std::size_t bytes = std::size_t{1} << 20; bytes >= 16; bytes /= 2) {
    while (auto* block = static_cast<char*>(std::malloc(bytes))) block[0] = 1;
  }
}

void release() {
  struct rlimit limit = {};
  ::getrlimit(RLIMIT_AS, &limit);
  limit.rlim_cur = limit.rlim_max;
  ::setrlimit(RLIMIT_AS, &limit);
}

struct Seen {
  octile_status status = OCTILE_OK;
  char sentence[256] = {};
};

// A call whose error has a sentence that is composed.
void fail_once(Seen& seen) {
  seen.status = octile_library_create(nullptr, nullptr);
  std::strncpy(seen.sentence, octile_last_error(), sizeof seen.sentence - 1);
}

TEST(NoMemory, AThreadsFirstErrorIsAStatus) {
  if (kSanitized) GTEST_SKIP() << "a sanitizer ends the process that is out of memory";
  const std::string report =
      Child([]() -> std::string {
        Seen seen;
        exhaust();
        fail_once(seen);
        release();
        if (seen.status != OCTILE_OUT_OF_MEMORY) {
          return "status " + std::to_string(seen.status);
        }
        const std::string sentence = seen.sentence;
        return sentence.find("no memory left") != std::string::npos ? "" : "sentence: " + sentence;
      }).wait();
  EXPECT_EQ(report, "");
}

TEST(NoMemory, AnErrorAfterAnotherKeepsItsOwnSentence) {
  if (kSanitized) GTEST_SKIP() << "a sanitizer ends the process that is out of memory";
  const std::string report =
      Child([]() -> std::string {
        Seen first;
        fail_once(first);
        Seen second;
        exhaust();
        fail_once(second);
        release();
        Seen third;
        fail_once(third);
        if (first.status != OCTILE_INVALID_ARGUMENT) return "first";
        if (second.status != OCTILE_OUT_OF_MEMORY) return "second";
        if (std::strcmp(second.sentence, "the host has no memory left for this call") != 0) {
          return std::string("sentence: ") + second.sentence;
        }
        return std::strcmp(first.sentence, third.sentence) == 0
                   ? ""
                   : std::string("third: ") + third.sentence;
      }).wait();
  EXPECT_EQ(report, "");
}

// The buffer of a thread is made when it first fails. In a thread of its own, whose storage the
// loader would have to make, too.
TEST(NoMemory, AnotherThreadsFirstErrorIsAStatus) {
  if (kSanitized) GTEST_SKIP() << "a sanitizer ends the process that is out of memory";
  const std::string report =
      Child([]() -> std::string {
        pthread_barrier_t ready;
        ::pthread_barrier_init(&ready, nullptr, 2);
        Seen seen;
        std::thread other([&] {
          ::pthread_barrier_wait(&ready);  // it runs
          ::pthread_barrier_wait(&ready);  // memory is out
          fail_once(seen);
        });
        ::pthread_barrier_wait(&ready);
        exhaust();
        ::pthread_barrier_wait(&ready);
        other.join();
        release();
        return seen.status == OCTILE_OUT_OF_MEMORY ? "" : "status " + std::to_string(seen.status);
      }).wait();
  EXPECT_EQ(report, "");
}

}  // namespace
}  // namespace octile::test
