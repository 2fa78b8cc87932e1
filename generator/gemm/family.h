// The GEMM family.
#pragma once

#include <array>
#include <span>
#include <string_view>

#include "generator/core/family.h"
#include "generator/gemm/candidates.h"
#include "generator/gemm/config.h"
#include "generator/gemm/cost.h"
#include "generator/gemm/emit.h"
#include "generator/gemm/problem.h"
#include "generator/gemm/support.h"

namespace octile {

template <>
struct Family<GemmProblem> {
  using Config = GemmConfig;
  static constexpr std::string_view kName = "gemm";
  static constexpr bool kEstimatesTime = true;
  static constexpr std::array<std::string_view, 1> kOperations{"gemm"};

  static std::span<const std::string_view> operations() { return kOperations; }
  static std::span<const SupportRow> support_rows() { return gemm_support_rows(); }
  static Result<GemmProblem> parse_problem(std::span<const std::string_view> words) {
    return parse_gemm_problem(words);
  }
  static Result<GemmConfig> parse_config(std::string_view text) { return parse_gemm_config(text); }
};
static_assert(KernelFamily<GemmProblem>);

}  // namespace octile
