#include "runtime/reference/scale_index.h"

#include <fmt/format.h>

#include <limits>
#include <utility>

#include "generator/core/layout.h"

namespace octile::reference {
namespace {

constexpr std::int64_t kWhole = std::numeric_limits<std::int64_t>::max();
constexpr std::int64_t kPackedBlocks = 4;

// Returns the index of the row-wise layout. `ld` is the distance, in scales, between runs.
ScaleIndex rowwise_index(const TensorType& type, std::int64_t ld) {
  switch (type.granularity) {
    case Granularity::kPerRow:
      return {1, kWhole, 1, 0};
    case Granularity::k1x128:
      if (type.scale == ScaleFormat::kUe8m0x4) {
        return {1, 128, kPackedBlocks, kPackedBlocks * ld, kPackedBlocks};
      }
      return {1, 128, 1, ld};
    case Granularity::k128x128:
      return {128, 128, ld, 1};
    case Granularity::k1x32:
      return {1, 32, ld, 1};
    case Granularity::k32x32:
      return {32, 32, ld, 1};
    default:
      return {kWhole, kWhole, 0, 0};
  }
}

}  // namespace

Result<ScaleIndex> scale_index(const TensorType& type, std::int64_t rows, std::int64_t cols,
                               std::int64_t scale_ld, bool transposed, bool swizzled) {
  const auto layout = quantized_layout(type, rows, cols, 0, transposed);
  if (!layout) return tl::unexpected(layout.error());
  const std::int64_t ld = scale_ld == 0 ? layout->scales.ld : scale_ld;
  if (ld < layout->scale_cols) {
    return fail(ErrorCode::kInvalidArgument,
                fmt::format("scale_ld is {}; {} scales of a {} x {} tensor need at least {}", ld,
                            to_text(type), rows, cols, layout->scale_cols));
  }
  ScaleIndex index = rowwise_index(type, ld);
  if (transposed) {
    std::swap(index.block_rows, index.block_cols);
    std::swap(index.row_step, index.col_step);
  }
  if (swizzled) index.swizzle_tiles = layout->scales.ld / 4;
  return index;
}

}  // namespace octile::reference
