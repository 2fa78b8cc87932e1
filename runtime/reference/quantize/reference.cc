#include "runtime/reference/quantize/reference.h"

#include <fmt/format.h>

#include <new>

#include "runtime/reference/quantize/reference_dequantize.h"
#include "runtime/reference/quantize/reference_gather.h"
#include "runtime/reference/quantize/reference_groups.h"
#include "runtime/reference/quantize/reference_quantizer.h"
#include "runtime/reference/quantize/reference_range.h"
#include "runtime/reference/quantize/reference_stack.h"

namespace octile::reference {
namespace {

// Quantises one stacked tensor after the other.
Status quantize_stack(const QuantizeProblem& problem, const QuantizeCall& args, int threads) {
  const Stack stack(problem, args);
  for (std::int64_t i = 0; i < args.row_count; ++i) {
    if (Status ok = quantize(stack.problem(), stack.call(i), threads); !ok) return ok;
  }
  return {};
}

}  // namespace

Status quantize(const QuantizeProblem& problem, const QuantizeCall& args, int threads) {
  if (Status ok = check_well_formed(problem); !ok) return ok;
  if (args.skip != nullptr && *args.skip != 0) return {};
  if (problem.grouping == Grouping::kStacked) return quantize_stack(problem, args, threads);
  try {
    switch (problem.operation) {
      case QuantizeOperation::kGather:
        return gather(problem, args, threads);
      case QuantizeOperation::kAmax:
        return find_amax(problem, args, threads);
      case QuantizeOperation::kDequantize:
        return dequantize(problem, args, threads);
      case QuantizeOperation::kTranspose:
        return transpose(problem, args, threads);
      case QuantizeOperation::kQuantize:
        break;
    }
    if (problem.grouping != Grouping::kNone) return quantize_groups(problem, args, threads);
    return Quantizer(problem, args.rows, threads).run(args);
  } catch (const std::bad_alloc&) {
    return fail(ErrorCode::kOutOfMemory,
                fmt::format("no host memory to quantise {} x {}", args.rows, problem.cols));
  }
}

}  // namespace octile::reference
