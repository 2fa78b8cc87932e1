#include "tests/gpu/session.h"

#include <algorithm>
#include <atomic>
#include <stdexcept>
#include <string>
#include <thread>

#include "runtime/compiler/nvrtc.h"
#include "runtime/launch/launch_kernel.h"
#include "tests/support/embedded_sources.h"

namespace octile::tests {
namespace {

// In a test binary a failed set-up call has no one to recover: stop with its sentence.
void require(const Status& status) {
  if (!status) throw std::runtime_error(status.error().message);
}

template <typename T>
T require(Result<T> result) {
  if (!result) throw std::runtime_error(result.error().message);
  return std::move(*result);
}

thread_local CUstream worker_stream_of_thread = nullptr;

}  // namespace

GpuSession* GpuSession::get() {
  static std::string ignored;
  static const std::unique_ptr<GpuSession> session = open(const_cast<std::string&>(why()));
  return session.get();
}

const std::string& GpuSession::why() {
  static std::string reason;
  return reason;
}

std::unique_ptr<GpuSession> GpuSession::open(std::string& why) {
  auto driver = Driver::open();
  if (!driver) {
    why = driver.error().message;
    return nullptr;
  }
  auto device = query_device(**driver, 0);
  const Status usable = device ? check_device(*device) : Status(tl::unexpect, device.error());
  if (!usable) {
    why = usable.error().message;
    return nullptr;
  }
  auto nvrtc = Nvrtc::open();
  if (!nvrtc) {
    why = nvrtc.error().message;
    return nullptr;
  }
  auto session = std::make_unique<GpuSession>();
  session->driver_ = *driver;
  session->device_ = *device;
  session->context_ = std::make_unique<PrimaryContext>(require(PrimaryContext::retain(*driver, 0)));
  const ContextGuard guard = require(ContextGuard::enter(**driver, session->context_->get()));
  session->stream_ = std::make_unique<Stream>(require(Stream::create(*driver)));
  const std::vector<std::string> options{"--gpu-architecture=" + device->arch(), "--std=c++17",
                                         "-default-device"};
  const CompileOutput checker = require((*nvrtc)->compile(
      "checker.cu", std::string(embedded::text_of("tests/gpu/checker.cu")), options));
  require(
      (*driver)->check((*driver)->api().cuLibraryLoadData(&session->checker_, checker.cubin.data(),
                                                          nullptr, nullptr, 0, nullptr, nullptr, 0),
                       "cuLibraryLoadData"));
  octile_library_options library{};
  library.struct_size = sizeof library;
  library.disable_cache = 1;
  if (octile_library_create(&library, &session->library_) != OCTILE_OK) {
    throw std::runtime_error(octile_last_error());
  }
  session->internals_ = std::make_unique<Library>(LibraryOptions{});
  return session;
}

void GpuSession::launch(const char* kernel, unsigned blocks, unsigned threads,
                        std::vector<void*> parameters) {
  KernelHandle handle;
  require(driver_->check((*driver_)->cuLibraryGetKernel(&handle.anywhere, checker_, kernel),
                         "cuLibraryGetKernel"));
  const LaunchSite site{.driver = *driver_, .stream = stream(), .in_primary = false};
  require(octile::launch(site, handle, launch_config(site, blocks, threads), parameters.data()));
}

void GpuSession::synchronize() {
  require(driver_->check((*driver_)->cuStreamSynchronize(stream()), "cuStreamSynchronize"));
}

CUstream GpuSession::worker_stream() { return worker_stream_of_thread; }

void GpuSession::for_each_on_cores(std::size_t count,
                                   const std::function<void(std::size_t)>& body) {
  std::atomic<std::size_t> next{0};
  const auto work = [&] {
    const ContextGuard guard = require(ContextGuard::enter(*driver_, context()));
    const Stream stream = require(Stream::create(driver_));
    worker_stream_of_thread = stream.get();
    for (std::size_t i = next++; i < count && !testing::Test::HasFailure(); i = next++) body(i);
    synchronize();
    worker_stream_of_thread = nullptr;
  };
  const std::size_t cores = std::max(1U, std::thread::hardware_concurrency());
  std::vector<std::thread> threads;
  for (std::size_t i = 0; i < std::min(cores, count); ++i) threads.emplace_back(work);
  for (std::thread& thread : threads) thread.join();
}

DeviceBuffer GpuSession::allocate(std::size_t bytes) {
  return require(DeviceBuffer::allocate(driver_, bytes));
}

DeviceBuffer GpuSession::zeroed(std::size_t bytes) {
  DeviceBuffer buffer = allocate(bytes);
  require(buffer.fill(0, stream()));
  return buffer;
}

std::uint64_t GpuSession::read_counter(const DeviceBuffer& counter) {
  std::uint64_t value = 0;
  require(counter.download(&value, sizeof value, stream()));
  synchronize();
  return value;
}

ActingDevice::ActingDevice(GpuSession& gpu, DeviceSpec device) : gpu_(gpu), own_(gpu.device()) {
  device.sm_major = own_.sm_major;
  device.sm_minor = own_.sm_minor;
  device.sm_count = own_.sm_count;
  gpu_.device_ = std::move(device);
}

void GpuTest::SetUp() {
  GpuSession* session = GpuSession::get();
  if (session == nullptr) GTEST_SKIP() << GpuSession::why();
  ASSERT_EQ((*session->driver())->cuCtxPushCurrent(session->context()), CUDA_SUCCESS);
  pushed_ = true;
}

void GpuTest::TearDown() {
  if (!pushed_) return;
  CUcontext popped = nullptr;
  (*GpuSession::get()->driver())->cuCtxPopCurrent(&popped);
}

void expect_ok(octile_status status, const char* what) {
  ASSERT_EQ(status, OCTILE_OK) << what << ": " << octile_last_error();
}

void count_cases(std::size_t ran, std::size_t skipped) {
  const testing::TestResult& result =
      *testing::UnitTest::GetInstance()->current_test_info()->result();
  const auto add = [&](const std::string& name, std::size_t count) {
    for (int i = 0; i < result.test_property_count(); ++i) {
      const testing::TestProperty& property = result.GetTestProperty(i);
      if (property.key() == name) count += std::stoul(property.value());
    }
    testing::Test::RecordProperty(name, std::to_string(count));
  };
  add(kCasesRan, ran);
  add(kCasesSkipped, skipped);
}

}  // namespace octile::tests
