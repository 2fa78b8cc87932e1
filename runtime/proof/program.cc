// octile-prover: runs kernels on one device with a context of its own, for Prover. Descriptor 0 is
// a socket to the library, and the argument has the driver's path (messages.h).
//
// The process ends when the socket does, also while a kernel does not, and when it has had nothing
// to do for a minute (run_worker_program()).
#include <fmt/format.h>

#include <array>
#include <charconv>
#include <cstring>
#include <memory>
#include <new>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "runtime/driver/buffer.h"
#include "runtime/driver/context.h"
#include "runtime/driver/device.h"
#include "runtime/driver/stream.h"
#include "runtime/launch/kernel_registry.h"
#include "runtime/launch/launch_kernel.h"
#include "runtime/process/worker_program.h"
#include "runtime/proof/messages.h"
#include "runtime/proof/second_context.h"

namespace octile {
namespace {

using Message = Channel::Message;

Message refused(ProofTrouble trouble, const std::string& sentence) {
  return {std::string(kRefused), fmt::format("{}", static_cast<int>(trouble)), sentence};
}
// Whether a refused cubin says something of the kernel. These errors also come of a machine whose
// driver is not complete.
bool is_of_cubin(const LoadError& error) {
  switch (error.result) {
    case CUDA_ERROR_INVALID_VALUE:
    case CUDA_ERROR_JIT_COMPILER_NOT_FOUND:
    case CUDA_ERROR_SHARED_OBJECT_INIT_FAILED:
      return false;
    default:
      return error.of_kernel;
  }
}
// Whether a context's error says something of the device or its driver, and nothing of a kernel.
bool is_of_device(CUresult error) {
  switch (error) {
    case CUDA_ERROR_OUT_OF_MEMORY:
    case CUDA_ERROR_NO_DEVICE:
    case CUDA_ERROR_INVALID_DEVICE:
    case CUDA_ERROR_DEVICE_NOT_LICENSED:
    case CUDA_ERROR_DEVICE_UNAVAILABLE:
    case CUDA_ERROR_DEINITIALIZED:
    case CUDA_ERROR_ECC_UNCORRECTABLE:
    case CUDA_ERROR_NVLINK_UNCORRECTABLE:
    case CUDA_ERROR_SYSTEM_NOT_READY:
    case CUDA_ERROR_SYSTEM_DRIVER_MISMATCH:
    case CUDA_ERROR_MPS_CONNECTION_FAILED:
    case CUDA_ERROR_MPS_RPC_FAILURE:
    case CUDA_ERROR_MPS_SERVER_NOT_READY:
    case CUDA_ERROR_EXTERNAL_DEVICE:
      return true;
    default:
      return false;
  }
}

// The process's context, kernel and memory on the device. Each request goes on where the last one
// ended.
class Bench {
 public:
  explicit Bench(std::string driver) : driver_path_(std::move(driver)) {}

  Message answer(const Message& request) {
    if (request.size() == 2 && request[0] == "device") return open(request[1]);
    if (request.size() >= 5 && request[0] == "load" && context_) return load(request);
    if (request.size() >= 2 && request[0] == "run" && memory_) return run(request, *memory_);
    return refused(ProofTrouble::kUnavailable, "octile-prover was asked for something else");
  }

 private:
  Message open(const std::string& uuid) {
    auto driver = Driver::open(driver_path_);
    if (!driver) return refused(ProofTrouble::kUnavailable, driver.error().message);
    driver_ = std::move(*driver);
    const auto is_other = [&] {
      const auto own = device_uuid(*driver_, ordinal_);
      return !own || *own != uuid;
    };
    while (ordinal_ < driver_->device_count() && is_other()) ++ordinal_;
    if (ordinal_ == driver_->device_count())
      return refused(ProofTrouble::kUnavailable,
                     fmt::format("octile-prover does not see the device of UUID {}", uuid));
    if (const std::string why = why_no_second_context(*driver_, ordinal_); !why.empty())
      return refused(ProofTrouble::kUnavailable, why);
    auto context = PrimaryContext::retain(driver_, ordinal_);
    if (!context) return refused(ProofTrouble::kUnavailable, context.error().message);
    context_.emplace(std::move(*context));
    auto guard = ContextGuard::enter(*driver_, context_->get());
    if (!guard) return refused(ProofTrouble::kUnavailable, guard.error().message);
    guard_.emplace(std::move(*guard));
    auto stream = Stream::create(driver_);
    if (!stream) return refused(ProofTrouble::kUnavailable, stream.error().message);
    stream_ = std::move(*stream);
    return {"ready", driver_->build()};
  }

  Message load(const Message& request) {
    constexpr std::size_t kNames = 4;
    std::size_t bytes = 0;
    auto build = std::make_shared<KernelBuild>();
    std::from_chars(request[1].data(), request[1].data() + request[1].size(), bytes);
    std::from_chars(request[3].data(), request[3].data() + request[3].size(),
                    build->emitted.smem_bytes);
    build->cubin.assign(request[2].begin(), request[2].end());
    build->emitted.name = request[kNames];
    for (std::size_t i = kNames + 1; i < request.size(); ++i)
      build->emitted.companions.push_back({request[i], {}});
    auto loaded = registry_.load(driver_, ordinal_, build);
    if (!loaded)
      return refused(
          is_of_cubin(loaded.error()) ? ProofTrouble::kNotLoaded : ProofTrouble::kUnavailable,
          loaded.error().message);
    loaded_ = std::move(*loaded);
    memory_.reset();
    auto memory = DeviceBuffer::allocate(driver_, bytes);
    if (!memory) return refused(ProofTrouble::kUnavailable, memory.error().message);
    memory_.emplace(std::move(*memory));
    return {"memory", fmt::format("{}", reinterpret_cast<std::uintptr_t>(memory_->pointer()))};
  }

