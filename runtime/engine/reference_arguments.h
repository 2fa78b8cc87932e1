// The host reference's arguments from those of a run.
#pragma once

#include "octile/octile.h"
#include "runtime/reference/gemm.h"
#include "runtime/reference/quantize.h"

namespace octile {

reference::GemmArgs reference_args(const octile_gemm_args& args);
reference::QuantizeArgs reference_args(const octile_quantize_args& args);

}  // namespace octile
