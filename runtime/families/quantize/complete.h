// The only place that checks a caller's arguments of the quantise family and derives missing
// values.
#pragma once

#include <cstdint>
#include <string_view>

#include "generator/core/error.h"
#include "generator/quantize/problem.h"
#include "runtime/families/quantize/arguments.h"
#include "runtime/reference/quantize/call.h"

namespace octile {

// Returns the call, with every leading dimension and stride filled in. Errors: kInvalidArgument. If
// there is nothing to do, pointers and leading dimensions are not looked at.
Result<QuantizeCall> complete(const QuantizeProblem& problem, const QuantizeArguments& args);

inline std::int64_t tokens_of(const QuantizeCall& call) { return call.rows; }
inline std::int64_t kernel_tokens_of(const QuantizeCall& call) { return call.rows; }

// Returns the update with its states and strides filled in.
Result<octile_scale_update_args> complete(const octile_scale_update_args& args);

// Checks the stride of a call's row-wise scales and fills it in if it is 0. Swizzled tiles have
// none.
Status check_scale_ld(std::string_view name, std::int64_t& ld, const QuantizeProblem& problem,
                      std::int64_t rows);

// Checks the arguments of octile_plan_quantized_layout.
Status check_layout_query(const QuantizeProblem& problem, std::int64_t groups, bool transposed);

// Run on the host what has work. Errors: as reference::quantize.
Status run_on_host(const QuantizeProblem& problem, const QuantizeCall& call);
Status run_on_host(const QuantizeProblem& problem, const octile_scale_update_args& args);

}  // namespace octile
