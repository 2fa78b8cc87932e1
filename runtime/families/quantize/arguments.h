// The arguments of one call of the quantise family, as a caller gives them.
#pragma once

#include "octile/octile.h"
#include "runtime/launch/argument_checks.h"

namespace octile {

// The arguments of octile_quantize_run with the features' structs in place of pointers to them, so
// that they can be copied. The struct_size of a feature that the caller passed as
// null is 0. Nothing but its plain fields is read from the base.
struct QuantizeArguments : octile_quantize_args {
  octile_quantize_groups groups = unused_feature<octile_quantize_groups>();
  octile_quantize_delayed delayed = unused_feature<octile_quantize_delayed>();
  octile_quantize_fused fused = unused_feature<octile_quantize_fused>();
  octile_quantize_source_scales source_scales = unused_feature<octile_quantize_source_scales>();
  octile_quantize_monitor monitor = unused_feature<octile_quantize_monitor>();
  octile_quantize_change change = unused_feature<octile_quantize_change>();
  octile_quantize_gather gather = unused_feature<octile_quantize_gather>();

  QuantizeArguments() : octile_quantize_args{} { struct_size = sizeof(octile_quantize_args); }

  // Returns the same for the C API. The features' pointers lead into this object.
  octile_quantize_args call() const;
};

}  // namespace octile
