// The host reference's arguments from those of a run.
#pragma once

#include "octile/octile.h"
#include "runtime/families/gemm/reference.h"
#include "runtime/families/quantize/reference.h"

namespace octile {

reference::GemmArgs reference_args(const octile_gemm_args& args);
reference::QuantizeArgs reference_args(const octile_quantize_args& args);

}  // namespace octile
