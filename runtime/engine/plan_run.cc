// Plan::run: what happens between a caller's pointers and the driver, on every call.
#include <fmt/format.h>

#include <algorithm>

#include "generator/families.h"
#include "generator/core/types.h"
#include "runtime/engine/arguments.h"
#include "runtime/engine/device_scope.h"
#include "runtime/engine/plan.h"
#include "runtime/engine/reference_arguments.h"
#include "runtime/families/gemm/reference.h"
#include "runtime/families/quantize/reference.h"
#include "runtime/families/quantize/reference_scale_update.h"

namespace octile {
Status Plan::run(const octile_gemm_args& user, CUstream stream) const {
  const auto* problem = std::get_if<GemmProblem>(&problem_);
  if (problem == nullptr) [[unlikely]]
    return tl::unexpected<Error>(wrong_family("octile_gemm_run"));
  octile_gemm_args args = user;
  if (Status ok = check_tokens(problem_, "m", args.m); !ok) return ok;
  if (Status ok = check_arguments(*problem, args); !ok) return ok;
  if (args.m == 0 || problem->n == 0) return {};
  if (target_.kind == TargetKind::kHost) return reference::gemm(*problem, reference_args(args));

  const PreparedKernel* kernel = table_[static_cast<std::size_t>(bucket_of(args.m))].load();
  if (kernel == nullptr || kernel->primary == nullptr) [[unlikely]]
    return tl::unexpected<Error>(cannot_run(args.m, stream));
  const Driver& driver = *target_.driver;
  const DeviceScope scope(driver, target_.ordinal, kernel->primary);
  if (scope.result() != CUDA_SUCCESS) [[unlikely]]
    return driver.check(scope.result(), "cuCtxPushCurrent");
  if (problem->k == 0) return fill_zero(*problem, args, stream);
  return launch_gemm({driver, stream, scope.in_primary()}, std::get<GemmLaunch>(kernel->launch),
                     problem->n, problem->k, args);
}

Status Plan::run(const octile_quantize_args& user, CUstream stream) const {
  const auto* problem = std::get_if<QuantizeProblem>(&problem_);
  if (problem == nullptr) [[unlikely]]
    return tl::unexpected<Error>(wrong_family("octile_quantize_run"));
  octile_quantize_args args = user;
  if (Status ok = check_tokens(problem_, "rows", args.rows); !ok) return ok;
  if (Status ok = check_arguments(*problem, args); !ok) return ok;
  if (is_nothing(*problem, args)) return {};
  if (target_.kind == TargetKind::kHost) return reference::quantize(*problem, reference_args(args));

  const PreparedKernel* kernel = table_[static_cast<std::size_t>(bucket_of(args.rows))].load();
  if (kernel == nullptr || kernel->primary == nullptr) [[unlikely]]
    return tl::unexpected<Error>(cannot_run(args.rows, stream));
  const auto& launch = std::get<QuantizeLaunch>(kernel->launch);
  if (Status ok = check_workspace(args, launch.workspace.bytes(args.rows)); !ok) return ok;
  const Driver& driver = *target_.driver;
  const DeviceScope scope(driver, target_.ordinal, kernel->primary);
  if (scope.result() != CUDA_SUCCESS) [[unlikely]]
    return driver.check(scope.result(), "cuCtxPushCurrent");
  return launch_quantize({driver, stream, scope.in_primary()}, launch, *problem, args);
}

Status Plan::run(const octile_scale_update_args& args, CUstream stream) const {
  const auto* problem = std::get_if<QuantizeProblem>(&problem_);
  if (problem == nullptr || problem->policy != ScalePolicy::kDelayed) [[unlikely]]
    return tl::unexpected<Error>(wrong_family("octile_scale_update_run"));
  if (Status ok = check_arguments(args); !ok) return ok;
  if (args.tensors == 0) return {};
  if (target_.kind == TargetKind::kHost) {
    reference::update_scales(*problem, {args.history, args.encode_scale, args.tensors, args.length,
                                        static_cast<reference::AmaxChoice>(args.choice),
                                        args.margin, args.average_share});
    return {};
  }
  // The update is in the source of every kernel of the plan.
  const auto ready =
      std::ranges::find_if(table_, [](const auto& k) { return k.load() != nullptr; });
  const PreparedKernel* kernel = ready == table_.end() ? nullptr : ready->load();
  if (kernel == nullptr || kernel->primary == nullptr) [[unlikely]]
    return tl::unexpected<Error>(cannot_run(1, stream));
  const Driver& driver = *target_.driver;
  const DeviceScope scope(driver, target_.ordinal, kernel->primary);
  if (scope.result() != CUDA_SUCCESS) [[unlikely]]
    return driver.check(scope.result(), "cuCtxPushCurrent");
  return launch_scale_update({driver, stream, scope.in_primary()},
                             std::get<QuantizeLaunch>(kernel->launch), args);
}

// An empty sum: D = 0, or D unchanged.
Status Plan::fill_zero(const GemmProblem& problem, const octile_gemm_args& args,
                       CUstream stream) const {
  if (problem.accumulate) return {};
  const auto element = static_cast<std::size_t>(size_of(problem.d));
  const Driver& driver = *target_.driver;
  return driver.check(driver->cuMemsetD2D8Async(reinterpret_cast<CUdeviceptr>(args.d),
                                                static_cast<std::size_t>(args.ldd) * element, 0,
                                                static_cast<std::size_t>(problem.n) * element,
                                                static_cast<std::size_t>(args.m), stream),
                      "cuMemsetD2D8Async");
}

Error Plan::cannot_run(std::int64_t tokens, CUstream stream) const {
  if (target_.kind == TargetKind::kNamed)
    return {
        ErrorCode::kDeviceError,
        fmt::format("the plan's device is \"{}\", a name to compile for; allowed to run: a plan "
                    "made for \"cuda\", \"cuda:N\" or \"host\"",
                    target_.text)};
  CUstreamCaptureStatus capture = CU_STREAM_CAPTURE_STATUS_NONE;
  const bool capturing = (*target_.driver)->cuStreamIsCapturing(stream, &capture) == CUDA_SUCCESS &&
                         capture != CU_STREAM_CAPTURE_STATUS_NONE;
  if (capturing)
    return {ErrorCode::kCapturing,
            fmt::format("{} tokens are not prepared and the stream is capturing, where nothing may "
                        "be compiled or loaded; allowed: octile_plan_prepare of a range that "
                        "holds {} before the capture begins",
                        tokens, tokens)};
  return {ErrorCode::kNotPrepared,
          fmt::format("{} tokens are not prepared; allowed: octile_plan_prepare of a range that "
                      "holds {} first",
                      tokens, tokens)};
}

Error Plan::wrong_family(const char* call) const {
  return {ErrorCode::kInvalidArgument,
          fmt::format("plan is '{}'; allowed for {}: a plan of that operation",
                      octile::to_text(problem_), call)};
}

}  // namespace octile
