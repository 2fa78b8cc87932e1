// Tensors quantised on the host and read element by element, for tests about values.
#pragma once

#include <gtest/gtest.h>

#include <cstdint>
#include <utility>
#include <vector>

#include "generator/core/layout.h"
#include "generator/families.h"
#include "runtime/reference/cast.h"
#include "runtime/reference/quantize/reference_scale.h"
#include "runtime/reference/scale_index.h"
#include "tests/support/quantize_call.h"

namespace octile::tests {

// One output of a quantisation. (row, col) are the element's indices in x, also for the transposed
// copy.
struct HostQuantized {
  TensorType type;
  std::int64_t rows = 0, cols = 0, ld = 0;
  bool transposed = false;
  std::vector<std::uint8_t> codes, scales;
  reference::ScaleIndex index;

  std::uint8_t code(std::int64_t row, std::int64_t col) const {
    return codes[static_cast<std::size_t>(transposed ? col * ld + row : row * ld + col)];
  }
  float scale(std::int64_t row, std::int64_t col) const {
    return reference::load_scale(scales.data(), type.scale, index(row, col));
  }
  float value(std::int64_t row, std::int64_t col) const {
    return reference::from_fp8(code(row, col), type.dtype) * scale(row, col);
  }
};

inline HostQuantized empty_output(const QuantizeProblem& p, std::int64_t rows, bool transposed) {
  const auto layout = quantized_layout(p.q, rows, p.cols, 0, transposed).value();
  HostQuantized out{p.q, rows, p.cols, layout.data.ld, transposed, {}, {}, {}};
  out.codes.resize(static_cast<std::size_t>(layout.data.bytes()));
  out.scales.resize(static_cast<std::size_t>(layout.scales.bytes()));
  out.index = reference::packed_scale_index(p.q, rows, p.cols, transposed);
  return out;
}

// Returns the row-wise and the transposed output. An output that the problem does not have is
// empty.
inline std::pair<HostQuantized, HostQuantized> quantize_on_host(const QuantizeProblem& p,
                                                                std::int64_t rows, const void* x,
                                                                const void* x_scale = nullptr) {
  std::pair<HostQuantized, HostQuantized> out;
  QuantizeArguments args;
  args.rows = rows;
  args.x = x;
  args.source_scales.x_scale = x_scale;
  if (has_rowwise(p.output)) {
    out.first = empty_output(p, rows, false);
    args.q = out.first.codes.data();
    args.scale = out.first.scales.data();
  }
  if (has_transposed(p.output)) {
    out.second = empty_output(p, rows, true);
    args.q_transposed = out.second.codes.data();
    args.scale_transposed = out.second.scales.data();
  }
  const Status status = run_reference(p, args);
  EXPECT_TRUE(status) << status.error().message;
  return out;
}

// Returns the dequantised values of a row-wise output, fp32 [rows][cols].
inline std::vector<float> values_of(const HostQuantized& q) {
  std::vector<float> values;
  values.reserve(static_cast<std::size_t>(q.rows * q.cols));
  for (std::int64_t r = 0; r < q.rows; ++r) {
    for (std::int64_t c = 0; c < q.cols; ++c) values.push_back(q.value(r, c));
  }
  return values;
}

}  // namespace octile::tests
