// What XLA calls: handlers of the quantisers and of the GEMMs, for the host and for CUDA.
// octile/jax/_calls.py registers them.
//
//   instantiate   while XLA compiles a program: reads the problem of a call and checks it
//   initialize    CUDA, before the program runs: compiles and loads the kernels of a device, once
//   execute       enqueues the call on XLA's stream
//
// XLA's C interface has versions. Built with the headers of jaxlib 0.10, which are of version 0.3,
// the handlers serve jaxlib 0.10 and newer; XLA promises to accept a version for twelve months.
#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>
#include <utility>

#include "octile/octile.h"
#include "xla/ffi/api/ffi.h"

namespace ffi = xla::ffi;

namespace octile::jax_binding {
namespace {

// The attribute "parts": operands and results beside those that every call has, in this order.
enum Part : std::uint8_t {
  kRowwise = 1,     // results codes and scales
  kTransposed = 2,  // results codes and scales of the transposed copy
  kColumnSums = 4,  // result fp32 [columns]
  kBias = 8,        // operand
  kOffsets = 16     // operand: where groups begin
};

constexpr std::int32_t kHost = -1;

ffi::Error error_of(octile_status status) {
  if (status == OCTILE_OK) return ffi::Error::Success();
  ffi::ErrorCode code = ffi::ErrorCode::kInternal;
  if (status == OCTILE_INVALID_ARGUMENT) code = ffi::ErrorCode::kInvalidArgument;
  if (status == OCTILE_UNSUPPORTED) code = ffi::ErrorCode::kUnimplemented;
  if (status == OCTILE_OUT_OF_MEMORY) code = ffi::ErrorCode::kResourceExhausted;
  return {code, std::string(octile_status_name(status)) + ": " + octile_last_error()};
}

// The library handle of this process, which nobody destroys.
octile_status library(octile_library** handle) {
  static std::mutex mutex;
  static octile_library* only = nullptr;
  const std::scoped_lock lock(mutex);
  const octile_status status = only ? OCTILE_OK : octile_library_create(nullptr, &only);
  *handle = only;
  return status;
}

// A call in a compiled program, whose state it is: a problem, and its plans on the devices that run
// the program.
class Site {
 public:
  Site() = default;
  Site(const Site&) = delete;
  Site& operator=(const Site&) = delete;
  ~Site() {
    for (const auto& [device, plan] : plans_) octile_plan_destroy(plan);
  }

  // The host's plan is made on every platform, because it checks the problem.
  ffi::Error read(const ffi::Dictionary& attributes) {
    const auto problem = attributes.get<std::string_view>("problem");
    const auto tokens = attributes.get<std::int64_t>("tokens");
    const auto groups = attributes.get<std::int64_t>("groups");
    const auto parts = attributes.get<std::int64_t>("parts");
    if (!problem || !tokens || !groups || !parts)
      return {ffi::ErrorCode::kInvalidArgument,
              "octile: attributes are not problem, tokens, groups and parts"};
    problem_ = *problem;
    tokens_ = *tokens;
    groups_ = *groups;
    parts_ = static_cast<std::uint32_t>(*parts);
    octile_plan* plan = nullptr;
    return plan_on(kHost, plan);
  }

  // Finds the plan of a device. The first time it makes the plan and its kernels.
  ffi::Error plan_on(std::int32_t device, octile_plan*& plan) {
    const std::scoped_lock lock(mutex_);
    if (const auto found = plans_.find(device); found != plans_.end()) plan = found->second;
    if (plan != nullptr) return ffi::Error::Success();
    const std::string name = device == kHost ? "host" : "cuda:" + std::to_string(device);
    octile_library* owner = nullptr;
    octile_status status = library(&owner);
    if (status == OCTILE_OK)
      status = octile_plan_create(owner, name.c_str(), problem_.c_str(), &plan);
    if (status == OCTILE_OK)
      status = octile_plan_prepare(plan, tokens_, tokens_, OCTILE_PREPARE_DEFAULT);
    if (status == OCTILE_OK) plans_[device] = plan;
    ffi::Error error = error_of(status);  // before another call changes the sentence
    if (error.failure()) octile_plan_destroy(plan);
    return error;
  }

  std::int64_t tokens() const { return tokens_; }
  std::int64_t groups() const { return groups_; }
  bool has_part(Part part) const { return (parts_ & part) != 0; }

