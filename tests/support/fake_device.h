// A device for tests of the C API without a GPU. It is the fake driver, and the host reference
// executor carries out each launch, in this process and in those of octile-prover.
#pragma once

#include <array>
#include <atomic>
#include <memory>
#include <utility>

#include "runtime/driver/context.h"
#include "runtime/driver/stream.h"
#include "tests/support/fake_driver_control.h"
#include "tests/support/fake_execution.h"

namespace octile::test {

// Must be the first driver that the C API opens in this process.
class FakeDevice {
 public:
  explicit FakeDevice(const char* devices = "h200,h200") : fake(devices) {
    setenv("OCTILE_LIBCUDA", OCTILE_FAKE_DRIVER_PATH, 1);
    setenv("FAKE_CUDA_EXECUTOR", OCTILE_FAKE_EXECUTOR_PATH, 1);
    fake.set_executor(execute, nullptr);
    driver = fake.open();
  }
  // Returns a context of the device and a guard, which makes it current in this thread.
  std::pair<PrimaryContext, ContextGuard> enter(int ordinal = 0) const {
    auto context = PrimaryContext::retain(driver, ordinal);
    auto guard = ContextGuard::enter(*driver, context->get());
    return {std::move(*context), std::move(*guard)};
  }

  FakeDriver fake;
  std::shared_ptr<const Driver> driver;
};

}  // namespace octile::test
