// The GPU the suite runs on and the kernels it checks with, opened once. Without a GPU every test
// skips.
#pragma once

#include <gtest/gtest.h>

#include <array>
#include <cstdint>
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

namespace octile::tests {

struct Verdict {
  std::uint64_t violations = 0;
  std::int64_t first = -1;
  float worst_c = 0;
  float worst_rel = 0;
};

class GpuSession {
 public:
  // Null where there is no driver, no GPU with FP8 WGMMA or no NVRTC; why() says which.
  static GpuSession* get();
  static const std::string& why();

  const std::shared_ptr<const Driver>& driver() const { return driver_; }
  const DeviceSpec& device() const { return device_; }
  CUcontext context() const { return context_->get(); }
  CUstream stream() const { return stream_->get(); }
  octile_library* library() const { return library_; }  // the public handle
  Library& internals() { return *internals_; }          // explicit configurations

  // Grid-stride helpers and the checker, on the session's stream.
  void launch(const char* kernel, unsigned blocks, unsigned threads, std::vector<void*> parameters);
  void synchronize();
  DeviceBuffer allocate(std::size_t bytes);
  DeviceBuffer zeroed(std::size_t bytes);
  std::uint64_t read_counter(const DeviceBuffer& counter);

 private:
  static std::unique_ptr<GpuSession> open(std::string& why);
  std::shared_ptr<const Driver> driver_;
  DeviceSpec device_;
  std::unique_ptr<PrimaryContext> context_;
  std::unique_ptr<Stream> stream_;
  CUlibrary checker_ = nullptr;
  octile_library* library_ = nullptr;
  std::unique_ptr<Library> internals_;
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

}  // namespace octile::tests
