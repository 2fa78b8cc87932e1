#include "runtime/families/gemm/batch_arguments.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <string_view>
#include <utility>

#include "generator/core/layout.h"
#include "runtime/launch/argument_checks.h"

namespace octile {
namespace {

constexpr int kScaleBytes = 4;  // of fp32, or of a word of four exponents
static_assert(OCTILE_BATCH_SHARED == reference::kSharedByBatch);

// What a stride between matrices may be.
struct StrideRule {
  std::int64_t packed = 0;  // what 0 stands for
  std::int64_t multiple = 1;
  int element_bytes = 1;
  bool may_be_shared = false;
};

Status check_stride(std::string_view name, std::int64_t& stride, const StrideRule& rule) {
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
StrideRule scale_rule(const TensorType& type, std::int64_t rows, std::int64_t k, std::int64_t ld) {
  const bool copied = type.granularity == Granularity::k1x128;
  return {packed_scale_rows(type, rows, k) * ld, copied ? kTmaBytes / kScaleBytes : 1, kScaleBytes};
}

// The scales of panels lie one behind the other.
Status check_packed(std::string_view name, std::int64_t& stride, std::int64_t packed) {
  if (stride == 0) stride = packed;
  if (stride == packed) [[likely]]
    return {};
  return refuse(
      fmt::format("{} is {}; allowed: 0 (meaning {}), because the batch's products are summed",
                  name, stride, packed));
}

Status check_panels(const GemmProblem& p, const GemmShape& shape, GemmArguments& args) {
  Status ok = check_stride("batch.a_stride", args.batch.a_stride, {shape.m * args.lda, kTmaBytes});
  if (ok) ok = check_stride("batch.b_stride", args.batch.b_stride, {shape.n * args.ldb, kTmaBytes});
  if (ok)
    ok = check_packed("batch.a_scale_stride", args.batch.a_scale_stride,
                      packed_scale_rows(p.a, shape.m, shape.k) * args.a_scale_ld);
  if (ok)
    ok = check_packed("batch.b_scale_stride", args.batch.b_scale_stride,
                      packed_scale_rows(p.b, shape.n, shape.k) * args.b_scale_ld);
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
Status check_batch_of_d(const GemmProblem& p, const GemmShape& shape, GemmArguments& args) {
  const int bytes = size_of(p.d.dtype);
  if (p.sums_batch) return check_packed("batch.d_stride", args.batch.d_stride, 0);
  if (Status ok = check_stride("batch.d_stride", args.batch.d_stride,
                               {shape.m * args.ldd, kTmaBytes / bytes, bytes});
      !ok)
    return ok;
  const std::int64_t stride = args.batch.d_stride;
  const std::int64_t behind = (shape.m - 1) * args.ldd + shape.n;
  const bool side_by_side = stride >= shape.n && (p.batch - 1) * stride + shape.n <= args.ldd;
  if (p.batch == 1 || stride >= behind || side_by_side) [[likely]]
    return {};
  return refuse(fmt::format(
      "batch.d_stride is {}; allowed: {} or more, or, with the {} matrices side by side "
      "in rows of ldd ({}), {} to {}",
      stride, behind, p.batch, args.ldd, shape.n, (args.ldd - shape.n) / (p.batch - 1)));
}

Status check_batch_of_operands(const GemmProblem& p, const GemmShape& shape, GemmArguments& args) {
  if (p.sums_batch) return check_panels(p, shape, args);
  const StrideRule a{shape.m * args.lda, kTmaBytes};
  if (Status ok = check_stride("batch.a_stride", args.batch.a_stride, a); !ok) return ok;
  if (Status ok = check_stride("batch.a_scale_stride", args.batch.a_scale_stride,
                               scale_rule(p.a, shape.m, shape.k, args.a_scale_ld));
      !ok)
    return ok;
  const StrideRule b{shape.n * args.ldb, kTmaBytes, 1, true};
  if (Status ok = check_stride("batch.b_stride", args.batch.b_stride, b); !ok) return ok;
  StrideRule b_scale = scale_rule(p.b, shape.n, shape.k, args.b_scale_ld);
  b_scale.may_be_shared = true;
  return check_stride("batch.b_scale_stride", args.batch.b_scale_stride, b_scale);
}

reference::BatchStrides batch_strides(const GemmArguments& args) {
  return {args.batch.a_stride, args.batch.a_scale_stride,
          std::max<std::int64_t>(args.batch.b_stride, 0),
          std::max<std::int64_t>(args.batch.b_scale_stride, 0), args.batch.d_stride};
}

}  // namespace octile
