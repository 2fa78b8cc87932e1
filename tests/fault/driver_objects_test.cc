// Buffers, streams, events, captures and launches, on the fake driver.
#include <gtest/gtest.h>

#include <array>
#include <cstring>
#include <thread>
#include <vector>

#include "runtime/compiler/nvrtc.h"
#include "runtime/driver/buffer.h"
#include "runtime/driver/context.h"
#include "runtime/driver/stream.h"
#include "tests/support/fake_driver_control.h"

namespace octile {
namespace {

using test::FakeDriver;

constexpr int kThreads = 128;

// Returns a cubin whose kernel computes x[i] += n for i < kThreads.
const std::vector<std::uint8_t>& adder_cubin() {
  static const std::vector<std::uint8_t> cubin = [] {
    const std::vector<std::string> options{"--gpu-architecture=sm_90a", "--std=c++17"};
    return Nvrtc::open()
        .value()
        ->compile("adder.cu",
                  "extern \"C\" __global__ void adder(float* x, int n) { x[threadIdx.x] += n; }",
                  options)
        .value()
        .cubin;
  }();
  return cubin;
}

class DriverObjects : public testing::Test {
 protected:
  void SetUp() override { make_current(0); }
  void make_current(int ordinal) {
    guard_.reset();
    context_ = std::make_unique<PrimaryContext>(PrimaryContext::retain(driver_, ordinal).value());
    guard_ = std::make_unique<ContextGuard>(ContextGuard::enter(*driver_, context_->get()).value());
  }
  CUkernel load() {
    CUlibrary library = nullptr;
    CUkernel kernel = nullptr;
    EXPECT_EQ((*driver_)->cuLibraryLoadData(&library, adder_cubin().data(), nullptr, nullptr, 0,
                                            nullptr, nullptr, 0),
              CUDA_SUCCESS);
    EXPECT_EQ((*driver_)->cuLibraryGetKernel(&kernel, library, "adder"), CUDA_SUCCESS);
    return kernel;
  }
  CUresult launch(CUkernel kernel, CUstream stream, CUdeviceptr x, int n, unsigned smem = 0,
                  unsigned cluster = 1) const {
    CUlaunchAttribute attribute = {};
    attribute.id = CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION;
    attribute.value.clusterDim = {cluster, 1, 1};
    CUlaunchConfig config = {};
    config.gridDimX = 4;
    config.gridDimY = config.gridDimZ = 1;
    config.blockDimX = kThreads;
    config.blockDimY = config.blockDimZ = 1;
    config.sharedMemBytes = smem;
    config.hStream = stream;
    config.attrs = &attribute;
    config.numAttrs = 1;
    std::array<void*, 2> parameters{&x, &n};
    return (*driver_)->cuLaunchKernelEx(&config, reinterpret_cast<CUfunction>(kernel),
                                        parameters.data(), nullptr);
  }

