// What Plan::run needs beside plan_run.h, the update of delayed scaling, and steps of pieces.
#include "runtime/engine/plan_run.h"

#include <fmt/format.h>

#include <algorithm>

#include "generator/core/token_buckets.h"
#include "runtime/driver/stream.h"

namespace octile {

Status Plan::run(const octile_scale_update_args& given, CUstream stream) const {
  const auto* problem = problem_as<QuantizeProblem>(problem_);
  if (problem == nullptr || problem->policy != ScalePolicy::kDelayed) [[unlikely]]
    return tl::unexpected<Error>(wrong_operation("octile_scale_update_run"));
  const auto update = complete(given);
  if (!update) return tl::unexpected<Error>(update.error());
  if (update->tensors == 0) return {};
  if (target_.kind == TargetKind::kHost) return run_on_host(*problem, *update);

  const PreparedKernel* kernel = any_kernel();
  if (!is_loaded(kernel)) [[unlikely]]
    return tl::unexpected<Error>(cannot_run(1, stream));
  const auto& resolved = resolved_as<QuantizeProblem>(kernel->resolved);
  return on_device(*kernel, stream,
                   [&](const LaunchSite& site) { return enqueue(site, resolved, *update); });
}

Status Plan::run(const PiecesCall& call, CUstream stream) const {
  const PreparedKernel* kernel = any_kernel();
  if (!is_loaded(kernel)) [[unlikely]]
    return tl::unexpected<Error>(cannot_run(1, stream));
  const auto& resolved = resolved_as<QuantizeProblem>(kernel->resolved);
  return on_device(*kernel, stream,
                   [&](const LaunchSite& site) { return enqueue(site, resolved, call); });
}

const PreparedKernel* Plan::kernel_for(std::int64_t tokens) const {
  return table_[static_cast<std::size_t>(bucket_of(tokens))].load();
}

// The update of delayed scaling is in the source of every kernel of the plan. Plans of pieces have
// one kernel.
const PreparedKernel* Plan::any_kernel() const {
  const auto ready =
      std::ranges::find_if(table_, [](const auto& entry) { return entry.load() != nullptr; });
  return ready == table_.end() ? nullptr : ready->load();
}

Error Plan::cannot_run(std::int64_t tokens, CUstream stream) const {
  if (target_.kind == TargetKind::kNamed)
    return {
        ErrorCode::kDeviceError,
        fmt::format("the plan's device is \"{}\", a name to compile for; allowed to run: a plan "
                    "made for \"cuda\", \"cuda:N\" or \"host\"",
                    target_.text)};
  if (is_capturing(*target_.driver, stream)) {
    wanted_in_capture_ = true;
    return {ErrorCode::kCapturing,
            fmt::format("{} tokens are not prepared and the stream is capturing, where nothing may "
                        "be compiled or loaded; allowed: octile_plan_prepare of a range that "
                        "holds {} before the capture begins",
                        tokens, tokens)};
  }
  return {ErrorCode::kNotPrepared,
          fmt::format("{} tokens are not prepared; allowed: octile_plan_prepare of a range that "
                      "holds {} first",
                      tokens, tokens)};
}

Error Plan::wrong_operation(const char* call) const {
  return {ErrorCode::kInvalidArgument,
          fmt::format("plan is '{}'; allowed for {}: a plan of that operation",
                      octile::to_text(problem_), call)};
}

}  // namespace octile
