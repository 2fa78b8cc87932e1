// The GEMM family as the runtime knows it.
#pragma once

#include "generator/gemm/family.h"
#include "runtime/families/family.h"
#include "runtime/families/gemm/arguments.h"
#include "runtime/families/gemm/complete.h"
#include "runtime/families/gemm/launch.h"
#include "runtime/families/gemm/resolve.h"

namespace octile {

template <>
struct RuntimeFamily<GemmProblem> {
  using Arguments = GemmArguments;
  using Call = GemmCall;
  using Resolved = ResolvedGemm;
  static constexpr const char* kRunCall = "octile_gemm_run";
};
template <>
struct ProblemOf<GemmArguments> {
  using type = GemmProblem;
};
static_assert(RuntimeKernelFamily<GemmProblem>);

}  // namespace octile
