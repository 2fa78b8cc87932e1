// Reads the values that the host quantiser quantises, run by run as fp32. A fused source is
// computed with the device's operations in the device's order. FP8 codes are multiplied by their
// scales.
#pragma once

#include <array>
#include <cstdint>
#include <optional>

#include "generator/quantize/fused_source.h"
#include "generator/quantize/problem.h"
#include "runtime/reference/quantize/reference.h"
#include "runtime/reference/scale_index.h"

namespace octile::reference {

class QuantizeSource {
 public:
  // The problem must outlive the source. Throws std::bad_alloc; nothing else here allocates.
  explicit QuantizeSource(const QuantizeProblem& problem);

  // Takes the tensors of a call, which must outlive the reading.
  void open(const QuantizeCall& args);

  // Computes and writes rstd of a source that finds it, which comes before reading.
  void norm(int threads) const;

  // Sets out[i] to the value of element (row, col + i) for i < count. May be called from any
  // thread.
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

  float norm_row(std::int64_t row) const;
  void read_part(const Expr& part, std::int64_t row, std::int64_t col, std::int64_t count,
                 float* out) const;
  void read_normed(std::int64_t row, std::int64_t col, std::int64_t count, float* out) const;
  void read_scaled(std::int64_t row, std::int64_t col, std::int64_t count, float* out) const;

  const QuantizeProblem& problem_;
  DType dtype_;
  std::optional<FusedSource> fused_;  // empty: x itself
  std::int64_t part_cols_;            // number of columns of one expression
  Inputs inputs_;
  Scales scales_;                           // scales of FP8 x
  std::array<float, 256> value_of_code_{};  // for FP8 x
  std::int64_t rows_ = 0;
  float* rstd_ = nullptr;              // of a norm
  const float* row_factor_ = nullptr;  // of a weighted source
};

}  // namespace octile::reference
