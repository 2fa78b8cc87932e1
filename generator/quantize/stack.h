// Stacked tensors: tensors of one shape, one after the other, each with its own scales and copies.
// A launch has a row of thread blocks for each of them.
#pragma once

#include <cstdint>

#include "generator/quantize/kernel_args.h"
#include "generator/quantize/problem.h"

namespace octile {

// The bytes that a launch keeps for each tensor that it compares: an octile_fingerprint.
inline constexpr std::int64_t kFingerprintBytes = 48;

// The bytes by which the pointers of the next stacked tensor are larger.
struct StackSteps {
  std::int64_t x = 0, q = 0, scale = 0, q_transposed = 0, scale_transposed = 0, x_scale = 0;
};

// The leading dimensions of a call, complete.
struct StackStrides {
  std::int64_t rows = 0, ldx = 0, ldq = 0, scale_ld = 0, x_scale_ld = 0;
};

StackSteps stack_steps(const QuantizeProblem&, const StackStrides&);

// Returns the parameter of a launch. first: the arguments of the first tensor. maxima_bytes: what
// each tensor has of the workspace.
StackKernelArgs stack_args(const QuantizeProblem&, const QuantizeKernelArgs& first,
                           std::int64_t maxima_bytes);

}  // namespace octile
