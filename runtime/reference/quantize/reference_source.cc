#include "runtime/reference/quantize/reference_source.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "generator/core/elementary.h"
#include "runtime/reference/cast.h"
#include "runtime/reference/parallel.h"
#include "runtime/reference/quantize/reference_kernels.h"
#include "runtime/reference/quantize/reference_scale.h"

namespace octile::reference {
namespace {

constexpr std::int64_t kPiece = 128;  // number of elements computed together
constexpr std::int64_t kNormalisedRowsPerRange =
    16;  // number of rows that a thread normalises at a time

}  // namespace

QuantizeSource::QuantizeSource(const QuantizeProblem& problem)
    : problem_(problem), dtype_(problem.x.dtype), part_cols_(problem.cols) {
  if (!problem.source.empty()) fused_ = *fused_source(problem.source);
  if (fused_ && fused_->halves()) part_cols_ /= 2;
  if (!is_fp8(dtype_)) return;
  for (std::size_t code = 0; code < value_of_code_.size(); ++code)
    value_of_code_[code] = from_fp8(static_cast<std::uint8_t>(code), dtype_);
}

void QuantizeSource::open(const QuantizeCall& args) {
  rows_ = args.rows;
  inputs_[0] = {args.x, args.ldx};
  for (std::size_t i = 0; i < args.more.size(); ++i)
    inputs_[i + 1] = {args.more[i], args.more_ld[i]};
  row_factor_ = problem_.weighted ? args.row_factor : nullptr;
  if (is_fp8(dtype_))
    scales_ = {args.x_scale, problem_.x.scale, scale_index(problem_.x, args.x_scale_ld)};
  if (!fused_ || !fused_->norms) return;
  inputs_[1].ld = inputs_[2].ld = 0;  // one row
  rstd_ = args.rstd;
}

void QuantizeSource::norm(int threads) const {
  if (rstd_ == nullptr || !fused_ || !fused_->finds_rms) return;
  parallel_for(rows_, kNormalisedRowsPerRange, threads, [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t row = begin; row < end; ++row) rstd_[row] = norm_row(row);
  });
}

// Returns 1 / sqrt(mean(x^2) + epsilon). The squares are summed in the order of
// templates/quantize/norm.cuh.
float QuantizeSource::norm_row(std::int64_t row) const {
  constexpr std::int64_t kSums = 1024, kTogether = 4;
  std::array<float, kPiece> x{};
  std::array<float, kSums> sums{};
  for (std::int64_t begin = 0; begin < part_cols_; begin += kPiece) {
    const std::int64_t count = std::min(kPiece, part_cols_ - begin);
    widen(inputs_[0].data, dtype_, row * inputs_[0].ld + begin, count, x.data());
    for (std::int64_t i = 0; i < count; ++i) {
      const float value = x[static_cast<std::size_t>(i)];
      float& sum = sums[static_cast<std::size_t>((begin + i) / kTogether % kSums)];
      sum = std::fma(value, value, sum);
    }
  }
  for (std::size_t n = kSums / 2; n > 0; n /= 2) {
    for (std::size_t l = 0; l < n; ++l) sums[l] += sums[l + n];
  }
  return elementary::rsqrt(sums[0] / static_cast<float>(part_cols_) + problem_.norm_epsilon);
}

void QuantizeSource::read(std::int64_t row, std::int64_t col, std::int64_t count,
                          float* out) const {
  if (is_fp8(dtype_)) {
    read_scaled(row, col, count, out);
    return;
  }
  if (!fused_) {
    widen(inputs_[0].data, dtype_, row * inputs_[0].ld + col, count, out);
    if (problem_.via) round_to_bf16(out, count);
    return;
  }
  if (fused_->layer_norm) {
    read_normed(row, col, count, out);
    if (problem_.via) round_to_bf16(out, count);
    return;
  }
  for (const Expr& part : fused_->parts) {
    const std::int64_t here = std::clamp<std::int64_t>(part_cols_ - col, 0, count);
    read_part(part, row, col, here, out);
    for (std::int64_t i = 0; i < here && row_factor_ != nullptr; ++i) out[i] *= row_factor_[row];
    if (problem_.via) round_to_bf16(out, here);
    out += here;
    count -= here;
    col = std::max<std::int64_t>(col - part_cols_, 0);
  }
}

void QuantizeSource::read_part(const Expr& part, std::int64_t row, std::int64_t col,
                               std::int64_t count, float* out) const {
  const auto used = static_cast<std::size_t>(part.input_count());
  std::array<std::array<float, kPiece>, Expr::kMaxInputs> wide;  // NOLINT: written before read
  std::array<const float*, Expr::kMaxInputs> pointers{};
  for (std::int64_t begin = 0; begin < count; begin += kPiece) {
    const std::int64_t piece = std::min(kPiece, count - begin);
    for (std::size_t i = 0; i < used; ++i) {
      if (rstd_ != nullptr && i == 2) {
        wide[i].fill(rstd_[row]);
        pointers[i] = wide[i].data();
        continue;
      }
      widen(inputs_[i].data, dtype_, row * inputs_[i].ld + col + begin, piece, wide[i].data());
      pointers[i] = wide[i].data();
    }
    part.evaluate(pointers, static_cast<std::size_t>(piece), out + begin);
  }
}

void QuantizeSource::read_normed(std::int64_t row, std::int64_t col, std::int64_t count,
                                 float* out) const {
  std::array<float, kPiece> weight;  // NOLINT: written before read
  std::array<float, kPiece> bias;    // NOLINT: likewise
  const float mean = static_cast<const float*>(inputs_[3].data)[row];
  for (std::int64_t begin = 0; begin < count; begin += kPiece, out += kPiece) {
    const std::int64_t piece = std::min(kPiece, count - begin), at = col + begin;
    widen(inputs_[0].data, dtype_, row * inputs_[0].ld + at, piece, out);
    widen(inputs_[1].data, dtype_, at, piece, weight.data());
    widen(inputs_[2].data, dtype_, at, piece, bias.data());
    for (std::size_t i = 0; std::cmp_less(i, piece); ++i)
      out[i] = layer_norm(out[i], mean, rstd_[row], weight[i], bias[i]);
  }
}

// Reads block by block, because one scale serves all columns up to the next block.
void QuantizeSource::read_scaled(std::int64_t row, std::int64_t col, std::int64_t count,
                                 float* out) const {
  const auto* codes = static_cast<const std::uint8_t*>(inputs_[0].data) + row * inputs_[0].ld;
  const std::int64_t block = scales_.index.block_cols;
  for (const std::int64_t end = col + count; col < end;) {
    const std::int64_t left = block - col % block;
    const std::int64_t stop = left < end - col ? col + left : end;
    const float scale = load_scale(scales_.data, scales_.format, scales_.index(row, col));
    for (; col < stop; ++col) *out++ = value_of_code_[codes[col]] * scale;
  }
}

}  // namespace octile::reference
