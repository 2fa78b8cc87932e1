// The host reference's arguments from those of a run.
#pragma once

#include "octile/octile.h"
#include "runtime/reference/quantize.h"

namespace octile {

reference::QuantizeArgs reference_args(const octile_quantize_args& args);

}  // namespace octile
