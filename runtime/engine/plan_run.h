// Plan::run for the arguments of any family: what happens on every call, between a caller's
// pointers and the driver. A caller includes this file, so that the engine need not list the
// families.
#pragma once

#include "runtime/engine/plan.h"
#include "runtime/families/families.h"
#include "runtime/launch/device_scope.h"

namespace octile {

// Returns true if the kernel is on a device. Those of a plan whose device is a name are not.
inline bool is_loaded(const PreparedKernel* kernel) {
  return kernel != nullptr && kernel->primary != nullptr;
}

// Launches with a context of the kernel's device current.
template <typename Launch>
Status Plan::on_device(const PreparedKernel& kernel, CUstream stream, const Launch& launch) const {
  const Driver& driver = *target_.driver;
  const DeviceScope scope(driver, target_.ordinal, kernel.primary);
  if (scope.result() != CUDA_SUCCESS) [[unlikely]]
    return driver.check(scope.result(), "cuCtxPushCurrent");
  return launch({driver, stream, scope.in_primary()});
}

// arguments -> call -> nothing to do? -> host? -> kernel of the bucket -> device -> launch
template <CallArguments Arguments>
Status Plan::run(const Arguments& args, CUstream stream) const {
  using P = typename ProblemOf<Arguments>::type;
  const auto* problem = problem_as<P>(problem_);
  if (problem == nullptr) [[unlikely]]
    return tl::unexpected<Error>(wrong_operation(RuntimeFamily<P>::kRunCall));
  const auto call = complete(*problem, args);
  if (!call) [[unlikely]]
    return tl::unexpected<Error>(call.error());
  if (!call->has_work()) return {};
  if (target_.kind == TargetKind::kHost) return run_on_host(*problem, *call);

  const PreparedKernel* kernel = kernel_for(kernel_tokens_of(*call));
  if (!is_loaded(kernel)) [[unlikely]]
    return tl::unexpected<Error>(cannot_run(tokens_of(*call), stream));
  const auto& resolved = resolved_as<P>(kernel->resolved);
  return on_device(*kernel, stream,
                   [&](const LaunchSite& site) { return enqueue(site, resolved, *call); });
}

}  // namespace octile
