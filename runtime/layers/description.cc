#include "runtime/layers/description.h"

#include <fmt/format.h>

#include <array>
#include <string_view>

#include "runtime/launch/argument_checks.h"

namespace octile::layers {
namespace {

constexpr std::int64_t kMostExtent = 0x7fffffff / kMultiple * kMultiple;  // of 31 bits

Status check_multiple(std::string_view name, std::int64_t value) {
  if (value > 0 && value <= kMostExtent && value % kMultiple == 0) return {};
  return refuse(
      fmt::format("{} is {}; allowed: multiples of {} from {} to {}, because each "
                  "dimension is summed over in one of the passes",
                  name, value, kMultiple, kMultiple, kMostExtent));
}

Status check_plain_type(std::string_view name, DType type) {
  if (!is_fp8(type)) return {};
  return refuse(fmt::format("{} is {}; allowed: bf16, fp16 and fp32", name, name_of(type)));
}

Status check_types(const Description& d) {
  struct Field {
    std::string_view name;
    DType type;
  };
  for (const auto& [name, type] :
       {Field{"desc->dtype", d.dtype}, Field{"desc->weight_dtype", d.weight_dtype},
        Field{"desc->weight_gradient_dtype", d.weight_gradient_dtype}}) {
    if (Status ok = check_plain_type(name, type); !ok) return ok;
  }
  if (!d.bias) return {};
  if (d.experts > 0)
    return refuse(
        fmt::format("desc->bias_dtype is {} and desc->experts is {}; allowed: no bias with experts",
                    name_of(*d.bias), d.experts));
  if (*d.bias == DType::kBF16 || *d.bias == DType::kFP32) return {};
  return refuse(
      fmt::format("desc->bias_dtype is {}; allowed: bf16, fp32 and none", name_of(*d.bias)));
}

// The W of all experts is one array.
Status check_weight_size(const Description& d) {
  std::int64_t rows = 0;
  std::int64_t elements = 0;
  std::int64_t bytes = 0;
  if (!__builtin_mul_overflow(d.tensors(), d.n, &rows) &&
      !__builtin_mul_overflow(rows, d.k, &elements) &&
      !__builtin_mul_overflow(elements, size_of(DType::kFP32), &bytes))
    return {};
  return refuse(
      fmt::format("desc->experts is {}, desc->n is {} and desc->k is {}; allowed: weights "
                  "of at most 2^63 - 1 bytes in fp32",
                  d.experts, d.n, d.k));
}

// Only scales of whole tensors are made from maxima.
Status check_history(const Description& d) {
  const bool per_tensor = d.recipe->activation.granularity == Granularity::kPerTensor;
  const std::int64_t least = d.is_delayed() ? 1 : 0;
  const std::int64_t most = per_tensor ? kMostHistory : 0;
  if (d.history >= least && d.history <= most) return {};
  if (!per_tensor)
    return refuse(
        fmt::format("desc->history is {}; allowed: 0 with recipe '{}', whose scales are "
                    "not of whole tensors",
                    d.history, d.recipe->name));
  return refuse(fmt::format("desc->history is {}; allowed with recipe '{}': {} to {}", d.history,
                            d.recipe->name, least, most));
}

}  // namespace

QuantizeOutput output_of(Copies copies) {
  if (!copies.rowwise) return QuantizeOutput::kTransposed;
  return copies.transposed ? QuantizeOutput::kBoth : QuantizeOutput::kRowwise;
}

Copies copies_of_dy(bool input_gradient, bool weight_gradient, bool bias_gradient) {
  return {.rowwise = input_gradient || (bias_gradient && !weight_gradient),
          .transposed = weight_gradient};
}

Status check(const Description& d) {
  if (Status ok = check_multiple("desc->n", d.n); !ok) return ok;
  if (Status ok = check_multiple("desc->k", d.k); !ok) return ok;
  if (d.experts < 0 || d.experts > kMostGemmGroups)
    return refuse(fmt::format("desc->experts is {}; allowed: 0 (a linear layer) to {}", d.experts,
                              kMostGemmGroups));
  if (Status ok = check_weight_size(d); !ok) return ok;
  if (Status ok = check_types(d); !ok) return ok;
  return check_history(d);
}

QuantizeProblem quantizer(const Description& d, Role role, QuantizeOutput output, bool extra) {
  QuantizeProblem problem;
  problem.cols = d.columns(role);
  problem.x.dtype = d.type_of(role);
  const std::array types{d.recipe->activation, d.recipe->weight, d.recipe->gradient};
  problem.q = types.at(static_cast<std::size_t>(role));
  problem.output = output;
  problem.bias_gradient = extra && role == Role::kDy;
  problem.skip_unchanged = extra && role == Role::kW;
  // W is quantised once for its contents, so that its own maximum costs little and is always right.
  if (d.is_delayed() && role != Role::kW) problem.policy = ScalePolicy::kDelayed;
  if (d.experts > 0)
    problem.grouping = role == Role::kW ? Grouping::kStacked : Grouping::kContiguous;
  return problem;
}

std::int64_t stacked_tensors(const Description& d, Role role) {
  return role == Role::kW ? d.tensors() : 1;
}

Status check_holdable(const Description& d) {
  const Granularity block = d.recipe->weight.granularity;
  if (block == Granularity::k128x128 || block == Granularity::kPerTensor) return {};
  return fail(ErrorCode::kUnsupported,
              fmt::format("the layer's recipe is '{}'; allowed for a W that is held as codes: "
                          "recipes whose W has 128x128 scales or one scale",
                          d.recipe->name));
}

QuantizeProblem transposer(const Description& d) {
  QuantizeProblem problem;
  problem.operation = QuantizeOperation::kTranspose;
  problem.cols = d.k;
  problem.x = problem.q = d.recipe->weight;
  problem.output = QuantizeOutput::kTransposed;
  if (d.experts > 0) problem.grouping = Grouping::kStacked;
  return problem;
}

GemmProblem gemm(const Description& d, Pass pass) {
  GemmProblem problem = gemm_problem(*d.recipe, pass, kDynamic, d.n, d.k, d.experts);
  const bool is_weight = pass == Pass::kWgrad;
  problem.d.dtype = is_weight ? d.weight_gradient_dtype : d.dtype;
  problem.accumulate = is_weight && d.accumulate;
  if (pass == Pass::kFprop) problem.bias = d.bias;
  if (d.sentry) problem.sentry = Sentry::kWord;
  return problem;
}

QuantizeProblem scale_update(const Description& d, Role role) {
  QuantizeProblem problem = quantizer(d, role, QuantizeOutput::kRowwise, false);
  problem.cols = kMultiple;
  problem.x.dtype = DType::kBF16;
  problem.grouping = Grouping::kNone;
  return problem;
}

}  // namespace octile::layers
