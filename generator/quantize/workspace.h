// The workspace of a quantising launch.
#pragma once

#include <cstdint>

#include "generator/quantize/composition.h"
#include "generator/quantize/problem.h"

namespace octile {

// The maxima of the first pass, followed from bias_offset on by the sums of every 128 rows'
// columns. Problem and device settle everything here, so that a launch has only this arithmetic
// left.
struct QuantizeWorkspace {
  FirstPass first_pass = FirstPass::kNone;
  std::int64_t maxima_fixed_bytes = 0;    // for any number of rows
  std::int64_t maxima_bytes_per_row = 0;  // for each row, in addition
  std::int64_t sums_bytes = 0;            // for 128 rows; 0: no bias gradient
  // Those of each stacked tensor begin where a thread loads 16 bytes.
  bool stacked = false;

  std::int64_t maxima_bytes(std::int64_t rows) const {
    return maxima_fixed_bytes + maxima_bytes_per_row * rows;
  }
  std::int64_t bias_offset(std::int64_t rows) const;
  std::int64_t bytes(std::int64_t rows) const;
};
QuantizeWorkspace workspace_of(const QuantizeProblem&, int sm_count);

}  // namespace octile
