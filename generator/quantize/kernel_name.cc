#include "generator/quantize/kernel_name.h"

#include <fmt/format.h>

#include <string_view>

#include "generator/quantize/units.h"

namespace octile {
namespace {

std::string_view output_name(QuantizeOutput o) {
  return o == QuantizeOutput::kRowwise ? "row" : o == QuantizeOutput::kTransposed ? "col" : "both";
}

// Returns what tells kernels apart that differ in the rows they visit or in who finds the scale.
std::string_view step_name(const QuantizeProblem& p) {
  if (p.pieces == PiecesStep::kAmax) return "_range_amax";
  if (p.pieces == PiecesStep::kCast) return "_range_cast";
  if (p.pieces == PiecesStep::kScales) return "_range_scales";
  const bool delayed = p.policy == ScalePolicy::kDelayed;
  switch (p.grouping) {
    case Grouping::kContiguous:
      return delayed ? "_delayed_contiguous" : "_contiguous";
    case Grouping::kMasked:
      return delayed ? "_delayed_masked" : "_masked";
    case Grouping::kStacked:
      return "_stacked";
    default:
      return delayed ? "_delayed" : "";
  }
}

std::string_view layout_name(const QuantizeProblem& p) {
  switch (p.scale_layout) {
    case ScaleLayout::kSwizzled:
      return "swizzled";
    case ScaleLayout::kByRow:
      return "_by_row";
    case ScaleLayout::kLinear:
      return "";
  }
  return "";
}

// Returns "silu_mul_", "expression_" for a caller's own source, and nothing for x itself.
std::string source_name(const QuantizeProblem& p) {
  if (p.source.empty()) return "";
  const bool is_word = p.source.find_first_of("(,;") == std::string::npos;
  return fmt::format("{}_{}", is_word ? p.source : "expression", p.weighted ? "weighted_" : "");
}

std::string_view maxima_name(FirstPass pass) {
  switch (pass) {
    case FirstPass::kTensor:
      return "tensor";
    case FirstPass::kLines:
      return "lines";
    case FirstPass::kGroups:
      return "groups";
    case FirstPass::kNone:
      return "";
  }
  return "";
}

// Returns "e4m3_1x128_f32", or "bf16" for a type without scales.
std::string type_name(const TensorType& t) {
  if (t.granularity == Granularity::kNone) return std::string(name_of(t.dtype));
  return fmt::format("{}_{}_{}", name_of(t.dtype), name_of(t.granularity), name_of(t.scale));
}

// Returns the name of x's type, and of the type that it is rounded to on the way.
std::string input_name(const QuantizeProblem& p) {
  return type_name(p.x) + (p.via ? fmt::format("_via_{}", name_of(*p.via)) : "");
}

}  // namespace

std::string kernel_name(const QuantizeProblem& p, const QuantizeConfig& c) {
  const std::string what =
      p.operation == QuantizeOperation::kTranspose || p.operation == QuantizeOperation::kGather
          ? fmt::format("{}{}", type_name(p.q), step_name(p))
          : fmt::format("{}{}_{}{}{}{}_{}", source_name(p), input_name(p), type_name(p.q),
                        p.e8m0_rounding == E8M0Rounding::kOcpFloor ? "floor" : "", layout_name(p),
                        step_name(p), output_name(p.output));
  return fmt::format("octile_{}_{}{}_t{}x{}_w{}_occ{}{}{}{}{}{}{}", name_of(p.operation), what,
                     p.pieces == PiecesStep::kNone ? "" : "_pieces", c.tile_rows, c.tile_cols,
                     c.threads / kWarp, c.blocks_per_sm, c.rows_fastest ? "_down" : "",
                     c.looks_up ? "_lookup" : "", c.orders_scales ? "_ordered" : "",
                     c.halves_together ? "_halves" : "", c.copies_apart ? "_apart" : "",
                     c.cluster > 0 ? fmt::format("_cluster{}", c.cluster) : "");
}

std::string companion_name(const QuantizeProblem& p, Companion companion) {
  switch (companion) {
    case Companion::kFirstPass:
      return fmt::format("octile_amax_{}{}_{}", source_name(p), input_name(p),
                         maxima_name(first_pass_of(p)));
    case Companion::kScaleUpdate:
      return fmt::format("octile_scale_update_{}_{}", name_of(p.q.dtype), name_of(p.q.scale));
    case Companion::kRowNorm:
      return fmt::format("octile_row_norm_{}", name_of(p.x.dtype));
    case Companion::kBiasSum:
      return "octile_bias_sum";
    case Companion::kScaleOrder:
      return fmt::format("octile_scale_order_{}", output_name(p.output));
    case Companion::kFingerprint:
      return "octile_fingerprint";
  }
  return "";
}

}  // namespace octile