  Message run(const Message& request, DeviceBuffer& memory) {
    const std::string& given = request[1];
    Status ok = memory.upload(given.data(), given.size(), stream_.get());
    for (std::size_t i = 2; ok && i < request.size(); ++i) ok = launch_recorded(request[i]);
    std::string contents(given.size(), '\0');
    if (ok) ok = memory.download(contents.data(), contents.size(), stream_.get());
    if (ok) ok = stream_.synchronize();
    if (!ok) {
      // A context that a kernel broke says so from then on.
      const CUresult context = (*driver_)->cuCtxSynchronize();
      const bool of_device = ok.error().code == ErrorCode::kOutOfMemory || is_of_device(context);
      return refused(of_device                 ? ProofTrouble::kUnavailable
                     : context == CUDA_SUCCESS ? ProofTrouble::kNotLaunched
                                               : ProofTrouble::kFault,
                     ok.error().message);
    }
    return {"memory", std::move(contents)};
  }

  Status launch_recorded(const std::string& field) {
    std::string_view text = field;
    RecordedLaunch recorded;
    const auto wrong = [] { return fail(ErrorCode::kInternal, "a launch has another form"); };
    if (!take(text, recorded)) return wrong();
    if (recorded.kernel == kClears)
      return driver_->check(
          (*driver_)->cuMemsetD2D8Async(recorded.address, recorded.pitch_bytes, 0,
                                        recorded.width_bytes, recorded.rows, stream_.get()),
          "cuMemsetD2D8Async");
    if (recorded.kernel < 0 ||
        static_cast<std::size_t>(recorded.kernel) > loaded_.companions.size())
      return wrong();
    std::vector<RecordedMap> maps(recorded.maps);
    for (RecordedMap& map : maps)
      if (!take(text, map)) return wrong();
    std::vector<Line> parameter(text.size() / sizeof(Line) + 1);
    std::memcpy(parameter.data(), text.data(), text.size());
    for (const RecordedMap& map : maps) {
      if (map.offset % alignof(CUtensorMap) != 0 || map.offset + sizeof(CUtensorMap) > text.size())
        return wrong();
      if (Status ok = encode(map, reinterpret_cast<char*>(parameter.data()) + map.offset); !ok)
        return ok;
    }
    KernelHandle kernel = recorded.kernel == 0
                              ? loaded_.kernel
                              : loaded_.companions[static_cast<std::size_t>(recorded.kernel) - 1];
    kernel.waits_itself = recorded.waits_itself != 0;
    const LaunchSite site{*driver_, stream_.get(), true};
    CUlaunchConfig config = launch_config(site, recorded.blocks, recorded.threads);
    config.sharedMemBytes = recorded.smem_bytes;
    std::array<void*, 1> parameters{parameter.data()};
    return launch(site, kernel, config, parameters.data(), static_cast<int>(recorded.cluster));
  }

  Status encode(const RecordedMap& map, void* to) const {
    // NOLINTNEXTLINE(performance-no-int-to-ptr): an address of the device
    void* const address = reinterpret_cast<void*>(map.address);
    return driver_->check(
        (*driver_)->cuTensorMapEncodeTiled(static_cast<CUtensorMap*>(to), map.type, map.rank,
                                           address, map.dims.data(), map.strides.data(),
                                           map.box.data(), map.element_strides.data(),
                                           map.interleave, map.swizzle, map.promotion, map.fill),
        "cuTensorMapEncodeTiled");
  }

  // A unit of memory that is aligned as a tensor map has to be.
  struct alignas(CUtensorMap) Line {
    std::array<char, alignof(CUtensorMap)> bytes;
  };

  template <typename Recorded>
  static bool take(std::string_view& text, Recorded& recorded) {
    if (text.size() < sizeof recorded) return false;
    text.copy(reinterpret_cast<char*>(&recorded), sizeof recorded);
    text.remove_prefix(sizeof recorded);
    return true;
  }

  const std::string driver_path_;
  std::shared_ptr<const Driver> driver_;
  int ordinal_ = 0;
  std::optional<PrimaryContext> context_;
  std::optional<ContextGuard> guard_;
  Stream stream_{nullptr, nullptr};
  KernelRegistry registry_;
  LoadedKernel loaded_;
  std::optional<DeviceBuffer> memory_;
};

void serve(Channel& channel, std::string driver) {
  const auto send = [&](const Message& message) {
    return !channel.send(message, Channel::Clock::now() + kTimeToAnswer);
  };
  if (!send({std::string(kProverName), own_version()})) return;
  Bench bench(std::move(driver));
  for (;;) {
    Message request;
    if (channel.receive(request, Channel::Clock::now() + kTimeToAsk)) return;
    Message answer;
    try {
      answer = bench.answer(request);
    } catch (const std::bad_alloc&) {
      answer = refused(ProofTrouble::kUnavailable, "octile-prover has no memory");
    }
    if (!send(answer)) return;
  }
}

}  // namespace
}  // namespace octile

int main(int argc, char** argv) {
  using namespace octile;
  std::string driver;
  return run_worker_program(
      argc, argv,
      {.name = kProverName,
       .purpose = "to test kernels",
       .read =
           [&](std::string_view argument) {
             driver = argument;
             return !driver.empty();
           },
       .serve = [&](Channel& channel) { serve(channel, driver); },
       .refusal = [](const std::string& why) { return refused(ProofTrouble::kUnavailable, why); }});
}