 private:
  std::string problem_;
  std::int64_t tokens_ = 0;
  std::int64_t groups_ = 0;  // or tensors, which follow each other
  std::uint32_t parts_ = 0;
  std::mutex mutex_;  // guards plans_
  std::map<std::int32_t, octile_plan*> plans_;
};

// The plugin for CUDA is an XLA of its own, which numbers the types of states for itself.
struct HostSite : Site {
  static constexpr const char* kName = "octile_host_site";
  static ffi::TypeId id;
};
struct CudaSite : Site {
  static constexpr const char* kName = "octile_cuda_site";
  static ffi::TypeId id;
};
ffi::TypeId HostSite::id{};
ffi::TypeId CudaSite::id{};

// A matrix in XLA's memory. Python derives shapes from the problem; the library refuses null.
struct Buffer {
  explicit Buffer(const ffi::ErrorOr<ffi::AnyBuffer>& buffer) {
    if (!buffer || buffer->dimensions().size() == 0) return;
    data = buffer->untyped_data();
    columns = buffer->dimensions().back();
  }

  void* data = nullptr;
  std::int64_t columns = 0;
};

// Where a call runs, and its buffers, which are taken one after the other.
struct Call {
  Buffer operand() { return Buffer(operands.get<ffi::AnyBuffer>(operands_taken++)); }
  Buffer result() {
    auto found = results.get<ffi::AnyBuffer>(results_taken++);
    return Buffer(found ? ffi::ErrorOr<ffi::AnyBuffer>(**found) : ffi::Unexpected(found.error()));
  }
  const std::int32_t* offsets() { return static_cast<const std::int32_t*>(operand().data); }

  // Gives a call its workspace, as much for each of `tensors`, which XLA takes back when the
  // handler returns.
  template <typename Args>
  ffi::Error place(Args& args, std::int64_t tokens, std::int64_t tensors = 1) {
    const octile_status status = octile_plan_workspace_size(plan, tokens, &args.workspace_bytes);
    if (status != OCTILE_OK || args.workspace_bytes == 0) return error_of(status);
    args.workspace_bytes *= static_cast<std::size_t>(tensors);
    constexpr std::size_t kAlignment = 16;
    const std::optional<void*> memory = scratch.Allocate(args.workspace_bytes, kAlignment);
    args.workspace = memory.value_or(nullptr);
    if (memory) return ffi::Error::Success();
    return {ffi::ErrorCode::kResourceExhausted,
            "octile: XLA has no workspace of " + std::to_string(args.workspace_bytes) + " bytes"};
  }

