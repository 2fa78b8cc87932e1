#include "runtime/reference/gemm/joined_panels.h"

#include <algorithm>

#include "generator/core/layout.h"

namespace octile::reference {
namespace {

constexpr std::int64_t kPanelMultiple = 128;

// An operand's matrices: panels of rows x k codes.
struct Panels {
  const void* codes = nullptr;
  std::int64_t count = 0, rows = 0, k = 0, ld = 0, stride = 0;
};

std::vector<std::uint8_t> join(const Panels& from) {
  const std::int64_t width = round_up(from.k, kPanelMultiple);
  std::vector<std::uint8_t> joined(static_cast<std::size_t>(from.count * from.rows * width));
  if (from.k == 0 || from.codes == nullptr) return joined;
  for (std::int64_t p = 0; p < from.count; ++p) {
    const auto* panel = static_cast<const std::uint8_t*>(from.codes) + p * from.stride;
    for (std::int64_t row = 0; row < from.rows; ++row)
      std::copy_n(panel + row * from.ld, from.k, joined.data() + (row * from.count + p) * width);
  }
  return joined;
}

}  // namespace

JoinedPanels::JoinedPanels(const GemmProblem& problem, const GemmCall& args)
    : problem_(problem),
      args_(args),
      a_(join({args.a, problem.batch, args.shape.m, args.shape.k, args.lda, args.strides.a})),
      b_(join({args.b, problem.batch, args.shape.n, args.shape.k, args.ldb, args.strides.b})) {
  problem_.batch = 0;
  problem_.sums_batch = false;
  args_.strides = {};
  args_.shape.k = args_.lda = args_.ldb = problem.batch * round_up(args.shape.k, kPanelMultiple);
  if (args.a != nullptr) args_.a = a_.data();
  if (args.b != nullptr) args_.b = b_.data();
}

}  // namespace octile::reference