  FakeDriver fake_{"h200,a100"};
  std::shared_ptr<const Driver> driver_ = fake_.open();
  std::unique_ptr<PrimaryContext> context_;
  std::unique_ptr<ContextGuard> guard_;
};

// Does on the host what the kernel does.
CUresult add(const fake_cuda_launch* launch, void*) {
  float* x = nullptr;
  int n = 0;
  std::memcpy(&x, launch->parameters[0], sizeof(x));
  std::memcpy(&n, launch->parameters[1], sizeof(n));
  for (int i = 0; i < kThreads; ++i) x[i] += static_cast<float>(n);
  return CUDA_SUCCESS;
}

TEST_F(DriverObjects, BuffersCopyWithinTheirBounds) {
  auto buffer = DeviceBuffer::allocate(driver_, 8).value();
  const std::array<std::uint8_t, 4> source{1, 2, 3, 4};
  ASSERT_TRUE(buffer.fill(9, nullptr));
  ASSERT_TRUE(buffer.upload(source.data(), 4, nullptr, 2));
  std::array<std::uint8_t, 8> back{};
  ASSERT_TRUE(buffer.download(back.data(), 8, nullptr));
  EXPECT_EQ(back, (std::array<std::uint8_t, 8>{9, 9, 1, 2, 3, 4, 9, 9}));
  EXPECT_EQ(buffer.upload(source.data(), 4, nullptr, 5).error().code, ErrorCode::kInvalidArgument);
  EXPECT_EQ(buffer.download(back.data(), 1, nullptr, 9).error().code, ErrorCode::kInvalidArgument);
}

TEST_F(DriverObjects, BuffersAreFreedOnce) {
  {
    auto one = DeviceBuffer::allocate(driver_, 16).value();
    auto two = DeviceBuffer::allocate(driver_, 16).value();
    one = std::move(two);
    const DeviceBuffer three(std::move(one));
    EXPECT_EQ(three.bytes(), 16U);
  }
  EXPECT_EQ(fake_.live_allocations(), 0U);
  EXPECT_EQ(DeviceBuffer::allocate(driver_, 0)->get(), 0U);
}

TEST_F(DriverObjects, OutOfMemorySaysHowMuchWasAskedFor) {
  fake_.set_memory(1024);
  const auto buffer = DeviceBuffer::allocate(driver_, 2048);
  ASSERT_FALSE(buffer);
  EXPECT_EQ(buffer.error().code, ErrorCode::kOutOfMemory);
  EXPECT_NE(buffer.error().message.find("2048 bytes"), std::string::npos);
}

TEST_F(DriverObjects, AnInjectedFaultStrikesTheNthCall) {
  fake_.fail("cuMemAlloc_v2", CUDA_ERROR_ILLEGAL_ADDRESS, 2);
  EXPECT_TRUE(DeviceBuffer::allocate(driver_, 16));
  const auto second = DeviceBuffer::allocate(driver_, 16);
  ASSERT_FALSE(second);
  EXPECT_EQ(second.error().code, ErrorCode::kDeviceError);
  EXPECT_TRUE(DeviceBuffer::allocate(driver_, 16));
}

TEST_F(DriverObjects, EventsMeasureTime) {
  const auto stream = Stream::create(driver_).value();
  const auto start = Event::create(driver_).value();
  const auto stop = Event::create(driver_).value();
  EXPECT_FALSE(stop.elapsed_us_since(start)) << "neither was recorded";
  ASSERT_TRUE(start.record(stream.get()));
  std::this_thread::sleep_for(std::chrono::milliseconds(2));
  ASSERT_TRUE(stop.record(stream.get()));
  ASSERT_TRUE(stop.synchronize());
  EXPECT_GE(stop.elapsed_us_since(start).value(), 2000);
}

TEST_F(DriverObjects, ALaunchIsRecordedAndExecuted) {
  const CUkernel kernel = load();
  auto x = DeviceBuffer::allocate(driver_, kThreads * sizeof(float)).value();
  ASSERT_TRUE(x.fill(0, nullptr));
  const auto stream = Stream::create(driver_).value();
  fake_.set_executor(&add, nullptr);
  ASSERT_EQ(launch(kernel, stream.get(), x.get(), 3, 0, 2), CUDA_SUCCESS);
  std::array<float, kThreads> back{};
  ASSERT_TRUE(x.download(back.data(), sizeof(back), stream.get()));
  EXPECT_EQ(back[kThreads - 1], 3.0F);

  ASSERT_EQ(fake_.launch_count(), 1U);
  fake_cuda_launch seen = {};
  ASSERT_EQ(fake_.get_launch(0, &seen), 1);
  EXPECT_STREQ(seen.kernel, "adder");
  EXPECT_EQ(seen.grid[0], 4U);
  EXPECT_EQ(seen.block[0], static_cast<unsigned>(kThreads));
  EXPECT_EQ(seen.cluster[0], 2U);
  EXPECT_EQ(seen.stream, stream.get());
  EXPECT_EQ(seen.parameter_count, 2U);
  EXPECT_EQ(seen.replayed, 0);
  EXPECT_EQ(fake_.get_launch(1, &seen), 0);
}

TEST_F(DriverObjects, LaunchesAreHeldToTheDevicesLimits) {
  const CUkernel kernel = load();
  constexpr unsigned kWanted = 200 << 10;
  EXPECT_EQ(launch(kernel, nullptr, 0, 0, kWanted), CUDA_ERROR_INVALID_VALUE);
  ASSERT_EQ((*driver_)->cuKernelSetAttribute(CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES,
                                             kWanted, kernel, 0),
            CUDA_SUCCESS);
  EXPECT_EQ(launch(kernel, nullptr, 0, 0, kWanted), CUDA_SUCCESS);
  EXPECT_EQ(launch(kernel, nullptr, 0, 0, 0, 3), CUDA_ERROR_INVALID_VALUE) << "4 blocks, cluster 3";
  EXPECT_EQ((*driver_)->cuKernelSetAttribute(CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES,
                                             1 << 20, kernel, 0),
            CUDA_ERROR_INVALID_VALUE);
}

TEST_F(DriverObjects, AnotherArchitectureHasNoBinary) {
  const CUkernel kernel = load();
  EXPECT_EQ((*driver_)->cuKernelSetAttribute(CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES, 1024,
                                             kernel, 1),
            CUDA_ERROR_NO_BINARY_FOR_GPU);
  make_current(1);
  EXPECT_EQ(launch(kernel, nullptr, 0, 0), CUDA_ERROR_NO_BINARY_FOR_GPU);
}

TEST_F(DriverObjects, BadImagesAndNamesAreRefused) {
  CUlibrary library = nullptr;
  const std::vector<std::uint8_t> garbage(256, 0x5a);
  EXPECT_EQ((*driver_)->cuLibraryLoadData(&library, garbage.data(), nullptr, nullptr, 0, nullptr,
                                          nullptr, 0),
            CUDA_ERROR_INVALID_IMAGE);
  ASSERT_EQ((*driver_)->cuLibraryLoadData(&library, adder_cubin().data(), nullptr, nullptr, 0,
                                          nullptr, nullptr, 0),
            CUDA_SUCCESS);
  CUkernel kernel = nullptr;
  EXPECT_EQ((*driver_)->cuLibraryGetKernel(&kernel, library, "absent"), CUDA_ERROR_NOT_FOUND);
  EXPECT_EQ(fake_.live_libraries(), 1U);
  EXPECT_EQ((*driver_)->cuLibraryUnload(library), CUDA_SUCCESS);
  EXPECT_EQ((*driver_)->cuLibraryUnload(library), CUDA_ERROR_INVALID_HANDLE);
}

TEST_F(DriverObjects, ACaptureRecordsAndAGraphReplays) {
  const CUkernel kernel = load();
  auto x = DeviceBuffer::allocate(driver_, kThreads * sizeof(float)).value();
  ASSERT_TRUE(x.fill(0, nullptr));
  const auto stream = Stream::create(driver_).value();
  fake_.set_executor(&add, nullptr);
  const auto graph = Graph::capture(driver_, stream.get(), [&] {
    return driver_->check(launch(kernel, stream.get(), x.get(), 1), "cuLaunchKernelEx");
  });
  ASSERT_TRUE(graph) << graph.error().message;
  EXPECT_EQ(fake_.launch_count(), 0U);
  ASSERT_TRUE(graph->launch(stream.get()));
  ASSERT_TRUE(graph->launch(stream.get()));
  ASSERT_TRUE(stream.synchronize());
  std::array<float, kThreads> back{};
  ASSERT_TRUE(x.download(back.data(), sizeof(back), stream.get()));
  EXPECT_EQ(back[0], 2.0F);
  fake_cuda_launch seen = {};
  ASSERT_EQ(fake_.get_launch(1, &seen), 1);
  EXPECT_EQ(seen.replayed, 1);
}

TEST_F(DriverObjects, ACaptureProhibitsWhatAllocatesLoadsOrWaits) {
  const CUkernel kernel = load();
  const auto stream = Stream::create(driver_).value();
  CUlibrary library = nullptr;
  const std::vector<std::function<CUresult()>> prohibited{
      [&] {
        CUdeviceptr pointer = 0;
        return (*driver_)->cuMemAlloc(&pointer, 16);
      },
      [&] {
        return (*driver_)->cuLibraryLoadData(&library, adder_cubin().data(), nullptr, nullptr, 0,
                                             nullptr, nullptr, 0);
      },
      [&] {
        return (*driver_)->cuKernelSetAttribute(CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES, 1,
                                                kernel, 0);
      },
      [&] { return (*driver_)->cuStreamSynchronize(stream.get()); },
      [&] { return (*driver_)->cuCtxSynchronize(); },
  };
  for (const auto& call : prohibited) {
    Status inside;
    const auto graph = Graph::capture(driver_, stream.get(), [&] {
      inside = driver_->check(call(), "call");
      return Status();
    });
    ASSERT_FALSE(inside);
    EXPECT_EQ(inside.error().code, ErrorCode::kCapturing);
    ASSERT_FALSE(graph) << "the capture is invalidated";
    EXPECT_NE(graph.error().message.find("CAPTURE_INVALIDATED"), std::string::npos);
    CUstreamCaptureStatus status = CU_STREAM_CAPTURE_STATUS_ACTIVE;
    ASSERT_EQ((*driver_)->cuStreamIsCapturing(stream.get(), &status), CUDA_SUCCESS);
    EXPECT_EQ(status, CU_STREAM_CAPTURE_STATUS_NONE) << "the stream is usable again";
  }
}

TEST_F(DriverObjects, ARelaxedThreadMayAllocateDuringItsCapture) {
  const auto stream = Stream::create(driver_).value();
  const auto graph = Graph::capture(driver_, stream.get(), [&] {
    CUstreamCaptureMode mode = CU_STREAM_CAPTURE_MODE_RELAXED;
    (*driver_)->cuThreadExchangeStreamCaptureMode(&mode);
    const auto buffer = DeviceBuffer::allocate(driver_, 16);
    const Status allocated = buffer ? Status() : Status(tl::unexpected(buffer.error()));
    return allocated;
  });
  CUstreamCaptureMode mode = CU_STREAM_CAPTURE_MODE_GLOBAL;
  (*driver_)->cuThreadExchangeStreamCaptureMode(&mode);
  EXPECT_TRUE(graph) << graph.error().message;
}

TEST_F(DriverObjects, AFailingCaptureReturnsItsOwnError) {
  const auto stream = Stream::create(driver_).value();
  const auto graph = Graph::capture(driver_, stream.get(),
                                    [] { return Status(fail(ErrorCode::kUnsupported, "mine")); });
  ASSERT_FALSE(graph);
  EXPECT_EQ(graph.error().message, "mine");
}

TEST_F(DriverObjects, TensorMapsAreHeldToTheDocumentedRules) {
  CUtensorMap map = {};
  auto data = DeviceBuffer::allocate(driver_, 4096).value();
  const std::array<cuuint64_t, 2> dims{64, 64};
  const std::array<cuuint32_t, 2> box{64, 8};
  const std::array<cuuint32_t, 2> steps{1, 1};
  const auto encode = [&](cuuint64_t stride, cuuint32_t inner, cuuint64_t address) {
    const std::array<cuuint32_t, 2> tile{inner, box[1]};
    return (*driver_)->cuTensorMapEncodeTiled(
        &map, CU_TENSOR_MAP_DATA_TYPE_UINT8, 2, reinterpret_cast<void*>(address), dims.data(),
        &stride, tile.data(), steps.data(), CU_TENSOR_MAP_INTERLEAVE_NONE,
        CU_TENSOR_MAP_SWIZZLE_64B, CU_TENSOR_MAP_L2_PROMOTION_NONE,
        CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
  };
  ASSERT_EQ(encode(64, 64, data.get()), CUDA_SUCCESS);
  fake_cuda_tensor_map read = {};
  std::memcpy(&read, &map, sizeof(read));
  EXPECT_EQ(read.magic, FAKE_CUDA_TENSOR_MAP_MAGIC);
  EXPECT_EQ(read.address, data.get());
  EXPECT_EQ(read.box[1], 8U);
  EXPECT_EQ(encode(72, 64, data.get()), CUDA_ERROR_INVALID_VALUE) << "stride not 16-byte aligned";
  EXPECT_EQ(encode(64, 128, data.get()), CUDA_ERROR_INVALID_VALUE) << "box wider than the swizzle";
  EXPECT_EQ(encode(64, 64, data.get() + 8), CUDA_ERROR_INVALID_VALUE) << "address misaligned";
}

TEST_F(DriverObjects, ThreadsLaunchOnStreamsOfTheirOwn) {
  constexpr std::size_t kStreams = 6;
  constexpr std::size_t kLaunches = 50;
  const CUkernel kernel = load();
  fake_.set_executor(&add, nullptr);
  std::array<float, kStreams> sums{};
  std::vector<std::thread> threads;
  for (float& sum : sums)
    threads.emplace_back([&] {
      const auto guard = ContextGuard::enter(*driver_, context_->get());
      const auto stream = Stream::create(driver_).value();
      auto x = DeviceBuffer::allocate(driver_, kThreads * sizeof(float)).value();
      std::array<float, kThreads> back{};
      bool good = x.fill(0, stream.get()).has_value();
      for (std::size_t i = 0; i < kLaunches; ++i)
        good = good && launch(kernel, stream.get(), x.get(), 1) == CUDA_SUCCESS;
      good = good && x.download(back.data(), sizeof(back), stream.get());
      sum = good ? back[0] : -1;
    });
  for (std::thread& thread : threads) thread.join();
  for (const float sum : sums) EXPECT_EQ(sum, static_cast<float>(kLaunches));
  EXPECT_EQ(fake_.launch_count(), kStreams * kLaunches);
  EXPECT_EQ(fake_.live_streams(), 0U);
}

}  // namespace
}  // namespace octile