  octile_plan* plan = nullptr;
  void* stream = nullptr;
  ffi::ScratchAllocator& scratch;
  const ffi::RemainingArgs& operands;
  const ffi::RemainingRets& results;
  std::size_t operands_taken = 0, results_taken = 0;
};

ffi::Error quantize(const Site& site, Call call) {
  octile_quantize_args args{};
  args.struct_size = sizeof args;
  args.rows = site.tokens();
  const Buffer x = call.operand();
  args.x = x.data;
  args.ldx = x.columns;
  octile_quantize_groups groups{};
  groups.struct_size = sizeof groups;
  groups.group_count = site.groups();
  if (site.has_part(kOffsets)) groups.offsets = call.offsets();
  if (site.groups() > 0) args.groups = &groups;
  if (site.has_part(kRowwise)) {
    const Buffer q = call.result();
    args.q = q.data;
    args.ldq = q.columns;
    args.scale = call.result().data;
  }
  if (site.has_part(kTransposed)) {
    args.q_transposed = call.result().data;
    args.scale_transposed = call.result().data;
  }
  octile_quantize_fused fused{};
  fused.struct_size = sizeof fused;
  if (site.has_part(kColumnSums)) {
    fused.bias_gradient = static_cast<float*>(call.result().data);
    args.fused = &fused;
  }
  const bool is_stacked = site.groups() > 0 && !site.has_part(kOffsets);
  const std::int64_t tensors = is_stacked ? site.groups() : 1;
  if (ffi::Error error = call.place(args, args.rows, tensors); error.failure()) return error;
  return error_of(octile_quantize_run(call.plan, &args, call.stream));
}

ffi::Error multiply(const Site& site, Call call) {
  octile_gemm_args args{};
  args.struct_size = sizeof args;
  args.tokens = site.tokens();
  const Buffer a = call.operand();
  args.a = a.data;
  args.lda = a.columns;
  args.a_scale = call.operand().data;
  const Buffer b = call.operand();
  args.b = b.data;
  args.ldb = b.columns;
  args.b_scale = call.operand().data;
  if (site.has_part(kBias)) args.bias = call.operand().data;
  octile_gemm_groups groups{};
  groups.struct_size = sizeof groups;
  if (site.has_part(kOffsets)) {
    groups.offsets = call.offsets();
    args.groups = &groups;
  }
  const Buffer d = call.result();
  args.d = d.data;
  args.ldd = d.columns;
  if (ffi::Error error = call.place(args, args.tokens); error.failure()) return error;
  return error_of(octile_gemm_run(call.plan, &args, call.stream));
}

template <typename T>
ffi::ErrorOr<std::unique_ptr<T>> instantiate(const ffi::Dictionary& attributes) {
  auto site = std::make_unique<T>();
  if (ffi::Error error = site->read(attributes); error.failure())
    return ffi::Unexpected(std::move(error));
  return site;
}

// XLA has to know T before it takes the handler. It first calls the handler for a description, so
// the type is registered here, with the XLA that calls: JAX's own registration of types comes too
// late if no backend has been used yet.
template <typename T>
XLA_FFI_Error* run_instantiate(XLA_FFI_CallFrame* frame) {
  static auto* handler = ffi::Ffi::BindInstantiate().Attrs().To(instantiate<T>).release();
  static const ffi::TypeInfo info = ffi::MakeTypeInfo<T>();
  static std::mutex mutex;
  static bool known = false;
  {
    const std::scoped_lock lock(mutex);
    if (!known) {
      if (auto* error = ffi::Ffi::RegisterTypeId(frame->api, T::kName, &T::id, &info)) return error;
      known = true;
    }
  }
  return handler->Call(frame);
}

ffi::Error initialize(CudaSite* site, std::int32_t device, const ffi::Dictionary&) {
  octile_plan* plan = nullptr;
  return site->plan_on(device, plan);
}

XLA_FFI_Error* run_initialize(XLA_FFI_CallFrame* frame) {
  static auto* handler = ffi::Ffi::Bind<ffi::ExecutionStage::kInitialize>()
                             .Ctx<ffi::State<CudaSite>>()
                             .Ctx<ffi::DeviceOrdinal>()
                             .Attrs()
                             .To(initialize)
                             .release();
  return handler->Call(frame);
}

using Pass = ffi::Error (*)(const Site&, Call);

template <Pass pass>
ffi::Error on_cuda(CudaSite* site, std::int32_t device, void* stream, ffi::ScratchAllocator scratch,
                   ffi::RemainingArgs operands, ffi::RemainingRets results,
                   const ffi::Dictionary&) {
  octile_plan* plan = nullptr;
  if (ffi::Error error = site->plan_on(device, plan); error.failure()) return error;
  return pass(*site, {plan, stream, scratch, operands, results});
}

template <Pass pass>
ffi::Error on_host(HostSite* site, ffi::ScratchAllocator scratch, ffi::RemainingArgs operands,
                   ffi::RemainingRets results, const ffi::Dictionary&) {
  octile_plan* plan = nullptr;
  if (ffi::Error error = site->plan_on(kHost, plan); error.failure()) return error;
  return pass(*site, {plan, nullptr, scratch, operands, results});
}

template <Pass pass>
XLA_FFI_Error* run_on_cuda(XLA_FFI_CallFrame* frame) {
  static auto* handler = ffi::Ffi::Bind()
                             .Ctx<ffi::State<CudaSite>>()
                             .Ctx<ffi::DeviceOrdinal>()
                             .Ctx<ffi::PlatformStream<void*>>()
                             .Ctx<ffi::ScratchAllocator>()
                             .RemainingArgs()
                             .RemainingRets()
                             .Attrs()
                             .To(on_cuda<pass>)
                             .release();
  return handler->Call(frame);
}

template <Pass pass>
XLA_FFI_Error* run_on_host(XLA_FFI_CallFrame* frame) {
  static auto* handler = ffi::Ffi::Bind()
                             .Ctx<ffi::State<HostSite>>()
                             .Ctx<ffi::ScratchAllocator>()
                             .RemainingArgs()
                             .RemainingRets()
                             .Attrs()
                             .To(on_host<pass>)
                             .release();
  return handler->Call(frame);
}

}  // namespace
}  // namespace octile::jax_binding

#define OCTILE_HANDLER(name, run)                                       \
  extern "C" OCTILE_API XLA_FFI_Error* name(XLA_FFI_CallFrame* frame) { \
    using namespace octile::jax_binding;                                \
    return run(frame);                                                  \
  }
OCTILE_HANDLER(octile_cpu_instantiate, run_instantiate<HostSite>)
OCTILE_HANDLER(octile_cpu_quantize, run_on_host<quantize>)
OCTILE_HANDLER(octile_cpu_gemm, run_on_host<multiply>)
OCTILE_HANDLER(octile_cuda_instantiate, run_instantiate<CudaSite>)
OCTILE_HANDLER(octile_cuda_initialize, run_initialize)
OCTILE_HANDLER(octile_cuda_quantize, run_on_cuda<quantize>)
OCTILE_HANDLER(octile_cuda_gemm, run_on_cuda<multiply>)
