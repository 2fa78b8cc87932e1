#include "runtime/reference/quantize/reference_gather.h"

#include <algorithm>
#include <cstring>

#include "generator/core/layout.h"
#include "runtime/reference/parallel.h"
#include "runtime/reference/quantize/reference_scale.h"
#include "runtime/reference/scale_index.h"

namespace octile::reference {
namespace {

constexpr std::int64_t kGatheredRowsPerRange = 16;  // number of rows that a thread takes at a time
constexpr std::int64_t kScaleColumns = 128;

}  // namespace

Status gather(const QuantizeProblem& problem, const QuantizeCall& args, int threads) {
  const auto layout = quantized_layout(problem.q, args.rows, problem.cols);
  if (!layout) return tl::unexpected<Error>(layout.error());
  const ScaleIndex to = scale_index(problem.q, args.scale_ld);
  const std::int64_t blocks = ceil_div(problem.cols, kScaleColumns);
  fill_scales_with_ones(*layout, problem.q, args.scale_ld, args.scale);
  parallel_for(
      args.rows, kGatheredRowsPerRange, threads, [&](std::int64_t begin, std::int64_t end) {
        for (std::int64_t row = begin; row < end; ++row) {
          const std::int64_t from =
              std::clamp<std::int64_t>(args.row_index[row], 0, args.row_count - 1);
          std::memcpy(static_cast<char*>(args.q) + row * args.ldq,
                      static_cast<const char*>(args.x) + from * args.ldx,
                      static_cast<std::size_t>(problem.cols));
          const float* const scales =
              static_cast<const float*>(args.x_scale) + from * args.x_scale_ld;
          for (std::int64_t block = 0; block < blocks; ++block)
            static_cast<float*>(args.scale)[to(row, block * kScaleColumns)] = scales[block];
        }
      });
  return {};
}

}  // namespace octile::reference
