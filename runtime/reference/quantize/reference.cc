#include "runtime/reference/quantize/reference.h"

#include <fmt/format.h>

#include <new>

#include "generator/quantize/fused_source.h"
#include "runtime/reference/quantize/reference_dequantize.h"
#include "runtime/reference/quantize/reference_gather.h"
#include "runtime/reference/quantize/reference_groups.h"
#include "runtime/reference/quantize/reference_quantizer.h"
#include "runtime/reference/quantize/reference_range.h"
#include "runtime/reference/quantize/reference_source.h"
#include "runtime/reference/quantize/reference_stack.h"

namespace octile::reference {
namespace {

Status invalid(std::string message) {
  return fail(ErrorCode::kInvalidArgument, std::move(message));
}

Status require_pointer(const void* pointer, const char* name, bool needed) {
  if (!needed || pointer != nullptr) return {};
  return invalid(fmt::format("{} is null; this problem writes or reads it", name));
}

Status check_input(const QuantizeProblem& problem, const QuantizeCall& args) {
  if (Status s = check_well_formed(problem); !s) return s;
  if (args.rows < 0 || problem.cols < 0) {
    return invalid(
        fmt::format("rows is {} and cols is {}; both must be >= 0", args.rows, problem.cols));
  }
  if (problem.rows != kDynamic && problem.rows != args.rows) {
    return invalid(fmt::format("rows is {}; the problem fixes {}", args.rows, problem.rows));
  }
  if (auto s = require_pointer(args.encode_scale, "encode_scale",
                               problem.policy == ScalePolicy::kDelayed);
      !s)
    return s;
  const bool anything = args.rows > 0 && problem.cols > 0;  // otherwise nothing is written
  if (auto s = require_pointer(args.tap, "tap", problem.tap && anything); !s) return s;
  if (auto s =
          require_pointer(args.bias_gradient, "bias_gradient", problem.bias_gradient && anything);
      !s)
    return s;
  if (auto s = require_pointer(args.row_factor, "row_factor", problem.weighted && anything); !s)
    return s;
  const bool norms = source_shape(problem.source).norms;
  if (auto s = require_pointer(args.rstd, "rstd", norms && anything); !s) return s;
  if (problem.operation == QuantizeOperation::kGather)
    return require_pointer(args.x, "x", anything);
  return QuantizeSource::check(problem, args);
}

Status check_gather(const QuantizeCall& args) {
  if (auto s = require_pointer(args.q, "q", true); !s) return s;
  if (auto s = require_pointer(args.scale, "scale", true); !s) return s;
  if (auto s = require_pointer(args.x_scale, "x_scale", true); !s) return s;
  if (auto s = require_pointer(args.row_index, "index", true); !s) return s;
  return args.row_count > 0 ? Status{}
                            : invalid(fmt::format("x_rows is {}; must be > 0", args.row_count));
}

Status check_amax(const QuantizeProblem& problem, const QuantizeCall& args) {
  if (args.ldx != 0 && args.ldx != problem.cols) {
    return invalid(fmt::format("ldx is {}; 0 or cols = {} is allowed", args.ldx, problem.cols));
  }
  return require_pointer(args.amax, "amax", true);
}

// Checks every argument of an inverse that depends on its layout.
Status check_inverse(const QuantizeProblem& problem, const QuantizeCall& args) {
  if (problem.operation == QuantizeOperation::kDequantize) {
    if (args.ldq != 0 && args.ldq < problem.cols) {
      return invalid(
          fmt::format("ldq is {}; 0 or at least cols = {} is allowed", args.ldq, problem.cols));
    }
    return require_pointer(args.q, "q", true);
  }
  if (auto s = require_pointer(args.q_transposed, "q_transposed", true); !s) return s;
  return require_pointer(args.scale_transposed, "scale_transposed", true);
}

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
  if (auto s = check_input(problem, args); !s) return s;
  if (args.skip != nullptr && *args.skip != 0) return {};
  // Like octile_quantize_run, this writes nothing for an empty tensor, neither padding nor scale.
  if (args.rows == 0 || problem.cols == 0) return {};
  if (problem.grouping == Grouping::kStacked) return quantize_stack(problem, args, threads);
  try {
    if (problem.operation == QuantizeOperation::kGather) {
      if (auto s = check_gather(args); !s) return s;
      return gather(problem, args, threads);
    }
    if (problem.operation == QuantizeOperation::kAmax) {
      if (auto s = check_amax(problem, args); !s) return s;
      return find_amax(problem, args, threads);
    }
    if (problem.operation != QuantizeOperation::kQuantize) {
      if (auto s = check_inverse(problem, args); !s) return s;
      return problem.operation == QuantizeOperation::kDequantize
                 ? dequantize(problem, args, threads)
                 : transpose(problem, args, threads);
    }
    if (problem.grouping != Grouping::kNone) return quantize_groups(problem, args, threads);
    return Quantizer(problem, args.rows, threads).run(args);
  } catch (const std::bad_alloc&) {
    return fail(ErrorCode::kOutOfMemory,
                fmt::format("no host memory to quantise {} x {}", args.rows, problem.cols));
  }
}

}  // namespace octile::reference
