// Validation of what a run was given: every refusal names the argument, its value and what is
// allowed. On success nothing is formatted or allocated.
#pragma once

#include <cstdint>

#include "generator/core/error.h"
#include "generator/families.h"
#include "octile/octile.h"

namespace octile {

// The largest extent a kernel takes: extents are int32, addresses 64-bit.
inline constexpr std::int64_t kMaxExtent = 0x7fffffff;

// That a plan can be made of the problem, beyond what the support matrix says.
Status check_plan_extents(const Problem& problem);

// `name`: the argument as the caller knows it ("m", "rows", "lo").
Status check_tokens(const Problem& problem, const char* name, std::int64_t tokens);

// Fill in the leading dimensions given as 0. With no rows or columns, pointers are not looked at.
Status check_arguments(const GemmProblem& problem, octile_gemm_args& args);
Status check_arguments(const QuantizeProblem& problem, octile_quantize_args& args);

// Whether a run with these arguments has nothing to do: no row, no group, no element of a range.
bool is_nothing(const QuantizeProblem& problem, const octile_quantize_args& args);

// What is asked of octile_plan_quantized_layout.
Status check_layout_query(const QuantizeProblem& problem, std::int64_t groups, bool transposed);

Status check_arguments(const octile_scale_update_args& args);

// That a call brings the workspace it needs.
Status check_workspace(const octile_quantize_args& args, std::int64_t needed_bytes);

}  // namespace octile
