#include "streams.h"

#include <dlfcn.h>

#include <cstring>
#include <future>
#include <stdexcept>
#include <string>
#include <utility>

// Only builds of PyTorch with CUDA have them, and declare them to sources that say that they use
// CUDA.
struct CUDAStreamGuardOpaque;
extern "C" {
__attribute__((weak)) AOTITorchError aoti_torch_create_cuda_stream_guard(
    void* stream, std::int32_t device_index, CUDAStreamGuardOpaque** ret_guard);
__attribute__((weak)) AOTITorchError
aoti_torch_delete_cuda_stream_guard(CUDAStreamGuardOpaque* guard);
}

namespace octile::binding {
namespace {

// Functions of the driver; null if this process has not loaded it. The last three outputs of
// capture_info are optional.
struct Driver {
  int (*capture_info)(void* stream, int* status, std::uint64_t* id, void* graph, void* dependencies,
                      std::size_t* count);
  int (*fill)(std::uint64_t address, unsigned value, std::size_t count, void* stream);
  int (*synchronize)();
  int (*read)(void* target, std::uint64_t source, std::size_t bytes);
  int (*create_event)(void** event, unsigned flags);
  int (*destroy_event)(void* event);
  int (*record_event)(void* event, void* stream);
  int (*wait_event)(void* stream, void* event, unsigned flags);
  int (*current_context)(void** context);
  int (*device)(int* device, int ordinal);
  int (*retain_context)(void** context, int device);
  int (*set_context)(void* context);
  int (*exchange_capture_mode)(int* mode);
};

template <typename Function>
void find(void* library, const char* name, Function& function) {
  function = library == nullptr ? nullptr : reinterpret_cast<Function>(dlsym(library, name));
}

const Driver& driver() {
  static const Driver found = [] {
    void* library = dlopen("libcuda.so.1", RTLD_LAZY | RTLD_NOLOAD);
    Driver functions{};
    find(library, "cuStreamGetCaptureInfo_v2", functions.capture_info);
    find(library, "cuMemsetD32Async", functions.fill);
    find(library, "cuCtxSynchronize", functions.synchronize);
    find(library, "cuMemcpyDtoH_v2", functions.read);
    find(library, "cuEventCreate", functions.create_event);
    find(library, "cuEventDestroy_v2", functions.destroy_event);
    find(library, "cuEventRecord", functions.record_event);
    find(library, "cuStreamWaitEvent", functions.wait_event);
    find(library, "cuCtxGetCurrent", functions.current_context);
    find(library, "cuDeviceGet", functions.device);
    find(library, "cuDevicePrimaryCtxRetain", functions.retain_context);
    find(library, "cuCtxSetCurrent", functions.set_context);
    find(library, "cuThreadExchangeStreamCaptureMode", functions.exchange_capture_mode);
    return functions;
  }();
  return found;
}

template <typename Function, typename... Arguments>
void call(const char* name, Function function, Arguments... arguments) {
  const int error = function == nullptr ? -1 : function(arguments...);
  if (error != 0) {
    throw std::runtime_error(std::string("octile: ") + name + " of the CUDA driver failed with " +
                             std::to_string(error));
  }
}

// Makes the primary context current if the thread has none. CUDA's runtime does it for a thread of
// its own accord, but not before the thread's first call. The caller has made the device current.
void bind_context(const Place& place) {
  void* context = nullptr;
  call("cuCtxGetCurrent", driver().current_context, &context);
  if (context != nullptr) return;
  int device = 0;
  call("cuDeviceGet", driver().device, &device, static_cast<int>(place.device_index));
  // PyTorch keeps it for as long as the process lives, and so may we.
  call("cuDevicePrimaryCtxRetain", driver().retain_context, &context, device);
  call("cuCtxSetCurrent", driver().set_context, context);
}

// Makes a stream the current one while it lives.
class OnStream {
 public:
  explicit OnStream(const Place& place) {
    if (aoti_torch_create_cuda_stream_guard == nullptr ||
        aoti_torch_create_cuda_stream_guard(place.stream, place.device_index, &guard_) !=
            TORCH_SUCCESS) {
      throw std::runtime_error("octile: PyTorch failed in stream_guard");
    }
  }
  ~OnStream() { aoti_torch_delete_cuda_stream_guard(guard_); }
  OnStream(const OnStream&) = delete;
  OnStream& operator=(const OnStream&) = delete;

 private:
  CUDAStreamGuardOpaque* guard_ = nullptr;
};

}  // namespace

std::uint64_t capture_of(const Place& place) {
  if (place.host || driver().capture_info == nullptr) return 0;
  constexpr int kActive = 1;
  int status = 0;
  std::uint64_t id = 0;
  const int failed = driver().capture_info(place.stream, &status, &id, nullptr, nullptr, nullptr);
  return failed == 0 && status == kActive ? id : 0;
}

void fill_words(const Place& place, std::uint32_t* words, std::uint32_t value, std::size_t count) {
  bind_context(place);
  call("cuMemsetD32Async", driver().fill, reinterpret_cast<std::uint64_t>(words), value, count,
       place.stream);
}

void read_memory(const Place& place, void* target, const void* source, std::size_t bytes) {
  if (place.host) {
    std::memcpy(target, source, bytes);
    return;
  }
  bind_context(place);
  call("cuCtxSynchronize", driver().synchronize);
  call("cuMemcpyDtoH", driver().read, target, reinterpret_cast<std::uint64_t>(source), bytes);
}

void run_apart(const Place& place, const std::function<void(const Place&)>& work) {
  if (place.host) return work(place);
  Place apart = place;
  if (capture_of(place) != 0) apart.stream = nullptr;
  const auto run = [&] {
    // Other threads' captures forbid the driver's allocations otherwise.
    constexpr int kRelaxed = 2;
    int mode = kRelaxed;
    call("cuThreadExchangeStreamCaptureMode", driver().exchange_capture_mode, &mode);
    const OnDevice device(apart);
    const OnStream stream(apart);
    work(apart);
  };
  std::async(std::launch::async, run).get();
}

StreamPoint::StreamPoint(const Place& place) : stream_(place.stream), capture_(capture_of(place)) {
  if (place.host) return;
  bind_context(place);
  constexpr unsigned kNoTiming = 2;
  call("cuEventCreate", driver().create_event, &event_, kNoTiming);
  try {
    call("cuEventRecord", driver().record_event, event_, place.stream);
  } catch (...) {
    driver().destroy_event(std::exchange(event_, nullptr));
    throw;
  }
}

StreamPoint::~StreamPoint() {
  if (event_ != nullptr) driver().destroy_event(event_);
}

StreamPoint::StreamPoint(StreamPoint&& other) noexcept
    : event_(std::exchange(other.event_, nullptr)),
      stream_(other.stream_),
      capture_(other.capture_) {}

StreamPoint& StreamPoint::operator=(StreamPoint&& other) noexcept {
  std::swap(event_, other.event_);
  std::swap(stream_, other.stream_);
  std::swap(capture_, other.capture_);
  return *this;
}

bool StreamPoint::move_on(const Place& place) const {
  if (event_ == nullptr || stream_ != place.stream) return false;
  if (capture_ != 0 || capture_of(place) != 0) return false;
  bind_context(place);
  call("cuEventRecord", driver().record_event, event_, place.stream);
  return true;
}

void StreamPoint::before(const Place& place) const {
  if (event_ == nullptr || capture_ != capture_of(place)) return;
  bind_context(place);
  call("cuStreamWaitEvent", driver().wait_event, place.stream, event_, 0U);
}

}  // namespace octile::binding
