// Stacked tensors one by one: the problem and the call of each.
#pragma once

#include <cstdint>

#include "generator/quantize/problem.h"
#include "generator/quantize/stack.h"
#include "runtime/reference/quantize/call.h"

namespace octile::reference {

class Stack {
 public:
  Stack(const QuantizeProblem& problem, const QuantizeCall& call);

  const QuantizeProblem& problem() const { return problem_; }  // of every tensor
  QuantizeCall call(std::int64_t tensor) const;

 private:
  QuantizeProblem problem_;
  QuantizeCall first_;
  StackSteps steps_;
};

}  // namespace octile::reference
