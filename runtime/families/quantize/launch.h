// Launching the kernels of templates/quantize. Each takes one parameter and has a grid along x. The
// kernel that writes codes stands between those of its companions that a call needs.
#pragma once

#include "generator/core/error.h"
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

}  // namespace octile
