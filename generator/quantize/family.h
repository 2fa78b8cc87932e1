// The quantise family: quantising, dequantising and transposing.
#pragma once

#include <span>
#include <string_view>

#include "generator/core/family.h"
#include "generator/quantize/candidates.h"
#include "generator/quantize/config.h"
#include "generator/quantize/cost.h"
#include "generator/quantize/emit.h"
#include "generator/quantize/kernel_name.h"
#include "generator/quantize/problem.h"
#include "generator/quantize/support.h"

namespace octile {

template <>
struct Family<QuantizeProblem> {
  using Config = QuantizeConfig;
  static constexpr std::string_view kName = "quantize";
  static constexpr bool kEstimatesTime = false;

  static std::span<const std::string_view> operations() { return quantize_operations(); }
  static std::span<const SupportRow> support_rows() { return quantize_support_rows(); }
  static Result<QuantizeProblem> parse_problem(std::span<const std::string_view> words) {
    return parse_quantize_problem(words);
  }
  static Result<QuantizeConfig> parse_config(std::string_view text) {
    return parse_quantize_config(text);
  }
};
static_assert(KernelFamily<QuantizeProblem>);

}  // namespace octile
