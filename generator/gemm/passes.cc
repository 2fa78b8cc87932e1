#include "generator/gemm/passes.h"

#include <array>

#include "generator/core/text_fields.h"

namespace octile {
namespace {

constexpr std::array kPasses{Pass::kFprop, Pass::kDgrad, Pass::kWgrad};

}  // namespace

std::string_view name_of(Pass pass) {
  switch (pass) {
    case Pass::kFprop:
      return "fprop";
    case Pass::kDgrad:
      return "dgrad";
    case Pass::kWgrad:
      break;
  }
  return "wgrad";
}

std::string pass_names() {
  std::string names;
  for (const Pass pass : kPasses) names.append(names.empty() ? "" : ", ").append(name_of(pass));
  return names;
}

std::optional<Pass> find_pass(std::string_view name) {
  for (const Pass pass : kPasses) {
    if (name_of(pass) == name) return pass;
  }
  return std::nullopt;
}

TensorType operand_type(TensorType type) {
  if (type.scale == ScaleFormat::kF32Pow2) type.scale = ScaleFormat::kF32;
  return type;
}

GemmProblem gemm_problem(const Recipe& recipe, Pass pass, std::int64_t m, std::int64_t n,
                         std::int64_t k, std::int64_t experts) {
  GemmProblem p;
  const auto fill = [&](std::int64_t gm, std::int64_t gn, std::int64_t gk, const TensorType& a,
                        const TensorType& b) {
    p.m = gm;
    p.n = gn;
    p.k = gk;
    p.a = a;
    p.b = b;
  };
  switch (pass) {
    case Pass::kFprop:
      fill(m, n, k, recipe.activation, recipe.weight);
      break;
    case Pass::kDgrad:
      fill(m, k, n, recipe.gradient, recipe.weight);
      break;
    case Pass::kWgrad:
      fill(n, k, m, recipe.gradient, recipe.activation);
      break;
  }
  if (!has_power_scales(p)) {
    p.a = operand_type(p.a);
    p.b = operand_type(p.b);
  }
  p.accumulate = pass == Pass::kWgrad;
  p.d.dtype = p.accumulate ? DType::kFP32 : DType::kBF16;
  p.promote = pass == Pass::kFprop ? recipe.promote_fprop : recipe.promote_backward;
  if (experts > 0) p.grouping = Grouping::kContiguous;
  p.groups = experts;
  return p;
}

Result<GemmProblem> parse_gemm_shape(std::string_view mxnxk, std::string_view recipe) {
  std::array<std::int64_t, 3> counts{};
  if (Status s = parse_shape("the gemm shape", "MxNxK", mxnxk, counts); !s) {
    return tl::unexpected<Error>(s.error());
  }
  const auto row = recipe_named(recipe);
  if (!row) return tl::unexpected<Error>(row.error());
  const auto [m, n, k] = counts;
  return gemm_problem(**row, Pass::kFprop, m, n, k);
}

}  // namespace octile
