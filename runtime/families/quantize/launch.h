// Launching the kernels of templates/quantize. Each takes one parameter and has a grid along x. The
// kernel that writes codes is launched between the companion kernels that a call needs.
#pragma once

#include <cstdint>

#include "generator/core/error.h"
#include "generator/quantize/kernel_args.h"
#include "octile/octile.h"
#include "runtime/families/quantize/resolve.h"
#include "runtime/launch/launch_kernel.h"
#include "runtime/reference/quantize/call.h"

namespace octile {

// Enqueues a call that has work. Launches nothing if there is nothing to write. Errors:
// kInvalidArgument (a workspace that is too small, or more rows than a grid has blocks for),
// kDeviceError.
Status enqueue(const LaunchSite& site, const ResolvedQuantize& resolved, const QuantizeCall& call);

// Enqueues an update of delayed scaling's encode scales. `args` are complete.
Status enqueue(const LaunchSite& site, const ResolvedQuantize& resolved,
               const octile_scale_update_args& args);

// One launch of a kernel of pieces: a part of a table in device memory, and its thread blocks.
struct PiecesCall {
  PiecesKernelArgs args;
  std::int64_t blocks = 0;  // at least 1
};
Status enqueue(const LaunchSite& site, const ResolvedQuantize& resolved, const PiecesCall& call);

}  // namespace octile
