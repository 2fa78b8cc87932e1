// What the host quantiser quantises: the values of the source, read run by run as fp32; of a fused
// source computed in the operations of the device, in their order, of FP8 codes times their scales.
#pragma once

#include <array>
#include <cstdint>
#include <optional>

#include "generator/core/error.h"
#include "generator/quantize/fused_source.h"
#include "generator/problem.h"
#include "runtime/families/quantize/reference.h"
#include "runtime/reference/scale_index.h"

namespace octile::reference {

class QuantizeSource {
 public:
  // Errors: kInvalidArgument for an input or scales that are missing, or a leading dimension that
  // is too small; kUnsupported for FP8 x without a layout.
  static Status check(const QuantizeProblem& problem, const QuantizeArgs& args);

  // The arguments are valid and outlive it. Of RMSNorm computes and writes args.rstd.
  QuantizeSource(const QuantizeProblem& problem, const QuantizeArgs& args, int threads);

  // out[i] = the value of element (row, col + i), i < count. From any thread.
  void read(std::int64_t row, std::int64_t col, std::int64_t count, float* out) const;

 private:
  struct Input {
    const void* data = nullptr;
    std::int64_t ld = 0;
  };
  using Inputs = std::array<Input, Expr::kMaxInputs>;

  struct Scales {
    const void* data = nullptr;
    ScaleFormat format = ScaleFormat::kNone;
    ScaleIndex index;
  };

  // With every leading dimension filled in, inputs being `cols` wide.
  static Inputs inputs_of(const QuantizeArgs& args, std::int64_t cols);
  float norm_row(std::int64_t row, std::int64_t cols, float epsilon) const;
  void read_part(const Expr& part, std::int64_t row, std::int64_t col, std::int64_t count,
                 float* out) const;
  void read_scaled(std::int64_t row, std::int64_t col, std::int64_t count, float* out) const;

  DType dtype_;
  std::optional<FusedSource> fused_;  // none: x itself
  std::int64_t part_cols_;            // columns of one expression
  Inputs inputs_;
  Scales scales_;                           // of FP8 x
  std::array<float, 256> value_of_code_{};  // of FP8 x
  const float* rstd_ = nullptr;             // of RMSNorm
};

}  // namespace octile::reference
