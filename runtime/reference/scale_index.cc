#include "runtime/reference/scale_index.h"

#include <fmt/format.h>

#include <limits>

#include "generator/layout.h"

namespace octile::reference {
namespace {

constexpr std::int64_t kBlock = 128;
constexpr std::int64_t kWhole = std::numeric_limits<std::int64_t>::max();

}  // namespace

Result<ScaleIndex> scale_index(const TensorType& type, std::int64_t rows, std::int64_t cols,
                               std::int64_t scale_ld, bool transposed) {
  if (type.scale != ScaleFormat::kF32 && type.scale != ScaleFormat::kF32Pow2) {
    return fail(
        ErrorCode::kUnsupported,
        fmt::format("the host reference executor keeps fp32 scales (f32, pow2); the type is "
                    "{}",
                    to_text(type)));
  }
  const auto layout = quantized_layout(type, rows, cols, 0, transposed);
  if (!layout) return tl::unexpected(layout.error());
  if (type.granularity == Granularity::kPerTensor) return ScaleIndex{kWhole, kWhole, 0, 0};
  if (type.granularity == Granularity::kPerRow) return ScaleIndex{1, kWhole, 1, 0};

  const bool square = type.granularity == Granularity::k128x128;
  // The 1x128 row-wise scales and the transposed 128x128 ones have rows innermost, the others
  // columns.
  const bool rows_innermost = square == transposed;
  const std::int64_t block_rows = square || transposed ? kBlock : 1;
  const std::int64_t block_cols = square || !transposed ? kBlock : 1;
  const std::int64_t inner =
      rows_innermost ? ceil_div(rows, block_rows) : ceil_div(cols, block_cols);
  const std::int64_t ld = scale_ld == 0 ? layout->scales.ld : scale_ld;
  if (ld < inner) {
    return fail(ErrorCode::kInvalidArgument,
                fmt::format("scale_ld is {}; {} scales of a {} x {} tensor need at least {}", ld,
                            to_text(type), rows, cols, inner));
  }
  return rows_innermost ? ScaleIndex{block_rows, block_cols, 1, ld}
                        : ScaleIndex{block_rows, block_cols, ld, 1};
}

}  // namespace octile::reference
