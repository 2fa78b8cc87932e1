// The GEMMs of groups, one by one, for the host.
#pragma once

#include <cstdint>

#include "generator/core/error.h"
#include "generator/gemm/problem.h"
#include "runtime/families/gemm/reference.h"

namespace octile::reference {

// The GEMM of one group, without groups.
struct GemmPart {
  GemmProblem problem;
  GemmArgs args;
  std::int64_t row0 = 0;  // of D, where the group's begins
};

// Returns the GEMM of group g. Offsets and counts are clamped as on the device. `k_blocks` is the
// count of K-blocks of the groups before, which a group of columns adds its own to.
GemmPart part_of(const GemmProblem&, const GemmArgs&, std::int64_t g, std::int64_t& k_blocks);

// Calls body(part) for each group that has rows or columns, or whose D is written, until one fails.
template <typename Body>
Status for_each_group(const GemmProblem& problem, const GemmArgs& args, const Body& body) {
  if (args.group_rows == nullptr) {
    return fail(ErrorCode::kInvalidArgument, "group_rows is null; the groups are read there");
  }
  std::int64_t k_blocks = 0;
  for (std::int64_t g = 0; g < problem.groups; ++g) {
    if (Status ok = body(part_of(problem, args, g, k_blocks)); !ok) return ok;
  }
  return {};
}

}  // namespace octile::reference
