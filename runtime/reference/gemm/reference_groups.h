// The GEMMs of groups or of a batch, one by one, for the host.
#pragma once

#include <cstdint>

#include "generator/gemm/problem.h"
#include "runtime/reference/gemm/reference.h"

namespace octile::reference {

// One of the GEMMs, as a problem without groups or batch.
struct GemmPart {
  GemmProblem problem;
  GemmCall args;
  std::int64_t row0 = 0;  // where its D begins in the rows of all; of a batch, the GEMMs' D packed
};

// Returns the complete call of group g, or of GEMM g of a batch. Offsets and counts are clamped as
// on the device. `k_blocks` is the count of K-blocks of the groups before, which a group of columns
// adds its own to.
GemmPart part_of(const GemmProblem&, const GemmCall&, std::int64_t g, std::int64_t& k_blocks);

// Calls body(part) for each of the GEMMs.
template <typename Body>
void for_each_gemm(const GemmProblem& problem, const GemmCall& args, const Body& body) {
  std::int64_t k_blocks = 0;
  const std::int64_t count = is_batched(problem) ? problem.batch : problem.groups;
  for (std::int64_t g = 0; g < count; ++g) body(part_of(problem, args, g, k_blocks));
}

}  // namespace octile::reference
