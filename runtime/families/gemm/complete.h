// The only place that checks a caller's arguments of a GEMM and derives missing values.
#pragma once

#include <cstdint>

#include "generator/core/error.h"
#include "generator/gemm/problem.h"
#include "runtime/families/gemm/arguments.h"
#include "runtime/reference/gemm/call.h"

namespace octile {

// Returns the call, with every leading dimension and stride filled in. Errors: kInvalidArgument. If
// D is empty, pointers and leading dimensions are not looked at.
Result<GemmCall> complete(const GemmProblem& problem, const GemmArguments& args);
// Returns the call of reference::gemm_fp64, which reads no D: D, its scales and the sentry are not
// looked at. initial_d: every element of D before the call, if the problem accumulates.
Result<GemmCall> complete_for_fp64(const GemmProblem& problem, const GemmArguments& args,
                                   float initial_d = 0);

inline std::int64_t tokens_of(const GemmCall& call) { return call.tokens; }
inline std::int64_t kernel_tokens_of(const GemmCall& call) { return call.kernel_tokens; }

// Runs a call that has work on the host. Errors: as reference::gemm.
Status run_on_host(const GemmProblem& problem, const GemmCall& call);

}  // namespace octile
