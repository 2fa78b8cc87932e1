// The operands of a sum over a batch, with their panels side by side in K.
#pragma once

#include <cstdint>
#include <vector>

#include "generator/gemm/problem.h"
#include "runtime/reference/gemm/reference.h"

namespace octile::reference {

class JoinedPanels {
 public:
  // Copies the codes of A and B. Each panel is filled up with zeros to whole K-blocks. Scales stay
  // where they are. Throws std::bad_alloc.
  JoinedPanels(const GemmProblem& problem, const GemmCall& args);

  // Return one GEMM with all of K, which has the bits of the sum. Its pointers lead into this.
  const GemmProblem& problem() const { return problem_; }
  const GemmCall& args() const { return args_; }

 private:
  GemmProblem problem_;
  GemmCall args_;
  std::vector<std::uint8_t> a_, b_;
};

}  // namespace octile::reference
