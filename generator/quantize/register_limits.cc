#include "generator/quantize/register_limits.h"

#include <string>

#include "generator/quantize/fused_source.h"

// Every "false" below stands for a problem that spilled, or for a kind of problem of which some
// spilled. For computed values, 17 sources of one to four 16-bit inputs were compiled with every
// granularity and output, with a bias gradient, a tap and groups.
namespace octile {
namespace {

bool is_strips(Granularity g) { return g == Granularity::k1x128 || g == Granularity::k1x32; }

// Returns whether the source is a caller's expression and not one of the named ones.
bool is_own_expression(const QuantizeProblem& p) { return p.source.find('(') != std::string::npos; }

// Returns whether scales are put together before they are stored.
bool has_compact_scales(const QuantizeProblem& p) {
  return p.q.scale == ScaleFormat::kUe8m0x4 || p.q.scale == ScaleFormat::kBF16;
}

// Returns whether the source divides, which takes a function with registers of its own.
bool divides(const QuantizeProblem& p) {
  return p.source.find("div(") != std::string::npos ||
         p.source.find("reciprocal(") != std::string::npos;
}

// What a thread needs beside its patch.
struct Needs {
  bool both;  // outputs
  bool more;  // a tap or a bias gradient
  bool own;   // little arithmetic on several inputs, of which the assembler then keeps more
};

Needs needs_of(const QuantizeProblem& p) {
  return {.both = p.output == QuantizeOutput::kBoth,
          .more = p.tap || p.bias_gradient,
          .own = is_own_expression(p) && source_shape(p.source).inputs > 1};
}

// Two expressions, each in thread blocks of its own.
bool half_fits_64_registers(const QuantizeProblem& p, const Needs& needs) {
  if (needs.own || needs.more || p.q.scale == ScaleFormat::kUe8m0x4) return false;
  if (p.q.granularity == Granularity::kPerRow) return false;
  if (!needs.both) return p.q.granularity != Granularity::k1x32;
  return p.q.granularity == Granularity::k1x128 && !has_compact_scales(p) &&
         p.q.dtype == DType::kE4M3;
}

bool whole_fits_64_registers(const QuantizeProblem& p, const Needs& needs) {
  switch (p.q.granularity) {
    case Granularity::kPerRow:
      return true;
    case Granularity::kPerTensor:
      return !p.tap && !(needs.own && (needs.both || needs.more));
    case Granularity::k128x128:
    case Granularity::k32x32:
      return !needs.both || (!needs.more && !needs.own);
    case Granularity::k1x128:
      if (needs.both) return !needs.more && !has_compact_scales(p);
      return p.q.scale != ScaleFormat::kUe8m0x4 || (!needs.more && !needs.own);
    case Granularity::k1x32:
      return !needs.both && !needs.more && !needs.own;
    case Granularity::kNone:
      break;
  }
  return false;
}

bool computed_fits_64_registers(const QuantizeProblem& p) {
  const SourceShape source = source_shape(p.source);
  if (p.x.dtype == DType::kFP32 || source.inputs > 3 || (p.tap && p.bias_gradient)) return false;
  if (divides(p)) return false;
  const Needs needs = needs_of(p);
  return source.halves ? half_fits_64_registers(p, needs) : whole_fits_64_registers(p, needs);
}

}  // namespace

bool fits_64_registers(const QuantizeProblem& p) {
  if (p.scale_layout == ScaleLayout::kSwizzled || p.grouping != Grouping::kNone) return false;
  if (!p.source.empty()) return computed_fits_64_registers(p);
  if (p.bias_gradient) return false;
  // The scales of square blocks are stored when the patch is no longer needed.
  if (p.output == QuantizeOutput::kTransposed || !is_strips(p.q.granularity)) return true;
  return p.q.granularity == Granularity::k1x128 && p.q.dtype == DType::kE4M3 &&
         (p.q.scale == ScaleFormat::kF32 || p.q.scale == ScaleFormat::kF32Pow2);
}

bool fits_64_registers_by_halves(const QuantizeProblem& p) {
  if (p.scale_layout == ScaleLayout::kSwizzled || p.x.dtype == DType::kFP32) return false;
  if (is_own_expression(p) || (p.tap && p.bias_gradient)) return false;
  const bool both = p.output == QuantizeOutput::kBoth;
  switch (p.q.granularity) {
    case Granularity::k1x128:
      if (p.grouping != Grouping::kNone) return false;
      return !both || (!p.tap && !has_compact_scales(p));
    case Granularity::k1x32:
      return !both;
    case Granularity::kPerTensor:
      return !both || !p.bias_gradient;
    default:
      return true;
  }
}

}  // namespace octile
