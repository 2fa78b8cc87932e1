// What the host quantiser quantises: the values of the source, read tile by tile as fp32.
#pragma once

#include <cstdint>

#include "generator/problem.h"
#include "runtime/reference/quantize.h"

namespace octile::reference {

// Both arguments must outlive it. They are valid.
class QuantizeSource {
 public:
  QuantizeSource(const QuantizeProblem& problem, const QuantizeArgs& args)
      : problem_(problem), args_(args), ldx_(args.ldx == 0 ? problem.cols : args.ldx) {}

  // out[i] = the value of element (row, col + i), i < count. From any thread.
  void read(std::int64_t row, std::int64_t col, std::int64_t count, float* out) const;

 private:
  const QuantizeProblem& problem_;
  const QuantizeArgs& args_;
  std::int64_t ldx_;
};

}  // namespace octile::reference
