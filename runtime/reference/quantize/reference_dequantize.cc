#include "runtime/reference/quantize/reference_dequantize.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <cstring>
#include <span>

#include "generator/core/layout.h"
#include "runtime/reference/cast.h"
#include "runtime/reference/parallel.h"
#include "runtime/reference/quantize/reference_scale.h"
#include "runtime/reference/quantize/reference_source.h"
#include "runtime/reference/scale_index.h"

namespace octile::reference {
namespace {

constexpr std::int64_t kDequantizedRowsPerRange =
    16;                                        // number of rows that a thread takes at a time
constexpr std::int64_t kValuesTogether = 128;  // number of elements dequantised together
constexpr std::int64_t kTransposedColumns =
    128;  // number of columns of x that a thread transposes at a time
constexpr std::uint32_t kNanBits = 0x7FFFFFFF;  // the NaN that the device's arithmetic writes

void store_values(std::span<const float> row, DType dtype, void* q, std::int64_t offset) {
  for (std::size_t c = 0; c < row.size(); ++c) {
    const std::size_t at = static_cast<std::size_t>(offset) + c;
    if (dtype == DType::kFP32) {
      const float value = std::isnan(row[c]) ? std::bit_cast<float>(kNanBits) : row[c];
      static_cast<float*>(q)[at] = value;
    } else {
      static_cast<std::uint16_t*>(q)[at] =
          dtype == DType::kBF16 ? float_to_bf16(row[c]) : float_to_fp16(row[c]);
    }
  }
}

// Copies a scale as bytes, because a transposition needs only the scales' places and not their
// values.
void copy_scale(const void* from, std::int64_t i, void* to, std::int64_t j, int bytes) {
  std::memcpy(static_cast<char*>(to) + j * bytes, static_cast<const char*>(from) + i * bytes,
              static_cast<std::size_t>(bytes));
}

}  // namespace

Status dequantize(const QuantizeProblem& problem, const QuantizeCall& args, int threads) {
  QuantizeSource source(problem);
  source.open(args);
  const std::int64_t cols = problem.cols;
  parallel_for(args.rows, kDequantizedRowsPerRange, threads,
               [&](std::int64_t begin, std::int64_t end) {
                 std::array<float, kValuesTogether> values{};
                 for (std::int64_t i = begin * cols; i < end * cols;) {
                   const std::int64_t row = i / cols, col = i % cols;
                   const std::int64_t count = std::min(kValuesTogether, cols - col);
                   source.read(row, col, count, values.data());
                   store_values({values.data(), static_cast<std::size_t>(count)}, problem.q.dtype,
                                args.q, row * args.ldq + col);
                   i += count;
                 }
               });
  return {};
}

Status transpose(const QuantizeProblem& problem, const QuantizeCall& args, int threads) {
  const ScaleIndex from = scale_index(problem.x, args.x_scale_ld);
  const ScaleIndex to = scale_index(problem.q, args.scale_ld_transposed, true);
  const auto layout = quantized_layout(problem.q, args.rows, problem.cols, 0, true);
  if (!layout) return tl::unexpected<Error>(layout.error());
  const std::int64_t ldq = args.ldq_transposed;
  const auto* x = static_cast<const std::uint8_t*>(args.x);
  auto* q = static_cast<std::uint8_t*>(args.q_transposed);
  parallel_for(
      problem.cols, kTransposedColumns, threads, [&](std::int64_t begin, std::int64_t end) {
        for (std::int64_t row = 0; row < ldq; ++row) {
          for (std::int64_t col = begin; col < end; ++col) {
            const std::uint8_t code = row < args.rows ? x[row * args.ldx + col] : std::uint8_t{0};
            q[col * ldq + row] = code;
          }
        }
      });
  fill_scales_with_ones(*layout, problem.q, args.scale_ld_transposed, args.scale_transposed);
  for (std::int64_t row = 0; row < args.rows; row += std::min(from.block_rows, args.rows)) {
    for (std::int64_t col = 0; col < problem.cols; col += std::min(from.block_cols, problem.cols)) {
      copy_scale(args.x_scale, from(row, col), args.scale_transposed, to(row, col),
                 layout->scales.element_bytes);
    }
  }
  return {};
}

Status dequantize(const TensorType& type, std::int64_t rows, std::int64_t cols, const void* q,
                  const void* scale, float* out, int threads) {
  QuantizeProblem problem;
  problem.operation = QuantizeOperation::kDequantize;
  problem.cols = cols;
  problem.x = type;
  problem.q = {DType::kFP32};
  QuantizeCall args;
  args.rows = rows;
  args.x = q;
  args.ldx = default_ld(type.dtype, cols);
  args.x_scale = scale;
  args.x_scale_ld = packed_scale_ld(type, rows, cols);
  args.q = out;
  args.ldq = cols;
  return quantize(problem, args, threads);
}

}  // namespace octile::reference
