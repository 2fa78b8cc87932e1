// The GPU on which the suite runs and the kernels it checks with, opened once. Without a GPU every
// test skips.
#pragma once

#include <gtest/gtest.h>

#include <array>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "octile/octile.h"
#include "runtime/driver/buffer.h"
#include "runtime/driver/context.h"
#include "runtime/driver/device.h"
#include "runtime/driver/driver.h"
#include "runtime/driver/stream.h"
#include "runtime/engine/library.h"
#include "tests/support/coverage.h"

namespace octile::tests {

struct Verdict {
  std::uint64_t violations = 0;
  std::int64_t first = -1;
  float worst_c = 0;
  float worst_rel = 0;
};

class GpuSession {
 public:
  // Returns null if there is no driver, no GPU for which kernels exist or no NVRTC; why() says
  // which.
  static GpuSession* get();
  static const std::string& why();

  const std::shared_ptr<const Driver>& driver() const { return driver_; }
  const DeviceSpec& device() const { return device_; }
  CUcontext context() const { return context_->get(); }
  // Returns the calling thread's stream: a worker's own, else the session's.
  CUstream stream() const { return is_worker() ? worker_stream() : stream_->get(); }
  // Neither has a cache on disk: every kernel is compiled in this process, once.
  octile_library* library() const { return library_; }  // the public handle
  Library& internals() { return *internals_; }          // explicit configurations

  // Calls body(i) for every i below `count`, on as many threads as there are cores, each a worker
  // with a stream of its own. The host spends most of a comparison on input, reference and
  // compilation; the kernels of other workers run meanwhile. After a failure no further case
  // begins.
  void for_each_on_cores(std::size_t count, const std::function<void(std::size_t)>& body);
  // Returns true on a thread of for_each_on_cores.
  static bool is_worker() { return worker_stream() != nullptr; }
  // Returns the worker's stream, or null on other threads.
  static CUstream worker_stream();

  // Launches a kernel of checker.cu on stream().
  void launch(const char* kernel, unsigned blocks, unsigned threads, std::vector<void*> parameters);
  void synchronize();
  DeviceBuffer allocate(std::size_t bytes);
  DeviceBuffer zeroed(std::size_t bytes);
  std::uint64_t read_counter(const DeviceBuffer& counter);

 private:
  friend class ActingDevice;
  static std::unique_ptr<GpuSession> open(std::string& why);
  std::shared_ptr<const Driver> driver_;
  DeviceSpec device_;
  std::unique_ptr<PrimaryContext> context_;
  std::unique_ptr<Stream> stream_;
  CUlibrary checker_ = nullptr;
  octile_library* library_ = nullptr;
  std::unique_ptr<Library> internals_;
};

// While it lives, cases take configurations and texts of another device, which the GPU at hand can
// run: its architecture stays. Plans are still those of the GPU.
class ActingDevice {
 public:
  ActingDevice(GpuSession& gpu, DeviceSpec device);
  ~ActingDevice() { gpu_.device_ = own_; }
  ActingDevice(const ActingDevice&) = delete;
  ActingDevice& operator=(const ActingDevice&) = delete;

 private:
  GpuSession& gpu_;
  const DeviceSpec own_;
};

// Base of every GPU test: skips without a GPU, makes the primary context current.
class GpuTest : public ::testing::Test {
 protected:
  void SetUp() override;
  void TearDown() override;
  GpuSession& gpu() { return *GpuSession::get(); }

 private:
  bool pushed_ = false;
};

// Fails the test (fatally) with the library's sentence.
void expect_ok(octile_status status, const char* what);

// Adds to the running test's counts, which the report has: cases that ran, and cases that only
// --all runs.
void count_cases(std::size_t ran, std::size_t skipped);
inline constexpr const char* kCasesRan = "cases_ran";
inline constexpr const char* kCasesSkipped = "cases_skipped";

// Returns all cases with --all, else the covering ones; counts both.
template <typename Case>
std::vector<Case> choose_cases(const std::vector<Case>& all, const std::vector<Case>& covering) {
  const std::vector<Case>& chosen = runs_all_cases() ? all : covering;
  count_cases(chosen.size(), all.size() - chosen.size());
  return chosen;
}

}  // namespace octile::tests
