// Opening the driver, the errors if that fails, devices and contexts.
#include <gtest/gtest.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <initializer_list>
#include <set>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "runtime/driver/context.h"
#include "runtime/driver/device.h"
#include "runtime/driver/driver_build.h"
#include "tests/support/api_handles.h"
#include "tests/support/fake_driver_control.h"

namespace octile {
namespace {

using test::FakeDriver;

TEST(DriverOpen, SaysWhatIsMissingAndWhatItCosts) {
  const auto driver = Driver::open("/nowhere/libcuda.so.1");
  ASSERT_FALSE(driver);
  EXPECT_EQ(driver.error().code, ErrorCode::kNoDriver);
  EXPECT_NE(driver.error().message.find("/nowhere/libcuda.so.1"), std::string::npos);
  EXPECT_NE(driver.error().message.find("planning"), std::string::npos);
}

TEST(DriverOpen, RefusesALibraryThatIsNoDriver) {
  const auto driver = Driver::open("libm.so.6");
  ASSERT_FALSE(driver);
  EXPECT_EQ(driver.error().code, ErrorCode::kNoDriver);
  EXPECT_NE(driver.error().message.find("does not export cuInit"), std::string::npos);
}

// All of these run before the process has opened the fake successfully, because an opened driver is
// kept. They form one test, because gtest_discover_tests may also run the file as a whole.
TEST(DriverOpen, FailuresAreNotRemembered) {
  FakeDriver fake("h200,h200");
  setenv("FAKE_CUDA_VERSION", "11080", 1);
  const auto old = Driver::open(OCTILE_FAKE_DRIVER_PATH);
  unsetenv("FAKE_CUDA_VERSION");
  ASSERT_FALSE(old);
  EXPECT_EQ(old.error().code, ErrorCode::kNoDriver);
  EXPECT_NE(old.error().message.find("is of CUDA 11.8; 12.0 or newer"), std::string::npos);

  fake.fail("cuInit", CUDA_ERROR_SYSTEM_NOT_READY, 1);
  const auto not_ready = Driver::open(OCTILE_FAKE_DRIVER_PATH);
  ASSERT_FALSE(not_ready);
  EXPECT_NE(not_ready.error().message.find("CUDA_ERROR_SYSTEM_NOT_READY"), std::string::npos);

  setenv("FAKE_CUDA_DEVICES", "none", 1);
  fake.reset();
  const auto none = Driver::open(OCTILE_FAKE_DRIVER_PATH);
  ASSERT_FALSE(none);
  EXPECT_EQ(none.error().code, ErrorCode::kNoDriver);
  EXPECT_NE(none.error().message.find("CUDA_ERROR_NO_DEVICE"), std::string::npos);

  setenv("FAKE_CUDA_DEVICES", "h200,h200", 1);
  setenv("OCTILE_LIBCUDA", OCTILE_FAKE_DRIVER_PATH, 1);
  const auto opened = Driver::open();
  unsetenv("OCTILE_LIBCUDA");
  ASSERT_TRUE(opened) << opened.error().message;
  EXPECT_EQ((*opened)->device_count(), 2);
  EXPECT_EQ((*opened)->version_text(), "13.0");
  EXPECT_EQ(*opened, Driver::open(OCTILE_FAKE_DRIVER_PATH).value()) << "opened once per path";
}

// Under WSL every driver's file has one name. Where there is a module, it may be updated alone.
TEST(DriverBuild, TellsFilesOfOneNameApart) {
  const test::TempFolder folder;
  const std::string file = folder.path() + "/libcuda.so.1", module = folder.path() + "/version";
  const auto build = [&] { return driver_build("13.0", file, module); };
  const auto write = [](const std::string& path, const char* text) { std::ofstream(path) << text; };
  std::vector<std::string> builds{build()};
  write(file, "one");
  builds.push_back(build());
  EXPECT_EQ(builds.back(), build());
  EXPECT_EQ(builds.back().find("13.0 libcuda.so.1 "), 0U) << builds.back();
  EXPECT_EQ(builds.back().find(folder.path()), std::string::npos);
  write(file, "another");
  builds.push_back(build());
  std::filesystem::last_write_time(file, {});
  builds.push_back(build());
  // Another inode, and nothing else.
  const std::string copy = folder.path() + "/copy";
  write(copy, "another");
  std::filesystem::last_write_time(copy, {});
  std::filesystem::rename(copy, file);
  builds.push_back(build());
  write(module, "NVRM version: 580.95.05");
  builds.push_back(build());
  write(module, "NVRM version: 580.95.06");
  builds.push_back(build());
  const std::set<std::string> different(builds.begin(), builds.end());
  EXPECT_EQ(different.size(), builds.size());
}

// A file that is replaced while it is loaded does not change the build that runs.
TEST(DriverBuild, IsOfTheFileThatWasOpened) {
  const test::TempFolder folder;
  std::vector<std::string> builds;
  for (const char* name : {"a", "b"}) {
    const std::string path = folder.path() + "/" + name + "/libcuda.so.1";
    std::filesystem::create_directories(folder.path() + "/" + name);
    std::filesystem::copy_file(OCTILE_FAKE_DRIVER_PATH, path);
    const auto driver = Driver::open(path);
    ASSERT_TRUE(driver) << driver.error().message;
    builds.push_back((*driver)->build());
    std::filesystem::last_write_time(path, {});
    EXPECT_EQ((*driver)->build(), builds.back());
    EXPECT_NE(driver_build("13.0", path), builds.back());
  }
  EXPECT_NE(builds[0], builds[1]);
}

TEST(DriverOpen, ThreadsShareOneDriver) {
  const FakeDriver fake;
  std::vector<std::shared_ptr<const Driver>> opened(8);
  std::vector<std::thread> threads;
  for (auto& driver : opened)
    threads.emplace_back([&driver] { driver = Driver::open(OCTILE_FAKE_DRIVER_PATH).value(); });
  for (std::thread& thread : threads) thread.join();
  for (const auto& driver : opened) EXPECT_EQ(driver, opened.front());
}

TEST(DriverCheck, MapsResultsToCodesAndSentences) {
  const auto driver = FakeDriver().open();
  EXPECT_TRUE(driver->check(CUDA_SUCCESS, "cuMemAlloc"));
  EXPECT_EQ(driver->check(CUDA_ERROR_OUT_OF_MEMORY, "cuMemAlloc").error().code,
            ErrorCode::kOutOfMemory);
  EXPECT_EQ(driver->check(CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED, "cuMemAlloc").error().code,
            ErrorCode::kCapturing);
  const Error error = driver->check(CUDA_ERROR_INVALID_VALUE, "cuLaunchKernelEx").error();
  EXPECT_EQ(error.code, ErrorCode::kDeviceError);
  EXPECT_EQ(error.message, "cuLaunchKernelEx failed: CUDA_ERROR_INVALID_VALUE (invalid argument)");
  const Error unknown = driver->check(CUDA_ERROR_PEER_ACCESS_UNSUPPORTED, "cuInit").error();
  EXPECT_EQ(unknown.message, "cuInit failed: CUresult 217 (unknown to this driver)");
}

TEST(DeviceName, IsNormalised) {
  EXPECT_EQ(normalize_device_name("NVIDIA H200"), "h200");
  EXPECT_EQ(normalize_device_name("NVIDIA H100 80GB HBM3"), "h100-80gb-hbm3");
  EXPECT_EQ(normalize_device_name("Tesla V100-SXM2 (16GB)"), "tesla-v100-sxm2-16gb");
  EXPECT_EQ(normalize_device_name(""), "");
}

TEST(QueryDevice, RecognisesAKnownDevice) {
  const auto driver = FakeDriver("h200,h100").open();
  const auto spec = query_device(*driver, 0);
  ASSERT_TRUE(spec) << spec.error().message;
  const DeviceSpec* known = find_device("h200");
  ASSERT_NE(known, nullptr);
  EXPECT_EQ(spec->name, "h200");
  EXPECT_EQ(spec->full_name, "NVIDIA H200");
  EXPECT_EQ(spec->sm_count, 132);
  EXPECT_EQ(spec->max_smem_per_block_bytes, 232448);
  EXPECT_EQ(spec->fp8_tflops, known->fp8_tflops);
  EXPECT_GT(spec->dram_gb, 0) << "as the driver says";
  EXPECT_TRUE(spec->has_unit(MatrixUnit::kWgmma));
  EXPECT_EQ(spec->smem_per_sm_bytes, known->smem_per_sm_bytes);
  EXPECT_EQ(query_device(*driver, 1)->name, "h100");
}

// A part of an H100 has nearly as few SMs as an H20, but an H100's tensor cores.
TEST(QueryDevice, TensorCoresAreThoseOfTheName) {
  const auto driver = FakeDriver("h20,h100-part,h100").open();
  const auto h20 = query_device(*driver, 0);
  ASSERT_TRUE(h20) << h20.error().message;
  EXPECT_EQ(h20->name, "h20");
  EXPECT_EQ(h20->flops_per_cycle(MatrixUnit::kWgmma), 2048);
  EXPECT_FALSE(h20->is_measured);
  const auto part = query_device(*driver, 1);
  ASSERT_TRUE(part) << part.error().message;
  EXPECT_EQ(part->flops_per_cycle(MatrixUnit::kWgmma), 8192);
  EXPECT_FALSE(part->is_measured);
  EXPECT_TRUE(query_device(*driver, 2)->is_measured);
}

TEST(QueryDevice, ScalesAnUnknownDevice) {
  const auto driver = FakeDriver("a100,h200").open();
  const auto spec = query_device(*driver, 0);
  ASSERT_TRUE(spec) << spec.error().message;
  EXPECT_EQ(spec->name, "a100-sxm4-80gb");
  EXPECT_TRUE(spec->units.empty());
  EXPECT_EQ(spec->fp8_tflops, 0);  // no known card has its compute capability
  EXPECT_GT(spec->clock_ghz, 0);
  // 2 edges x 1593 MHz x 5120 bits give the data sheet's 2.04 TB/s.
  EXPECT_NEAR(spec->dram_tbps, 2.04, 0.01);
}

// A live and a named device agree in the facts that the compute capability decides.
TEST(QueryDevice, CardsWithoutKernelsAreDescribed) {
  const auto driver = FakeDriver("l40s,rtx5090,b200").open();
  for (const auto& [ordinal, name] : std::initializer_list<std::pair<int, const char*>>{
           {0, "l40s"}, {1, "rtx5090"}, {2, "b200"}}) {
    const auto live = query_device(*driver, ordinal);
    ASSERT_TRUE(live) << live.error().message;
    const DeviceSpec& known = *find_device(name);
    EXPECT_EQ(live->name, name);
    EXPECT_EQ(live->units, known.units);
    EXPECT_EQ(live->threads_per_sm, known.threads_per_sm);
    EXPECT_EQ(live->max_smem_per_block_bytes, known.max_smem_per_block_bytes);
    EXPECT_EQ(live->fp8_tflops, known.fp8_tflops);
    EXPECT_FALSE(live->is_measured);
  }
}

TEST(QueryDevice, RefusesAnAbsentOrdinal) {
  const auto driver = FakeDriver().open();
  for (const int ordinal : {-1, 2}) {
    const auto spec = query_device(*driver, ordinal);
    ASSERT_FALSE(spec);
    EXPECT_EQ(spec.error().code, ErrorCode::kInvalidArgument);
  }
}

TEST(QueryDevice, PassesADriverErrorOn) {
  FakeDriver fake;
  const auto driver = fake.open();
  fake.fail("cuDeviceGetAttribute", CUDA_ERROR_UNKNOWN, 3);
  const auto spec = query_device(*driver, 0);
  ASSERT_FALSE(spec);
  EXPECT_EQ(spec.error().message,
            "cuDeviceGetAttribute failed: CUDA_ERROR_UNKNOWN (unknown error)");
}

TEST(ContextGuard, PushesOnlyWhereNeeded) {
  FakeDriver fake;
  const auto driver = fake.open();
  const auto first = PrimaryContext::retain(driver, 0);
  const auto second = PrimaryContext::retain(driver, 1);
  ASSERT_TRUE(first && second);
  EXPECT_NE(first->get(), second->get());
  CUcontext current = nullptr;
  {
    const auto outer = ContextGuard::enter(*driver, first->get());
    ASSERT_TRUE(outer);
    const auto same = ContextGuard::enter(*driver, first->get());
    EXPECT_EQ(fake.call_count("cuCtxPushCurrent_v2"), 1U);
    {
      const auto inner = ContextGuard::enter(*driver, second->get());
      (*driver)->cuCtxGetCurrent(&current);
      EXPECT_EQ(current, second->get());
    }
    (*driver)->cuCtxGetCurrent(&current);
    EXPECT_EQ(current, first->get());
  }
  (*driver)->cuCtxGetCurrent(&current);
  EXPECT_EQ(current, nullptr);
}

TEST(PrimaryContext, IsReleasedOnce) {
  FakeDriver fake;
  const auto driver = fake.open();
  {
    auto context = PrimaryContext::retain(driver, 0);
    ASSERT_TRUE(context);
    PrimaryContext moved = std::move(*context);
    EXPECT_NE(moved.get(), nullptr);
  }
  EXPECT_EQ(fake.call_count("cuDevicePrimaryCtxRelease_v2"), 1U);
}

}  // namespace
}  // namespace octile
