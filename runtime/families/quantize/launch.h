// Launching the kernels of templates/quantize. Each takes one parameter and has a grid along x. The
// kernel that writes codes stands between those of its companions that a call needs.
#pragma once

#include <cstdint>

#include "generator/core/error.h"
#include "generator/quantize/kernel_args.h"
#include "octile/octile.h"
#include "runtime/families/quantize/arguments.h"
#include "runtime/families/quantize/resolve.h"
#include "runtime/launch/launch_kernel.h"

namespace octile {

// Enqueues one call. `args` were checked, with every leading dimension filled in. Launches nothing
// if there is nothing to write. Errors: kInvalidArgument (more rows than a grid has blocks for),
// kDeviceError.
Status launch(const LaunchSite& site, const ResolvedQuantize& resolved,
              const QuantizeArguments& args);

// Enqueues an update of delayed scaling's encode scales. `args` were checked.
Status launch(const LaunchSite& site, const ResolvedQuantize& resolved,
              const octile_scale_update_args& args);

// One launch of a kernel of pieces: a part of a table in device memory, and its thread blocks.
struct PiecesCall {
  PiecesKernelArgs args;
  std::int64_t blocks = 0;  // at least 1
};
Status launch(const LaunchSite& site, const ResolvedQuantize& resolved, const PiecesCall& call);

}  // namespace octile
