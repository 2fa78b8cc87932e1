#include "generator/quantize/layout.h"

#include <fmt/format.h>

#include <algorithm>

#include "generator/quantize/composition.h"

namespace octile {
namespace {

Status check_bytes(const QuantizedLayout& layout, std::int64_t rows, std::int64_t groups) {
  for (const ArrayShape& array : {layout.data, layout.scales}) {
    if (byte_size(array.outer, array.ld, array.element_bytes)) continue;
    return fail(ErrorCode::kInvalidArgument,
                fmt::format("rows is {} and groups is {}: {} x {} elements of {} bytes are beyond "
                            "the 2^63-1 bytes a tensor may have",
                            rows, groups, array.outer, array.ld, array.element_bytes));
  }
  return {};
}

}  // namespace

void lay_scales_by_row(QuantizedLayout& layout, std::int64_t rows, std::int64_t cols) {
  const std::int64_t blocks = ceil_div(cols, std::int64_t{128});
  layout.scales.outer = layout.scale_rows = rows;
  layout.scale_cols = blocks;
  layout.scales.inner = layout.scales.ld = round_up(blocks, std::int64_t{4});
}

Result<QuantizedLayout> quantized_layout(const QuantizeProblem& p, std::int64_t rows,
                                         std::int64_t groups, bool transposed) {
  const bool contiguous = p.grouping == Grouping::kContiguous;
  const bool behind_each_other =
      p.grouping == Grouping::kMasked || p.grouping == Grouping::kStacked;
  if (p.grouping != Grouping::kNone && (groups < 0 || groups > most_groups(p.grouping))) {
    return fail(ErrorCode::kInvalidArgument,
                fmt::format("groups is {}; allowed: 0 to {}", groups, most_groups(p.grouping)));
  }
  const bool aligned = contiguous && transposed && rows >= 0;
  auto layout = quantized_layout(p.q, aligned ? contiguous_columns(rows, groups) : rows, p.cols, 0,
                                 transposed);
  if (!layout) return layout;
  ArrayShape& scales = layout->scales;
  if (p.scale_layout == ScaleLayout::kSwizzled) scales.outer = round_up(scales.outer, kSwizzleRows);
  if (p.scale_layout == ScaleLayout::kByRow) lay_scales_by_row(*layout, rows, p.cols);
  if (contiguous && p.q.granularity == Granularity::kPerTensor) {
    scales.inner = scales.ld = layout->scale_cols = groups;
  }
  if (behind_each_other) {
    std::int64_t* const extents[] = {&layout->data.outer, &scales.outer, &layout->scale_rows};
    for (std::int64_t* extent : extents) {
      if (__builtin_mul_overflow(*extent, groups, extent)) {
        return fail(ErrorCode::kInvalidArgument,
                    fmt::format("rows is {} and groups is {}; allowed: at most 2^63-1 rows in all",
                                rows, groups));
      }
    }
  }
  if (Status ok = check_bytes(*layout, rows, groups); !ok) return tl::unexpected<Error>(ok.error());
  return layout;
}

}  // namespace octile
