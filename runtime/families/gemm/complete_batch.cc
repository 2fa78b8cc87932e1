#include "runtime/families/gemm/complete_batch.h"

#include <fmt/format.h>

#include <array>
#include <string_view>
#include <utility>

#include "generator/core/layout.h"
#include "runtime/launch/argument_checks.h"

namespace octile {
namespace {

constexpr int kScaleBytes = 4;  // of fp32, or of a word of four exponents

// The strides that a batch may have between its matrices.
struct StrideRule {
  std::int64_t packed = 0;  // what 0 stands for
  std::int64_t multiple = 1;
  int element_bytes = 1;
  bool may_be_shared = false;
};

Status complete_stride(std::string_view name, std::int64_t& stride, const StrideRule& rule) {
  if (stride == 0) stride = rule.packed;
  const bool shared = rule.may_be_shared && stride == OCTILE_BATCH_SHARED;
  const std::int64_t most = kMaxStrideBytes / rule.element_bytes - rule.multiple;
  if (shared || (stride > 0 && stride % rule.multiple == 0 && stride <= most)) [[likely]]
    return {};
  return refuse(fmt::format("{} is {}; allowed: 0 (meaning {}){} or a multiple of {} from {} to {}",
                            name, stride, rule.packed,
                            rule.may_be_shared ? ", OCTILE_BATCH_SHARED (-1)" : "", rule.multiple,
                            rule.multiple, most));
}

// The scales of a matrix begin where a copy may: at 16 bytes if they are 1x128.
StrideRule scale_rule(const TensorType& type, std::int64_t packed) {
  const bool copied = type.granularity == Granularity::k1x128;
  return {packed, copied ? kTmaBytes / kScaleBytes : 1, kScaleBytes};
}

// The scales of panels lie one behind the other.
Status complete_packed(std::string_view name, std::int64_t& stride, std::int64_t packed) {
  if (stride == 0) stride = packed;
  if (stride == packed) [[likely]]
    return {};
  return refuse(
      fmt::format("{} is {}; allowed: 0 (meaning {}), because the batch's products are summed",
                  name, stride, packed));
}

Status complete_panels(const BatchStrides& packed, BatchStrides& strides) {
  Status ok = complete_stride("batch.a_stride", strides.a, {packed.a, kTmaBytes});
  if (ok) ok = complete_stride("batch.b_stride", strides.b, {packed.b, kTmaBytes});
  if (ok) ok = complete_packed("batch.a_scale_stride", strides.a_scale, packed.a_scale);
  if (ok) ok = complete_packed("batch.b_scale_stride", strides.b_scale, packed.b_scale);
  return ok;
}

}  // namespace

Status check_batch_is_known(const GemmProblem& p, const GemmArguments& args) {
  const std::int64_t any = args.batch.a_stride | args.batch.a_scale_stride | args.batch.b_stride |
                           args.batch.b_scale_stride | args.batch.d_stride;
  if (is_batched(p) || any == 0) [[likely]]
    return {};
  for (const auto& [name, stride] :
       {std::pair<std::string_view, std::int64_t>{"batch.a_stride", args.batch.a_stride},
        {"batch.a_scale_stride", args.batch.a_scale_stride},
        {"batch.b_stride", args.batch.b_stride},
        {"batch.b_scale_stride", args.batch.b_scale_stride},
        {"batch.d_stride", args.batch.d_stride}}) {
    if (stride != 0)
      return refuse(
          fmt::format("{} is {}; allowed: 0, because the plan has no batch", name, stride));
  }
  return {};
}

// Two matrices of D share no element if one lies behind the other, or if all lie side by side in
// the rows.
Status complete_batch_of_d(const GemmProblem& p, GemmCall& call) {
  const int bytes = size_of(p.d.dtype);
  const auto& [m, n, k] = call.shape;
  const std::int64_t ldd = call.ldd;
  if (p.sums_batch) return complete_packed("batch.d_stride", call.strides.d, 0);
  if (Status ok =
          complete_stride("batch.d_stride", call.strides.d, {m * ldd, kTmaBytes / bytes, bytes});
      !ok)
    return ok;
  const std::int64_t stride = call.strides.d;
  const std::int64_t behind = (m - 1) * ldd + n;
  const bool side_by_side = stride >= n && (p.batch - 1) * stride + n <= ldd;
  if (p.batch == 1 || stride >= behind || side_by_side) [[likely]]
    return {};
  return refuse(fmt::format(
      "batch.d_stride is {}; allowed: {} or more, or, with the {} matrices side by side "
      "in rows of ldd ({}), {} to {}",
      stride, behind, p.batch, ldd, n, (ldd - n) / (p.batch - 1)));
}

Status complete_batch_of_operands(const GemmProblem& p, GemmCall& call) {
  const BatchStrides packed = packed_strides(p, call);
  BatchStrides& strides = call.strides;
  if (p.sums_batch) return complete_panels(packed, strides);
  const StrideRule a{packed.a, kTmaBytes}, b{packed.b, kTmaBytes, 1, true};
  StrideRule b_scale = scale_rule(p.b, packed.b_scale);
  b_scale.may_be_shared = true;
  Status ok = complete_stride("batch.a_stride", strides.a, a);
  if (ok)
    ok = complete_stride("batch.a_scale_stride", strides.a_scale, scale_rule(p.a, packed.a_scale));
  if (ok) ok = complete_stride("batch.b_stride", strides.b, b);
  if (ok) ok = complete_stride("batch.b_scale_stride", strides.b_scale, b_scale);
  return ok;
}

}  // namespace octile
