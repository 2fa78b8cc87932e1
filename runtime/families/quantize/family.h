// The quantise family as the runtime knows it.
#pragma once

#include "generator/quantize/family.h"
#include "runtime/families/family.h"
#include "runtime/families/quantize/arguments.h"
#include "runtime/families/quantize/complete.h"
#include "runtime/families/quantize/launch.h"
#include "runtime/families/quantize/resolve.h"

namespace octile {

template <>
struct RuntimeFamily<QuantizeProblem> {
  using Arguments = QuantizeArguments;
  using Call = QuantizeCall;
  using Resolved = ResolvedQuantize;
  static constexpr const char* kRunCall = "octile_quantize_run";
};
template <>
struct ProblemOf<QuantizeArguments> {
  using type = QuantizeProblem;
};
static_assert(RuntimeKernelFamily<QuantizeProblem>);

}  // namespace octile
