// The steps of a flat range of a tensor on the host. Their codes and scales have the bits of
// quantising the whole tensor.
#pragma once

#include <cstdint>

#include "generator/core/error.h"
#include "generator/quantize/problem.h"
#include "runtime/reference/quantize/reference.h"

namespace octile::reference {

// The range of one piece, and the arrays of its whole tensor. The tensor's scales lie in the
// layout's own stride.
struct RangeCall {
  std::int64_t rows = 0;  // of the whole tensor
  std::int64_t start = 0, length = 0;
  const void* x = nullptr;  // the range alone, as q
  void* q = nullptr;
  float* amax = nullptr;  // one for each scale
  void* scale = nullptr;
  void* scale_transposed = nullptr;  // may be null
  std::uint64_t* nonfinite = nullptr;
};

// Runs a step of one piece: raises the maxima by the range (kAmax), makes the scales of the whole
// tensor of them (kScales; those of the transposed copy if it is given), or writes the range's
// codes (kCast). The problem is that of pieces.h for the piece.
Status quantize_range(const QuantizeProblem& problem, const RangeCall& call, int threads = 0);

// Runs a problem of operation "amax": raises args.amax to the largest finite |x|, and counts what
// is not finite.
Status find_amax(const QuantizeProblem& problem, const QuantizeCall& args, int threads);

}  // namespace octile::reference
