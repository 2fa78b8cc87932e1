#include "runtime/reference/quantize_source.h"

#include <fmt/format.h>

#include <algorithm>
#include <string>
#include <utility>

#include "runtime/reference/quantize_kernels.h"

namespace octile::reference {
namespace {

constexpr std::int64_t kPiece = 128;  // elements computed together

}  // namespace

QuantizeSource::Inputs QuantizeSource::inputs_of(const QuantizeArgs& args, std::int64_t cols) {
  Inputs inputs;
  inputs[0] = {args.x, args.ldx};
  for (std::size_t i = 0; i < args.more.size(); ++i) {
    inputs[i + 1] = {args.more[i], args.more_ld[i]};
  }
  for (Input& input : inputs) {
    if (input.ld == 0) input.ld = cols;
  }
  return inputs;
}

Status QuantizeSource::check(const QuantizeProblem& problem, const QuantizeArgs& args) {
  const SourceShape shape = source_shape(problem.source);
  const std::int64_t cols = shape.halves ? problem.cols / 2 : problem.cols;
  const Inputs inputs = inputs_of(args, cols);
  for (std::size_t i = 0; std::cmp_less(i, shape.inputs); ++i) {
    const std::string name = i == 0 ? "x" : fmt::format("x{}", i);
    if (inputs[i].data == nullptr && args.rows > 0 && problem.cols > 0) {
      return fail(ErrorCode::kInvalidArgument,
                  fmt::format("{} is null; this problem writes or reads it", name));
    }
    if (inputs[i].ld < cols) {
      return fail(ErrorCode::kInvalidArgument,
                  fmt::format("ld{} is {}; 0 or at least {} is allowed", name, inputs[i].ld, cols));
    }
  }
  return {};
}

QuantizeSource::QuantizeSource(const QuantizeProblem& problem, const QuantizeArgs& args)
    : dtype_(problem.x.dtype), part_cols_(problem.cols) {
  if (!problem.source.empty()) fused_ = *fused_source(problem.source);
  if (fused_ && fused_->halves()) part_cols_ /= 2;
  inputs_ = inputs_of(args, part_cols_);
}

void QuantizeSource::read(std::int64_t row, std::int64_t col, std::int64_t count,
                          float* out) const {
  if (!fused_) {
    widen(inputs_[0].data, dtype_, row * inputs_[0].ld + col, count, out);
    return;
  }
  for (const Expr& part : fused_->parts) {
    const std::int64_t here = std::clamp<std::int64_t>(part_cols_ - col, 0, count);
    read_part(part, row, col, here, out);
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
      widen(inputs_[i].data, dtype_, row * inputs_[i].ld + col + begin, piece, wide[i].data());
      pointers[i] = wide[i].data();
    }
    part.evaluate(pointers, static_cast<std::size_t>(piece), out + begin);
  }
}

}  // namespace octile::reference
