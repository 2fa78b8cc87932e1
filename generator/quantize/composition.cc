#include "generator/quantize/composition.h"

#include <cstdint>

#include "generator/quantize/fused_source.h"
#include "generator/quantize/units.h"

namespace octile {

QuantizeTemplate template_of(const QuantizeProblem& p) {
  if (p.pieces == PiecesStep::kScales) return QuantizeTemplate::kScales;
  if (is_of_range(p)) return QuantizeTemplate::kRange;
  if (p.operation == QuantizeOperation::kDequantize) return QuantizeTemplate::kDequantize;
  if (p.operation == QuantizeOperation::kTranspose) return QuantizeTemplate::kTranspose;
  if (p.operation == QuantizeOperation::kGather) return QuantizeTemplate::kGather;
  if (p.bias_gradient) return QuantizeTemplate::kCtaTile;
  if (has_transposed(p.output)) return QuantizeTemplate::kCtaTile;
  const bool norms = source_shape(p.source).finds_rms;
  switch (p.q.granularity) {
    case Granularity::k128x128:
    case Granularity::k32x32:
      return QuantizeTemplate::kCtaTile;
    case Granularity::kPerRow:
      return norms ? QuantizeTemplate::kNormRows : QuantizeTemplate::kCtaRow;
    case Granularity::k1x128:
    case Granularity::k1x32:
      return norms ? QuantizeTemplate::kNormRows : QuantizeTemplate::kWarpTile;
    default:
      return QuantizeTemplate::kWarpTile;
  }
}

bool works_by_warps(const QuantizeProblem& p) {
  return template_of(p) == QuantizeTemplate::kRange || works_by_lone_warps(p);
}

bool works_by_lone_warps(const QuantizeProblem& p) {
  const QuantizeTemplate t = template_of(p);
  return t == QuantizeTemplate::kWarpTile || t == QuantizeTemplate::kDequantize ||
         t == QuantizeTemplate::kGather;
}

bool holds_whole_rows(const QuantizeProblem& p) {
  const QuantizeTemplate t = template_of(p);
  return t == QuantizeTemplate::kCtaRow || t == QuantizeTemplate::kNormRows;
}

FirstPass first_pass_of(const QuantizeProblem& p) {
  if (p.operation != QuantizeOperation::kQuantize) return FirstPass::kNone;
  if (p.policy == ScalePolicy::kDelayed || p.pieces != PiecesStep::kNone) return FirstPass::kNone;
  if (p.q.granularity == Granularity::kPerTensor) {
    return has_token_groups(p.grouping) ? FirstPass::kGroups : FirstPass::kTensor;
  }
  // A thread block of kCtaTile holds no whole row.
  const bool lines =
      p.q.granularity == Granularity::kPerRow && template_of(p) == QuantizeTemplate::kCtaTile;
  return lines ? FirstPass::kLines : FirstPass::kNone;
}

GroupWalk group_walk_of(const QuantizeProblem& p) {
  if (!has_token_groups(p.grouping)) return GroupWalk::kNone;
  if (p.grouping == Grouping::kMasked) return GroupWalk::kMasked;
  const bool by_group = p.q.granularity == Granularity::kPerTensor || has_transposed(p.output);
  return by_group ? GroupWalk::kGroupByGroup : GroupWalk::kAsOne;
}

DType source_type(const QuantizeProblem& p) {
  return p.source.empty() && !is_fp8(p.x.dtype) ? p.x.dtype : DType::kFP32;
}

DType value_type(const QuantizeProblem& p) { return p.via.value_or(source_type(p)); }

std::int64_t scale_extent(const QuantizeProblem& p) {
  if (p.q.granularity == Granularity::kPerTensor) return INT32_MAX;
  return p.q.granularity == Granularity::k32x32 ? kShortBlock : kScaleBlock;
}

bool holds_codes(const QuantizeProblem& p) {
  return is_fp8(p.x.dtype) && p.operation == QuantizeOperation::kQuantize &&
         template_of(p) == QuantizeTemplate::kCtaTile;
}

int elements_per_vector(const QuantizeProblem& p) {
  constexpr int kCodesAVector = 8;
  if (template_of(p) == QuantizeTemplate::kScales) return 1;
  switch (p.operation) {
    case QuantizeOperation::kQuantize:
    case QuantizeOperation::kAmax:
      return holds_codes(p) ? kCodesAVector : kVectorBytes / size_of(source_type(p));
    case QuantizeOperation::kDequantize:
      return kVectorBytes / size_of(p.q.dtype);
    case QuantizeOperation::kTranspose:
    case QuantizeOperation::kGather:
      return kVectorBytes;
  }
  return 1;
}

bool takes_half_width_tiles(const QuantizeProblem& p) {
  return template_of(p) == QuantizeTemplate::kCtaTile && p.source.empty() &&
         p.grouping == Grouping::kNone && !p.bias_gradient;
}

bool takes_few_rows(const QuantizeProblem& p) {
  const bool blocks_of_128 =
      p.q.granularity == Granularity::k1x128 || p.q.granularity == Granularity::k128x128;
  return takes_half_width_tiles(p) && blocks_of_128 && !is_fp8(p.x.dtype);
}

bool streams_rows(const QuantizeProblem& p) {
  return !p.source.empty() && template_of(p) == QuantizeTemplate::kWarpTile;
}

bool takes_both_halves(const QuantizeProblem& p) {
  if (!streams_rows(p) || !source_shape(p.source).halves) return false;
  const int block = p.q.granularity == Granularity::k1x128 ? kScaleBlock : kShortBlock;
  return p.cols / 2 % block == 0;
}

bool may_take_halves_together(const QuantizeProblem& p) {
  return template_of(p) == QuantizeTemplate::kCtaTile && has_transposed(p.output) &&
         source_shape(p.source).halves && p.cols / 2 % kScaleBlock == 0;
}

bool may_write_copies_apart(const QuantizeProblem& p) {
  return p.output == QuantizeOutput::kBoth && takes_half_width_tiles(p) && !holds_codes(p);
}

bool may_hold_tensor(const QuantizeProblem& p) {
  return template_of(p) == QuantizeTemplate::kWarpTile && first_pass_of(p) == FirstPass::kTensor &&
         p.source.empty() && p.grouping == Grouping::kNone && !is_fp8(p.x.dtype);
}

int streamed_columns(const QuantizeProblem& p) {
  return kWarp * kStreamedElements * (takes_both_halves(p) ? 2 : 1);
}

int warp_columns(const QuantizeProblem& p) { return kWarp * elements_per_vector(p); }

bool may_order_scales(const QuantizeProblem& p) {
  return template_of(p) == QuantizeTemplate::kCtaTile && has_transposed(p.output) &&
         p.q.granularity == Granularity::k1x32 && p.q.scale == ScaleFormat::kE8M0 &&
         p.scale_layout == ScaleLayout::kLinear && p.grouping == Grouping::kNone;
}

std::shared_ptr<const Lookup> lookup_of(const QuantizeProblem& p) {
  const bool streams = streams_rows(p) && p.grouping == Grouping::kNone;
  if (!streams || p.x.dtype != DType::kBF16) return nullptr;
  return lookup_of(p.source);
}

}  // namespace octile
