#include "generator/quantize/workspace.h"

#include "generator/quantize/grid.h"
#include "generator/quantize/units.h"

namespace octile {
namespace {

constexpr std::int64_t kWord = 4;  // bytes of a maximum and of a sum

}  // namespace

QuantizeWorkspace workspace_of(const QuantizeProblem& p, int sm_count) {
  QuantizeWorkspace w;
  w.first_pass = first_pass_of(p);
  switch (w.first_pass) {
    case FirstPass::kTensor:
      w.maxima_fixed_bytes = kWord * most_partial_maxima(p, sm_count);
      break;
    case FirstPass::kLines:
      w.maxima_fixed_bytes = kWord * p.cols;
      w.maxima_bytes_per_row = kWord;
      break;
    case FirstPass::kGroups:
      w.maxima_fixed_bytes = kWord * kMostGroups;
      break;
    case FirstPass::kNone:
      break;
  }
  if (p.bias_gradient) w.sums_bytes = kWord * p.cols;
  w.stacked = p.grouping == Grouping::kStacked;
  return w;
}

std::int64_t QuantizeWorkspace::bias_offset(std::int64_t rows) const {
  return round_up(maxima_bytes(rows), kVectorBytes);
}

std::int64_t QuantizeWorkspace::bytes(std::int64_t rows) const {
  if (stacked) return bias_offset(rows);
  if (sums_bytes == 0) return maxima_bytes(rows);
  return bias_offset(rows) + ceil_div(rows, kScaleBlock) * sums_bytes;
}

}  // namespace octile
