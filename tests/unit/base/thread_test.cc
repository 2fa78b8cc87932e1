#include "runtime/base/thread.h"

#include <gtest/gtest.h>

#include <atomic>
#include <stdexcept>
#include <utility>

namespace octile {
namespace {

std::size_t own_stack() {
  pthread_attr_t attributes;
  pthread_getattr_np(pthread_self(), &attributes);
  std::size_t bytes = 0;
  pthread_attr_getstacksize(&attributes, &bytes);
  pthread_attr_destroy(&attributes);
  return bytes;
}

TEST(Thread, HasTheStackThatItStates) {
  std::atomic<std::size_t> bytes = 0;
  Thread thread([&] { bytes = own_stack(); }, std::size_t{3} << 20);
  Thread moved(std::move(thread));
  moved.join();
  moved.join();
  EXPECT_GE(bytes, std::size_t{3} << 20) << "the stack of a thread that ended may be taken again";
}

TEST(Thread, ItsDestructorWaits) {
  std::atomic<bool> done = false;
  {
    const Thread thread([&] { done = true; });
  }
  EXPECT_TRUE(done);
}

TEST(RunOnStack, WaitsAndPassesExceptionsOn) {
  std::size_t bytes = 0;
  run_on_stack(kStackBytesOfNvrtc, [&] { bytes = own_stack(); });
  EXPECT_GE(bytes, kStackBytesOfNvrtc);
  EXPECT_THROW(run_on_stack(1 << 20, [] { throw std::runtime_error("work"); }), std::runtime_error);
}

}  // namespace
}  // namespace octile
