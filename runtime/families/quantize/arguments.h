// What a caller gives to one call of the quantise family, and the checks of it.
#pragma once

#include <cstdint>
#include <string_view>

#include "generator/core/error.h"
#include "generator/quantize/problem.h"
#include "octile/octile.h"
#include "runtime/launch/argument_checks.h"
#include "runtime/reference/quantize/reference.h"

namespace octile {

// The arguments of octile_quantize_run with the features' structs in place of pointers to them, so
// that they can be copied and completed. The struct_size of a feature that the caller passed as
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

inline std::int64_t tokens_of(const QuantizeArguments& args) { return args.rows; }
inline std::int64_t expected_tokens_of(const QuantizeArguments& args) { return args.rows; }

// Checks the arguments and fills in the leading dimensions that are 0. The row count was checked
// (check_tokens). If there is nothing to do, pointers are not looked at.
Status check_arguments(const QuantizeProblem& problem, QuantizeArguments& args);

// Returns true if the call has nothing to do: no row, no column or no group.
bool is_nothing(const QuantizeProblem& problem, const QuantizeArguments& args);

// Checks the stride of row-wise scales and fills it in if it is 0. Swizzled tiles have none.
Status check_scale_ld(std::string_view name, std::int64_t& ld, const QuantizeProblem& problem,
                      std::int64_t rows);

// The arguments of octile_plan_quantized_layout.
Status check_layout_query(const QuantizeProblem& problem, std::int64_t groups, bool transposed);

// The same for octile_scale_update_run. Fills in the states and strides that are 0.
Status check_arguments(octile_scale_update_args& args);

reference::QuantizeArgs reference_args(const QuantizeArguments& args);

// Run checked arguments on the host. Errors: as reference::quantize.
Status run_on_host(const QuantizeProblem& problem, const QuantizeArguments& args);
Status run_on_host(const QuantizeProblem& problem, const octile_scale_update_args& args);

}  // namespace octile
