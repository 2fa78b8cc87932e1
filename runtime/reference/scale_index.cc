#include "runtime/reference/scale_index.h"

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

ScaleIndex scale_index(const TensorType& type, std::int64_t ld, bool transposed, bool swizzled) {
  ScaleIndex index = rowwise_index(type, ld);
  if (transposed) {
    std::swap(index.block_rows, index.block_cols);
    std::swap(index.row_step, index.col_step);
  }
  if (swizzled) index.swizzle_tiles = ld / 4;
  return index;
}

ScaleIndex packed_scale_index(const TensorType& type, std::int64_t rows, std::int64_t cols,
                              bool transposed) {
  return scale_index(type, packed_scale_ld(type, rows, cols, transposed), transposed);
}

}  // namespace octile::reference
