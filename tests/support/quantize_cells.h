// Every numerics cell the quantise templates implement, for tests that sweep them.
#pragma once

#include <string>
#include <vector>

#include "generator/problem.h"

namespace octile::tests {

inline std::vector<QuantizeProblem> quantize_cells(std::int64_t cols) {
  std::vector<QuantizeProblem> cells;
  for (const Granularity granularity : {Granularity::k1x128, Granularity::k128x128}) {
    for (const DType x : {DType::kBF16, DType::kFP16, DType::kFP32}) {
      for (const DType q : {DType::kE4M3, DType::kE5M2}) {
        for (const ScaleFormat scale : {ScaleFormat::kF32, ScaleFormat::kF32Pow2}) {
          QuantizeProblem p;
          p.cols = cols;
          p.x = x;
          p.q = {q, granularity, scale};
          cells.push_back(p);
        }
      }
    }
  }
  return cells;
}

}  // namespace octile::tests
