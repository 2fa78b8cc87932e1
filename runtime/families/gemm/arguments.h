// The arguments of one GEMM call, as a caller gives them.
#pragma once

#include <cstdint>

#include "generator/core/error.h"
#include "generator/gemm/problem.h"
#include "octile/octile.h"
#include "runtime/launch/argument_checks.h"
#include "runtime/reference/gemm/call.h"

namespace octile {

// The arguments of octile_gemm_run with the features' structs in place of pointers to them, so that
// they can be copied. The struct_size of a feature that the caller passed as null is 0. Nothing but
// its plain fields is read from the base.
struct GemmArguments : octile_gemm_args {
  octile_gemm_groups groups = unused_feature<octile_gemm_groups>();
  octile_gemm_batch batch = unused_feature<octile_gemm_batch>();
  octile_gemm_d_scales d_scales = unused_feature<octile_gemm_d_scales>();
  octile_gemm_monitor monitor = unused_feature<octile_gemm_monitor>();

  GemmArguments() : octile_gemm_args{} { struct_size = sizeof(octile_gemm_args); }

  // Returns the same for the C API. The features' pointers lead into this object.
  octile_gemm_args call() const;
};

}  // namespace octile
